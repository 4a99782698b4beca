"""Means, their intervals, and differences of the same episodes."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

from trajtrainer.policies.play.result import Episode, EpisodeSample, EvaluationResult, difference


def result(returns: list[float], *, team: int = 0, first: int = 0) -> EvaluationResult:
    episodes = tuple(Episode(0, team, first + n, each, 0.0, 10, False) for n, each in enumerate(returns))
    return EvaluationResult("B", episodes, (), 100, 4.0)


def test_the_interval_is_that_of_the_mean() -> None:
    """Of many independent values it is what the normal distribution says."""
    values = np.random.default_rng(5).exponential(3.0, 400)
    low, high = EpisodeSample(tuple(values.tolist())).ci95()

    half = 1.96 * values.std() / math.sqrt(len(values))
    assert low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.1 * half)
    assert low < values.mean() < high


def test_equal_values_are_certain() -> None:
    sample = EpisodeSample((500.0,) * 20)
    assert (sample.mean, sample.std, sample.min, sample.max, sample.ci95()) == (500.0, 0.0, 500.0, 500.0, (500, 500))


def test_an_interval_repeats_whatever_the_number_of_values() -> None:
    values = tuple(np.random.default_rng(0).normal(size=5000).tolist())  # drawn in several parts
    assert EpisodeSample(values).ci95() == EpisodeSample(values).ci95()


def test_differences_are_those_of_the_same_episodes() -> None:
    """What all episodes have in common says nothing about which model is better."""
    starts = np.random.default_rng(1).normal(0, 100, 50)
    first, second = result(starts.tolist()), result((starts + np.tile([0.5, 1.5], 25)).tolist())
    better = difference(second, first)

    assert better.mean == pytest.approx(1.0)
    low, high = better.ci95()
    assert 0.8 < low < 1.0 < high < 1.2
    assert second.returns.ci95()[0] < first.returns.mean < second.returns.ci95()[1], "not to be seen without pairs"


def test_differences_leave_out_what_one_has_not_played() -> None:
    assert difference(result([5.0, 6.0, 7.0]), result([1.0, 1.0])).values == (4.0, 5.0)
    assert difference(result([5.0]), result([1.0], team=1)).values == ()


def test_a_notebook_shows_a_table_whatever_the_behavior_is_called() -> None:
    episodes = result([1.0, 3.0]).episodes
    shown = EvaluationResult("<b>B</b>", episodes, (), 100, 4.0)._repr_html_()
    cells = ["&lt;b&gt;B&lt;/b&gt;", "2", "2.000 ± 1.000", "1.000 to 3.000", "10.0"]
    assert re.findall("<td>(.*?)</td>", shown) == cells


def test_plain_data() -> None:
    both = EvaluationResult("B", (*result([1.0, 3.0]).episodes, *result([5.0], team=1).episodes), (), 100, 4.0)
    found = both.to_json()

    assert json.loads(json.dumps(found)) == found
    assert {key: found[key] for key in ("episodes", "mean", "std", "min", "max", "decisions_per_second")} == {
        "episodes": 3, "mean": 3.0, "std": pytest.approx(np.std([1, 3, 5])), "min": 1.0, "max": 5.0,
        "decisions_per_second": 25.0,
    }  # fmt: skip
    assert found["length"] == {"mean": 10.0, "std": 0.0, "min": 10.0, "max": 10.0}
    assert {team: each["mean"] for team, each in found["teams"].items()} == {"0": 2.0, "1": 5.0}
    assert "groups" not in found


def test_in_short_it_is_one_line_without_episodes() -> None:
    assert repr(result([1.0, 3.0] * 500)) == "<EvaluationResult B: 1000 episodes, return 2.000 ± 1.000>"
    assert repr(result([])) == "<EvaluationResult B: 0 episodes>"
