"""Prometheus' text format."""

from __future__ import annotations

import math

import pytest

from tests.prometheus import parsed
from trajtrainer.core.metrics import HELP, OF_STATISTICS, MetricSample, exposition, of_statistics, of_summary
from trajtrainer.core.stats import StatsSummary

NAMES = ["Ball", 'say "hi"', "back\\slash\\n", "two\nlines", "\x1b[31mred\r", "\udc80", "ボール", '{a="b"} 7', ""]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_survives_as_a_label(name: str) -> None:
    text = exposition(
        [MetricSample("step", 7, {"run": "a", "behavior": name}), MetricSample("elo", 1200.5, {"behavior": "b"})]
    )
    found = parsed(text)
    ((labels, value),) = found["trajtrainer_step"]
    assert value == 7
    assert labels["run"] == "a"
    assert labels["behavior"].isprintable()
    if name.isprintable():
        assert labels["behavior"] == name
    assert found["trajtrainer_elo"] == [({"behavior": "b"}, 1200.5)]


def test_all_samples_of_a_metric_follow_each_other_below_one_head() -> None:
    text = exposition(MetricSample(name, 1.0, {"run": run}) for run in "ab" for name in ("step", "elo"))
    assert [line.split("{")[0] for line in text.splitlines() if not line.startswith("# HELP")] == [
        "# TYPE trajtrainer_step gauge", "trajtrainer_step", "trajtrainer_step",
        "# TYPE trajtrainer_elo gauge", "trajtrainer_elo", "trajtrainer_elo",
    ]  # fmt: skip


@pytest.mark.parametrize("value", [0.0, -0.0, 1e300, -1.5e-7, 0.1, 123456789.25, 2.0**53, 1 / 3, math.inf, -math.inf])
def test_numbers_are_exact(value: float) -> None:
    assert parsed(exposition([MetricSample("elo", value, {})]))["trajtrainer_elo"] == [({}, value)]


def test_what_is_not_a_number_is_said_so() -> None:
    ((_, value),) = parsed(exposition([MetricSample("elo", math.nan, {})]))["trajtrainer_elo"]
    assert math.isnan(value)


def test_no_samples_are_an_empty_text() -> None:
    assert exposition([]) == ""


def test_every_metric_has_a_help_of_one_line_and_a_name_of_its_own() -> None:
    assert len({metric.name for metric in OF_STATISTICS}) == len({metric.tag for metric in OF_STATISTICS})
    for name, text in HELP.items():
        assert name.isidentifier()
        assert text.isprintable()
        assert text


def test_a_summary_in_numbers() -> None:
    values = {
        "Environment/Cumulative Reward": StatsSummary([1.0, 3.0]),
        "Perf/Memory": StatsSummary([0.5]),
        "Step": StatsSummary([990.0]),
        "Self-play/ELO": StatsSummary([]),
        "Custom/Anything": StatsSummary([5.0]),
    }
    assert of_summary(values, 1000) == {"step": 1000, "mean_reward": 2, "std_reward": 1, "memory_bytes": 1 << 29}


def test_an_evaluation_leaves_the_step_alone() -> None:
    values = {"Evaluation/Cumulative Reward": StatsSummary([2.0, 4.0])}
    assert of_summary(values, 500) == {"evaluation_reward": 3}


def test_statistics_that_are_not_there_are_left_out() -> None:
    assert of_statistics({"Policy/Entropy": 1.25, "Step": 10.0}.get) == {"step": 10, "entropy": 1.25}
