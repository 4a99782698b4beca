"""Fifo against a list."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trajtrainer.experience.replay import Fifo


@given(st.lists(st.tuples(st.integers(0, 90), st.floats(0, 1)), max_size=40))
def test_is_a_list_with_two_ends(moves: list[tuple[int, float]]) -> None:
    fifo = Fifo({"number": ((), np.int64), "pair": ((2,), np.float32)})
    expected: list[int] = []
    following = 0
    for count, share in moves:
        numbers = np.arange(following, following + count)
        following += count
        fifo.append({"number": numbers, "pair": np.stack((numbers, -numbers), 1)})
        expected += numbers.tolist()
        drop = int(share * len(expected))
        fifo.drop(drop)
        del expected[:drop]
        assert len(fifo) == len(expected)
        assert fifo["number"].tolist() == expected
        assert fifo["pair"].tolist() == [[number, -number] for number in expected]


def test_memory_follows_the_number_of_entries() -> None:
    fifo = Fifo({"number": ((), np.int64)})
    for _ in range(1000):
        fifo.append({"number": np.arange(100)})
        fifo.drop(max(0, len(fifo) - 200))
    assert fifo.num_bytes <= 4 * 300 * 8 * 2
