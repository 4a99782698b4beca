"""Rates between two summaries."""

from __future__ import annotations

import pytest

from trajtrainer.run.writers import Throughput


def test_each_summary_has_the_rate_since_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now, steps, updates = 100.0, 7, 0  # seven steps were made before it begins to count
    monkeypatch.setattr("trajtrainer.run.writers.time.perf_counter", lambda: now)
    rates = Throughput({"steps": lambda: steps, "updates": lambda: updates})
    now, steps, updates = 104.0, 47, 2
    assert rates() == {"steps": 10.0, "updates": 0.5}
    now, steps = 104.5, 50
    assert rates() == {"steps": 6.0, "updates": 0.0}
    assert rates()["steps"] == 0.0, "no time has passed"
