"""Acting without modules against the actor's own distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.nn.specs import behavior, camera, network, vector
from trajtrainer.nn.acting import Policy, PolicyDivergedError
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.init import seeded
from trajtrainer.nn.plain_policy import is_plain
from trajtrainer.steps import ActionBatch, BoolArray, FloatArray

SENSORS = [vector(4), vector(3, "other")]
AGENTS = 30
# Continuous actions, branches.
KINDS: list[tuple[int, tuple[int, ...]]] = [
    (2, ()),
    (0, (3,)),
    (0, (2, 2)),
    (0, (2, 5, 3)),
    (2, (4,)),
    (3, (3, 1, 4)),
]
SAC = {"conditional_sigma": True, "tanh_squash": True}


@dataclass
class Update:
    version: int
    weights: dict[str, Tensor]


@dataclass
class Inputs:
    obs: tuple[FloatArray, ...]
    mask: BoolArray
    memory: FloatArray


def make_actor(
    continuous: int = 2, branches: tuple[int, ...] = (), *, seed: int = 0, sac: bool = False, **settings: Any
) -> Actor:
    """Normalisers that have seen something, heads whose outputs are not all about zero."""
    spec = behavior(SENSORS, continuous, branches)
    with seeded(seed):
        actor = Actor(spec, network(**settings), **(SAC if sac else {}))
        actor.update_normalization([3.0 + 2.0 * torch.randn(50, *one.shape) for one in spec.observation_specs])
        with torch.no_grad():
            for parameter in actor.head.parameters():
                parameter.add_(torch.randn(parameter.shape))
    return actor


def inputs(actor: Actor, *, agents: int = AGENTS, seed: int = 0, scale: float = 8.0) -> Inputs:
    """Observations wide enough that some of the normalised ones are clipped; a third of the actions forbidden, of each
    branch at least one allowed."""
    rng = np.random.default_rng(seed)
    masks = [rng.random((agents, size)) < 1 / 3 for size in actor.head.branches]
    for one in masks:
        one[np.arange(agents), rng.integers(one.shape[1], size=agents)] = False
    return Inputs(
        obs=tuple((scale * rng.normal(size=(agents, size))).astype(np.float32) for size in (4, 3)),
        mask=np.concatenate([np.zeros((agents, 0), bool), *masks], 1),
        memory=rng.normal(size=(agents, actor.memory_size)).astype(np.float32),
    )


def act(policy: Policy, given: Inputs) -> ActionBatch:
    return policy.act(given.obs, given.mask, given.memory)


def check(actions: ActionBatch, actor: Actor, given: Inputs, generator: torch.Generator | None) -> None:
    """The actions are those of the actor's distribution, drawn by this generator, or the likeliest."""
    with torch.no_grad():
        distribution, memory = actor.distribution(
            [torch.from_numpy(one) for one in given.obs], torch.from_numpy(given.mask), torch.from_numpy(given.memory)
        )
        expected = distribution.deterministic() if generator is None else distribution.sample(generator)
        if generator is None and actor.head.tanh_squash:
            # As a draw, whose log_prob is exact; that of any other action suffers from the inverse of tanh.
            expected = expected._replace(
                continuous=distribution.continuous_from_noise(torch.zeros_like(distribution.mu))
            )
        assert actions.discrete.dtype == np.int32
        assert np.array_equal(actions.discrete, expected.discrete.numpy())
        for found, wanted in (
            (actions.continuous, expected.continuous),
            (actions.env_continuous, distribution.to_env(expected.continuous)),
            (actions.log_prob, distribution.log_prob(*expected)),
            (actions.entropy, distribution.entropy()),
            (actions.memory, memory),
        ):
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5, atol=1e-5)


def check_steps(actor: Actor, *, steps: int = 3) -> None:
    """Several steps, the memory handed on, sampled and deterministic."""
    for deterministic in (False, True):
        policy = Policy(actor, seed=7, deterministic=deterministic)
        assert policy._plain is not None
        generator = None if deterministic else torch.Generator().manual_seed(7)
        memory = inputs(actor).memory
        for step in range(steps):
            given = inputs(actor, seed=step)
            given.memory = memory
            actions = act(policy, given)
            check(actions, actor, given, generator)
            memory = actions.memory


@pytest.mark.parametrize(("continuous", "branches"), KINDS)
@pytest.mark.parametrize("memory", [None, 8])
def test_draws_and_numbers_are_the_actors(continuous: int, branches: tuple[int, ...], memory: int | None) -> None:
    check_steps(make_actor(continuous, branches, memory=memory))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_layers_and_normalizers(normalize: bool, layers: int) -> None:
    check_steps(make_actor(2, (3, 2), normalize=normalize, layers=layers))


@pytest.mark.parametrize(("continuous", "branches"), [(2, ()), (1, (3, 2)), (0, (4,))])
def test_actors_of_sac(continuous: int, branches: tuple[int, ...]) -> None:
    check_steps(make_actor(continuous, branches, sac=True))
    check_steps(make_actor(continuous, branches, sac=True, memory=8))


def test_a_deviation_that_depends_on_the_state_stays_in_its_range() -> None:
    actor = make_actor(sac=True)
    assert actor.head.log_sigma_layer is not None
    with torch.no_grad():
        actor.head.log_sigma_layer.bias.copy_(torch.tensor([50.0, -50.0]))
    actions = act(Policy(actor, seed=7), inputs(actor))
    mean = act(Policy(actor, seed=7, deterministic=True), inputs(actor))
    assert np.isfinite(actions.log_prob).all()
    assert np.allclose(actions.continuous[:, 1], mean.continuous[:, 1])
    assert not np.allclose(actions.continuous[:, 0], mean.continuous[:, 0], atol=0.1)


@pytest.mark.parametrize("agents", [0, 1, 17])
def test_any_number_of_agents(agents: int) -> None:
    for branches in ((), (3,), (3, 2)):
        actor = make_actor(2, branches, memory=8)
        given = inputs(actor, agents=agents)
        check(act(Policy(actor, seed=7), given), actor, given, torch.Generator().manual_seed(7))


@pytest.mark.parametrize("branches", [(5,), (5, 5), (5, 2)])
@pytest.mark.parametrize("deterministic", [False, True])
def test_forbidden_actions_never_win(branches: tuple[int, ...], deterministic: bool) -> None:
    """Even where they are by far the likeliest; where all are forbidden, nothing but one of the branch's is taken."""
    actor = make_actor(0, branches)
    assert actor.head.discrete is not None
    with torch.no_grad():
        actor.head.discrete.bias[:4] = 1e4
    policy, given = Policy(actor, seed=7, deterministic=deterministic), inputs(actor, agents=300)
    given.mask[:, :4] = True
    given.mask[:, 4] = False
    given.mask[:, 5:] = True
    actions = act(policy, given)
    assert (actions.discrete[:, 0] == 4).all()
    for branch, size in enumerate(branches):
        assert actions.discrete[:, branch].min() >= 0
        assert actions.discrete[:, branch].max() < size


def test_what_was_given_is_left_as_it_is() -> None:
    actor = make_actor(2, (3, 2), normalize=True, memory=8)
    given, kept = inputs(actor), inputs(actor)
    for array in (*given.obs, given.mask, given.memory):
        array.flags.writeable = False
    actions = act(Policy(actor, seed=7), given)
    for one, other in zip((*given.obs, given.mask, given.memory), (*kept.obs, kept.mask, kept.memory), strict=True):
        assert np.array_equal(one, other)
    assert actions.memory.flags.writeable


def test_one_steps_actions_outlive_the_next_step() -> None:
    actor = make_actor(2, (3, 2), memory=8)
    policy = Policy(actor, seed=7)
    given = inputs(actor)
    actions = act(policy, given)
    act(policy, inputs(actor, seed=1))
    policy.load(Update(1, dict(make_actor(2, (3, 2), seed=1, memory=8).state_dict())))
    check(actions, actor, given, torch.Generator().manual_seed(7))


@pytest.mark.parametrize(("continuous", "branches"), KINDS)
@pytest.mark.parametrize("sac", [False, True])
@pytest.mark.parametrize("memory", [None, 8])
def test_what_is_derived_from_weights_follows_them(
    continuous: int, branches: tuple[int, ...], sac: bool, memory: int | None
) -> None:
    """After an update of everything, and of each entry by itself."""
    actor = make_actor(continuous, branches, sac=sac, memory=memory, normalize=True)
    other = make_actor(continuous, branches, sac=sac, memory=memory, normalize=True, seed=1)
    policy, given = Policy(actor, seed=7, deterministic=True), inputs(actor)
    entries = actor.state_dict()
    for name, value in other.state_dict().items():
        policy.load(Update(1, {name: value}))
        entries[name].copy_(value)
        check(act(policy, given), actor, given, None)
    third = make_actor(continuous, branches, sac=sac, memory=memory, normalize=True, seed=2)
    policy.load(Update(2, dict(third.state_dict())))
    check(act(policy, given), third, given, None)


def test_an_update_of_the_normalizers_alone() -> None:
    actor = make_actor(2, (3,), normalize=True)
    policy, given = Policy(actor, seed=7, deterministic=True), inputs(actor)
    actor.update_normalization([torch.from_numpy(one) for one in given.obs])
    normalizers = {name: value for name, value in actor.state_dict().items() if "sensors" in name}
    assert normalizers
    policy.load(Update(1, normalizers))
    check(act(policy, given), actor, given, None)


def diverged(actor: Actor, given: Inputs, words: str) -> None:
    for deterministic in (False, True):
        with pytest.raises(PolicyDivergedError, match=words):
            act(Policy(actor, seed=7, deterministic=deterministic), given)


@pytest.mark.parametrize(("continuous", "branches"), KINDS)
@pytest.mark.parametrize("memory", [None, 8])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_a_number_is_noticed(
    continuous: int, branches: tuple[int, ...], memory: int | None, bad: float
) -> None:
    """In one observation, or in one of the head's weights; numpy does not warn."""
    actor = make_actor(continuous, branches, memory=memory)
    given = inputs(actor)
    given.obs[1][4, 2] = np.nan  # an infinite one may leave a memory finite
    diverged(actor, given, "1 of 30 agents, the first in row 4. The observations contain")
    layers: Sequence[torch.nn.Linear | None] = (actor.head.mu, actor.head.discrete)
    for layer in layers:
        if layer is not None:
            kept = layer.bias.detach().clone()
            with torch.no_grad():
                layer.bias[0] = bad
            given = inputs(actor)
            given.mask[:] = False
            diverged(actor, given, "30 of 30 agents.*weights have diverged")
            with torch.no_grad():
                layer.bias.copy_(kept)


def test_which_actors_act_without_modules() -> None:
    assert is_plain(make_actor(2, (3,), memory=8, sac=True))
    assert not is_plain(Actor(behavior([camera(3, 20, 20)], 2), network()))
    assert not is_plain(Actor(behavior([vector(4), vector(2, goal=True)], 2), network()))
