"""Runs of every kind learn what they learned when their traces were recorded (``scripts/traces record``)."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.run import traces

DEMOS = Path(__file__).resolve().parents[2] / "config" / "demos"
RECORDED = Path(__file__).with_name("traces.json")
KINDS = traces.kinds(DEMOS)
# Another processor rounds sums differently, and hundreds of steps make that larger.
CLOSE = functools.partial(pytest.approx, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_learns_what_it_learned(tmp_path: Path, kind: str) -> None:
    recorded: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))[kind]
    found = traces.record(tmp_path, *KINDS[kind])
    assert found.keys() == recorded.keys()
    for behavior, expected in recorded.items():
        events = found[behavior]["events"]
        assert found[behavior]["weights"].keys() == expected["weights"].keys()
        assert found[behavior]["norms"] == CLOSE(expected["norms"])
        assert events.keys() == expected["events"].keys()
        for tag, points in expected["events"].items():
            assert [step for step, _ in events[tag]] == [step for step, _ in points], tag
            assert [value for _, value in events[tag]] == CLOSE([value for _, value in points]), tag


def test_one_actor_at_lag_0_has_the_trace_of_the_loop() -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert recorded["thread_actor"] == recorded["ppo"]
    assert recorded["process_actor"] == recorded["ppo"]
