"""The learning side of the experience channel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.trainers.rig import Rig, Trajectory
from trajtrainer.core.columns import Columns
from trajtrainer.core.queues import EpisodesAborted
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings


@pytest.fixture
def rig() -> Rig:
    return Rig(TrainerSettings(network_settings=NetworkSettings(hidden_units=4, num_layers=1)))


def _put(rig: Rig, *rewards: float) -> None:
    """Trajectories of one, two, ... steps, all steps of one with the same reward."""
    for length, reward in enumerate(rewards, start=1):
        rig.put(Trajectory(length, columns={"reward": np.full(length, reward, np.float32)}))


def test_a_drain_keeps_the_order_of_trajectories_and_aborts(rig: Rig) -> None:
    _put(rig, 1.0, 2.0)
    rig.trajectories.abort_episodes(3)
    rig.trajectories.abort_episodes(None)
    _put(rig, 5.0)
    assert (len(rig.source), rig.source.num_steps, rig.source.is_needed) == (5, 4, True)
    assert rig.source.lengths().tolist() == [1, 2, 1]
    found = [part["reward"].tolist() if isinstance(part, PackedSteps) else part for part in rig.source.drain(_anywhere)]
    assert found == [[1.0, 2.0, 2.0], EpisodesAborted(3), EpisodesAborted(None), [5.0]]
    assert (len(rig.source), rig.source.num_steps, rig.source.num_put, rig.source.is_needed) == (0, 0, 4, False)
    assert rig.source.lengths().tolist() == []
    assert rig.pool.num_free == rig.pool.capacity


def test_steps_are_written_where_the_learner_wants_them(rig: Rig) -> None:
    _put(rig, 1.0, 2.0)
    rig.trajectories.abort_episodes(0)
    _put(rig, 5.0)
    asked: list[int] = []
    columns = rig.pool.columns.take(np.arange(4))

    def room(num_steps: int) -> Columns[NDArray[Any]]:
        asked.append(num_steps)
        return columns

    parts = [part for part in rig.source.drain(room) if isinstance(part, PackedSteps)]
    assert asked == [4]
    assert columns["reward"].tolist() == [1.0, 2.0, 2.0, 5.0]
    assert all(np.shares_memory(part["reward"], columns["reward"]) for part in parts)


def test_rows_that_are_held_stay_until_the_next_drain_at_most(rig: Rig) -> None:
    _put(rig, 1.0)
    rig.source.drain(_anywhere, hold=True)
    assert rig.pool.capacity - rig.pool.num_free == 2
    _put(rig, 2.0, 3.0)
    rig.source.drain(_anywhere, hold=True)
    assert rig.pool.capacity - rig.pool.num_free == 5
    rig.source.settle()
    assert rig.pool.num_free == rig.pool.capacity


def _anywhere(_num_steps: int) -> None:
    return None
