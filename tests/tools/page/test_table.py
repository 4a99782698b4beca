"""The table of runs, seeds as one line, and the command that continues a run."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.policies.folder.runs import REWARD, make_run, write_events
from trajtrainer.policies.folder import event_file
from trajtrainer.policies.folder.contained_folder import ContainedFolder
from trajtrainer.policies.folder.event_file import EventFile
from trajtrainer.settings.schemes import ENVIRONMENTS, EnvironmentScheme
from trajtrainer.tools.groups import group_runs, load_runs
from trajtrainer.tools.page.viewer import Viewer
from trajtrainer.tools.spread import aggregate

NOTHING = (float("-inf"), float("inf"))


def viewer(results: Path) -> Viewer:
    return Viewer(ContainedFolder(results))


def shown(table: dict[str, Any]) -> dict[str, list[str | None]]:
    """Key of a setting -> the text of each row."""
    return {
        key: [None if place < 0 else texts[place] for place in places] for key, _, texts, places in table["settings"]
    }


def test_a_row_for_each_behavior_with_its_own_settings_and_measures(tmp_path: Path) -> None:
    make_run(tmp_path, "ball", more={"hyperparameters": {"learning_rate": 3e-4}})
    make_run(tmp_path, "cube", behavior="Cube", gain=2.0, seed=8, more={"network_settings": {"normalize": True}})
    both = make_run(tmp_path, "both")
    write_events(both / "Goalie", [(100, {REWARD: 1.0})])
    settings = yaml.safe_load((both / "configuration.yaml").read_text())
    settings["behaviors"]["Goalie"] = {"max_steps": 500}
    settings["default_settings"] = {"max_steps": 1}
    (both / "configuration.yaml").write_text(yaml.safe_dump(settings))
    seen = viewer(tmp_path)
    table = json.loads(json.dumps(seen.table(), allow_nan=False))
    assert table["rows"] == [["ball", "Ball"], ["both", "Ball"], ["both", "Goalie"], ["cube", "Cube"]]
    found = shown(table)
    assert found["max_steps"] == ["2000", "2000", "500", "2000"]
    assert found["hyperparameters.learning_rate"] == ["0.0003", None, None, None]
    assert found["network_settings.normalize"] == [None, None, None, "true"]
    assert found["env_settings.seed"] == ["7", "7", "7", "8"]
    assert not [key for key in found if key.startswith(("behaviors.", "default_settings."))]
    measures = {key: (title, values) for key, title, values in table["measures"]}
    assert measures["Losses.PolicyLoss"] == ("Losses/Policy Loss", [0.05, 0.05, None, 0.1])
    assert measures["Environment.CumulativeReward"] == (REWARD, [20.0, 20.0, None, 40.0])
    assert len(measures) == 2, "sums are left out"


def test_titles_of_statistics_are_tags_where_the_curves_are_known(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ball")
    write_events(run / "Ball", [(3000, {"Perf/Agent Steps per Second": 5.0, "My Own/Steps per Second": 5.0})])
    timers = json.loads((run / "run_logs" / "timers.json").read_text())
    timers["gauges"]["Ball.Perf.AgentStepsperSecond.mean"] = {"value": 5.0}
    timers["gauges"]["Ball.MyOwn.StepsperSecond.mean"] = {"value": 5.0}
    timers["gauges"]["Ball.Perf.GPUMemory.mean"] = {"value": float("inf")}
    (run / "run_logs" / "timers.json").write_text(json.dumps(timers))
    seen = viewer(tmp_path)
    titles = {key: title for key, title, _ in seen.table()["measures"]}
    assert titles["Perf.AgentStepsperSecond"] == "Perf/Agent Steps per Second", "a tag of ours"
    assert titles["MyOwn.StepsperSecond"] == "My Own/Stepsper Second", "a guess"
    assert "Perf.GPUMemory" not in titles, "no number"
    seen.tags(["ball"])
    titles = {key: title for key, title, _ in seen.table()["measures"]}
    assert titles["MyOwn.StepsperSecond"] == "My Own/Steps per Second"


def test_settings_that_only_name_a_run_are_marked(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ball")
    settings = yaml.safe_load((run / "configuration.yaml").read_text())
    settings["checkpoint_settings"] = {"run_id": "ball"}
    (run / "configuration.yaml").write_text(yaml.safe_dump(settings))
    marks = {key: mark for key, mark, _, _ in viewer(tmp_path).table()["settings"]}
    assert marks["checkpoint_settings.run_id"] is True
    assert marks["env_settings.seed"] is marks["max_steps"] is False


def test_five_hundred_runs_take_little_memory(tmp_path: Path) -> None:
    some = {f"setting_{number}": number for number in range(20)}
    first = make_run(tmp_path, "run-0", more=some)
    for number in range(1, 500):
        run = tmp_path / f"run-{number}"
        for part in ("run_logs/timers.json", "run_logs/training_status.json", "run_logs/trainer.log"):
            (run / part).parent.mkdir(parents=True, exist_ok=True)
            (run / part).write_bytes((first / part).read_bytes())
        (run / "Ball").mkdir()
        (event_file,) = (first / "Ball").glob("events.*")
        (run / "Ball" / event_file.name).write_bytes(event_file.read_bytes())
        text = (first / "configuration.yaml").read_text()
        (run / "configuration.yaml").write_text(text.replace("seed: 7", f"seed: {1000 + number}"))
    seen = viewer(tmp_path)
    tracemalloc.start()
    try:
        assert len(seen.summaries()) == 500
        table = seen.table()
        for begin in range(0, 100, 25):
            seen.tags([f"run-{number}" for number in range(begin, begin + 25)])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(table["rows"]) == 500
    assert len(set(shown(table)["env_settings.seed"])) == 500
    assert len(json.dumps(table)) < 200_000, "texts that all runs share are sent once"
    assert held < 80e6
    assert len([run for run in seen.runs.known.values() if run.saved.curves.behaviors]) <= 32


class TestSeeds:
    @pytest.fixture
    def results(self, tmp_path: Path) -> Path:
        for seed in (1, 2, 3):
            make_run(tmp_path, f"slow-s{seed}", gain=seed, seed=seed)
        make_run(tmp_path, "quick", gain=10.0, seed=1, more={"hyperparameters": {"learning_rate": 1e-3}})
        return tmp_path

    def test_the_line_is_the_one_of_a_report(self, results: Path) -> None:
        ids = ["slow-s1", "quick", "slow-s2", "slow-s3", "no"]
        seen = viewer(results)
        assert seen.groups(ids) == [
            {"name": "slow", "runs": ["slow-s1", "slow-s2", "slow-s3"]},
            {"name": "quick", "runs": ["quick"]},
        ]
        found = seen.series_over_seeds(ids, "Ball", REWARD, 200, NOTHING, by_time=False)
        assert list(found) == ["slow-s1", "quick"]
        slow, quick = found["slow-s1"], found["quick"]
        (group, _) = group_runs(load_runs(["slow-s1", "slow-s2", "slow-s3", "quick"], results))
        expected = aggregate(group.series("Ball", REWARD), 200)
        assert slow["steps"] == expected.steps.tolist()
        assert slow["mean"] == pytest.approx(expected.middle, rel=1e-6)
        assert slow["low"] == pytest.approx(expected.low, rel=1e-6)
        assert slow["high"] == pytest.approx(expected.high, rel=1e-6)
        assert [values[-1] for _, values in slow["seeds"]] == [20, 40, 60]
        assert (slow["name"], quick["name"], "seeds" in quick) == ("slow", "quick", False)
        assert quick["mean"][-1] == 200

    def test_what_is_new_counts(self, results: Path) -> None:
        seen = viewer(results)
        ids = ["slow-s1", "slow-s2", "slow-s3"]
        before = seen.series_over_seeds(ids, "Ball", REWARD, 200, NOTHING, by_time=False)["slow-s1"]
        assert seen.series_over_seeds(ids, "Ball", REWARD, 200, NOTHING, by_time=False)["slow-s1"] is before
        write_events(results / "slow-s1" / "Ball", [(2000, {REWARD: 50.0})])
        seen.look(ids)
        after = seen.series_over_seeds(ids, "Ball", REWARD, 200, NOTHING, by_time=False)["slow-s1"]
        assert after["mean"][-1] == pytest.approx(before["mean"][-1] + 10)
        for points in range(11, 120):
            seen.series_over_seeds(ids, "Ball", REWARD, points, NOTHING, by_time=False)
        assert len(seen._spreads) <= 64

    def test_over_time_and_of_a_part(self, results: Path) -> None:
        seen = viewer(results)
        ids = ["slow-s1", "slow-s2", "slow-s3"]
        part = seen.series_over_seeds(ids, "Ball", REWARD, 200, (500, 800), by_time=False)["slow-s1"]
        assert part["steps"] == [400, 500, 600, 700, 800, 900]
        over_time = seen.series_over_seeds(ids, "Ball", REWARD, 200, NOTHING, by_time=True)["slow-s1"]
        assert over_time["times"] == sorted(over_time["times"])
        assert over_time["times"][0] >= 0
        assert len(over_time["times"]) == len(over_time["mean"]) == len(over_time["low"])
        assert seen.series_over_seeds(ids, "Ball", "no", 200, NOTHING, by_time=False) == {}

    def test_a_histogram_is_the_distribution_over_all_seeds(self, results: Path) -> None:
        tag = f"{REWARD}_hist"
        for run, begin, count in (("slow-s1", 0.0, 1001), ("slow-s2", 900.0, 11), ("quick", 5.0, 101)):
            file = EventFile(results / run / "Ball")
            for step in (100, 200, 300)[: 2 if run == "slow-s2" else 3]:
                file.add([event_file.histogram(tag, np.linspace(begin, begin + 100, count))], step)
            file.close()
        seen = viewer(results)
        ids = ["slow-s1", "slow-s2", "slow-s3", "quick"]
        found = seen.series_over_seeds(ids, "Ball", tag, 200, NOTHING, by_time=False)
        assert list(found) == ["slow-s1", "quick"]
        slow, quick = found["slow-s1"], found["quick"]
        assert (slow["name"], slow["runs"], slow["steps"]) == ("slow", ["slow-s1", "slow-s2"], [100, 200, 300])
        (p5, p95), (p25, p75) = slow["bands"]
        assert p25 == pytest.approx([50, 50, 25], abs=6)
        assert p75 == pytest.approx([950, 950, 75], abs=6)
        assert 100 <= slow["mean"][0] <= 900
        assert p5 == pytest.approx([10, 10, 5], abs=6)
        assert p95 == pytest.approx([990, 990, 95], abs=6)
        assert (slow["low"], slow["high"]) == ([0, 0, 0], [1000, 1000, 100])
        alone = seen.series(ids, "Ball", tag, 200, NOTHING, by_time=False)["quick"]
        for key in ("mean", "low", "high", "bands"):
            assert np.array(quick[key]) == pytest.approx(np.array(alone[key]))
        over_time = seen.series_over_seeds(ids, "Ball", tag, 200, NOTHING, by_time=True)["slow-s1"]
        assert len(over_time["times"]) == len(over_time["mean"])


class TestResume:
    def change(self, run: Path, environment: str | None, command: str) -> None:
        settings = yaml.safe_load((run / "configuration.yaml").read_text())
        settings["env_settings"]["env_path"] = environment
        (run / "configuration.yaml").write_text(yaml.safe_dump(settings))
        timers = json.loads((run / "run_logs" / "timers.json").read_text())
        timers["metadata"]["command_line_arguments"] = command
        (run / "run_logs" / "timers.json").write_text(json.dumps(timers))

    @pytest.mark.parametrize("program", ["trajtrainer", "/usr/bin/mlagents-learn", "/x/trajtrainer/__main__.py"])
    def test_the_command_is_one_for_the_shell(self, tmp_path: Path, program: str) -> None:
        run = make_run(tmp_path, "my runs/it's $one")
        self.change(run, "/builds/Ball", f"{program} ball.yaml --run-id=one")
        found = viewer(tmp_path).details("my runs/it's $one")["resume"]
        assert found["remark"] == ""
        assert shlex.split(found["command"]) == [
            "trajtrainer",
            "learn",
            str(run / "configuration.yaml"),
            "--resume",
            "--run-id=it's $one",
            f"--results-dir={run.parent}",
        ]

    @pytest.mark.parametrize(
        ("environment", "is_relative"),
        [
            ("Builds/Ball", True),
            ("game:games/ball", True),
            ("game", False),
            ("python:envs:make", True),
            ("/builds/Ball", False),
            ("C:\\Builds\\Ball.exe", False),
            ("sim:3DBall", False),
            ("gym:Pendulum-v1", False),
            (None, False),
        ],
    )
    def test_a_path_that_depends_on_the_folder_is_mentioned(
        self, tmp_path: Path, environment: str | None, is_relative: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        game = EnvironmentScheme(example="game:PATH", start=lambda: None, editor=True, is_path=True)
        monkeypatch.setitem(ENVIRONMENTS.builtin, "game", game)
        self.change(make_run(tmp_path, "ball"), environment, "trajtrainer learn")
        remark = viewer(tmp_path).details("ball")["resume"]["remark"]
        assert ("in the folder" in remark) == is_relative

    def test_a_run_of_a_program_is_continued_by_the_program(self, tmp_path: Path) -> None:
        run = make_run(tmp_path, "ball")
        self.change(run, None, "/home/me/train.py --fast")
        found = viewer(tmp_path).details("ball")["resume"]
        assert found["command"] == ""
        assert "train.py" in found["remark"]
        (run / "configuration.yaml").unlink()
        assert viewer(tmp_path).details("ball")["resume"] == {"command": "", "remark": ""}

    def test_it_continues_a_real_run(self, tmp_path: Path) -> None:
        settings = {"behaviors": {"Basic": {"trainer_type": "ppo", "max_steps": 200, "summary_freq": 100}}}
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(settings))

        def execute(command: str) -> None:
            program, *words = shlex.split(command)
            assert program == "trajtrainer"
            subprocess.run([sys.executable, "-m", program, *words], check=True, cwd=tmp_path, timeout=120)

        execute("trajtrainer learn own.yaml --env=sim:Basic --run-id=a/b --results-dir='my results' --quiet")
        results = tmp_path / "my results"
        seen = viewer(results)
        assert seen.details("a/b")["behaviors"][0]["step"] >= 200
        written = results / "a" / "b" / "configuration.yaml"
        written.write_text(written.read_text().replace("max_steps: 200", "max_steps: 400"))
        resume = seen.details("a/b")["resume"]
        assert resume["remark"] == ""
        execute(resume["command"])
        details = viewer(results).details("a/b")
        assert details["state"] == "finished"
        assert details["behaviors"][0]["step"] >= 400
        assert details["sessions"] == 2
