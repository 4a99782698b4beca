"""Packed steps as bytes, and several of them as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.experience.drain import check
from tests.experience.harness import Harness, Round
from tests.experience.streams import OBS_DTYPES, STREAMS, assert_same, mixed_spec, random_stream
from trajtrainer.experience.source import Counts, PackedLayout
from trajtrainer.experience.trajectory import PackedSteps, gather, join_packed, release

MEMORY = 3


def _drains(harness: Harness, stream: Sequence[Round], every: int) -> Iterator[PackedSteps]:
    """What an actor would ship, some rounds at a time."""
    waiting = []
    for number, round_ in enumerate(stream, start=1):
        waiting += harness.play(round_)
        if waiting and (number % every == 0 or number == len(stream)):
            yield gather(harness.pool, waiting)
            release(harness.pool, waiting)
            waiting = []


def _sent(packed: PackedSteps, layout: PackedLayout) -> PackedSteps:
    """The same after a way through bytes."""
    counts = Counts.of(packed)
    buffer = np.full(layout.size(counts), 255, np.uint8)
    layout.write(packed, buffer)
    there = buffer.copy()
    there.flags.writeable = False  # as from other machines
    return layout.over(there, Counts(*counts))


@pytest.mark.parametrize("groups", [None, (0, 1, 2)])
@given(stream=STREAMS, every=st.integers(1, 5), horizon=st.integers(1, 4))
def test_what_was_sent_in_parts_is_what_was_gathered(
    groups: tuple[int, ...] | None, stream: list[Round], every: int, horizon: int
) -> None:
    harness = Harness(horizon, MEMORY, groups=groups)
    layout = PackedLayout(mixed_spec(), OBS_DTYPES, memory_size=MEMORY, groups=groups is not None)
    parts = [_sent(packed, layout) for packed in _drains(harness, stream, every)]
    if not parts:
        return
    room = join_packed(parts).steps.map(np.zeros_like)
    joined = join_packed(parts, room)
    assert all(joined[name] is room[name] for name in room)
    if groups is None:
        for packed, stop in zip(parts, np.cumsum([part.num_trajectories for part in parts]), strict=True):
            assert_same(joined.trajectories(int(stop) - packed.num_trajectories, int(stop)), packed)
    else:
        check(joined, harness.expected)


def test_what_is_gathered_in_its_place_is_not_copied() -> None:
    harness = Harness(2, 0)
    layout = PackedLayout(mixed_spec(), OBS_DTYPES)
    waiting = [batch for round_ in random_stream(30, seed=1) for batch in harness.play(round_)]
    counts = Counts(sum(batch.num_steps for batch in waiting), sum(map(len, waiting)))
    buffer = np.zeros(layout.size(counts), np.uint8)
    packed = gather(harness.pool, waiting, layout.over(buffer, counts).steps)
    assert all(np.shares_memory(packed[name], buffer) for name in packed.steps if packed[name].size)
    layout.write(packed, buffer)
    assert_same(layout.over(buffer, counts), packed)
