"""When a trainer's own thread takes trajectories in."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.learning.trainers.rig import vector_spec
from trajtrainer.core.steps import LongArray
from trajtrainer.core.timers import Timers
from trajtrainer.experience.rows import RowPool
from trajtrainer.experience.source import ExperienceSource, RowsChunk
from trajtrainer.experience.trajectory import PackedSteps, TrajectoryBatch
from trajtrainer.run.coupling import TrainerThread

PATIENCE_S = 30.0


class Learner:
    """A trainer for which less than three rows are not worth taking in."""

    context = SimpleNamespace(behavior="Ball")
    learns_alone = False

    def __init__(self) -> None:
        self.pool = RowPool(vector_spec(), [np.float32], capacity=4)
        self.source = ExperienceSource(is_concurrent=True)
        self.took = threading.Event()
        self.drains: list[int] = []

    def is_due(self) -> bool:
        return self.source.num_steps >= 3

    def advance(self) -> bool:
        taken = self.source.drain_into(lambda _: None, hold=False)
        self.drains.append(sum(len(item) for item in taken if isinstance(item, PackedSteps)))
        self.took.set()
        return True

    def hand_over(self, rows: LongArray) -> None:
        """One trajectory whose last row is its bootstrap, too."""
        self.pool.retain(rows[-1:])
        nobody = np.zeros(1, np.bool_)
        numbers = rows.astype(np.int32)
        offset = np.array([0, len(rows)], np.int32)
        batch = TrajectoryBatch(numbers, offset, numbers[-1:], nobody, nobody, np.zeros(1, np.int64))
        self.source.add(RowsChunk(self.pool, [batch], len(rows), len(rows)))


@pytest.fixture
def learner() -> Any:
    learner = Learner()
    thread = TrainerThread(cast(Any, learner), Timers())
    thread.start()
    yield learner
    learner.source.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert thread.failure is None


def test_it_waits_until_it_is_worth_it(learner: Learner) -> None:
    rows = learner.pool.allocate(4)
    learner.hand_over(rows[:2])
    assert not learner.took.wait(0.05)
    learner.hand_over(rows[2:])
    assert learner.took.wait(PATIENCE_S)
    assert learner.drains == [4]


def test_rows_that_acting_waits_for_are_given_back_at_once(learner: Learner) -> None:
    rows = learner.pool.allocate(4)
    learner.hand_over(rows[:2])
    learner.source.request_drain()
    assert learner.took.wait(PATIENCE_S)
    assert learner.drains == [2]
    assert learner.pool.num_free == 2


def test_what_is_left_at_the_end_is_taken_in(learner: Learner) -> None:
    learner.hand_over(learner.pool.allocate(2))
    assert not learner.took.wait(0.05)
    learner.source.close()
    assert learner.took.wait(PATIENCE_S)
    assert learner.drains == [2]
