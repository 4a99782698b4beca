"""When a trainer's own thread takes trajectories in."""

from __future__ import annotations

import threading
from typing import Any, cast

import numpy as np
import pytest

from tests.data.test_rows import PATIENCE_S, Waiting
from tests.trainers.rig import vector_spec
from trajtrainer.data.rows import RowPool
from trajtrainer.queues import EpisodesAborted, TrajectoryQueue
from trajtrainer.runtime.trainer_thread import TrainerThread
from trajtrainer.steps import LongArray
from trajtrainer.timers import Timers


class Learner:
    """A trainer for which less than three rows are not worth taking in."""

    behavior = "Ball"

    def __init__(self) -> None:
        self.trajectories: TrajectoryQueue[LongArray] = TrajectoryQueue()
        self.pool = RowPool(vector_spec(), [np.float32], capacity=4, limit=4, on_wait=self.trajectories.hurry)
        self.took = threading.Event()
        self.drains: list[int] = []

    def is_due(self) -> bool:
        return self.trajectories.num_steps >= 3

    def advance(self) -> bool:
        batches = [item for item in self.trajectories.drain() if not isinstance(item, EpisodesAborted)]
        for rows in batches:
            self.pool.release(rows)
        self.drains.append(sum(map(len, batches)))
        self.took.set()
        return True

    def hand_over(self, rows: LongArray) -> None:
        self.pool.hand_over(len(rows))
        self.trajectories.put(rows, len(rows))


@pytest.fixture
def learner() -> Any:
    learner = Learner()
    thread = TrainerThread(cast(Any, learner), Timers())
    thread.start()
    yield learner
    learner.trajectories.close()
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
    learner.hand_over(rows[:1])
    assert Waiting(learner.pool, 1).result() == [0]
    assert learner.drains == [1]


def test_what_is_left_at_the_end_is_taken_in(learner: Learner) -> None:
    learner.hand_over(learner.pool.allocate(2))
    assert not learner.took.wait(0.05)
    learner.trajectories.close()
    assert learner.took.wait(PATIENCE_S)
    assert learner.drains == [2]
