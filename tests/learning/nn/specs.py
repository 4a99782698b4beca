"""Specs and settings for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trajtrainer.core.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from trajtrainer.settings.network import ConditioningType, MemorySettings, NetworkSettings

_NONE, _MOVES, _VARIES = (
    DimensionProperty.NONE,
    DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
    DimensionProperty.VARIABLE_SIZE,
)


def vector(size: int, name: str = "vector", *, goal: bool = False) -> ObservationSpec:
    kind = ObservationType.GOAL_SIGNAL if goal else ObservationType.DEFAULT
    return ObservationSpec(name=name, shape=(size,), dimension_property=(_NONE,), observation_type=kind)


def camera(channels: int, height: int, width: int, name: str = "camera", *, goal: bool = False) -> ObservationSpec:
    kind = ObservationType.GOAL_SIGNAL if goal else ObservationType.DEFAULT
    return ObservationSpec(
        name=name,
        shape=(channels, height, width),
        dimension_property=(_NONE, _MOVES, _MOVES),
        observation_type=kind,
    )


def entities(most: int, size: int, name: str = "entities", *, goal: bool = False) -> ObservationSpec:
    kind = ObservationType.GOAL_SIGNAL if goal else ObservationType.DEFAULT
    return ObservationSpec(name=name, shape=(most, size), dimension_property=(_VARIES, _NONE), observation_type=kind)


def behavior(
    observations: Sequence[ObservationSpec], continuous: int = 2, branches: tuple[int, ...] = ()
) -> BehaviorSpec:
    return BehaviorSpec(list(observations), ActionSpec(continuous, branches))


def network(
    *,
    hidden: int = 16,
    layers: int = 2,
    normalize: bool = False,
    memory: int | None = None,
    encoder: str = "simple",
    conditioning: ConditioningType = ConditioningType.HYPER,
    **own: Any,
) -> NetworkSettings:
    """``own`` are those that ML-Agents does not have."""
    return NetworkSettings(
        normalize=normalize,
        hidden_units=hidden,
        num_layers=layers,
        vis_encode_type=encoder,
        memory=None if memory is None else MemorySettings(sequence_length=4, memory_size=memory),
        goal_conditioning_type=conditioning,
        **own,
    )
