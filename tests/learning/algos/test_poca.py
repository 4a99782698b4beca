"""POCA's critic against each row computed by itself, without padding, and the groupmates that minibatches hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from tests.learning.nn.specs import behavior, camera, entities, network, vector
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.poca import groups as poca_values
from trajtrainer.learning.algos.poca.groups import GroupBuffer, GroupEstimates, GroupValueEstimator, moments_of
from trajtrainer.learning.nn.multi_agent import GroupCritic, GroupRows, flat_actions
from trajtrainer.settings.network import MemorySettings
from trajtrainer.testing import random_steps

CPU = torch.device("cpu")
SPECS = {
    "vectors": behavior([vector(4), vector(2)], 2, (3, 2)),
    "camera and list": behavior([camera(3, 20, 20), entities(3, 2), vector(2)], 0, (3,)),
    "goal": behavior([vector(3), vector(2, goal=True)], 1),
}
LENGTH = 3


def steps(spec: BehaviorSpec, seed: int, lengths: tuple[int, ...] = (5, 8, 3)) -> PackedSteps:
    """Random groupmates: as many as chance gives, among the steps and others, never oneself."""
    packed = random_steps(spec, lengths=lengths, seed=seed, groups=True)
    groups = packed.groups
    assert groups is not None
    mates = np.where(groups.mates == np.arange(len(packed))[:, None], -1, groups.mates)
    return replace(packed, groups=replace(groups, mates=mates))


def critic_of(spec: BehaviorSpec, memory: MemorySettings | None = None) -> GroupCritic:
    torch.manual_seed(0)
    critic = GroupCritic(spec, evolve(network(hidden=8), memory=memory), ["extrinsic", "rnd"])
    with torch.no_grad():
        for weights in critic.parameters():
            weights.add_(0.3 * torch.randn_like(weights))
    return critic


class Slow:
    """One group at a time, and nothing that is not in it."""

    def __init__(self, critic: GroupCritic, spec: BehaviorSpec, packed: PackedSteps) -> None:
        assert packed.groups is not None
        self.critic, self.packed, self.groups = critic, packed, packed.groups
        parts = packed.steps, packed.groups.others, packed.bootstrap
        self.obs = [
            torch.from_numpy(np.concatenate([part.obs[i] for part in parts]))
            for i in range(len(spec.observation_specs))
        ]
        continuous, discrete = (
            torch.from_numpy(np.concatenate([packed[name], packed.groups.others[name]]))
            for name in ("continuous", "discrete")
        )
        self.actions = flat_actions(continuous, discrete, spec.action_spec)

    def encode(self, seen: Sequence[int], seen_acting: Sequence[int]) -> Tensor:
        """[1, e + 1] of some agents by what they see, and of others by what they do, too."""
        body = self.critic.body
        entities = [body.observing(self._encoded(one), None) for one in seen]
        entities += [
            body.acting(torch.cat((self._encoded(one), self.actions[one][None]), 1), None) for one in seen_acting
        ]
        together = torch.stack(entities, 1)
        features = body.layers(body.attention(together, torch.zeros(together.shape[:2])))
        number = torch.tensor([[2.0 * len(entities)]]) / body.max_group_size - 1.0
        return torch.cat((features, number), 1)

    def _encoded(self, number: int) -> Tensor:
        encoding: Tensor = self.critic.body.encoder([sensor[number][None] for sensor in self.obs])[0]
        return encoding

    def value(self, step: int) -> Tensor:
        return self.encode([step, *self.mates(step)], [])

    def baseline(self, step: int) -> Tensor:
        return self.encode([step], self.mates(step))

    def bootstrap(self, trajectory: int) -> Tensor:
        first = len(self.packed) + len(self.groups.others)
        mates = self.groups.next_mates[trajectory]
        return self.encode([first + trajectory, *mates[mates >= 0]], [])

    def mates(self, step: int) -> list[int]:
        mates = self.groups.mates[step]
        return [int(one) for one in mates[mates >= 0]]


def _close(found: NDArray[Any] | Tensor, expected: Sequence[Tensor]) -> None:
    torch.testing.assert_close(torch.as_tensor(found), torch.cat(list(expected), 1), rtol=1e-4, atol=1e-5)


def largest(packed: PackedSteps) -> int:
    assert packed.groups is not None
    return 1 + max(int((some >= 0).sum(1).max()) for some in (packed.groups.mates, packed.groups.next_mates))


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("numbers", [1, 1 << 21])
@torch.no_grad()
def test_estimates_are_those_of_each_row_alone(monkeypatch: pytest.MonkeyPatch, name: str, numbers: int) -> None:
    monkeypatch.setattr(poca_values, "_MAX_NUMBERS", numbers)
    spec = SPECS[name]
    critic, packed = critic_of(spec), steps(spec, seed=1)
    found = GroupValueEstimator(critic, 1).estimate(packed, spec.action_spec, CPU)
    assert critic.body.max_group_size == largest(packed)
    slow = Slow(critic, spec, packed)
    every = range(len(packed))
    _close(found.values, [critic.heads(slow.value(step)) for step in every])
    _close(found.baselines, [critic.heads(slow.baseline(step)) for step in every])
    _close(found.bootstrap, [critic.heads(slow.bootstrap(t)) for t in range(packed.num_trajectories)])
    assert found.memory is None


@torch.no_grad()
def test_each_agent_remembers_for_itself() -> None:
    spec, memory = SPECS["vectors"], MemorySettings(sequence_length=LENGTH, memory_size=6)
    critic = critic_of(spec, memory)
    critic.body.max_group_size.fill_(9)
    estimator = GroupValueEstimator(critic, LENGTH)
    remembered: dict[int, list[Tensor]] = {}
    for seed in range(3):
        # Trajectories 0 and 2 are of one agent; the episode of the first of all ends.
        packed = replace(steps(spec, seed), agent=np.array([7, 8, 7]))
        if seed == 2:
            estimator.reset_worker(0)
            remembered.clear()
        found = estimator.estimate(packed, spec.action_spec, CPU)
        _check_memories(critic, Slow(critic, spec, packed), found, remembered)


def _check_memories(
    critic: GroupCritic, slow: Slow, found: GroupEstimates, remembered: dict[int, list[Tensor]]
) -> None:
    """Go through every trajectory step by step."""
    assert found.memory is not None
    assert found.baseline_memory is not None
    packed = slow.packed
    expected: list[list[Tensor]] = [[], []]
    before: list[list[Tensor]] = [[], []]
    bootstrap = []
    for trajectory, agent in enumerate(packed.agent.tolist()):
        memories = remembered.get(agent, [torch.zeros(1, critic.memory_size)] * 2)
        first, last = packed.offset[trajectory : trajectory + 2]
        for step in range(first, last):
            for kind, encode in enumerate((slow.value, slow.baseline)):
                if (step - first) % LENGTH == 0:
                    before[kind].append(memories[kind])
                out, after = critic.body.remember(encode(step), memories[kind], 1)
                memories = [after if k == kind else one for k, one in enumerate(memories)]
                expected[kind].append(critic.heads(out))
        bootstrap.append(critic.heads(critic.body.remember(slow.bootstrap(trajectory), memories[0], 1)[0]))
        if packed.ended[trajectory]:
            remembered.pop(agent, None)
        else:
            remembered[agent] = memories
    _close(found.values, expected[0])
    _close(found.baselines, expected[1])
    _close(found.bootstrap, bootstrap)
    torch.testing.assert_close(found.memory, torch.cat(before[0]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.baseline_memory, torch.cat(before[1]), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_order_of_groupmates_does_not_matter() -> None:
    spec = SPECS["vectors"]
    critic, packed = critic_of(spec), steps(spec, seed=2)
    assert packed.groups is not None
    turned = replace(packed, groups=replace(packed.groups, mates=packed.groups.mates[:, ::-1]))
    one, other = (GroupValueEstimator(critic, 1).estimate(each, spec.action_spec, CPU) for each in (packed, turned))
    np.testing.assert_array_equal(one.values, other.values)
    np.testing.assert_array_equal(one.baselines, other.baselines)


def test_all_members_of_a_moment_share_it() -> None:
    mates = np.array([[2, 5], [-1, -1], [5, 0], [4, -1], [3, -1], [0, 2]], np.int32)
    moments = moments_of(np.arange(6), mates)
    assert [moments.members[k].tolist() for k in moments.of_step] == [
        [5, 2, 0],
        [1, -1, -1],
        [5, 2, 0],
        [4, 3, -1],
        [4, 3, -1],
        [5, 2, 0],
    ]
    assert len(moments.members) == 3


def _numbered(packed: PackedSteps, first: int) -> PackedSteps:
    """Every row's first sensor holds its number: steps from ``first`` on, others from 1000 more on."""
    assert packed.groups is not None
    named = packed.steps.with_columns({"obs.0": _numbers(packed.steps["obs.0"], first)})
    others = packed.groups.others
    behind = others.with_columns({"obs.0": _numbers(others["obs.0"], 1000 + first)})
    return replace(packed, steps=named, groups=replace(packed.groups, others=behind))


def _numbers(column: NDArray[Any], first: int) -> NDArray[Any]:
    return np.broadcast_to(np.arange(first, first + len(column), dtype=np.float32)[:, None], column.shape).copy()


def _nothing(length: int) -> dict[str, NDArray[Any]]:
    """Targets of one signal."""
    zeros = np.zeros((length, 1), np.float32)
    return {"value": zeros, "returns": zeros, "advantage": zeros[:, 0], "baseline": zeros}


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=3), st.sampled_from([1, LENGTH]), st.integers(4, 12))
def test_minibatches_hold_the_groupmates_of_their_rows(seeds: list[int], length: int, batch_size: int) -> None:
    spec = SPECS["vectors"]
    buffer = GroupBuffer(
        spec,
        [np.float32, np.float32],
        num_signals=1,
        sequence_length=length,
        memories={"memory": 4 if length > 1 else 0, "critic_memory": 0},
        capacity=4,
        device=CPU,
    )
    expected: dict[float, set[float]] = {}
    for number, seed in enumerate(seeds):
        packed = _numbered(steps(spec, seed), 1 + 100 * number)
        if length > 1:
            packed = replace(packed, steps=packed.steps.with_columns({"memory": np.zeros((len(packed), 4), "f4")}))
        expected |= _mates(packed)
        buffer.append(packed, _nothing(len(packed)), {})
    order = buffer.moments_in_order(torch.randperm(buffer.num_moments))
    assert order.sort().values.tolist() == list(range(buffer.num_sequences))
    seen = []
    for minibatch in buffer.minibatches(order, batch_size, {}):
        assert minibatch.groups is not None
        names = minibatch.obs[0][:, 0].tolist()
        for row, name in enumerate(names):
            if name:  # else padding
                seen.append(name)
                assert _seen_by(minibatch.groups, row) == (name, expected[name])
    assert len(seen) == len(set(seen))
    if length == 1:
        assert len(seen) == buffer.num_rows // batch_size * batch_size
    buffer.clear()
    assert buffer.num_moments == buffer.num_rows == 0


def _mates(packed: PackedSteps) -> dict[float, set[float]]:
    assert packed.groups is not None
    names = np.concatenate([packed["obs.0"][:, 0], packed.groups.others["obs.0"][:, 0]])
    return {
        float(names[step]): {float(names[one]) for one in mates if one >= 0}
        for step, mates in enumerate(packed.groups.mates)
    }


def _seen_by(groups: GroupRows, row: int) -> tuple[float, set[float]]:
    """The agent of a row, and its groupmates."""
    members = groups.members[groups.moment[row]]
    names = [groups.obs[0][one, 0].item() for one in members.tolist() if one >= 0]
    own = groups.obs[0][members[groups.place[row]], 0].item()
    return own, {name for name in names if name != own}


def test_sequences_of_a_moment_stand_together() -> None:
    buffer = GroupBuffer(
        SPECS["vectors"],
        [np.float32, np.float32],
        num_signals=1,
        sequence_length=1,
        memories={"memory": 0, "critic_memory": 0},
        capacity=4,
        device=CPU,
    )
    packed = random_steps(SPECS["vectors"], lengths=(4, 4, 4), groups=True)
    mates = np.array([[4 * k + t for k in range(3) if 4 * k + t != step] for step in range(12) for t in [step % 4]])
    assert packed.groups is not None
    groups = replace(packed.groups, mates=mates.astype(np.int32), others=packed.groups.others.slice(0, 0))
    buffer.append(replace(packed, groups=groups), _nothing(12), {})
    assert buffer.num_moments == 4
    order = buffer.moments_in_order(torch.randperm(4)).view(4, 3)
    assert (order % 4 == order[:, :1] % 4).all()
    (minibatch,) = buffer.minibatches(order.flatten(), 12, {})
    assert minibatch.groups is not None
    assert minibatch.groups.members.shape == (4, 3)
    assert len(minibatch.groups.actions) == 12


@pytest.mark.parametrize("memory", [None, MemorySettings(sequence_length=LENGTH, memory_size=6)])
@torch.no_grad()
def test_minibatches_give_the_estimates_of_collection(memory: MemorySettings | None) -> None:
    """Over several drains, from the stored memories: as long as no weight changes."""
    spec = SPECS["vectors"]
    critic = critic_of(spec, memory)
    critic.body.max_group_size.fill_(9)
    length = LENGTH if memory else 1
    estimator = GroupValueEstimator(critic, length)
    size = memory.memory_size if memory else 0
    buffer = GroupBuffer(
        spec,
        [np.float32, np.float32],
        num_signals=2,
        sequence_length=length,
        memories={"memory": size, "critic_memory": size},
        capacity=4,
        device=CPU,
    )
    for seed in range(3):
        packed = steps(spec, seed)
        packed = replace(packed, steps=packed.steps.with_columns({"memory": np.zeros((len(packed), size), "f4")}))
        found = estimator.estimate(packed, spec.action_spec, CPU)
        learned = {**_nothing(len(packed)), "value": found.values.T, "returns": found.values.T}
        learned["baseline"] = found.baselines.T
        buffer.append(packed, learned, {"critic_memory": found.memory, "baseline_memory": found.baseline_memory})
    order = buffer.moments_in_order(torch.randperm(buffer.num_moments))
    count = 0
    for minibatch in buffer.minibatches(order, 9, {}):
        values, baselines, _ = critic(
            minibatch.groups, (minibatch.critic_memory, minibatch.baseline_memory), minibatch.sequence_length
        )
        real = torch.ones(len(minibatch)) if minibatch.loss_mask is None else minibatch.loss_mask
        for estimates, column in ((values, "value"), (baselines, "baseline")):
            torch.testing.assert_close(
                estimates.t()[real > 0], minibatch[column][real > 0], rtol=1e-4, atol=1e-5, msg=column
            )
        count += int(real.sum())
    assert count > 30
