"""The statistics between two summaries."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajtrainer.core.stats import Distribution, StatsReporter, StatsSummary, StatsWriter
from trajtrainer.core.steps import Aggregation


class Recorder(StatsWriter):
    def __init__(self) -> None:
        self.summaries: list[tuple[str, dict[str, StatsSummary], int]] = []
        self.texts: list[tuple[str, str]] = []

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        self.summaries.append((category, dict(values), step))

    def add_hyperparameters(self, category: str, text: str) -> None:
        self.texts.append((category, text))


def reported(reporter: StatsReporter, recorder: Recorder) -> dict[str, StatsSummary]:
    reporter.write(1000)
    return recorder.summaries[-1][1]


def test_a_summary_hands_over_everything_once() -> None:
    recorder = Recorder()
    reporter = StatsReporter("Ball", [recorder])
    reporter.add("a", 1.0)
    reporter.add("a", 3.0)
    reporter.write(1000)
    reporter.write(2000)
    (first, values, step), second = recorder.summaries
    assert (first, step, second) == ("Ball", 1000, ("Ball", {}, 2000))
    assert list(values["a"].values) == [1.0, 3.0]
    assert (values["a"].mean, values["a"].sum, values["a"].std) == (2.0, 4.0, 1.0)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        (Aggregation.AVERAGE, 2.0),
        (Aggregation.HISTOGRAM, 2.0),
        (Aggregation.SUM, 6.0),
        (Aggregation.MOST_RECENT, 3.0),
    ],
)
def test_aggregations(aggregation: Aggregation, expected: float) -> None:
    recorder = Recorder()
    reporter = StatsReporter("Ball", [recorder])
    for value in (1.0, 2.0, 3.0):
        reporter.add("a", value, aggregation)
    reporter.add_many("b", [1.0, 2.0, 3.0], aggregation)
    values = reported(reporter, recorder)
    assert values["a"].aggregated == expected
    assert values["b"].aggregated == expected


def test_set_keeps_the_newest_only() -> None:
    recorder = Recorder()
    reporter = StatsReporter("Ball", [recorder])
    for lesson in (0.0, 1.0, 2.0):
        reporter.set("Environment/Lesson Number/mass", lesson)
    assert list(reported(reporter, recorder)["Environment/Lesson Number/mass"].values) == [2.0]


def test_arrays_of_any_shape_and_type_are_copied() -> None:
    recorder = Recorder()
    reporter = StatsReporter("Ball", [recorder])
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    reporter.add_many("a", values.T)
    reporter.add_many("a", (7, 8))
    values[:] = -1
    assert list(reported(reporter, recorder)["a"].values) == [0, 3, 1, 4, 2, 5, 7, 8]


def test_sources_are_asked_at_each_summary() -> None:
    recorder = Recorder()
    reporter = StatsReporter("Ball", [recorder])
    steps = iter((10.0, 20.0))
    reporter.add_source(lambda: {"Perf/Steps": next(steps)})
    reporter.write(1000)
    reporter.write(2000)
    assert [list(values["Perf/Steps"].values) for _, values, _ in recorder.summaries] == [[10.0], [20.0]]


def test_no_values_is_no_number() -> None:
    recorder = Recorder()
    reporter = StatsReporter("Ball", [recorder])
    reporter.add_many("a", [])
    summary = reported(reporter, recorder)["a"]
    assert math.isnan(summary.aggregated)
    assert math.isnan(summary.std)
    assert summary.sum == 0.0


def test_hyperparameters_reach_every_writer() -> None:
    writers = [Recorder(), Recorder()]
    StatsReporter("Ball", writers).add_hyperparameters("\tlambd:\t0.9")
    assert [writer.texts for writer in writers] == [[("Ball", "\tlambd:\t0.9")]] * 2


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=5), max_size=8))
def test_one_by_one_equals_many_at_once(parts: list[list[float]]) -> None:
    recorder = Recorder()
    reporter = StatsReporter("Ball", [recorder])
    for part in parts:
        reporter.add_many("array", np.array(part))
        reporter.add_many("list", part)
        for value in part:
            reporter.add("single", value)
    values = reported(reporter, recorder)
    expected = [value for part in parts for value in part]
    for tag in ("array", "list", "single"):
        assert list(values[tag].values if tag in values else []) == expected


def test_threads_lose_nothing() -> None:
    recorder = Recorder()
    reporter = StatsReporter("Ball", [recorder])

    def add() -> None:
        for _ in range(500):
            reporter.add("a", 1.0)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        reporter.write(0)
    for thread in threads:
        thread.join(30)
    reporter.write(0)
    assert sum(values["a"].sum for _, values, _ in recorder.summaries if "a" in values) == 2000


PARTS = st.lists(st.lists(st.floats(-1e6, 1e6), max_size=20), max_size=6)


@given(PARTS)
@settings(deadline=None)
def test_distributions_of_parts_join_to_that_of_the_whole(parts: list[list[float]]) -> None:
    joined = Distribution()
    for part in parts:
        joined = joined.joined(Distribution.of(part))
    whole = [value for part in parts for value in part]
    assert joined.number == len(whole)
    if whole:
        expected = [np.mean(whole), np.std(whole), min(whole), max(whole)]
        found = [joined.mean, joined.std, joined.min, joined.max]
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-5)
    else:
        assert all(map(math.isnan, (joined.mean, joined.std, joined.min, joined.max)))


@given(st.lists(st.tuples(st.sampled_from(["add", "set", "write", "ask"]), st.floats(-100, 100)), max_size=30))
@settings(deadline=None)
def test_distributions_tell_each_value_once_whenever_asked(calls: list[tuple[str, float]]) -> None:
    """Of what is set, the newest value before each summary or question."""
    recorder = Recorder()
    reporter = StatsReporter("Ball", [recorder])
    added: list[float] = []
    newest: float | None = None
    kept: list[float] = []
    for what, value in [*calls, ("ask", 0.0)]:
        if what == "add":
            reporter.add("a", value)
            added.append(value)
        elif what == "set":
            reporter.set("s", value)
            newest = value
        elif what == "write":
            reporter.write(1)
            kept += [] if newest is None else [newest]
            newest = None
        else:
            kept += [] if newest is None else [newest]
            newest = None
            found = reporter.distributions()
            expected = {"a": added, "s": kept}
            assert {tag: each.number for tag, each in found.items()} == {t: len(v) for t, v in expected.items() if v}
            for tag, each in found.items():
                assert each.mean == pytest.approx(np.mean(expected[tag]))
            added, kept = [], []
