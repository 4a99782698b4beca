"""A search whose file operations fail: tests/disk/campaign.py."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.disk.kinds import RESULTS, Kind, Tell, configuration, trainer
from tests.hub_stand_in import Hub
from trajtrainer.cli.main import main
from trajtrainer.policies.folder import event_file
from trajtrainer.policies.folder.event_file import EventFile
from trajtrainer.tools.search import trial

PRELOADED = (
    "optuna.importance",
    "matplotlib.pyplot",
    "trajtrainer.tools.search.command",
    "trajtrainer.tools.search.search",
)


class Searching(Kind):
    """A search of four trials, whose runs are played by a stand-in."""

    def prepare(self) -> None:
        if self._search(results="undisturbed") != 0:
            raise RuntimeError("the search failed")

    def act(self, tell: Tell) -> int:
        return self._search()

    def go_on(self, told: Sequence[dict[str, Any]]) -> Iterator[str]:
        is_there = Path(RESULTS, "study", "study.journal").is_file()
        if self._search(*(["--resume"] if is_there else [])) != 0:
            yield "the search cannot go on"
            return
        found, undisturbed = _values(RESULTS), _values("undisturbed")
        if found != undisturbed:
            yield f"the trials reached {found}, undisturbed ones {undisturbed}"
        best = [Path(results, "study", "best.yaml") for results in (RESULTS, "undisturbed")]
        if not best[0].is_file() or best[0].read_text() != best[1].read_text():
            yield "best.yaml is not that of the best trial"

    def _search(self, *options: str, results: str = RESULTS) -> int:
        trial.TrialProcess = _Player  # type: ignore[assignment,misc]
        name = "behaviors.Lamp.hyperparameters.learning_rate"
        search = {"trials": 4, "parallel": 1, "ranges": {name: {"low": 0.001, "high": 0.1, "log": True}}}
        path = configuration(
            "Lamp",
            trainer("ppo", 32),
            search=search,
            env_settings={"env_path": "python:tests.run.api.test_learn_api:Lamp"},
        )
        return main(["search", path, "--run-id=study", f"--results-dir={results}", *options])


def _values(results: str) -> list[tuple[int, float]]:
    """Which trials ended, and with what."""
    lines = [json.loads(line) for line in Path(results, "study", "study.journal").read_text().splitlines()]
    return sorted((line["trial_id"], line["values"][0]) for line in lines if line["op_code"] == 6)


class _Player:
    """Stands in for the process of a trial."""

    def __init__(self, configuration: Path) -> None:
        settings = yaml.safe_load(configuration.read_text())
        checkpoints = settings["checkpoint_settings"]
        events = EventFile(Path(checkpoints["results_dir"], checkpoints["run_id"], "Lamp"))
        value = float(settings["behaviors"]["Lamp"]["hyperparameters"]["learning_rate"])
        events.add([event_file.scalar("Environment/Cumulative Reward", value)], 1)
        events.close()

    def is_running(self) -> bool:
        return False

    def kill(self) -> None: ...

    def end(self) -> str:
        return ""


def kinds(_: Hub) -> dict[str, Kind]:
    """What the campaign lets fail."""
    return {"search": Searching()}
