"""timers.json beside ML-Agents'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trajtrainer.core.stats import StatsSummary
from trajtrainer.core.timers import Timers
from trajtrainer.run.run import earlier_sessions, timers_json
from trajtrainer.run.writers import GaugeWriter


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


def test_sessions_add_up() -> None:
    """Three of them, each resumed: the earlier ones are one tree, however many there were."""
    earlier, starts = None, []
    for number in range(3):
        timers = Timers()
        with timers("env_step"), timers(f"only in {number}"):
            pass
        content = json.loads(timers_json(timers, {}, ["x"], "1.5.0", earlier=earlier))
        starts.append(content["metadata"]["start_time_seconds"])
        assert ("earlier_sessions" in content) == (number > 0)
        earlier = earlier_sessions(json.dumps(content))
    assert earlier is not None
    assert earlier["sessions"] == 3
    assert earlier["start_time_seconds"] == starts[0]
    assert earlier["children"]["env_step"]["count"] == 3
    assert list(earlier["children"]["env_step"]["children"]) == ["only in 2", "only in 1", "only in 0"]
    assert earlier["total"] > content["total"]


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "[" * 100_000])
def test_a_damaged_file_of_an_earlier_session_is_left_out(text: str) -> None:
    assert earlier_sessions(text) is None


def test_wrong_numbers_of_an_earlier_session_count_as_none() -> None:
    wrong = {"total": "x", "count": -1, "self": 1e999, "children": {"a": {"total": float("nan")}, "b": 5}}
    found = earlier_sessions(json.dumps({**wrong, "metadata": 3, "earlier_sessions": [1]}))
    assert found == {
        "sessions": 1,
        "start_time_seconds": None,
        "total": 0.0,
        "count": 0,
        "self": 0.0,
        "children": {"a": {"total": 0.0, "count": 0, "self": 0.0}},
    }
