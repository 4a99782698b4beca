"""The page shows which trials a search ended early."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tests.policies.folder.runs import make_run
from tests.tools.search.test_search import Point, Stage, at_once, rate_of, stage  # noqa: F401
from trajtrainer.policies.folder.contained_folder import ContainedFolder
from trajtrainer.policies.folder.saved_run import SavedRun
from trajtrainer.settings.run import RunSettings
from trajtrainer.tools.page.runs import RunView


def test_the_page_shows_which_trials_were_ended_early(stage: Stage) -> None:  # noqa: F811
    def course(settings: RunSettings) -> Iterator[Point]:
        checkpoints = settings.checkpoint_settings
        run = make_run(Path(checkpoints.results_dir), checkpoints.run_id)
        path = run / "run_logs" / "training_status.json"
        status = json.loads(path.read_text())
        status["Ball"]["checkpoints"] = [{"steps": 400, "reward": 1.0}]
        path.write_text(json.dumps(status))
        yield 100, rate_of(settings)
        yield 1000, rate_of(settings)

    found = stage.search(course, trials=6, pruner="median", startup=1, warmup=0)
    ended = {trial.number for trial in found.study.trials if trial.state.name == "PRUNED"}
    assert ended
    for number in range(6):
        run = RunView(SavedRun(ContainedFolder(stage.path), ("study", f"trial-{number:04d}")))
        summary = run.summary()
        assert summary["state"] == ("pruned" if number in ended else "finished")
        stopped = {"by": "pruning", "steps": 400} if number in ended else None
        assert summary["behaviors"][0]["stopped"] == stopped
        assert [each.labels for each in run.samples(summary) if each.name == "run_state"] == [
            {"run": f"study/trial-{number:04d}", "state": summary["state"]}
        ]
