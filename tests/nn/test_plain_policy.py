"""Acting without modules against the actor's own distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.nn.specs import behavior, camera, network, vector
from trajtrainer.nn.acting import Policy
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.init import seeded
from trajtrainer.nn.plain_policy import is_plain
from trajtrainer.spec import BehaviorSpec
from trajtrainer.steps import ActionBatch, FloatArray

SPEC = behavior([vector(4), vector(3, "other")], 2)


@dataclass
class Update:
    version: int
    weights: dict[str, Tensor]


def make_actor(spec: BehaviorSpec = SPEC, **settings: Any) -> Actor:
    with seeded(0):
        actor = Actor(spec, network(**settings))
    actor.update_normalization([3.0 + 2.0 * torch.randn(50, *one.shape) for one in spec.observation_specs])
    if actor.head.log_sigma is not None:
        with torch.no_grad():
            actor.head.log_sigma.copy_(torch.tensor([[0.8, -1.0]]))
    return actor


def observations(agents: int = 30, scale: float = 8.0) -> tuple[FloatArray, ...]:
    """Wide enough that some of the normalised ones are clipped."""
    rng = np.random.default_rng(0)
    return tuple((scale * rng.normal(size=(agents, size))).astype(np.float32) for size in (4, 3))


def act(policy: Policy, obs: tuple[FloatArray, ...]) -> ActionBatch:
    return policy.act(obs, np.zeros((len(obs[0]), 0), bool), np.zeros((len(obs[0]), 0), np.float32))


def check(actions: ActionBatch, actor: Actor, obs: tuple[FloatArray, ...], seed: int | None) -> None:
    """The actions are those of the actor's distribution, drawn by a generator of this seed."""
    with torch.no_grad():
        distribution, _ = actor.distribution([torch.from_numpy(one) for one in obs], torch.zeros(len(obs[0]), 0) > 0)
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        expected = distribution.deterministic() if seed is None else distribution.sample(generator)
        log_prob = distribution.log_prob(*expected)
        for found, wanted in (
            (actions.continuous, expected.continuous),
            (actions.env_continuous, distribution.to_env(expected.continuous)),
            (actions.log_prob, log_prob),
            (actions.entropy, distribution.entropy()),
        ):
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_draws_and_numbers_are_the_actors(normalize: bool, layers: int) -> None:
    actor = make_actor(normalize=normalize, layers=layers)
    assert is_plain(actor)
    obs = observations()
    check(act(Policy(actor, seed=7), obs), actor, obs, 7)
    check(act(Policy(actor, seed=7, deterministic=True), obs), actor, obs, None)


def test_observations_are_left_as_they_are() -> None:
    obs = observations()
    kept = [one.copy() for one in obs]
    act(Policy(make_actor(normalize=True), seed=7), obs)
    assert all(np.array_equal(one, other) for one, other in zip(obs, kept, strict=True))


def test_what_is_derived_from_weights_follows_them() -> None:
    policy, obs = Policy(make_actor(normalize=True), seed=7, deterministic=True), observations()
    other = make_actor(normalize=True)
    other.update_normalization([torch.from_numpy(one) for one in obs])
    normalizers = {name: value for name, value in other.state_dict().items() if "sensors" in name}
    assert normalizers
    policy.load(Update(1, normalizers))
    check(act(policy, obs), other, obs, None)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    policy.load(Update(2, dict(other.state_dict())))
    check(act(policy, obs), other, obs, None)


def test_other_actors_act_by_themselves() -> None:
    assert not is_plain(make_actor(memory=8))
    assert not is_plain(Actor(behavior([vector(4)], 2, (3,)), network()))
    assert not is_plain(Actor(behavior([camera(3, 20, 20)], 2), network()))
    assert not is_plain(Actor(behavior([vector(4)], 2), network(), conditional_sigma=True, tanh_squash=True))
