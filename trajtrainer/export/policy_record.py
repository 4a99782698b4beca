"""The record of a policy in a checkpoint of ours, beside the weights, so that an export needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trajtrainer.errors import CheckpointError, SettingsError
from trajtrainer.settings.convert import trainer_mapping, trainer_settings
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """A policy's description.

    Attributes:
        behavior: name without team.
        trainer_type: that made it.
        spec: what its agents see and do.
        network: ``network_settings``.
        tanh_squash: whether its continuous actions are squashed; None in older checkpoints, where those of SAC are.
    """

    behavior: str
    trainer_type: str
    spec: BehaviorSpec
    network: NetworkSettings
    tanh_squash: bool | None = None

    def to_plain(self) -> dict[str, Any]:
        """Return plain data that :meth:`from_plain` takes."""
        settings = trainer_mapping(TrainerSettings(network_settings=self.network))
        action = self.spec.action_spec
        return {
            "behavior": self.behavior,
            "trainer_type": self.trainer_type,
            "observation_specs": [
                {
                    "name": str(sensor.name),
                    "shape": [int(size) for size in sensor.shape],
                    "dimension_property": [int(each.value) for each in sensor.dimension_property],
                    "observation_type": int(sensor.observation_type.value),
                }
                for sensor in self.spec.observation_specs
            ],
            "action_spec": {
                "continuous_size": int(action.continuous_size),
                "discrete_branches": [int(size) for size in action.discrete_branches],
            },
            "network_settings": settings["network_settings"],
            "tanh_squash": self.tanh_squash,
        }

    @classmethod
    def from_plain(cls, plain: object, source: str) -> PolicyRecord:
        """Return the record that :meth:`to_plain` wrote.

        Args:
            plain: out of a file.
            source: the file's name, for the error.

        Raises:
            CheckpointError: it is no such record.
        """
        try:
            if not isinstance(plain, Mapping):
                raise TypeError(f"a {type(plain).__name__} instead of a mapping")
            return cls(
                behavior=str(plain["behavior"]),
                trainer_type=str(plain["trainer_type"]),
                spec=BehaviorSpec(
                    [_sensor(sensor) for sensor in plain["observation_specs"]], _actions(plain["action_spec"])
                ),
                network=trainer_settings({"network_settings": plain["network_settings"]}).network_settings,
                tanh_squash=plain.get("tanh_squash"),
            )
        except (KeyError, TypeError, ValueError, OverflowError, SettingsError) as error:
            raise CheckpointError(
                f"{source}: the description of its policy is damaged ({type(error).__name__}: {error}). "
                "Take another checkpoint of the run."
            ) from error


def _sensor(plain: Mapping[str, Any]) -> ObservationSpec:
    return ObservationSpec(
        shape=tuple(_size(size) for size in plain["shape"]),
        dimension_property=tuple(DimensionProperty(each) for each in plain["dimension_property"]),
        observation_type=ObservationType(plain["observation_type"]),
        name=str(plain["name"]),
    )


def _actions(plain: Mapping[str, Any]) -> ActionSpec:
    return ActionSpec(
        _size(plain["continuous_size"], smallest=0), tuple(_size(size) for size in plain["discrete_branches"])
    )


def _size(value: object, smallest: int = 1) -> int:
    if not isinstance(value, int) or not smallest <= value < 1 << 31:
        raise ValueError(f"{value!r} is no size")
    return value
