"""Observations and actions of a behavior: the spec classes of ``mlagents_envs``, and the parsing of behavior ids."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import numpy as np
from mlagents_envs.base_env import (
    ActionSpec,
    ActionTuple,
    BehaviorSpec,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
)
from numpy.typing import NDArray

from trajtrainer.core.errors import InvalidDataError, SettingsError, UnsupportedError

__all__ = [
    "USUAL_PROPERTIES",
    "ActionSpec",
    "ActionTuple",
    "BehaviorId",
    "BehaviorSpec",
    "DimensionProperty",
    "ObservationKind",
    "ObservationSpec",
    "ObservationType",
    "first_allowed",
    "observation_kind",
    "sensors_named",
    "sensors_seen",
    "spec_from_plain",
    "spec_to_plain",
    "usual_sensor",
    "with_sensors",
]

USUAL_PROPERTIES: Mapping[int, tuple[DimensionProperty, ...]] = {
    1: (DimensionProperty.NONE,),
    2: (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE),
    3: (
        DimensionProperty.NONE,
        DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
        DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
    ),
}
"""Number of dimensions -> dimension properties: 1 for a vector, 2 for a list of entities, 3 for an image."""
_VECTOR_PROPERTIES = (USUAL_PROPERTIES[1], (DimensionProperty.UNSPECIFIED,))
_VISUAL_PROPERTIES = (USUAL_PROPERTIES[3], (DimensionProperty.UNSPECIFIED,) * 3)
_TEAM = re.compile(r"-?[0-9]{1,10}")
_LONGEST_SHOWN = 40


class ObservationKind(enum.Enum):
    """The kind of encoder that an observation needs."""

    VECTOR = "vector"  # [size]
    VISUAL = "visual"  # [channels, height, width]
    VARIABLE_LENGTH = "variable-length"  # [max entities, entity size]


def first_allowed(actions: ActionSpec, mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return the first allowed action of each branch, i32 [N, K]. ``mask`` is bool [N, D], True means forbidden."""
    chosen = np.zeros((len(mask), actions.discrete_size), np.int32)
    begin = 0
    for branch, size in enumerate(actions.discrete_branches):
        chosen[:, branch] = mask[:, begin : begin + size].argmin(axis=1)
        begin += size
    return chosen


def usual_sensor(shape: tuple[int, ...], name: str, *, goal: bool = False) -> ObservationSpec:
    """Build the spec of a vector, a list of entities or an image, depending on the number of dimensions."""
    kind = ObservationType.GOAL_SIGNAL if goal else ObservationType.DEFAULT
    return ObservationSpec(shape, USUAL_PROPERTIES[len(shape)], kind, name)


def observation_kind(spec: ObservationSpec) -> ObservationKind:
    """Return the kind of an observation, derived from its dimension properties as in ML-Agents.

    The rules are described in docs/explanation/mlagents-behavior.md#observations.

    Raises:
        UnsupportedError: no encoder supports these properties.
    """
    properties = tuple(spec.dimension_property)
    if properties in _VECTOR_PROPERTIES:
        return ObservationKind.VECTOR
    if properties in _VISUAL_PROPERTIES:
        return ObservationKind.VISUAL
    if properties == USUAL_PROPERTIES[2]:
        return ObservationKind.VARIABLE_LENGTH
    raise UnsupportedError(
        f"Sensor {spec.name!r} of shape {tuple(spec.shape)} has the dimension properties "
        f"{[p.name for p in properties]}, which no encoder supports. Expected a vector (1 dimension), a picture "
        "(channels, height, width; for the encoders simple, nature_cnn, resnet, match3 and fully_connected) or a list "
        "of entities (variable number, size; for attention). Change the sensor in Unity."
    )


def sensors_named(spec: BehaviorSpec, names: Collection[str]) -> tuple[int, ...]:
    """Return the indices of the sensors with these names, in ascending order (Unity's order, not that of ``names``).

    Raises:
        SettingsError: some sensors do not exist. The message lists all of them.
    """
    unknown = sorted(set(names) - {sensor.name for sensor in spec.observation_specs})
    if unknown:
        raise SettingsError(f"no sensor is called {', '.join(map(repr, unknown))}. The sensors are {_sensors(spec)}.")
    return tuple(number for number, sensor in enumerate(spec.observation_specs) if sensor.name in names)


def sensors_seen(own: BehaviorSpec, present: BehaviorSpec) -> tuple[int, ...] | None:
    """Find the sensors of a policy by name if the agents have more sensors than when it was trained.

    Returns their indices, or None if the policy uses all sensors or the names do not match in order.
    """
    names = [sensor.name for sensor in own.observation_specs]
    numbers = [number for number, sensor in enumerate(present.observation_specs) if sensor.name in names]
    found = [present.observation_specs[number].name for number in numbers]
    return tuple(numbers) if found == names and len(names) < len(present.observation_specs) else None


def with_sensors(spec: BehaviorSpec, numbers: Sequence[int] | None) -> BehaviorSpec:
    """Return the spec with only these sensors; None keeps all of them."""
    if numbers is None:
        return spec
    return BehaviorSpec([spec.observation_specs[number] for number in numbers], spec.action_spec)


def mismatches(own: BehaviorSpec, wanted: BehaviorSpec) -> Iterator[str]:
    """Yield every difference between a policy's spec and the agents' spec. Sensor names are not compared."""
    seen, there = own.observation_specs, wanted.observation_specs
    if len(seen) != len(there):
        yield f"it sees the sensors {_sensors(own)}, not {_sensors(wanted)}"
    else:
        for number, (mine, other) in enumerate(zip(seen, there, strict=True)):
            if tuple(mine.shape) != tuple(other.shape):
                shapes = f"the shape {tuple(mine.shape)}, not {tuple(other.shape)}"
                yield f"its sensor {number} ({mine.name!r}, here {other.name!r}) has {shapes}"
    if own.action_spec != wanted.action_spec:
        yield f"its actions are {_actions(own)}, not {_actions(wanted)}"


def _sensors(spec: BehaviorSpec) -> str:
    return ", ".join(f"{sensor.name!r} {tuple(sensor.shape)}" for sensor in spec.observation_specs)


def _actions(spec: BehaviorSpec) -> str:
    action = spec.action_spec
    return f"{action.continuous_size} continuous and the branches {list(action.discrete_branches)}"


@dataclass(frozen=True, slots=True)
class BehaviorId:
    """A behavior id as sent by Unity, ``Name?team=1``, split into the name (the YAML key) and the team.

    >>> BehaviorId.parse("SoccerTwos?team=1")
    BehaviorId(full='SoccerTwos?team=1', name='SoccerTwos', team=1)
    """

    full: str
    name: str
    team: int

    @classmethod
    def parse(cls, full: str) -> BehaviorId:
        """Split a behavior's full name. The default team is 0.

        Raises:
            InvalidDataError: the team is not an integer of at most 10 digits.
        """
        # Not parsed as a URL: "//[x" is a valid name, but not a valid URL.
        name, _, query = full.partition("?")
        team = parse_qs(query.partition("#")[0]).get("team", ["0"])[0]
        if not _TEAM.fullmatch(team):
            shown = team if len(team) <= _LONGEST_SHOWN else f"{team[:_LONGEST_SHOWN]}..."
            raise InvalidDataError(
                f"Behavior {name!r} has the team {shown!r}. Expected a whole number, as Unity sends it "
                "(Behavior Parameters, Team Id)."
            )
        return cls(full=full, name=name, team=int(team))


def spec_to_plain(spec: BehaviorSpec) -> dict[str, Any]:
    """Convert a spec to plain data for a JSON file, which ``spec_from_plain`` can read."""
    return {
        "observation_specs": [
            {
                "name": str(sensor.name),
                "shape": [int(size) for size in sensor.shape],
                "dimension_property": [int(each.value) for each in sensor.dimension_property],
                "observation_type": int(sensor.observation_type.value),
            }
            for sensor in spec.observation_specs
        ],
        "action_spec": {
            "continuous_size": int(spec.action_spec.continuous_size),
            "discrete_branches": [int(size) for size in spec.action_spec.discrete_branches],
        },
    }


def spec_from_plain(plain: Mapping[str, Any]) -> BehaviorSpec:
    """Invert ``spec_to_plain``.

    Raises:
        KeyError: a key is missing.
        TypeError: a value has the wrong type.
        ValueError: a value is invalid.
    """
    actions = plain["action_spec"]
    return BehaviorSpec(
        [
            ObservationSpec(
                shape=tuple(_size(size) for size in sensor["shape"]),
                dimension_property=tuple(DimensionProperty(each) for each in sensor["dimension_property"]),
                observation_type=ObservationType(sensor["observation_type"]),
                name=str(sensor["name"]),
            )
            for sensor in plain["observation_specs"]
        ],
        ActionSpec(
            _size(actions["continuous_size"], smallest=0), tuple(_size(size) for size in actions["discrete_branches"])
        ),
    )


def _size(value: object, smallest: int = 1) -> int:
    if not isinstance(value, int) or not smallest <= value < 1 << 31:
        raise ValueError(f"{value!r} is not a valid size")
    return value
