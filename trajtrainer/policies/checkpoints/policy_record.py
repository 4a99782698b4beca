"""The description of a policy that our checkpoints contain, so that they can be exported without other files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trajtrainer.core.errors import CheckpointError, SettingsError
from trajtrainer.core.spec import BehaviorSpec, spec_from_plain, spec_to_plain
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.mlagents import CheckpointLayout, mlagents_keys
from trajtrainer.policies.checkpoints.mlagents.convert import EXTRA, LEARNER, to_mlagents
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import trainer_mapping, trainer_settings

RECORD = "policy"
"""Key of the ``PolicyRecord`` in our ``extra`` entry."""


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """The description of a policy that our checkpoints store next to its weights.

    Attributes:
        behavior: name of the behavior, without the team.
        trainer_type: the trainer that trained the policy.
        spec: the policy's observations and actions.
        network: settings of the actor's network.
        tanh_squash: whether continuous actions are squashed with tanh. None in older checkpoints, where only SAC does
            this.
        student: whether the policy is a student, which acts for agents that may have more sensors than ``spec`` and
            selects its own sensors by name.
        batch_norm: whether the actor uses batch normalization.
    """

    behavior: str
    trainer_type: str
    spec: BehaviorSpec
    network: NetworkSettings
    tanh_squash: bool | None = None
    student: bool = False
    batch_norm: bool = False

    def to_plain(self) -> dict[str, Any]:
        """Return the record as plain data that ``read_record`` can read."""
        settings = trainer_mapping(TrainerSettings(network_settings=self.network))
        return {
            "behavior": self.behavior,
            "trainer_type": self.trainer_type,
            **spec_to_plain(self.spec),
            "network_settings": settings["network_settings"],
            "tanh_squash": self.tanh_squash,
            **({"student": True} if self.student else {}),
            "batch_norm": self.batch_norm,
        }


def checkpoint_of_policy(actor: Actor, record: PolicyRecord, step: int) -> dict[str, Any]:
    """Return the content of a ``checkpoint.pt`` that holds only a policy, without critic and optimizers."""
    return to_mlagents(
        {
            "step": step,
            "modules": {"actor": actor.state_dict()},
            "keys": {"actor": mlagents_keys(actor)},
            "layout": CheckpointLayout(),
            "optimizers": {},
            "extra": {RECORD: record.to_plain(), LEARNER: {}},
        }
    )


def read_record(checkpoint: Mapping[str, Any], source: str) -> PolicyRecord | None:
    """Return the record in a checkpoint, or None if the checkpoint has no record (ML-Agents writes none).

    Raises:
        CheckpointError: the record is damaged.
    """
    extra = checkpoint.get(EXTRA)
    if not isinstance(extra, Mapping) or RECORD not in extra:
        return None
    plain = extra[RECORD]
    try:
        if not isinstance(plain, Mapping):
            raise TypeError(f"a {type(plain).__name__} instead of a mapping")
        return PolicyRecord(
            behavior=str(plain["behavior"]),
            trainer_type=str(plain["trainer_type"]),
            spec=spec_from_plain(plain),
            network=trainer_settings({"network_settings": plain["network_settings"]}).network_settings,
            tanh_squash=plain.get("tanh_squash"),
            student=plain.get("student") is True,
            batch_norm=bool(plain.get("batch_norm")),
        )
    except (KeyError, TypeError, ValueError, OverflowError, SettingsError) as error:
        raise CheckpointError(
            f"{source}: the description of its policy is damaged ({type(error).__name__}: {error}). Use another "
            "checkpoint of the run."
        ) from error
