"""Schedules against the golden values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trajtrainer.learning.algos.schedules import MIN_EPSILON, decayed
from trajtrainer.settings.components import ScheduleType


def test_golden_values(shared_data: Path) -> None:
    values = json.loads((shared_data / "golden" / "schedules" / "decay.json").read_text())["values"]
    compared = 0
    for case in values:
        initial, minimum = case["initial"], case["minimum"]
        found = decayed(ScheduleType(case["schedule"]), initial, minimum, case["max_step"], case["step"])
        if initial < minimum and case["schedule"] == "linear":
            assert found == initial, "ML-Agents' value rises here, ours stays (documented difference)"
            continue
        compared += 1
        assert found == pytest.approx(case["value"], rel=1e-12, abs=1e-12)
    assert compared > 50


@pytest.mark.parametrize("step", [0, 1, 500, 1000, 5000])
def test_a_range_below_its_end_value_never_grows(step: int) -> None:
    assert decayed(ScheduleType.LINEAR, 0.05, MIN_EPSILON, 1000, step) == 0.05
