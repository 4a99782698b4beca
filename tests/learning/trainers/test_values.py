"""Value estimates of packed trajectories: the same as step by step, whatever is packed with what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.experience.packing import concatenate, packed_steps
from tests.learning.trainers.rig import vector_spec
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos import values
from trajtrainer.learning.algos.values import ValueEstimator, sequence_offsets
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import AnyCritic, SharedCritic, ValueNetwork
from trajtrainer.learning.nn.init import seeded
from trajtrainer.settings.network import MemorySettings, NetworkSettings

LENGTH, MEMORY = 3, 8


def _critic(*, recurrent: bool, shared: bool = False) -> AnyCritic:
    memory = MemorySettings(sequence_length=LENGTH, memory_size=MEMORY) if recurrent else None
    network = NetworkSettings(hidden_units=8, num_layers=1, memory=memory)
    with seeded(1):
        if shared:
            return SharedCritic(Actor(vector_spec(), network), ["a", "b"])
        return ValueNetwork(vector_spec(), network, ["a", "b"])


def _packed(length: int, agent: int, ended: bool, seed: int) -> PackedSteps:
    rng = np.random.default_rng(seed)

    def floats(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return rng.standard_normal(shape, dtype=np.float32)

    return packed_steps(
        obs=(floats(length, 4),),
        mask=np.zeros((length, 0), np.bool_),
        continuous=floats(length, 2),
        discrete=np.zeros((length, 0), np.int32),
        log_prob=floats(length, 2),
        memory=floats(length, MEMORY),
        reward=floats(length),
        group_reward=floats(length),
        group=np.zeros(length, np.int32),
        done=np.zeros(length, np.bool_),
        interrupted=np.zeros(length, np.bool_),
        version=np.zeros(length, np.int32),
        bootstrap_obs=(floats(1, 4),),
        bootstrap_memory=floats(1, MEMORY),
        offset=np.array([0, length], np.int32),
        terminated=np.array([ended]),
        ended=np.array([ended]),
        agent=np.array([agent]),
    )


def _estimate(estimator: ValueEstimator, packed: PackedSteps) -> values.ValueEstimates:
    obs = [torch.from_numpy(column) for column in packed.obs]
    return estimator.estimate(packed, obs, [torch.from_numpy(column) for column in packed.bootstrap.obs])


class StepByStep:
    """One agent's memory at a time, one step at a time."""

    def __init__(self, critic: AnyCritic) -> None:
        self._critic = critic
        self._memories: dict[int, Tensor] = {}

    @torch.no_grad()
    def estimate(self, packed: PackedSteps) -> tuple[Tensor, Tensor, Tensor]:
        agent = int(packed.agent[0])
        memory = self._memories.get(agent, torch.zeros(1, MEMORY))
        found, before = [], []
        for i in range(len(packed)):
            if i % LENGTH == 0:
                before.append(memory)
            value, memory = self._critic([torch.from_numpy(packed.obs[0][i : i + 1])], memory)
            found.append(value)
        bootstrap, _ = self._critic([torch.from_numpy(packed.bootstrap.obs[0])], memory)
        self._memories[agent] = torch.zeros(1, MEMORY) if packed.ended[0] else memory
        return torch.cat(found, 1), bootstrap, torch.cat(before)


STREAM = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 2), st.booleans()), min_size=1, max_size=8)


@settings(deadline=None, max_examples=40)
@given(STREAM, st.integers(1, 8))
def test_recurrent_estimates_equal_step_by_step(stream: list[tuple[int, int, bool]], size: int) -> None:
    critic = _critic(recurrent=True)
    parts = [_packed(*one, seed=i) for i, one in enumerate(stream)]
    slow, estimator = StepByStep(critic), ValueEstimator(critic, LENGTH)
    for start in range(0, len(parts), size):
        chunk = parts[start : start + size]
        found = _estimate(estimator, concatenate(chunk))
        expected = [slow.estimate(part) for part in chunk]
        assert found.memory is not None
        for ours, theirs, axis in zip(found, zip(*expected, strict=True), (1, 1, 0), strict=True):
            torch.testing.assert_close(torch.as_tensor(ours), torch.cat(theirs, axis), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("largest", [1, 10, 1 << 24])
def test_plain_estimates_are_one_pass_in_parts_of_bounded_size(monkeypatch: pytest.MonkeyPatch, largest: int) -> None:
    monkeypatch.setattr(values, "_MAX_NUMBERS", largest)
    critic = _critic(recurrent=False)
    packed = concatenate([_packed(5, 0, True, 0), _packed(2, 1, False, 1)])
    found = _estimate(ValueEstimator(critic, 1), packed)
    with torch.no_grad():
        expected, _ = critic([torch.from_numpy(packed.obs[0])])
        after, _ = critic([torch.from_numpy(packed.bootstrap.obs[0])])
    assert found.memory is None
    np.testing.assert_allclose(found.values, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.bootstrap, after, rtol=1e-5, atol=1e-6)


def test_a_shared_critic_takes_the_stored_memories() -> None:
    critic = _critic(recurrent=True, shared=True)
    packed = concatenate([_packed(5, 0, True, 0), _packed(2, 1, False, 1)])
    found = _estimate(ValueEstimator(critic, LENGTH), packed)
    with torch.no_grad():
        expected, _ = critic([torch.from_numpy(packed.obs[0])], torch.from_numpy(packed["memory"]))
        after, _ = critic([torch.from_numpy(packed.bootstrap.obs[0])], torch.from_numpy(packed.bootstrap["memory"]))
    assert found.memory is None
    np.testing.assert_allclose(found.values, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.bootstrap, after, rtol=1e-5, atol=1e-6)


def test_forget_clears_one_workers_agents() -> None:
    estimator = ValueEstimator(_critic(recurrent=True), LENGTH)
    here, there = _packed(4, 1, False, 0), _packed(4, (1 << 32) | 1, False, 1)
    _estimate(estimator, concatenate([here, there]))
    estimator.reset_worker(1)
    again = _estimate(estimator, concatenate([here, there]))
    assert again.memory is not None
    first_of_here, _, first_of_there, _ = again.memory.abs().sum(1).tolist()
    assert first_of_here > 0.0
    assert first_of_there == 0.0


def test_the_end_of_an_episode_clears_the_memory_whatever_ended_it() -> None:
    estimator = ValueEstimator(_critic(recurrent=True), LENGTH)
    interrupted = replace(_packed(4, 1, True, 0), terminated=np.array([False]))
    first, second = (_estimate(estimator, interrupted) for _ in range(2))
    np.testing.assert_array_equal(first.values, second.values)


def test_sequence_offsets() -> None:
    assert sequence_offsets(np.array([1, 3, 4, 6], np.int32), 3).tolist() == [0, 1, 2, 4, 6]
