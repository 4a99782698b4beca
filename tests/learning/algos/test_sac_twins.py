"""SAC without a value network, against its slow obvious version."""

from __future__ import annotations

import copy
import itertools
import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.learning.algos.minibatches import minibatch_of
from tests.learning.algos.sac_mlagents import gradients_of, make_sac, modules
from tests.learning.algos.samples import SPECS, minibatch
from tests.learning.nn.specs import network
from tests.learning.trainers.rig import OffPolicyRig, Trajectory, checkpoint_of, restore, same, vector_spec
from trajtrainer.learning.algos.sac.networks import BatchedCritics
from trajtrainer.learning.algos.sac.sac import SAC
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.learning.nn.fast.adam import part_of
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.rewards.settings import RndSettings
from trajtrainer.policies.checkpoints.mlagents.description import describe
from trajtrainer.settings.components import RewardSignalSettings
from trajtrainer.settings.network import MemorySettings, NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings

ALPHA = 0.3
WAYS = [(name, signals, stacked) for name in SPECS for signals in (1, 2) for stacked in (True, False)]


def sac_and_batch(name: str, signals: int = 1, *, stacked: bool = True, **hyper: Any) -> tuple[SAC, Minibatch]:
    rewards = {"extrinsic": RewardSignalSettings(), "rnd": RndSettings()}
    settings = TrainerSettings(
        trainer_type="sac",
        hyperparameters=SACHyperparameters(value_network=False, ent_coef=ALPHA, **hyper),
        network_settings=network(),
        reward_signals=dict(list(rewards.items())[:signals]),
    )
    torch.manual_seed(1)
    sac = make_sac(SPECS[name], settings, stacked=stacked)
    assert isinstance(sac.critics, BatchedCritics) == stacked
    with torch.no_grad():  # copies that differ from what they follow
        for copied in (modules(sac)["q1_target"], modules(sac)["q2_target"]):
            for parameter in copied.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    batch = minibatch(SPECS[name])
    rows = len(batch)
    next_mask = torch.rand(batch["mask"].shape) < 0.3
    for start in torch.cumsum(torch.tensor([0, *SPECS[name].action_spec.discrete_branches]), 0)[:-1].tolist():
        next_mask[:, start] = False
    return sac, minibatch_of(
        obs=batch.obs,
        next_obs=tuple(torch.randn_like(one) for one in batch.obs),
        mask=batch["mask"],
        continuous=batch["continuous"].tanh(),
        discrete=batch["discrete"],
        rewards=torch.randn(signals, rows),
        discount=torch.full((signals, rows), 0.9),
        noise=torch.randn(batch["continuous"].shape),
        next_mask=next_mask,
        next_noise=torch.randn(batch["continuous"].shape),
    )


def q_of(network: Any, obs: Any, action: Tensor) -> Tensor:
    """Return [V, b, P]."""
    q: Tensor = network(obs, actions=action if action.shape[1] else None)[0]
    return q if q.dim() == 3 else q.unsqueeze(2)


def obvious_losses(sac: SAC, batch: Minibatch) -> tuple[Tensor, Tensor, Tensor]:
    """The losses of both Q networks and of the policy, by the papers' formulas, row by row."""
    networks, head = sac.values, sac.actor.head
    assert [*networks] == ["q1", "q2", "q1_target", "q2_target"]
    branches = head.branches
    starts = np.cumsum([0, *branches])

    def decided(obs: Any, mask: Tensor, noise: Tensor) -> tuple[Any, Tensor, list[Tensor], Tensor]:
        policy, _ = sac.actor.distribution(obs, mask)
        action = policy.continuous_from_noise(noise) if head.continuous_size else noise
        bonus = torch.zeros(len(mask))
        if head.continuous_size:
            bonus = bonus - ALPHA * policy.continuous_log_prob(action).sum(1)
        probs = [policy.probs[:, a:b] for a, b in itertools.pairwise(starts)]
        for one in probs:
            bonus = bonus - ALPHA * (one * one.clamp_min(1e-20).log()).sum(1) / len(branches)
        return policy, action, probs, bonus

    def valued(q: Tensor, probs: list[Tensor]) -> Tensor:
        """[V, b]: what the policy expects."""
        if not branches:
            return q.squeeze(2)
        each = [(q[:, :, a : a + one.shape[1]] * one).sum(2) for a, one in zip(starts[:-1], probs, strict=True)]
        return torch.stack(each).mean(0)

    with torch.no_grad():
        _, next_action, next_probs, next_bonus = decided(batch.next_obs, batch["next_mask"], batch["next_noise"])
        assert all(
            one[batch["next_mask"][:, a : a + one.shape[1]]].sum() < 1e-3
            for a, one in zip(starts, next_probs, strict=False)
        )
        copies = [q_of(each, batch.next_obs, next_action) for each in (networks["q1_target"], networks["q2_target"])]
        worth = torch.minimum(*(valued(q, next_probs) for q in copies)) + next_bonus
        target = batch["rewards"].t() + batch["discount"].t() * worth
    losses = []
    for each in (networks["q1"], networks["q2"]):
        q = q_of(each, batch.obs, batch["continuous"])
        if branches:
            columns = torch.stack([batch["discrete"][:, k] + starts[k] for k in range(len(branches))], 1)
            q = torch.stack([q[:, torch.arange(q.shape[1]), columns[:, k]] for k in range(len(branches))]).mean(0)
        else:
            q = q.squeeze(2)
        losses.append(0.5 * (q - target).square().mean())
    policy, action, probs, _ = decided(batch.obs, batch["mask"], batch["noise"])
    twins = [
        q_of(copy.deepcopy(each).requires_grad_(False), batch.obs, action) for each in (networks["q1"], networks["q2"])
    ]
    followed = torch.minimum(*(q if head.continuous_size else q.detach() for q in twins)).mean(0)
    value = (followed * policy.probs).sum(1).mean() if branches else followed.squeeze(1).mean()
    gain = torch.zeros(())
    if head.continuous_size:
        gain = gain + value - ALPHA * policy.continuous_log_prob(action).sum(1).mean()
    if branches:
        gain = gain + value - ALPHA * sum((one * one.clamp_min(1e-20).log()).sum(1).mean() for one in probs)
    return losses[0], losses[1], -gain


@pytest.mark.parametrize(("name", "signals", "stacked"), WAYS)
def test_losses_and_gradients_are_the_published_ones(name: str, signals: int, stacked: bool) -> None:
    sac, batch = sac_and_batch(name, signals, stacked=stacked)
    trained = {name: modules(sac)[name] for name in ("actor", "q1", "q2")}
    wanted = obvious_losses(sac, batch)
    expected = torch.autograd.grad(sum(wanted), [p for module in trained.values() for p in module.parameters()])  # type: ignore[arg-type]

    told = gradients_of(sac, batch)

    for tag, value in zip(("Losses/Q1 Loss", "Losses/Q2 Loss", "Losses/Policy Loss"), wanted, strict=True):
        assert told[tag].item() == pytest.approx(value.item(), rel=1e-4, abs=1e-5)
    assert "Losses/Value Loss" not in told
    assert "Policy/Extrinsic Value" in told
    assert ("Policy/Rnd Value" in told) == (signals == 2)
    found = [p.grad for p in sac.actor.parameters()]
    for parameter in sac._optimized["value"]:
        leaf = sac._optimizer.leaf_of(parameter)
        if leaf.grad is not None:
            found.append(part_of(leaf.grad, leaf, parameter))
    for one, other in zip(found, expected, strict=True):
        assert one is not None
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("stacked", [True, False])
def test_copies_follow_by_tau(stacked: bool) -> None:
    sac, batch = sac_and_batch("hybrid", stacked=stacked, tau=0.25)
    before = copy.deepcopy({name: module.state_dict() for name, module in modules(sac).items()})
    sac.gradient_step(batch, 1e-2)
    for name in ("q1", "q2"):
        now, copied = modules(sac)[name].state_dict(), modules(sac)[f"{name}_target"].state_dict()
        for key, old in before[f"{name}_target"].items():
            torch.testing.assert_close(copied[key], 0.75 * old + 0.25 * now[key])
        assert not same([*now.values()], [*before[name].values()])


@pytest.mark.parametrize("stacked", [True, False])
def test_a_step_without_the_policy_moves_the_q_networks_as_any(stacked: bool) -> None:
    both = [sac_and_batch("hybrid", stacked=stacked) for _ in range(2)]
    actor = copy.deepcopy(both[1][0].actor.state_dict())
    for (sac, batch), of_policy in zip(both, (True, False), strict=True):
        sac.gradient_step(batch, 1e-2, of_policy=of_policy)
    one, other = (modules(sac) for sac, _ in both)
    for name in ("q1", "q2", "q1_target", "q2_target"):
        assert same([*one[name].state_dict().values()], [*other[name].state_dict().values()])
    assert same([*other["actor"].state_dict().values()], [*actor.values()])
    assert not same([*one["actor"].state_dict().values()], [*actor.values()])


# In a trainer


def settings(memory: bool = False, **hyper: Any) -> TrainerSettings:
    chosen = {"batch_size": 8, "buffer_size": 400, "steps_per_update": 4, "value_network": False, **hyper}
    return TrainerSettings(
        trainer_type="sac",
        hyperparameters=SACHyperparameters(**chosen),
        network_settings=NetworkSettings(
            hidden_units=8, num_layers=1, memory=MemorySettings(sequence_length=4, memory_size=8) if memory else None
        ),
    )


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("buffer_size", [400, 40])
def test_what_was_forbidden_next_is_known(n_step: int, buffer_size: int) -> None:
    """Masks spell the number of their step; what follows an end forbids nothing, what follows a cut does."""
    lengths = [1, 5, 2, 7, 3, 4, 9, 6]
    rig = OffPolicyRig(settings(n_step=n_step, buffer_size=buffer_size), vector_spec(2, 0, (4,)))

    def spelt(step: int) -> list[bool]:
        return [bool(step >> bit & 1) for bit in range(4)]

    for number, length in enumerate(lengths):
        ended = number % 2 == 0
        masks = np.array([spelt(step) for step in range(length + 1)])
        masks[length] &= not ended
        obs = np.stack((np.full(length + 1, number), np.arange(length + 1)), 1).astype(np.float32)
        rig.put(Trajectory(length, ended=ended, agent=number, columns={"obs.0": obs, "mask": masks}))
    rig.take_in()
    cuts = 0
    for block in rig.learner._batches.blocks(40):
        for batch in block:
            for (number, step), forbidden in zip(batch.obs[0].int().tolist(), batch["next_mask"].tolist(), strict=True):
                after = min(step + n_step, lengths[number])
                is_over = number % 2 == 0 and after == lengths[number]
                cuts += number % 2 == 1 and after == lengths[number]
                assert forbidden == ([False] * 4 if is_over else spelt(after))
    assert cuts > 10


@pytest.mark.parametrize("memory", [False, True], ids=["mlp", "lstm"])
def test_a_checkpoint_goes_on_as_if_nothing_had_been(memory: bool, caplog: pytest.LogCaptureFixture) -> None:
    def trained(rig: OffPolicyRig, seed: int) -> OffPolicyRig:
        rig.rng = np.random.default_rng(seed)
        rig.put(Trajectory(24, ended=True))
        rig.trainer.advance()
        return rig

    first = trained(OffPolicyRig(settings(memory)), 1)
    told = first.statistics()
    assert all(math.isfinite(value) for value in told["Policy/Extrinsic Value"])
    assert "Losses/Value Loss" not in told
    file = copy.deepcopy(checkpoint_of(first.trainer))
    described = describe(file)
    assert (described.trainer_type, described.signals) == ("sac", ("extrinsic",))
    again = OffPolicyRig(settings(memory), seed=5)
    with caplog.at_level(logging.WARNING):
        restore(again.trainer, file, reset_step=False)
    assert not caplog.records
    assert [*again.learner.networks] == ["actor", "q1", "q2", "q1_target", "q2_target"]
    (batch,) = next(iter(first.learner._batches.blocks(1)))
    for rig in (first, again):
        rig.learner.gradient_step(batch, 1e-3)
    for name, module in again.learner.networks.items():
        assert same([*module.state_dict().values()], [*first.learner.networks[name].state_dict().values()]), name


def test_what_a_run_with_a_value_network_has_learned_is_taken_over(caplog: pytest.LogCaptureFixture) -> None:
    first, second = OffPolicyRig(settings(value_network=True)), OffPolicyRig(settings(), seed=5)
    with caplog.at_level(logging.WARNING):
        restore(second.trainer, checkpoint_of(first.trainer), reset_step=True)
    for old, taken in (("actor", "actor"), ("q1", "q1"), ("q2", "q2"), ("q1", "q1_target"), ("q2", "q2_target")):
        there, here = first.learner.networks[old].state_dict(), second.learner.networks[taken].state_dict()
        assert same([*here.values()], [*there.values()])
    assert "not used: Optimizer:value_network" in caplog.text
