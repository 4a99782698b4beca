"""Compares what was recorded with what it shall be used for."""

from __future__ import annotations

from pathlib import Path

from trajtrainer.core.errors import DemonstrationError
from trajtrainer.core.spec import ActionSpec, BehaviorSpec


def check_spec(found: BehaviorSpec, expected: BehaviorSpec, path: Path, whose: str) -> None:
    """Refuse a recording of other observations or actions.

    Args:
        found: what is in the recording.
        expected: what it must fit in the number and shapes of the sensors and in the actions; names do not count.
        path: of the recording.
        whose: the spec is, for the message.

    Raises:
        DemonstrationError: it does not fit.
    """
    remedy = "Record it anew with the sensors and actions that the game has now."
    sensors, others = found.observation_specs, expected.observation_specs
    if len(sensors) != len(others):
        raise DemonstrationError(
            f"{path} was recorded with {len(sensors)} observations ({_shapes(found)}), {whose} has {len(others)} "
            f"({_shapes(expected)}). {remedy}"
        )
    for index, (sensor, other) in enumerate(zip(sensors, others, strict=True)):
        if tuple(sensor.shape) != tuple(other.shape):
            raise DemonstrationError(
                f"{path}: the sensor {sensor.name!r} (observation {index}) was recorded with the shape "
                f"{tuple(sensor.shape)}, in {whose} it has {tuple(other.shape)}. {remedy}"
            )
    if _sizes(found.action_spec) != _sizes(expected.action_spec):
        raise DemonstrationError(
            f"{path} was recorded with {_actions(found.action_spec)}, {whose} has {_actions(expected.action_spec)}. "
            f"{remedy}"
        )


def _shapes(spec: BehaviorSpec) -> str:
    return ", ".join(str(tuple(sensor.shape)) for sensor in spec.observation_specs) or "none"


def _sizes(actions: ActionSpec) -> tuple[int, tuple[int, ...]]:
    return actions.continuous_size, tuple(actions.discrete_branches)


def _actions(actions: ActionSpec) -> str:
    return f"{actions.continuous_size} continuous actions and the discrete branches {tuple(actions.discrete_branches)}"
