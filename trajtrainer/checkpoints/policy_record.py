"""The record of a policy in a checkpoint of ours, beside the weights, so that an export needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trajtrainer.core.errors import CheckpointError, SettingsError
from trajtrainer.core.spec import BehaviorSpec, spec_from_plain, spec_to_plain
from trajtrainer.settings.convert import trainer_mapping, trainer_settings
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings


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
        return {
            "behavior": self.behavior,
            "trainer_type": self.trainer_type,
            **spec_to_plain(self.spec),
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
                spec=spec_from_plain(plain),
                network=trainer_settings({"network_settings": plain["network_settings"]}).network_settings,
                tanh_squash=plain.get("tanh_squash"),
            )
        except (KeyError, TypeError, ValueError, OverflowError, SettingsError) as error:
            raise CheckpointError(
                f"{source}: the description of its policy is damaged ({type(error).__name__}: {error}). "
                "Take another checkpoint of the run."
            ) from error
