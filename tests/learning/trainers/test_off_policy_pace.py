"""How many gradient steps are due, against ML-Agents' loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajtrainer.learning.algos.off_policy import Pace

STEPS_PER_UPDATE = st.one_of(
    st.sampled_from([0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 7.7, 10.0, 20.0]), st.floats(0.05, 50.0, allow_nan=False)
)


class _Loop:
    """Reference 4.4, to the letter."""

    def __init__(self, steps_per_update: float, first_step: int) -> None:
        self.steps_per_update, self.first_step, self.count = steps_per_update, first_step, 1

    def run(self, step: int) -> int:
        before = self.count
        while (step - self.first_step) / self.count > self.steps_per_update:
            self.count += 1
        return self.count - before


@given(STEPS_PER_UPDATE, st.integers(0, 500), st.lists(st.integers(0, 300), max_size=15))
def test_is_the_loop_of_mlagents_whatever_the_drains(
    steps_per_update: float, first_step: int, drains: list[int]
) -> None:
    pace, loop = Pace(steps_per_update, first_step), _Loop(steps_per_update, first_step)
    step = 0
    for steps in drains:
        step += steps
        if step < first_step:
            continue
        due = pace.due(step)
        assert due == loop.run(step)
        pace.made(due)
        assert pace.count == loop.count
        assert pace.due(step) == 0


@given(STEPS_PER_UPDATE, st.integers(0, 200), st.lists(st.integers(1, 200), min_size=1, max_size=10))
def test_a_resumed_run_makes_as_many_as_one_that_was_never_stopped(
    steps_per_update: float, first_step: int, drains: list[int]
) -> None:
    straight, step, made = Pace(steps_per_update, first_step), first_step, 0
    pace = Pace(steps_per_update, first_step)
    for steps in drains:
        step += steps
        made += pace.due(step)
        pace.made(pace.due(step))
        resumed = Pace(steps_per_update, first_step)
        resumed.load(pace.state(), step)
        pace = resumed
    assert made == straight.due(step)


def test_golden_count(shared_data: object) -> None:
    """``loops/sac``: step 46 after 20 initial ones, counts 6 and 3 at the end."""
    for steps_per_update, after in ((5, 6), (10, 3)):
        pace = Pace(steps_per_update, 20)
        pace.made(pace.due(46))
        assert pace.count == after


def test_nothing_is_due_ahead_of_the_first_step() -> None:
    assert Pace(1.0, 100).due(50) == 0


@pytest.mark.parametrize(
    "state",
    [
        None,
        {"count": 90_000, "steps_per_update": 1.0, "first_step": 1000},
        {"count": 90_000, "steps_per_update": 10.0, "first_step": 0},
    ],
)
def test_without_a_count_of_these_settings_nothing_is_due_at_once(state: dict[str, float] | None) -> None:
    pace = Pace(10.0, 1000)
    pace.load(state, 100_000)
    assert pace.due(100_000) == 0
    assert pace.due(100_100) == 10


def test_resuming_ahead_of_the_first_step() -> None:
    pace = Pace(10.0, 1000)
    pace.load(None, 500)
    assert pace.count == 1
