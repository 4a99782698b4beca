"""``scripts/bench quick`` measures self-play by a tournament."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.benchmarks import quick


def test_in_self_play_the_reward_is_what_is_won_against_the_rival(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = json.loads(json.dumps(quick.settings("Duel", quick.QUICK)))
    mapping["behaviors"]["Duel"]["max_steps"] = 600
    monkeypatch.setattr(quick, "settings", lambda *_: mapping)
    monkeypatch.setitem(quick.TASKS, "Duel", {**quick.TASKS["Duel"], "window": 200, "games": 20})
    rival, fast = quick.Work("Duel", quick.RIVAL, 0), quick.Work("Duel", quick.QUICK, 1)

    quick.run("Duel", rival.who, rival.seed, rival.file(tmp_path))
    quick.run("Duel", fast.who, fast.seed, fast.file(tmp_path))

    assert rival.found(tmp_path) is not None
    found = fast.found(tmp_path)
    assert found is not None
    assert [round(steps / 200) for steps in found.steps] == [1, 2, 3]
    assert all(0 < share < 1 for share in found.rewards), "both are beginners"
    assert found.seconds == sorted(found.seconds)
