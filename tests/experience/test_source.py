"""The learning side of the experience channel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.learning.trainers.rig import Rig, Trajectory
from trajtrainer.core.columns import Columns
from trajtrainer.core.queues import EpisodesAborted
from trajtrainer.core.stats import StatsReporter
from trajtrainer.core.steps import IntArray
from trajtrainer.experience.source import ExperienceSource
from trajtrainer.experience.trajectory import PackedSteps
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
    rig.source.abort_episodes(3)
    rig.source.abort_episodes(None)
    _put(rig, 5.0)
    assert (len(rig.source), rig.source.num_steps, rig.source.is_needed) == (5, 4, True)
    assert rig.source.num_rows == 4
    found = [
        part["reward"].tolist() if isinstance(part, PackedSteps) else part
        for part in rig.source.drain_into(_anywhere, hold=False)
    ]
    assert found == [[1.0, 2.0, 2.0], EpisodesAborted(3), EpisodesAborted(None), [5.0]]
    assert (len(rig.source), rig.source.num_steps, rig.source.num_put, rig.source.is_needed) == (0, 0, 4, False)
    assert rig.source.num_rows == 0
    assert rig.pool.num_free == rig.pool.capacity


def test_steps_are_written_where_the_learner_wants_them(rig: Rig) -> None:
    _put(rig, 1.0, 2.0)
    rig.source.abort_episodes(0)
    _put(rig, 5.0)
    asked: list[int] = []
    columns = rig.pool.columns.take(np.arange(4))

    def room(num_steps: int) -> Columns[NDArray[Any]]:
        asked.append(num_steps)
        return columns

    parts = [part for part in rig.source.drain_into(room, hold=False) if isinstance(part, PackedSteps)]
    assert asked == [4]
    assert columns["reward"].tolist() == [1.0, 2.0, 2.0, 5.0]
    assert all(np.shares_memory(part["reward"], columns["reward"]) for part in parts)


def test_rows_that_are_held_are_not_consumed_until_the_next_drain_at_most(rig: Rig) -> None:
    _put(rig, 1.0)
    rig.source.drain_into(_anywhere, hold=True)
    assert rig.pool.num_free == rig.pool.capacity, "what was gathered is free"
    assert (rig.source.drained, rig.source.consumed) == (1, 0)
    _put(rig, 2.0, 3.0)
    rig.source.drain_into(_anywhere, hold=True)
    assert (rig.source.drained, rig.source.consumed) == (4, 1)
    rig.source.settle()
    assert rig.source.consumed == 4


def test_held_rows_are_given_back_with_progress_after_the_policy_is_published() -> None:
    source, events = ExperienceSource(is_concurrent=True), list[Any]()
    source.add(cast(Any, _Nothing(10)))
    source.on_consumed = lambda: events.append("wake")
    source.on_progress = lambda: events.append(source.consumed)
    source.drain_into(_anywhere, hold=True)
    for part in (0.0, 0.2, 0.2, 0.5, 1.0):
        source.share_progress(part, lambda: events.append("publish"))
    source.settle()
    assert events == ["wake", *(x for rows in (0, 2, 2, 5, 10) for x in ("publish", rows)), "wake"]


def test_a_source_whose_actors_wait_publishes_nothing_in_between() -> None:
    source = ExperienceSource()
    source.share_progress(0.5, lambda: pytest.fail("acting waits for the end of the update"))


@pytest.mark.parametrize(
    ("max_lag", "kept", "dropped"),
    [
        (5, [1.0, 2.0, 2.0, 3.0, 3.0, 3.0, 4.0, 4.0, 4.0, 4.0], 0),
        (2, [1.0, 3.0, 3.0, 3.0, 4.0, 4.0, 4.0, 4.0], 2),
        (1, [1.0, 4.0, 4.0, 4.0, 4.0], 5),
        (0, [1.0, 2.0, 2.0, 3.0, 3.0, 3.0, 4.0, 4.0, 4.0, 4.0], 0),
    ],
)
def test_the_policy_of_its_last_step_decides_whether_a_trajectory_is_too_old(
    rig: Rig, max_lag: int, kept: list[float], dropped: int
) -> None:
    _put(rig, 1.0, 2.0, 3.0, 4.0)
    (packed,) = rig.source.drain_into(_anywhere, hold=False)
    assert isinstance(packed, PackedSteps)
    packed["version"][:] = [9, 9, 7, 3, 9, 8, 0, 0, 0, 9]  # in version 10: 1, 3, 2 and 1 older
    packed["reward"][:] = [1, 2, 2, 3, 3, 3, 4, 4, 4, 4]
    reporter = StatsReporter("Ball", [])
    recent, steps = ExperienceSource(max_lag=max_lag, reports_lag=True).recent(packed, 10, reporter)
    assert recent is not None
    assert recent["reward"].tolist() == kept == packed["reward"][steps].tolist()
    summary = reporter.summaries()
    assert summary["Actors/Dropped Steps"].sum == dropped
    assert summary["Actors/Policy Lag"].mean == pytest.approx(46 / 10)


def test_no_trajectory_may_be_recent_enough(rig: Rig) -> None:
    _put(rig, 1.0, 2.0)
    (packed,) = rig.source.drain_into(_anywhere, hold=False)
    assert isinstance(packed, PackedSteps)
    packed["version"][:] = 0
    recent, steps = ExperienceSource(max_lag=1, reports_lag=True).recent(packed, 10, StatsReporter("Ball", []))
    assert recent is None
    assert packed["reward"][steps].tolist() == []


@dataclass
class _Nothing:
    """A chunk without content."""

    rows: int
    num_steps: int = 0
    num_ended: int = 0
    lengths: IntArray = field(default_factory=lambda: np.zeros(0, np.int32))
    pack: Any = None

    def lag_sum(self, version: int) -> int:
        return 0

    def newest_of_last(self) -> int:
        return 0

    def __post_init__(self) -> None:
        self.pack = lambda _chunks, _into: None


def _anywhere(_num_steps: int) -> None:
    return None
