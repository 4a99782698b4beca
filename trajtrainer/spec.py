"""What a behaviour sees and does: the spec classes of ``mlagents_envs`` and the parsing of behaviour ids."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from urllib.parse import parse_qs, urlparse

from mlagents_envs.base_env import (
    ActionSpec,
    ActionTuple,
    BehaviorSpec,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
)

from trajtrainer.errors import UnsupportedError

__all__ = [
    "ActionSpec",
    "ActionTuple",
    "BehaviorId",
    "BehaviorSpec",
    "DimensionProperty",
    "ObservationKind",
    "ObservationSpec",
    "ObservationType",
    "observation_kind",
]


class ObservationKind(enum.Enum):
    """How an observation is encoded."""

    VECTOR = "vector"  # [size]
    VISUAL = "visual"  # [channels, height, width]
    VARIABLE_LENGTH = "variable-length"  # [max entities, entity size]


_VISUAL_PROPERTIES = (
    (
        DimensionProperty.NONE,
        DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
        DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
    ),
    (DimensionProperty.UNSPECIFIED,) * 3,
)
_VECTOR_PROPERTIES = ((DimensionProperty.NONE,), (DimensionProperty.UNSPECIFIED,))
_VARIABLE_LENGTH_PROPERTIES = ((DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE),)


def observation_kind(spec: ObservationSpec) -> ObservationKind:
    """The kind of an observation, by its dimension properties as the peer decides it (reference 4.8).

    Raises:
        UnsupportedError: the properties fit no encoder.
    """
    properties = tuple(spec.dimension_property)
    if properties in _VECTOR_PROPERTIES:
        return ObservationKind.VECTOR
    if properties in _VISUAL_PROPERTIES:
        return ObservationKind.VISUAL
    if properties in _VARIABLE_LENGTH_PROPERTIES:
        return ObservationKind.VARIABLE_LENGTH
    raise UnsupportedError(
        f"Sensor {spec.name!r} of shape {tuple(spec.shape)} has the dimension properties "
        f"{[p.name for p in properties]}, which no encoder takes. Expected a vector (1 dimension), a picture "
        "(channels, height, width; for the encoders simple, nature_cnn, resnet, match3 and fully_connected) or a list "
        "of entities (variable number, size; for attention). Change the sensor in Unity."
    )


@dataclass(frozen=True, slots=True)
class BehaviorId:
    """A behaviour as Unity names it, ``Name?team=1``: the YAML key and the team.

    >>> BehaviorId.parse("SoccerTwos?team=1")
    BehaviorId(full='SoccerTwos?team=1', name='SoccerTwos', team=1)
    """

    full: str
    name: str
    team: int

    @classmethod
    def parse(cls, full: str) -> BehaviorId:
        parts = urlparse(full)
        team = parse_qs(parts.query).get("team", ["0"])[0]
        name = full.split("?", 1)[0]
        return cls(full=full, name=name, team=int(team) if team.lstrip("-").isdigit() else 0)
