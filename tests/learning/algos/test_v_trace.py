"""V-trace against the sums of its paper, weights against each step by itself, and learners without old policies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.learning.algos.samples import SPECS
from tests.learning.algos.test_poca import steps as group_steps
from tests.learning.nn.specs import network
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import FloatArray
from trajtrainer.core.timers import Timers
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.algos.poca.poca import POCA, critic_loss
from trajtrainer.learning.algos.ppo.losses import normalized
from trajtrainer.learning.algos.ppo.ppo import PPO, WEIGHT_TAG
from trajtrainer.learning.algos.values import gae, lambda_return, v_trace
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.init import seeded
from trajtrainer.learning.trainers.factory import create_algorithm
from trajtrainer.settings.yaml.convert import trainer_settings
from trajtrainer.testing import random_steps

CPU = torch.device("cpu")
GAMMAS = [0.97, 0.8]
LENGTH = 3
MEMORIES = [None, 6]


# Sums


class Slow:
    """The definitions of Espeholt et al. (2018), section 4.1 and remark 2, of one trajectory and signal."""

    def __init__(self, columns: list[NDArray[np.float64]], gamma: float, lambd: float) -> None:
        self.rewards, values, after, self.rho, trace = columns
        self.values, self.c = np.append(values, after), lambd * trace
        self.gamma, self.lambd = gamma, lambd

    def v(self, s: int) -> float:
        """``V(x_s) + sum over t >= s of gamma^(t - s) * (product of c_i from s to t - 1) * rho_t * delta_t``."""
        total = float(self.values[s])
        for t in range(s, len(self.rewards)):
            delta = self.rho[t] * (self.rewards[t] + self.gamma * self.values[t + 1] - self.values[t])
            total += self.gamma ** (t - s) * math.prod(self.c[s:t]) * delta
        return total

    def q(self, s: int) -> float:
        """``r_s + gamma * v_(s + 1)``, of which a part of ``1 - lambda`` is the value itself."""
        after = self.values[s + 1]
        if s + 1 < len(self.rewards):
            after = self.lambd * self.v(s + 1) + (1 - self.lambd) * after
        return float(self.rewards[s] + self.gamma * after)


Sums = tuple[FloatArray, FloatArray, FloatArray, NDArray[np.int64], list[float], float]


def _sums(lengths: list[int], seed: int, lambd: float) -> Sums:
    rng = np.random.default_rng(seed)
    offset = np.concatenate([[0], np.cumsum(lengths)])
    sizes = (2, offset[-1]), (2, offset[-1]), (2, len(lengths))
    rewards, values, bootstrap = (rng.standard_normal(size).astype(np.float32) for size in sizes)
    return rewards, values, bootstrap, offset, GAMMAS, lambd


def _expected(sums: Sums, rho: FloatArray, trace: FloatArray) -> tuple[NDArray[Any], NDArray[Any]]:
    rewards, values, bootstrap, offset, gammas, lambd = sums
    v, q = np.empty((2, *rewards.shape))
    for signal, s in np.ndindex(bootstrap.shape):
        rows = slice(offset[s], offset[s + 1])
        columns = (rewards[signal, rows], values[signal, rows], bootstrap[signal, s], rho[rows], trace[rows])
        slow = Slow([np.asarray(column, np.float64) for column in columns], gammas[signal], lambd)
        v[signal, rows] = [slow.v(t) for t in range(rows.stop - rows.start)]
        q[signal, rows] = [slow.q(t) for t in range(rows.stop - rows.start)]
    return v, q


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(0, 1000), st.floats(0.0, 1.0))
def test_targets_are_the_sums_of_the_paper(lengths: list[int], seed: int, lambd: float) -> None:
    sums = _sums(lengths, seed, lambd)
    ratio = np.exp(np.random.default_rng(seed).standard_normal(sum(lengths))).astype(np.float32)
    rho, trace = ratio.clip(max=1.5), ratio.clip(max=1.0)
    found = v_trace(*sums, rho, trace)
    for part, expected in zip(found, _expected(sums, rho, trace), strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-4, atol=1e-5)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 1000), st.floats(0.0, 1.0))
def test_without_old_policies_both_are_the_lambda_return(lengths: list[int], seed: int, lambd: float) -> None:
    sums, one = _sums(lengths, seed, lambd), np.ones(sum(lengths), np.float32)
    found = v_trace(*sums, one, one)
    for part in found:
        np.testing.assert_allclose(part, lambda_return(*sums), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found[1] - sums[1], gae(*sums), rtol=1e-5, atol=2e-6)


def test_a_step_that_the_policy_would_not_make_tells_nothing() -> None:
    sums = _sums([4], 0, 1.0)
    never = np.array([1, 0, 1, 1], np.float32)
    v, q = v_trace(*sums, never, never)
    rewards, values, _, _, (gamma, _), _ = sums
    assert v[0, 1] == values[0, 1]
    assert v[0, 0] == pytest.approx(rewards[0, 0] + gamma * values[0, 1])
    assert q[0, 0] == pytest.approx(rewards[0, 0] + gamma * values[0, 1])


# Weights


def _actor(spec: BehaviorSpec, memory: int | None, **settings: Any) -> Actor:
    with seeded(1):
        actor = Actor(spec, network(hidden=8, memory=memory, **settings))
        with torch.no_grad():
            for weights in actor.parameters():
                weights.add_(0.3 * torch.randn_like(weights))
    return actor


def _packed(spec: BehaviorSpec, memory: int | None) -> PackedSteps:
    """Steps of trajectories of 5, 8 and 3 steps, some with forbidden actions."""
    packed = random_steps(spec, memory_size=memory or 0, seed=4)
    start = 0
    for branch, size in enumerate(spec.action_spec.discrete_branches):
        packed["mask"][:, start + 1] = packed["discrete"][:, branch] != 1
        start += size
    return packed


@torch.no_grad()
def _step_by_step(actor: Actor, packed: PackedSteps) -> FloatArray:
    found = []
    for first, last in zip(packed.offset[:-1], packed.offset[1:], strict=True):
        for step in range(first, last):
            if (step - first) % LENGTH == 0:
                memory = torch.from_numpy(packed["memory"][step][None])
            row = [torch.from_numpy(packed[name][step][None]) for name in ("mask", "continuous", "discrete")]
            obs = [torch.from_numpy(sensor[step][None]) for sensor in packed.obs]
            distribution, memory = actor.distribution(obs, row[0], memory)
            found.append(distribution.log_prob(*row[1:]).numpy()[0])
    return np.array(found)


def _weights(
    spec: BehaviorSpec, memory: int | None, actor: Actor, packed: PackedSteps, **hyper: Any
) -> tuple[FloatArray, FloatArray, FloatArray]:
    learner = _learner(spec, memory, v_trace=True, **hyper)
    learner.networks = {**learner.networks, "actor": actor}
    return learner._importance_weights(packed, [torch.from_numpy(sensor) for sensor in packed.obs])


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("name", SPECS)
def test_weights_are_those_of_each_step_by_itself(name: str, memory: int | None) -> None:
    spec = SPECS[name]
    actor, packed = _actor(spec, memory, normalize=True), _packed(spec, memory)
    log_prob, rho, trace = _weights(spec, memory, actor, packed, rho_bar=1.25, c_bar=0.75)
    expected = _step_by_step(actor, packed)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-5)
    ratio = np.exp((expected.astype(np.float64) - packed["log_prob"]).sum(1))
    np.testing.assert_allclose(rho, ratio.clip(max=1.25), rtol=1e-3)
    np.testing.assert_allclose(trace, ratio.clip(max=0.75), rtol=1e-3)
    assert rho.dtype == np.float32
    assert ratio.min() < 0.75
    assert ratio.max() > 1.25


def test_a_weight_without_bounds_is_truncated() -> None:
    spec = SPECS["continuous"]
    actor, packed = _actor(spec, None), _packed(spec, None)
    packed["log_prob"][0], packed["log_prob"][1] = -1e30, 1e30
    _, rho, _ = _weights(spec, None, actor, packed)
    assert (rho[0], rho[1]) == (1.0, 0.0)


# Learners


def _learner(spec: BehaviorSpec, memory: int | None, kind: str = "ppo", *, lag: int | None = None, **hyper: Any) -> PPO:
    learning = {"batch_size": 6, "buffer_size": 15, "num_epoch": 2, "learning_rate": 0.01, **hyper}
    given: dict[str, Any] = {"hidden_units": 8, "num_layers": 1}
    if memory is not None:
        given["memory"] = {"sequence_length": LENGTH, "memory_size": memory}
    signals = {"extrinsic": {"gamma": GAMMAS[0]}, "rnd": {"gamma": GAMMAS[1]}}
    mapping = {"trainer_type": kind, "hyperparameters": learning, "network_settings": given, "reward_signals": signals}
    algorithm = create_algorithm(
        LearningContext(
            behavior="A",
            spec=spec,
            settings=trainer_settings(mapping),
            obs_dtypes=[np.dtype(np.float32)] * len(spec.observation_specs),
            seed=3,
            device=CPU,
            training=True,
            timers=Timers(),
            is_stopping=lambda: False,
            max_policy_lag=lag,
        )
    )
    assert isinstance(algorithm, PPO)
    return algorithm


def _by(actor: Actor, packed: PackedSteps) -> PackedSteps:
    """The same actions, as if this policy had chosen them."""
    return replace(packed, steps=packed.steps.with_columns({"log_prob": _step_by_step(actor, packed)}))


def _rewards(packed: PackedSteps) -> FloatArray:
    return np.stack([packed["reward"], packed["group_reward"]])


def _of(learner: PPO, packed: PackedSteps) -> tuple[Mapping[str, Any], dict[str, NDArray[Any]]]:
    """Give a learner steps; return its statistics, and what its buffer has of them without padding."""
    statistics = learner.add(packed, _rewards(packed))
    buffer = learner._buffer
    real = slice(None) if buffer.loss_mask is None else buffer.loss_mask.numpy() > 0
    names = [name for name in buffer._rows if not name.startswith("obs")]
    return statistics, {name: buffer.column(name).numpy()[real] for name in names}


@pytest.mark.parametrize(
    ("v_trace", "lag", "corrects"),
    [(None, None, False), (None, 0, False), (None, 1, True), (False, 1, False), (True, None, True), (True, 0, True)],
)
def test_it_is_on_where_policies_may_be_old(v_trace: bool | None, lag: int | None, corrects: bool) -> None:
    packed = _packed(SPECS["hybrid"], None)
    statistics = _learner(SPECS["hybrid"], None, lag=lag, v_trace=v_trace).add(packed, _rewards(packed))
    assert (WEIGHT_TAG in statistics) is corrects


@pytest.mark.parametrize("kind", ["ppo", "poca"])
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("name", SPECS)
def test_without_old_policies_nothing_changes(name: str, memory: int | None, kind: str) -> None:
    spec = SPECS[name]
    plain, corrected = (_learner(spec, memory, kind, v_trace=each) for each in (False, True))
    packed = _packed(spec, memory)
    if kind == "poca":
        packed = replace(packed, groups=group_steps(spec, seed=1).groups)
    packed = _by(plain.actor, packed)
    _, expected = _of(plain, packed)
    statistics, found = _of(corrected, packed)
    np.testing.assert_allclose(statistics[WEIGHT_TAG], np.ones(len(packed)), rtol=1e-5)
    np.testing.assert_allclose(found.pop("weight"), np.ones(len(packed)), rtol=1e-5)
    if kind == "poca":
        np.testing.assert_allclose(found.pop("baseline_returns"), expected["returns"], rtol=1e-4, atol=1e-5)
    assert found.keys() == expected.keys()
    for column, values in expected.items():
        np.testing.assert_allclose(found[column], values, rtol=1e-4, atol=1e-5, err_msg=column)
    for learner in (plain, corrected):
        learner.update(0, lambda _: None)
    for one, other in zip(plain.actor.parameters(), corrected.actor.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("memory", MEMORIES)
def test_targets_of_values_and_actions(memory: int | None) -> None:
    spec = SPECS["hybrid"]
    packed = _packed(spec, memory)
    _, plain = _of(_learner(spec, memory), packed)
    learner = _learner(spec, memory, v_trace=True, rho_bar=1.5)
    statistics, found = _of(learner, packed)
    expected = _step_by_step(learner.actor, packed)
    ratio = np.exp((expected - packed["log_prob"]).sum(1))
    rho, trace = ratio.clip(max=1.5), ratio.clip(max=1.0)
    value = found["value"].T
    fresh = _learner(spec, memory)._values  # that remembers nothing of these trajectories
    obs = ([torch.from_numpy(sensor) for sensor in part.obs] for part in (packed, packed.bootstrap))
    bootstrap = fresh.estimate(packed, *obs).bootstrap.copy()
    bootstrap[0, packed.terminated] = 0.0
    v, q = _expected((_rewards(packed), value, bootstrap, packed.offset.astype(np.int64), GAMMAS, 0.95), rho, trace)
    np.testing.assert_allclose(found["returns"].T, v, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found["advantage"], (q - value).mean(0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found["value"], plain["value"], rtol=1e-6)
    np.testing.assert_allclose(found["weight"], rho, rtol=1e-3)
    np.testing.assert_allclose(found["log_prob"], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(statistics[WEIGHT_TAG].mean(), rho.mean(), rtol=1e-3)
    assert not np.allclose(found["returns"], plain["returns"], rtol=0.1, atol=0.1)


def test_targets_of_baselines() -> None:
    spec = SPECS["hybrid"]
    packed = replace(_packed(spec, None), groups=group_steps(spec, seed=1).groups)
    learner = _learner(spec, None, "poca", v_trace=True)
    assert isinstance(learner, POCA)
    estimates = learner._values.estimate(packed, spec.action_spec, CPU)
    assert packed.groups is not None
    bootstrap = estimates.bootstrap.copy()
    bootstrap[0, packed.terminated & packed.groups.all_done] = 0.0
    _, found = _of(learner, packed)
    rho = np.exp((_step_by_step(learner.actor, packed) - packed["log_prob"]).sum(1)).clip(max=1.0)
    sums = _rewards(packed), estimates.values, bootstrap, packed.offset.astype(np.int64), GAMMAS, 0.95
    v, q = _expected(sums, rho, rho)
    baseline = estimates.baselines
    np.testing.assert_allclose(found["returns"].T, v, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found["advantage"], (q - baseline).mean(0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found["baseline_returns"].T, baseline + rho * (q - baseline), rtol=1e-3, atol=1e-4)


def test_baselines_have_a_target_of_their_own() -> None:
    values, baselines, returns, own = torch.randn(4, 2, 9, generator=torch.Generator().manual_seed(0))
    given: dict[str, Any] = {"old_values": None, "old_baselines": baselines, "epsilon": 0.2}
    both = critic_loss(values, baselines, returns, None, **given)
    apart = critic_loss(values, baselines, returns, None, baseline_returns=own, **given)
    assert apart.value == both.value
    assert apart.baseline == critic_loss(values, baselines, own, None, **given).baseline != both.baseline


@pytest.mark.parametrize("memory", MEMORIES)
def test_an_update_begins_where_no_ratio_is_clipped(memory: int | None) -> None:
    """The clipping range lies around the policy as it is, however old those are that acted."""
    spec = SPECS["hybrid"]
    divergence = {}
    for corrected in (False, True):
        learner = _learner(spec, memory, v_trace=corrected, learning_rate=0.0)
        packed = _packed(spec, memory)
        learner.add(packed, _rewards(packed))
        divergence[corrected] = learner.update(0, lambda _: None)["Policy/Approximate KL"][0]
    assert divergence[True] == pytest.approx(0.0, abs=1e-6)
    assert divergence[False] > 0.1


@pytest.mark.parametrize("per_minibatch", [False, True])
def test_weights_count_after_advantages_are_normalized(monkeypatch: pytest.MonkeyPatch, per_minibatch: bool) -> None:
    spec = SPECS["hybrid"]
    learner = _learner(
        spec, None, v_trace=True, batch_size=16, num_epoch=1, normalize_advantage_per_mini_batch=per_minibatch
    )
    packed = _packed(spec, None)
    _, found = _of(learner, packed)
    seen = []

    def differentiate(minibatch: Any, *_: Any) -> dict[str, torch.Tensor]:
        seen.append(minibatch["advantage"])
        return {}

    monkeypatch.setattr(learner.closed_form, "differentiate", differentiate)
    learner.update(0, lambda _: None)
    expected = normalized(torch.from_numpy(found["advantage"].copy()), None) * torch.from_numpy(found["weight"].copy())
    torch.testing.assert_close(seen[0].sort().values, expected.sort().values, rtol=1e-4, atol=1e-5)
