"""What acting in few calls keeps to, beside saying what the actor says (``test_parity``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.learning.algos.samples import Inputs, check, inputs, make_actor
from tests.learning.nn.specs import behavior, camera, network, vector
from trajtrainer.core.steps import ActionBatch
from trajtrainer.learning.algos.acting import ActorPolicy, PolicyDivergedError
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.fast.acting import is_mlp

# Continuous actions, branches.
KINDS: list[tuple[int, tuple[int, ...]]] = [
    (2, ()),
    (0, (3,)),
    (0, (2, 2)),
    (0, (2, 5, 3)),
    (2, (4,)),
    (3, (3, 1, 4)),
]


@dataclass
class Update:
    version: int
    weights: dict[str, Tensor]


def act(policy: ActorPolicy, given: Inputs) -> ActionBatch:
    return policy.act(given.obs, given.mask, given.memory)


def test_a_deviation_that_depends_on_the_state_stays_in_its_range() -> None:
    actor = make_actor(sac=True)
    assert actor.head.log_sigma_layer is not None
    with torch.no_grad():
        actor.head.log_sigma_layer.bias.copy_(torch.tensor([50.0, -50.0]))
    actions = act(ActorPolicy(actor, seed=7), inputs(actor))
    mean = act(ActorPolicy(actor, seed=7, deterministic=True), inputs(actor))
    assert np.isfinite(actions.log_prob).all()
    assert np.allclose(actions.continuous[:, 1], mean.continuous[:, 1])
    assert not np.allclose(actions.continuous[:, 0], mean.continuous[:, 0], atol=0.1)


@pytest.mark.parametrize("branches", [(5,), (5, 5), (5, 2)])
@pytest.mark.parametrize("deterministic", [False, True])
def test_forbidden_actions_never_win(branches: tuple[int, ...], deterministic: bool) -> None:
    """Even where they are by far the likeliest; where all are forbidden, nothing but one of the branch's is taken."""
    actor = make_actor(0, branches)
    assert actor.head.discrete is not None
    with torch.no_grad():
        actor.head.discrete.bias[:4] = 1e4
    policy, given = ActorPolicy(actor, seed=7, deterministic=deterministic), inputs(actor, agents=300)
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
    actions = act(ActorPolicy(actor, seed=7), given)
    for one, other in zip((*given.obs, given.mask, given.memory), (*kept.obs, kept.mask, kept.memory), strict=True):
        assert np.array_equal(one, other)
    assert actions.memory.flags.writeable


def test_one_steps_actions_outlive_the_next_step() -> None:
    actor = make_actor(2, (3, 2), memory=8)
    policy = ActorPolicy(actor, seed=7)
    given = inputs(actor)
    actions = act(policy, given)
    act(policy, inputs(actor, seed=1))
    policy.load(Update(1, dict(make_actor(2, (3, 2), seed=1, memory=8).state_dict())))
    check(actions, actor, given, torch.Generator().manual_seed(7))


def test_a_policy_acts_by_it() -> None:
    """By the same draws as the actor."""
    actor = make_actor(2, (3, 2), memory=8)
    policy, given = ActorPolicy(actor, seed=7), inputs(actor)
    assert policy._fast is not None
    check(act(policy, given), actor, given, torch.Generator().manual_seed(7))


@pytest.mark.parametrize(("continuous", "branches"), KINDS)
@pytest.mark.parametrize("sac", [False, True])
@pytest.mark.parametrize("memory", [None, 8])
def test_what_is_derived_from_weights_follows_them(
    continuous: int, branches: tuple[int, ...], sac: bool, memory: int | None
) -> None:
    """After an update of everything, and of each entry by itself."""
    actor = make_actor(continuous, branches, sac=sac, memory=memory, normalize=True)
    other = make_actor(continuous, branches, sac=sac, memory=memory, normalize=True, seed=1)
    policy, given = ActorPolicy(actor, seed=7, deterministic=True), inputs(actor)
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
    policy, given = ActorPolicy(actor, seed=7, deterministic=True), inputs(actor)
    actor.update_normalization([torch.from_numpy(one) for one in given.obs])
    normalizers = {name: value for name, value in actor.state_dict().items() if "sensors" in name}
    assert normalizers
    policy.load(Update(1, normalizers))
    check(act(policy, given), actor, given, None)


def diverged(actor: Actor, given: Inputs, words: str) -> None:
    for deterministic in (False, True):
        with pytest.raises(PolicyDivergedError, match=words):
            act(ActorPolicy(actor, seed=7, deterministic=deterministic), given)


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
    assert is_mlp(make_actor(2, (3,), memory=8, sac=True))
    assert not is_mlp(Actor(behavior([camera(3, 20, 20)], 2), network()))
    assert not is_mlp(Actor(behavior([vector(4), vector(2, goal=True)], 2), network()))
