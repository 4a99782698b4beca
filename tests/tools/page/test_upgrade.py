"""Runs of earlier versions are shown on the page."""

from __future__ import annotations

import json
from pathlib import Path

from tests.policies.folder.runs import REWARD
from tests.upgrade.corpus import (
    behavior_of,
    step_of,
)
from tests.upgrade.writing import KINDS, RUNS
from trajtrainer.policies.folder.contained_folder import ContainedFolder
from trajtrainer.tools.page.viewer import Viewer


def test_runs_are_shown_on_the_page(corpus: Path) -> None:
    seen = Viewer(ContainedFolder(corpus / RUNS))
    shown = {each["id"]: each for each in seen.summaries()}
    assert {*KINDS, "search/trial-0000", "search/trial-0001"} <= set(shown)
    for name in KINDS:
        assert shown[name]["state"] == "finished"
        (behavior,) = shown[name]["behaviors"]
        assert behavior["step"] == step_of(name)
        details = json.loads(json.dumps(seen.details(name), allow_nan=False))
        assert {"configuration.yaml", f"{behavior_of(name)}/checkpoint.pt"} <= {
            each["path"] for each in details["files"]
        }
    seen.series(["ppo"], "Toy", REWARD, 100, (-1e9, 1e9), by_time=False)
    series = seen.series(["ppo"], "Toy", REWARD, 100, (-1e9, 1e9), by_time=False)
    assert series["ppo"]["steps"] == [600, 1200]
    (lesson,) = seen.details("ppo")["lessons"]
    assert (lesson["parameter"], lesson["count"]) == ("distance", 3)
