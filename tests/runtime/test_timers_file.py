"""timers.json beside ML-Agents'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trajtrainer.run.timers_file import timers_json
from trajtrainer.run.writers import GaugeWriter
from trajtrainer.stats import StatsSummary
from trajtrainer.timers import Timers


@pytest.mark.parametrize("run", ["ppo_continuous", "ppo_discrete_two_behaviors"])
def test_keys_are_those_of_mlagents(shared_data: Path, run: str) -> None:
    golden = json.loads((shared_data / "golden" / "runs" / run / "run_logs" / "timers.json").read_text())
    shown = json.loads((shared_data / "golden" / "runs" / run / "tensorboard.json").read_text())
    gauges = GaugeWriter()
    for behavior, series in shown.items():
        for index in range(len(series["scalars"]["Policy/Entropy"])):
            values = {tag: StatsSummary([points[index][1]]) for tag, points in series["scalars"].items()}
            gauges.write_stats(behavior, values | {"Step": StatsSummary([1.0]), "Is Training": StatsSummary([1.0])}, 1)
    timers = Timers()
    with timers("TrainerController.start_learning"), timers("TrainerController.advance"):
        pass
    arguments = golden["metadata"]["command_line_arguments"].split(" ")
    mine = json.loads(timers_json(timers, gauges.gauges, arguments, "1.5.0"))
    assert list(mine) == list(golden)
    assert set(mine["metadata"]) == set(golden["metadata"]) | {"trajtrainer_version"}
    assert {key: type(value) for key, value in golden["metadata"].items()} == {
        key: type(mine["metadata"][key]) for key in golden["metadata"]
    }
    for key in ("timer_format_version", "command_line_arguments", "mlagents_version", "communication_protocol_version"):
        assert mine["metadata"][key] == golden["metadata"][key]
    assert set(mine["gauges"]) == set(golden["gauges"])
    for name, gauge in golden["gauges"].items():
        assert list(mine["gauges"][name]) == list(gauge)
        assert mine["gauges"][name]["count"] == gauge["count"]
        if name.endswith(".mean") and ".Step." not in name:
            assert mine["gauges"][name] == pytest.approx(gauge, rel=1e-6, abs=1e-7)
    node = mine["children"]["TrainerController.start_learning"]
    theirs = golden["children"]["TrainerController.start_learning"]
    assert list(node) == list(theirs)
    assert (mine["name"], mine["count"]) == ("root", 1)
    start, end = int(mine["metadata"]["start_time_seconds"]), int(mine["metadata"]["end_time_seconds"])
    assert 0 <= end - start < 600
