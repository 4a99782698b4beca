"""The update buffer: where rows go, what an epoch's minibatches hold."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.experience.packing import packed_steps
from tests.experience.streams import mixed_spec
from trajtrainer.experience.trajectory import offsets
from trajtrainer.learning.algos.ppo.update_buffer import UpdateBuffer
from trajtrainer.learning.algos.values import sequence_offsets

MEMORY = 4


def _buffer(length: int = 1, capacity: int = 10) -> UpdateBuffer:
    return UpdateBuffer(
        mixed_spec(),
        [np.float32, np.uint8],
        num_signals=2,
        sequence_length=length,
        memories={"memory": MEMORY if length > 1 else 0, "critic_memory": MEMORY if length > 1 else 0},
        capacity=capacity,
        device=torch.device("cpu"),
    )


def _append(buffer: UpdateBuffer, lengths: list[int], first: int = 1) -> None:
    """Trajectories whose steps are numbered from ``first`` on in every column."""
    total, length = sum(lengths), buffer.sequence_length
    number = np.arange(first, first + total, dtype=np.float32)
    pair = np.stack([number, -number], 1)
    offset = offsets(np.array(lengths, np.int32))
    trajectories = len(lengths)
    packed = packed_steps(
        obs=(np.repeat(number[:, None], 3, 1), number.astype(np.uint8).reshape(-1, 1, 1, 1).repeat(2, 2).repeat(2, 3)),
        mask=(number.astype(int)[:, None] >> np.arange(5) & 1).astype(np.bool_),
        continuous=pair,
        discrete=pair.astype(np.int32),
        log_prob=np.repeat(number[:, None], 4, 1),
        memory=np.repeat(number[:, None], MEMORY, 1),
        reward=number,
        group_reward=number,
        group=np.zeros(total, np.int32),
        done=np.zeros(total, np.bool_),
        interrupted=np.zeros(total, np.bool_),
        version=np.zeros(total, np.int32),
        bootstrap_obs=(np.zeros((trajectories, 3), np.float32), np.zeros((trajectories, 1, 2, 2), np.uint8)),
        bootstrap_memory=np.zeros((trajectories, MEMORY), np.float32),
        offset=offset,
        terminated=np.zeros(trajectories, np.bool_),
        ended=np.zeros(trajectories, np.bool_),
        agent=np.arange(trajectories),
    )
    begins = [o + i for o, n in zip(offset, lengths, strict=False) for i in range(0, n, length)]
    memory = torch.from_numpy(np.repeat(number[begins, None], MEMORY, 1)) if length > 1 else None
    learned = {
        "value": np.stack([number, 2 * number], 1),
        "returns": np.stack([-number, number], 1),
        "advantage": number,
    }
    buffer.append(packed, learned, {"critic_memory": memory})


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(1, 4))
def test_every_step_is_where_all_its_columns_are(drains: list[list[int]], length: int) -> None:
    buffer, first = _buffer(length), 1
    for lengths in drains:
        _append(buffer, lengths, first)
        first += sum(lengths)
    flat = [n for lengths in drains for n in lengths]
    assert buffer.num_rows == sequence_offsets(np.array(flat, np.int32), length)[-1] * length
    number = buffer.column("advantage")
    real = number > 0
    assert number[real].tolist() == list(range(1, first))
    if buffer.loss_mask is not None:
        assert torch.equal(buffer.loss_mask > 0, real)
        begins = number[::length]
        assert torch.equal(buffer.sequences("memory"), begins[:, None].expand(-1, MEMORY))
        assert torch.equal(buffer.sequences("critic_memory"), begins[:, None].expand(-1, MEMORY))
    assert torch.equal(buffer.column("obs.0")[:, 1], number)
    assert torch.equal(buffer.column("obs.1")[:, 0, 1, 1], number.to(torch.uint8))
    assert torch.equal(buffer.column("continuous"), torch.stack([number, -number], 1))
    assert torch.equal(buffer.column("discrete")[:, 1], -number.long())
    assert torch.equal(buffer.column("log_prob")[:, 3], number)
    assert torch.equal(buffer.column("value"), torch.stack([number, 2 * number], 1))
    assert torch.equal(buffer.column("returns"), torch.stack([-number, number], 1))
    assert torch.equal(buffer.column("mask")[:, 0], number.long() & 1 == 1)


@pytest.mark.parametrize("block_bytes", [1, 1000, 1 << 25])
@pytest.mark.parametrize("length", [1, 3])
def test_an_epoch_holds_every_sequence_once(monkeypatch: pytest.MonkeyPatch, block_bytes: int, length: int) -> None:
    monkeypatch.setattr("trajtrainer.learning.nn.minibatch._BLOCK_BYTES", block_bytes)
    buffer = _buffer(length)
    _append(buffer, [7, 9, 4, 3])
    order = torch.randperm(buffer.num_sequences, generator=torch.Generator().manual_seed(0))
    advantage = 100 + buffer.column("advantage")
    minibatches = list(buffer.minibatches(order, 7, {"advantage": advantage, "doubled": 2 * advantage[:, None]}))
    rows = 7 // length * length
    assert len(minibatches) == buffer.num_rows // rows
    for minibatch in minibatches:
        number = minibatch["advantage"] - 100
        assert len(minibatch) == rows
        assert minibatch.sequence_length == length
        assert torch.equal(minibatch.obs[0][:, 0], number)
        assert torch.equal(minibatch["doubled"][:, 0], 2 * minibatch["advantage"])
        assert torch.equal(minibatch["returns"].t(), torch.stack([-number, number]))
        assert torch.equal(minibatch["value"].t(), torch.stack([number, 2 * number]))
        if length == 1:
            assert minibatch.loss_mask is minibatch.memory is minibatch.critic_memory is None
        else:
            assert minibatch.memory is not None
            assert torch.equal(minibatch.memory[:, 0], number[::length])
    used = torch.cat([minibatch["advantage"] for minibatch in minibatches]) - 100
    expected = buffer.column("advantage").view(-1, length)[order[: len(used) // length]].flatten()
    assert torch.equal(used, expected)
    assert max(Counter(n for n in used.tolist() if n).values()) == 1


def test_a_minibatch_is_at_least_one_sequence() -> None:
    buffer = _buffer(3)
    _append(buffer, [6])
    sizes = [len(m) for m in buffer.minibatches(torch.arange(2), 2, {})]
    assert sizes == [3, 3]


def test_clear_leaves_no_trace_in_padding() -> None:
    buffer = _buffer(3)
    _append(buffer, [6, 6])
    capacity = buffer.capacity
    buffer.clear()
    assert buffer.num_rows == 0
    _append(buffer, [1, 4])
    assert buffer.column("advantage").tolist() == [1, 0, 0, 2, 3, 4, 5, 0, 0]
    assert buffer.column("log_prob")[:, 0].tolist() == [1, 0, 0, 2, 3, 4, 5, 0, 0]
    assert buffer.capacity == capacity


def test_grows_when_more_comes() -> None:
    buffer = _buffer(1, capacity=4)
    for i in range(5):
        _append(buffer, [7], first=1 + 7 * i)
    assert buffer.column("advantage").tolist() == list(range(1, 36))
    assert buffer.capacity >= 35
