"""The state of a behavior in a checkpoint, and damage next to its weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.learning.trainers.rig import Rig
from trajtrainer.core.errors import CheckpointError
from trajtrainer.learning.algos.acting import ActorPolicy
from trajtrainer.policies.checkpoints.mlagents.convert import EXTRA
from trajtrainer.policies.checkpoints.state import copied, from_checkpoint, to_checkpoint
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings

SETTINGS = TrainerSettings(network_settings=NetworkSettings(hidden_units=4, num_layers=1))


def made(seed: int = 0) -> tuple[Rig, ActorPolicy]:
    rig = Rig(SETTINGS)
    return rig, ActorPolicy(rig.trainer.actor, seed=seed)


def saved() -> dict[str, Any]:
    rig, policy = made()
    return copied(to_checkpoint(rig.trainer, policy))


@pytest.mark.parametrize("name", ["learner", "rng"])
def test_damage_next_to_the_weights_is_named_and_the_weights_can_still_be_used(name: str) -> None:
    content = saved()
    content[EXTRA][name] = 7
    rig, policy = made()
    with pytest.raises(CheckpointError, match=r"^a\.pt: the data next to the weights is damaged .*--initialize-from"):
        from_checkpoint(content, rig.trainer, policy, "a.pt", reset_step=False)


def test_damaged_random_numbers_of_acting_are_left_out() -> None:
    content = saved()
    rig, policy = made(seed=5)
    fresh = policy.rng_state()
    damaged = copied(content)
    damaged[EXTRA]["acting_rng"] = "damaged"
    from_checkpoint(damaged, rig.trainer, policy, "a.pt", reset_step=False)
    assert torch.equal(policy.rng_state(), fresh)
    from_checkpoint(content, rig.trainer, policy, "a.pt", reset_step=False)
    assert not torch.equal(policy.rng_state(), fresh)
