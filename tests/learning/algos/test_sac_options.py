"""The options of SAC that ML-Agents does not have, against their slow obvious versions."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor

import trajtrainer
from tests.learning.algos.sac_mlagents import gradients_of, load_log_alpha, log_alpha, make_sac, modules
from tests.learning.algos.samples import SPECS, inputs, make_actor
from tests.learning.nn.specs import network
from tests.learning.trainers.rig import OffPolicyRig, Trajectory, checkpoint_of, restore, same, vector_spec, weights
from trajtrainer.core.queues import PolicyUpdate
from trajtrainer.learning.algos.acting import ActorPolicy
from trajtrainer.learning.algos.sac.networks import Critics
from trajtrainer.learning.algos.sac.sac import SAC
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.learning.nn.conditioning import Regularization, linears
from trajtrainer.learning.nn.critic import ValueNetwork
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.run.actors.transports.remote import NoisyPolicy
from trajtrainer.settings.checks import ConfigurationError
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import trainer_settings

GAMMA = 0.99
REGULARIZED = {"layer_norm": True, "dropout_rate": 0.1}


def settings(**hyper: Any) -> TrainerSettings:
    chosen = {"batch_size": 8, "buffer_size": 400, "steps_per_update": 4, **hyper}
    return TrainerSettings(
        trainer_type="sac",
        hyperparameters=SACHyperparameters(**chosen),
        network_settings=NetworkSettings(hidden_units=8, num_layers=1),
    )


@pytest.mark.parametrize("buffer_size", [400, 40])
def test_several_steps_count_until_the_trajectory_ends(buffer_size: int) -> None:
    """Each observation tells its trajectory and step, so that what followed can be told without the replay."""
    lengths, ends = [1, 5, 2, 7, 3, 4, 9, 6, 8, 1, 2], [True, False, True]
    rig = OffPolicyRig(settings(n_step=3, buffer_size=buffer_size), vector_spec(2, 1))
    rewards = []
    for number, length in enumerate(lengths):
        rewards.append(np.random.default_rng(number).normal(size=length).astype(np.float32))
        obs = np.stack((np.full(length + 1, number), np.arange(length + 1)), 1).astype(np.float32)
        columns = {"obs.0": obs, "reward": rewards[-1]}
        rig.put(Trajectory(length, ended=ends[number % 3], agent=number, columns=columns))
    rig.take_in()

    seen = set()
    for block in rig.learner._batches.blocks(40):
        for batch in block:
            rows = batch.obs[0], batch.next_obs[0], batch["rewards"], batch["discount"]
            listed = zip(*(column.tolist() for column in rows), strict=True)
            for (number, step), (same_one, after), (reward,), (discount,) in listed:
                length, own = lengths[int(number)], rewards[int(number)]
                count = min(3, length - int(step))
                seen.add((number, step))
                assert (same_one, after) == (number, step + count)
                assert reward == pytest.approx(sum(GAMMA**i * own[int(step) + i] for i in range(count)), abs=1e-5)
                is_over = step + count == length and ends[int(number) % 3]
                assert discount == pytest.approx(0.0 if is_over else GAMMA**count)
    assert len(seen) > 20


def test_several_steps_need_trajectories_as_long_and_no_memory() -> None:
    with pytest.raises(ConfigurationError, match="n_step: found 5, expected at most time_horizon"):
        trainer_settings({"trainer_type": "sac", "hyperparameters": {"n_step": 5}, "time_horizon": 4})
    with pytest.raises(ConfigurationError, match=r"n_step: found 2, expected 1 with network_settings\.memory"):
        trainer_settings({"trainer_type": "sac", "hyperparameters": {"n_step": 2}, "network_settings": {"memory": {}}})


def test_the_entropy_that_is_aimed_at() -> None:
    gradients = []
    for target in (None, -2.0, 5.0):
        rig = OffPolicyRig(settings(target_entropy=target), vector_spec(2, 2))
        rig.put(Trajectory(30, ended=True))
        rig.take_in()
        (batch,) = next(iter(rig.learner._batches.blocks(1)))
        gradients_of(rig.learner, batch)
        (gradient,) = rig.learner.log_alpha_continuous.grad.tolist()  # type: ignore[union-attr]
        gradients.append(gradient)

    assert gradients[0] == gradients[1]
    assert gradients[2] == pytest.approx(gradients[1] - 7.0, rel=1e-5)


def test_layers_of_q_networks_are_normalized() -> None:
    options = TrainerSettings(
        trainer_type="sac", hyperparameters=SACHyperparameters(layer_norm=True), network_settings=network(layers=1)
    )
    sac = make_sac(SPECS["continuous"], options)  # asks for stacked networks, which these are not
    critic: ValueNetwork = sac.values["q1"]
    (linear,) = linears(critic.body.modules())
    obs, actions = [torch.randn(6, 4), torch.randn(6, 3)], torch.randn(6, 2)

    values, _ = critic(obs, actions=actions)

    hidden = F.silu(F.layer_norm(linear(torch.cat([*obs, actions], 1)), (16,)))
    torch.testing.assert_close(values, critic.heads(hidden))
    assert isinstance(sac.critics, Critics)


def test_what_is_dropped_goes_on_after_a_checkpoint() -> None:
    def trained(rig: OffPolicyRig, seed: int) -> OffPolicyRig:
        rig.rng = np.random.default_rng(seed)
        rig.put(Trajectory(24, ended=True))
        rig.trainer.advance()
        return rig

    first = trained(OffPolicyRig(settings(**REGULARIZED)), 1)
    state = checkpoint_of(first.trainer)
    again = OffPolicyRig(settings(**REGULARIZED), seed=5)
    restore(again.trainer, state, reset_step=False)

    drawn = [rig.learner.generators()["dropout"].get_state() for rig in (first, again)]
    assert torch.equal(*drawn)
    fresh = OffPolicyRig(settings(**REGULARIZED))
    assert not same(weights(first.trainer), weights(fresh.trainer))
    assert "dropout" not in OffPolicyRig(settings()).learner.generators()


def test_what_is_dropped_is_made_up_for_by_what_is_kept() -> None:
    x = torch.randn(100, 40)
    alone, both = (Regularization(layer_norm=norm, dropout_rate=0.25) for norm in (False, True))
    both.generator.set_state(alone.generator.get_state())

    dropped, normalized = alone.apply(x), both.apply(x)

    kept = dropped != 0
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.03)
    torch.testing.assert_close(dropped, torch.where(kept, x / 0.75, 0.0))
    mean, variance = dropped.mean(1, keepdim=True), dropped.var(1, correction=0, keepdim=True)
    torch.testing.assert_close(normalized, (dropped - mean) / (variance + 1e-5).sqrt())


# The policy is updated less often


def batch_of(rig: OffPolicyRig) -> Minibatch:
    rig.put(Trajectory(30, ended=True))
    rig.take_in()
    (batch,) = next(iter(rig.learner._batches.blocks(1)))
    return batch


@pytest.mark.parametrize("stacked", [False, True])
def test_a_step_without_the_policy_moves_the_values_as_any_and_nothing_else(stacked: bool) -> None:
    options, spec = settings(), vector_spec(2, 2, (3,))
    batch = batch_of(OffPolicyRig(options, spec))
    torch.manual_seed(0)
    full = make_sac(spec, options, stacked=stacked)
    torch.manual_seed(0)
    part = make_sac(spec, options, stacked=stacked)
    before = copy.deepcopy({"actor": part.actor.state_dict(), "alpha": log_alpha(part)})

    tags = full.gradient_step(batch, 1e-2).keys(), part.gradient_step(batch, 1e-2, of_policy=False).keys()

    assert tags[0] - tags[1] == {"Losses/Policy Loss"}
    assert not same_states(full.actor.state_dict(), before["actor"])
    assert same_states(part.actor.state_dict(), before["actor"])
    assert same_states(log_alpha(part), before["alpha"])
    for name in ("q1", "q2", "critic", "target"):
        assert same_states(modules(full)[name].state_dict(), modules(part)[name].state_dict())


def same_states(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return same([*one.values()], [*other.values()])


def test_the_policy_is_updated_as_often_as_it_is_said_to_be_also_after_a_checkpoint() -> None:
    def trained(rig: OffPolicyRig, steps: int) -> tuple[set[int], set[int]]:
        rig.put(Trajectory(steps, ended=True))
        rig.trainer.advance()
        states = rig.learner.optimizer_states()
        counts = [{int(one["step"]) for one in states[name]["state"].values()} for name in ("value", "policy")]
        return counts[0], counts[1]

    rig = OffPolicyRig(settings(policy_delay=3, steps_per_update=1, buffer_init_steps=8))
    assert trained(rig, 19) == ({10}, {3})  # the first one is due two steps after the eighth
    assert len(rig.statistics()["Losses/Policy Loss"]) == 3
    again = OffPolicyRig(settings(policy_delay=3, steps_per_update=1, buffer_init_steps=8))
    restore(again.trainer, checkpoint_of(rig.trainer), reset_step=False)
    assert trained(again, 10) == ({20}, {6})
    assert trained(again, 1) == ({21}, {7})


# Fixed coefficients


def test_a_coefficient_that_is_given_is_not_learned() -> None:
    spec = vector_spec(2, 2, (3,))
    fixed, learned = settings(ent_coef=0.3, init_entcoef=7.0), settings(init_entcoef=0.3)
    batch = batch_of(OffPolicyRig(fixed, spec))
    found: list[SAC] = []
    for options in (fixed, learned):
        torch.manual_seed(0)
        found.append(make_sac(spec, options))
        found[-1].gradient_step(batch, 1e-2)
    for name in ("actor", "q1", "critic"):
        assert same_states(*(modules(sac)[name].state_dict() for sac in found))
    torch.testing.assert_close(log_alpha(found[0])["continuous"].exp(), torch.tensor([0.3]))
    assert not torch.equal(found[1].log_alpha_continuous, found[0].log_alpha_continuous)
    load_log_alpha(found[0], log_alpha(found[1]))
    found[0].load_optimizer_states(found[1].optimizer_states())
    found[0].gradient_step(batch, 1e-2)
    torch.testing.assert_close(log_alpha(found[0])["discrete"].exp(), torch.tensor([0.3]))


# Noise that depends on the state


def test_state_dependent_noise_is_squashed_and_paid_for_as_published() -> None:
    """The mean within limits, a variance that is linear in the squared features, and gradients to the features."""
    spec = vector_spec(3, 2)
    options = TrainerSettings(
        trainer_type="sac",
        hyperparameters=SACHyperparameters(ent_coef=0.2),
        network_settings=network(layers=1, use_sde=True, log_std_init=-1.0),
    )
    torch.manual_seed(3)
    actor = make_sac(spec, options).actor
    head = actor.head
    assert head.mu is not None
    assert head.log_sigma is not None
    with torch.no_grad():
        head.mu.weight.mul_(30.0)
    noise = torch.randn(40, 2)
    encoding = (2.0 * torch.randn(40, head.mu.in_features)).requires_grad_()

    policy = head(encoding, torch.zeros(40, 0, dtype=torch.bool))
    sampled = policy.continuous_from_noise(noise)
    log_prob = policy.continuous_log_prob(sampled).sum(1)
    (gradient,) = torch.autograd.grad((0.2 * log_prob + sampled.sum(1)).mean(), encoding)

    again = encoding.detach().double().requires_grad_()
    mean = again @ head.mu.weight.double().t() + head.mu.bias.double()
    assert (mean.abs() > 2.0).any()
    mean = mean.clamp(-2.0, 2.0)
    deviation = (again.square() @ head.log_sigma.double().exp().square() + 1e-6).sqrt()
    raw = mean + deviation * noise
    gaussian = -0.5 * noise.double().square() - deviation.log() - 0.5 * math.log(2 * math.pi)
    expected = (gaussian - (1.0 - raw.tanh().square() + 1e-12).log()).sum(1)
    (wanted,) = torch.autograd.grad((0.2 * expected + raw.tanh().sum(1)).mean(), again)
    torch.testing.assert_close(sampled, raw.tanh().float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(log_prob, expected.float(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(gradient, wanted.float(), rtol=1e-2, atol=1e-4)


# The first actions


@pytest.mark.parametrize("noise", [None, 0.001])
def test_the_first_actions_are_any(noise: float | None) -> None:
    actor = make_actor(2, (3, 4), sac=True)
    policy: ActorPolicy = (
        ActorPolicy(actor, seed=1, evenly_first=True)
        if noise is None
        else NoisyPolicy(actor, seed=1, deterministic=False, evenly_first=True, noise=noise)
    )
    given = inputs(actor, agents=6000)
    by_itself = policy.twin(seed=1).act(given.obs, given.mask, given.memory)

    first = policy.act(given.obs, given.mask, given.memory)
    policy.load(PolicyUpdate(1, policy.weights()))
    later = policy.act(given.obs, given.mask, given.memory)

    for column in first.env_continuous.T:
        parts, _ = np.histogram(column, 10, (-1.0, 1.0))
        assert np.all(np.abs(parts - 600) < 120)
    np.testing.assert_array_equal(first.continuous, first.env_continuous)
    for branch, (start, stop) in enumerate([(0, 3), (3, 7)]):
        mask, taken = given.mask[:, start:stop], first.discrete[:, branch]
        assert not mask[np.arange(6000), taken].any()
        free = taken[~mask.any(1)]
        np.testing.assert_allclose(np.bincount(free) / len(free), 1 / (stop - start), atol=0.06)
    for acted in (by_itself, later):
        parts, _ = np.histogram(acted.env_continuous, 10, (-1.0, 1.0))
        assert np.abs(parts - 1200).max() > 300


class Dial(gymnasium.Env[Any, Any]):
    """Ten steps per episode; keeps how far the dial was turned."""

    def __init__(self, turns: list[float]) -> None:
        self.observation_space, self.action_space = spaces.Box(-1.0, 1.0, (2,)), spaces.Box(-1.0, 1.0, (1,))
        self.turns = turns

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.turns.append(abs(float(action[0])))
        self.steps += 1
        return self.observation_space.sample(), 0.0, self.steps == 10, False, {}


def test_a_run_begins_with_any_actions_and_goes_on_by_its_policy_whoever_acts(tmp_path: Path) -> None:
    """The policy turns the dial by next to nothing, and does not learn to turn it further."""

    def turned(backend: str, max_steps: int, run_id: str = "first", **options: Any) -> np.ndarray[Any, Any]:
        turns: list[float] = []
        hyper = {"learning_starts": 60, "batch_size": 8, "buffer_size": 50, "learning_rate": 0.0}
        trainer = {
            "trainer_type": "sac",
            "hyperparameters": {**hyper, "steps_per_update": 5},
            "network_settings": {"hidden_units": 4, "num_layers": 1, "use_sde": True, "log_std_init": -9.0},
            "time_horizon": 10,
            "max_steps": max_steps,
        }
        trajtrainer.learn(
            {"behaviors": {"Dial": trainer}, "actors": {"backend": backend}, "torch_settings": {"device": "cpu"}},
            lambda: Dial(turns),
            results_dir=tmp_path,
            seed=1,
            verbose=False,
            run_id=run_id,
            **options,
        )
        return np.array(turns) > 0.3

    assert turned("inline", 30)[:20].mean() > 0.4
    resumed = turned("thread", 250, resume=True)  # at step 31, of which no update was made
    assert resumed[:20].mean() > 0.4
    assert not resumed[-50:].any()
    assert not turned("inline", 270, resume=True).any()
    assert not turned("thread", 80, run_id="second", initialize_from="first").any()
