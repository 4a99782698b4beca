"""The LSTM memory: sequences, whole trajectories, and ML-Agents' numbers for the latter."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.learning.nn.golden import behavior_spec, load, network_settings
from tests.learning.nn.specs import behavior, network, vector
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import SharedCritic, ValueNetwork, unroll_values
from trajtrainer.learning.nn.memory import Memory


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_a_sequence_is_its_steps_one_by_one() -> None:
    memory = Memory(5, 8)
    x, state = noise(3 * 4, 5), noise(3, 8, seed=1)
    out, final = memory(x, state, 4)
    steps = x.reshape(3, 4, 5)
    for t in range(4):
        step_out, state = memory(steps[:, t], state, 1)
        torch.testing.assert_close(out.reshape(3, 4, 4)[:, t], step_out)
    torch.testing.assert_close(final, state)
    assert torch.equal(final[:, :4], out.reshape(3, 4, 4)[:, -1])


@torch.no_grad()
def test_no_memory_is_zeros() -> None:
    memory = Memory(5, 8)
    for given_none, zeros in zip(memory(noise(6, 5), None, 2), memory(noise(6, 5), torch.zeros(3, 8), 2), strict=True):
        assert torch.equal(given_none, zeros)


@torch.no_grad()
def test_padding_at_the_end_does_not_reach_back() -> None:
    memory = Memory(3, 4)
    x = noise(2 * 5, 3).reshape(2, 5, 3)
    padded = x.clone()
    padded[:, 3:] = 100.0
    out, _ = memory(x.reshape(10, 3), None, 5)
    other, _ = memory(padded.reshape(10, 3), None, 5)
    assert torch.equal(out.reshape(2, 5, 2)[:, :3], other.reshape(2, 5, 2)[:, :3])


@settings(deadline=None, max_examples=50)
@given(lengths=st.lists(st.integers(0, 11), min_size=1, max_size=6), length=st.integers(1, 5), given_=st.booleans())
@torch.no_grad()
def test_trajectories_together_are_trajectories_alone(lengths: list[int], length: int, given_: bool) -> None:
    memory = Memory(3, 6)
    x = noise(sum(lengths), 3)
    before = noise(len(lengths), 6, seed=1) if given_ else None
    offset = np.concatenate(([0], np.cumsum(lengths)))
    out, starts, final = memory.unroll(x, torch.from_numpy(offset), before, length)
    q = 0
    for s, (start, stop) in enumerate(pairwise(offset.tolist())):
        state = torch.zeros(1, 6) if before is None else before[s : s + 1]
        for row in range(start, stop):
            if (row - start) % length == 0:
                torch.testing.assert_close(starts[q : q + 1], state)
                q += 1
            step_out, state = memory(x[row : row + 1], state, 1)
            torch.testing.assert_close(out[row : row + 1], step_out)
        torch.testing.assert_close(final[s : s + 1], state)
    assert q == len(starts)


@torch.no_grad()
def test_the_memory_that_was_given_is_left_alone() -> None:
    memory = Memory(3, 6)
    before = torch.zeros(1, 6)
    memory.unroll(noise(4, 3), torch.tensor([0, 4]), before, 2)
    assert torch.equal(before, torch.zeros(1, 6))


def test_gradients_flow_through_a_sequence() -> None:
    memory = Memory(3, 4)
    x = noise(4, 3).requires_grad_()
    out, _ = memory(x, None, 4)
    out[-1].sum().backward()
    assert x.grad is not None
    assert bool((x.grad.abs().sum(1) > 0).all())


@torch.no_grad()
def test_the_shared_critic_has_the_actors_memory() -> None:
    actor = Actor(behavior([vector(3)]), network(memory=8))
    critic = SharedCritic(actor, ["extrinsic"])
    assert critic.memory_size == actor.memory_size == 8
    values, starts, final = unroll_values(critic, [noise(7, 3)], torch.tensor([0, 5, 7]), None, 4)
    assert values.shape == (1, 7)
    assert starts.shape == (3, 8)
    assert final.shape == (2, 8)


@torch.no_grad()
def test_values_of_mlagents_trajectories(shared_data: Path) -> None:
    """ML-Agents keeps one critic memory for all agents, so each trajectory starts where its record says."""
    folder = shared_data / "golden" / "trajectories" / "ppo_lstm"
    described = json.loads((folder / "case.json").read_text())
    with np.load(folder / "data.npz") as data:
        arrays = {key: torch.from_numpy(data[key]) for key in data.files}
    critic = ValueNetwork(
        behavior_spec(described["behavior_spec"]),
        network_settings(described["settings"]["network_settings"]),
        ["extrinsic"],
    )
    weights = torch.load(folder / "start.pt", weights_only=True)["Optimizer:critic"]
    load(critic, weights)
    count, length = len(described["trajectories"]), 4
    obs = torch.cat([arrays[f"t{k}_in_obs_0"] for k in range(count)])
    offset = torch.tensor([0, *np.cumsum([len(arrays[f"t{k}_in_reward"]) for k in range(count)])])
    before = torch.stack([arrays[f"t{k}_out_critic_memory"][0] for k in range(count)])
    values, starts, final = unroll_values(critic, [obs], offset, before, length)
    expected = torch.cat([arrays[f"t{k}_out_value_estimates__extrinsic"] for k in range(count)])
    torch.testing.assert_close(values[0], expected, atol=1e-5, rtol=0)
    stored = torch.cat([arrays[f"t{k}_out_critic_memory"][::length] for k in range(count)])
    torch.testing.assert_close(starts, stored, atol=1e-5, rtol=0)
    after, _ = critic([torch.stack([arrays[f"t{k}_in_next_obs_0"] for k in range(count)])], final)
    for k, trajectory in enumerate(described["trajectories"]):
        if not trajectory["done"] or trajectory["interrupted"]:
            assert float(after[0, k]) == pytest.approx(float(arrays[f"t{k}_out_value_next__extrinsic"]), abs=1e-5)
