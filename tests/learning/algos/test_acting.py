"""The collector's policy: its own weights, its own random numbers, numpy in and out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.learning.nn.golden import policy_case
from tests.learning.nn.specs import behavior, camera, network, vector
from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import ActionBatch, BoolArray, FloatArray, ObservationArray
from trajtrainer.learning.algos.acting import ActorPolicy, PolicyDivergedError
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.init import seeded


@dataclass
class Update:
    version: int
    weights: Mapping[str, Any]


SPEC = behavior([vector(4)], 2, (3, 2))
Inputs = tuple[tuple[ObservationArray, ...], BoolArray, FloatArray]


def make_actor(spec: BehaviorSpec = SPEC, seed: int = 0, **settings: Any) -> Actor:
    with seeded(seed):
        return Actor(spec, network(**settings))


def inputs(agents: int = 6, seed: int = 0, memory: int = 0) -> Inputs:
    obs = np.random.default_rng(seed).normal(size=(agents, 4)).astype(np.float32)
    return (obs,), np.zeros((agents, 5), bool), np.zeros((agents, memory), np.float32)


def equal(first: ActionBatch, second: ActionBatch) -> bool:
    names = ("continuous", "discrete", "env_continuous", "log_prob", "entropy", "memory")
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in names)


def test_shapes_and_types() -> None:
    actions = ActorPolicy(make_actor(memory=8), seed=1).act(*inputs(memory=8))
    for name, shape, dtype in (
        ("continuous", (6, 2), np.float32),
        ("discrete", (6, 2), np.int32),
        ("env_continuous", (6, 2), np.float32),
        ("log_prob", (6, 4), np.float32),
        ("entropy", (6,), np.float32),
        ("memory", (6, 8), np.float32),
    ):
        array = getattr(actions, name)
        assert array.shape == shape, name
        assert array.dtype == dtype, name
    assert actions.version == 0


@pytest.mark.parametrize(
    ("spec", "discrete", "log_probs"),
    [
        (behavior([vector(4)], 3), 0, 3),
        (behavior([vector(4)], 0, (5,)), 1, 1),
        (behavior([vector(4)], 0, (2, 2)), 2, 2),
    ],
)
def test_shapes_without_one_kind_of_action(spec: BehaviorSpec, discrete: int, log_probs: int) -> None:
    (obs, _, memory) = inputs()
    mask = np.zeros((6, sum(spec.action_spec.discrete_branches)), bool)
    actions = ActorPolicy(make_actor(spec), seed=1).act(obs, mask, memory)
    assert actions.discrete.shape == (6, discrete)
    assert actions.discrete.dtype == np.int32
    assert actions.continuous.shape == (6, spec.action_spec.continuous_size)
    assert actions.log_prob.shape == (6, log_probs)
    assert actions.entropy.shape == (6,)


def test_one_seed_gives_one_stream_whatever_torch_draws_elsewhere() -> None:
    actor = make_actor()
    first, second = ActorPolicy(actor, seed=5), ActorPolicy(actor, seed=5)
    for step in range(3):
        a = first.act(*inputs(seed=step))
        torch.rand(7)
        b = second.act(*inputs(seed=step))
        assert equal(a, b)
    assert not equal(ActorPolicy(actor, seed=6).act(*inputs()), ActorPolicy(actor, seed=5).act(*inputs()))


def test_acting_leaves_torchs_generator_alone() -> None:
    policy = ActorPolicy(make_actor(), seed=5)
    before = torch.get_rng_state()
    policy.act(*inputs())
    assert torch.equal(before, torch.get_rng_state())


def test_the_stream_goes_on_from_a_saved_state() -> None:
    policy = ActorPolicy(make_actor(), seed=5)
    policy.act(*inputs())
    state = policy.rng_state()
    expected = [policy.act(*inputs(seed=k)) for k in range(3)]
    other = ActorPolicy(make_actor(), seed=99)
    other.set_rng_state(state)
    for k in range(3):
        assert equal(other.act(*inputs(seed=k)), expected[k])


def test_deterministic() -> None:
    actor = make_actor()
    policy = ActorPolicy(actor, seed=5, deterministic=True)
    actions = policy.act(*inputs())
    assert equal(actions, policy.act(*inputs()))
    (obs,), mask, _ = inputs()
    with torch.no_grad():
        distribution, _ = actor.distribution([torch.from_numpy(obs)], torch.from_numpy(mask))
        best = distribution.deterministic()
        np.testing.assert_allclose(actions.continuous, best.continuous.numpy(), atol=1e-6)
        assert np.array_equal(actions.discrete, best.discrete.numpy())
        np.testing.assert_allclose(actions.log_prob, distribution.log_prob(*best).numpy(), atol=1e-6)
        np.testing.assert_allclose(actions.entropy, distribution.entropy().numpy(), atol=1e-6)


def test_log_probs_and_clipping_belong_to_the_actions() -> None:
    actor = make_actor()
    with torch.no_grad():
        assert actor.head.log_sigma is not None
        actor.head.log_sigma.fill_(1.5)
    actions = ActorPolicy(actor, seed=5).act(*inputs(200))
    (obs,), mask, _ = inputs(200)
    with torch.no_grad():
        distribution, _ = actor.distribution([torch.from_numpy(obs)], torch.from_numpy(mask))
        expected = distribution.log_prob(torch.from_numpy(actions.continuous), torch.from_numpy(actions.discrete))
    np.testing.assert_allclose(actions.log_prob, expected.numpy(), atol=1e-5)
    assert np.abs(actions.continuous).max() > 3
    np.testing.assert_allclose(actions.env_continuous, np.clip(actions.continuous, -3, 3) / 3, atol=1e-6)


def test_squashed_actions_stay_within_one() -> None:
    actor = Actor(behavior([vector(4)], 2), network(), conditional_sigma=True, tanh_squash=True)
    obs, _, memory = inputs(50)
    actions = ActorPolicy(actor, seed=1).act(obs, np.zeros((50, 0), bool), memory)
    assert np.abs(actions.env_continuous).max() < 1
    assert np.array_equal(actions.env_continuous, actions.continuous)


def test_forbidden_actions_are_never_taken() -> None:
    obs, mask, memory = inputs(300)
    mask[:, 0] = mask[:, 2] = mask[::2, 3] = mask[1::2, 4] = True
    discrete = ActorPolicy(make_actor(), seed=1).act(obs, mask, memory).discrete
    assert np.array_equal(discrete[:, 0], np.ones(300))
    assert np.array_equal(discrete[:, 1], np.arange(300) % 2 == 0)


def test_training_the_actor_does_not_reach_the_policy() -> None:
    actor = make_actor()
    policy = ActorPolicy(actor, seed=1, deterministic=True)
    before = policy.act(*inputs())
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.add_(1.0)
    assert equal(policy.act(*inputs()), before)


def test_loading_takes_over_weights_and_version() -> None:
    other = make_actor(seed=9)
    with torch.no_grad():
        assert other.head.log_sigma is not None
        other.head.log_sigma.fill_(-1.0)  # what follows from sigma alone is kept between steps
    policy, expected = ActorPolicy(make_actor(), seed=1), ActorPolicy(other, seed=1)
    first = policy.act(*inputs())
    assert not equal(expected.act(*inputs()), first)
    policy.load(Update(7, other.state_dict()))
    expected.set_rng_state(policy.rng_state())
    actions = policy.act(*inputs())
    assert equal(actions, expected.act(*inputs()))
    assert actions.version == policy.version == 7


def test_loading_a_part_and_other_sources() -> None:
    policy = ActorPolicy(make_actor(), seed=1, deterministic=True)
    policy.load(Update(1, {"head.mu.bias": np.array([10.0, -10.0], np.float32)}))
    assert np.array_equal(policy.act(*inputs()).env_continuous, np.tile(np.array([1.0, -1.0], np.float32), (6, 1)))


def test_the_loaded_weights_are_copied() -> None:
    weights = {name: value.clone() for name, value in make_actor(seed=3).state_dict().items()}
    policy = ActorPolicy(make_actor(), seed=1, deterministic=True)
    policy.load(Update(1, weights))
    before = policy.act(*inputs())
    for value in weights.values():
        value.zero_()
    assert equal(policy.act(*inputs()), before)


def test_wrong_updates() -> None:
    policy = ActorPolicy(make_actor(), seed=1)
    with pytest.raises(KeyError, match="nothing"):
        policy.load(Update(1, {"nothing": torch.zeros(1)}))
    with pytest.raises(ValueError, match=r"head.mu.bias: shape \(3,\), expected \(2,\)"):
        policy.load(Update(1, {"head.mu.bias": torch.zeros(3)}))


def test_memory_goes_in_and_out() -> None:
    policy = ActorPolicy(make_actor(memory=8), seed=1, deterministic=True)
    first = policy.act(*inputs(memory=8))
    obs, mask, _ = inputs()
    second = policy.act(obs, mask, first.memory)
    assert not np.array_equal(first.memory, second.memory)
    assert not np.array_equal(first.continuous, second.continuous)


def test_read_only_observations_are_neither_copied_nor_warned_about() -> None:
    """Arrays over received bytes are read-only."""
    (obs,), mask, memory = inputs()
    view = np.frombuffer(obs.tobytes(), np.float32).reshape(obs.shape)
    assert not view.flags.writeable
    policy = ActorPolicy(make_actor(), seed=1, deterministic=True)
    assert equal(policy.act((view,), mask, memory), policy.act((obs,), mask, memory))
    assert policy._tensor(view).data_ptr() == view.ctypes.data
    assert policy._tensor(obs).data_ptr() == obs.ctypes.data
    assert policy._tensor(obs[2:]).data_ptr() == obs[2:].ctypes.data


def test_pictures_as_bytes() -> None:
    spec = behavior([camera(3, 20, 20)], 2)
    policy = ActorPolicy(make_actor(spec), seed=1, deterministic=True)
    picture = np.random.default_rng(0).integers(0, 256, (4, 3, 20, 20), np.uint8)
    picture.flags.writeable = False
    mask, memory = np.zeros((4, 0), bool), np.zeros((4, 0), np.float32)
    as_bytes = policy.act((picture,), mask, memory)
    as_floats = policy.act((picture.astype(np.float32) / np.float32(255),), mask, memory)
    np.testing.assert_allclose(as_bytes.continuous, as_floats.continuous, atol=1e-6)


@pytest.mark.parametrize(("bad_obs", "words"), [(True, "observations contain"), (False, "weights have diverged")])
@pytest.mark.parametrize("spec", [SPEC, behavior([vector(4)], 0, (3, 2)), behavior([vector(4)], 2)])
def test_nan_actions_are_an_error(spec: BehaviorSpec, bad_obs: bool, words: str) -> None:
    policy = ActorPolicy(make_actor(spec), seed=1)
    (obs,), mask, memory = inputs()
    if bad_obs:
        obs[4, 2] = np.nan
    else:
        bias = f"head.{'discrete' if spec.action_spec.discrete_size else 'mu'}.bias"
        size = make_actor(spec).state_dict()[bias].shape[0]
        policy.load(Update(3, {bias: torch.tensor([0.0, np.nan, 0, 0, 0][:size])}))
    with pytest.raises(PolicyDivergedError, match=words) as caught:
        policy.act((obs,), mask, memory)
    assert isinstance(caught.value, TrajtrainerError)
    assert isinstance(caught.value, RuntimeError)
    assert ("1 of 6 agents, the first in row 4" if bad_obs else "6 of 6 agents, the first in row 0") in str(
        caught.value
    )


def test_no_agents() -> None:
    actions = ActorPolicy(make_actor(), seed=1).act(*inputs(0))
    assert len(actions) == 0


@pytest.mark.parametrize("name", ["ppo_hybrid", "ppo_lstm", "ppo_visual_two_vector", "ppo_goal_hyper"])
def test_mlagents_actions(shared_data: Path, name: str) -> None:
    case = policy_case(shared_data, name)
    policy = ActorPolicy(case.actor(), seed=1, deterministic=True)
    memory = case.memory()
    actions = policy.act(
        tuple(sensor.numpy() for sensor in case.obs()),
        case.mask().numpy(),
        np.zeros((5, 0), np.float32) if memory is None else memory.numpy(),
    )
    if actions.continuous.shape[1]:
        expected = case.arrays["torch_deterministic_continuous_actions"]
        np.testing.assert_allclose(actions.env_continuous, expected, atol=1e-5)
    if actions.discrete.shape[1]:
        assert np.array_equal(actions.discrete, case.arrays["torch_deterministic_discrete_actions"])
    if memory is not None:
        np.testing.assert_allclose(actions.memory, case.arrays["torch_recurrent_out"][:, 0], atol=1e-5)
