"""A run with the settings of a recorded ML-Agents run leaves the same files, keys, tags and steps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.run.runs import FinishedRun, learn

# What ML-Agents does not report.
OURS = {
    "Perf/Agent Steps per Second",
    "Perf/CPU",
    "Perf/Environment Steps per Second",
    "Perf/Memory",
    "Perf/Optimizer Steps per Second",
    "Perf/Update Seconds",
    "Policy/Approximate KL",
    "Policy/Clip Fraction",
    "Policy/Explained Variance",
    "Policy/Gradient Norm",
}
# Recorded behavior -> the built-in simulation that stands in for the recording's player.
STAND_INS = {"Recall": "Memory"}


@pytest.fixture(scope="module", params=["ppo_continuous", "ppo_discrete_two_behaviors"])
def both(
    request: pytest.FixtureRequest, shared_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, FinishedRun]:
    """The recorded run's folder, and a run here with the same settings."""
    golden = shared_data / "golden" / "runs" / request.param
    settings = _renamed((golden / "trainer.yaml").read_text())
    names = "+".join(settings["behaviors"])
    folder = tmp_path_factory.mktemp(request.param)
    arguments = [f"--env=sim:{names}", "--seed=11", "--no-graphics", "--env-args", "--agents", "8"]
    if request.param == "ppo_continuous":
        arguments += ["--stat", "Sim/Steps=1"]
    run = learn(folder, settings, *arguments, run_id=request.param)
    assert run.exit_code == 0, run.output
    return golden, run


def _renamed(text: str) -> Any:
    for theirs, ours in STAND_INS.items():
        text = text.replace(theirs, ours)
    return yaml.safe_load(text)


def _behaviors(golden: Path) -> list[tuple[str, str]]:
    """(recorded name, name here)."""
    names = json.loads((golden / "tensorboard.json").read_text())
    return [(name, STAND_INS.get(name, name)) for name in names]


def _shape(value: object) -> object:
    """Types and keys, without the values."""
    if isinstance(value, dict):
        return {key: _shape(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_shape(value[0])] if value else []
    return "number" if isinstance(value, (int, float)) else type(value).__name__


def test_files(both: tuple[Path, FinishedRun]) -> None:
    golden, run = both
    files = {path.relative_to(run.folder).as_posix() for path in run.folder.rglob("*") if path.is_file()}
    found = sorted(re.sub(r"-\d+\.|tfevents\..*", "-N.", name) for name in files)
    text = _renamed(json.dumps(json.loads((golden / "run.json").read_text())["files_written_by_the_peer"]))
    expected = sorted(re.sub(r"-\d+\.|tfevents\..*", "-N.", name) for name in text)
    best = [f"{name}/best{suffix}" for _, name in _behaviors(golden) for suffix in (".onnx", ".pt")]
    assert found == sorted([*expected, *best, "run_logs/Player-N.log", "run_logs/trainer.log"])


def test_configuration(both: tuple[Path, FinishedRun]) -> None:
    golden, run = both
    recorded = _renamed((golden / "configuration.yaml").read_text())
    ours = yaml.safe_load((run.folder / "configuration.yaml").read_text())
    for settings in (recorded, ours):
        for key in ("env_path", "env_args", "base_port"):
            settings["env_settings"].pop(key)
        settings["checkpoint_settings"].pop("results_dir")
    assert ours == recorded
    assert list(ours) == list(recorded)


def test_status(both: tuple[Path, FinishedRun]) -> None:
    golden, run = both
    recorded = _renamed((golden / "run_logs" / "training_status.json").read_text())
    ours = run.status()
    for _, name in _behaviors(golden):
        for key in ("best", "stopped", "training"):  # of which ML-Agents has none
            ours[name].pop(key, None)
    assert _shape(ours) == _shape(recorded)
    for name in recorded:
        assert run.status()[name].get("lesson_num") == recorded[name].get("lesson_num")


def test_checkpoint_keys(both: tuple[Path, FinishedRun]) -> None:
    golden, run = both
    for theirs, ours in _behaviors(golden):
        recorded = torch.load(golden / theirs / "checkpoint.pt", weights_only=True)
        saved = torch.load(run.folder / ours / "checkpoint.pt", weights_only=True)
        assert saved.keys() - {"trajtrainer"} == recorded.keys()
        for key, module in recorded.items():
            assert saved[key].keys() == module.keys(), key


def test_tags_and_steps(both: tuple[Path, FinishedRun]) -> None:
    golden, run = both
    recorded = json.loads((golden / "tensorboard.json").read_text())
    for theirs, ours in _behaviors(golden):
        events = EventAccumulator(str(run.folder / ours), size_guidance={"scalars": 0, "histograms": 0})
        events.Reload()
        scalars = {tag: [event.step for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
        expected = {tag: [step for step, _ in points] for tag, points in recorded[theirs]["scalars"].items()}
        assert {tag: steps for tag, steps in scalars.items() if tag not in OURS} == expected
        assert scalars.keys() - expected.keys() <= OURS
        assert set(events.Tags()["histograms"]) == set(recorded[theirs]["histograms"])
        assert "Hyperparameters/text_summary" in events.Tags()["tensors"]


def test_timers(both: tuple[Path, FinishedRun]) -> None:
    golden, run = both
    recorded = json.loads((golden / "run_logs" / "timers.json").read_text())
    ours = json.loads((run.folder / "run_logs" / "timers.json").read_text())
    assert recorded.keys() <= ours.keys()
    assert recorded["metadata"].keys() <= ours["metadata"].keys()
    assert set(_renamed(json.dumps(recorded["gauges"]))) <= ours["gauges"].keys()


def test_console_lines(both: tuple[Path, FinishedRun]) -> None:
    golden, run = both

    def lines(text: str) -> list[str]:
        """Summary, lesson and file lines with their numbers taken out."""
        kept = [line for line in text.splitlines() if re.search(r"Step: |Parameter '|Copied |Connected", line)]
        return sorted({re.sub(r"-?\d+\.\d+( s)?|-\d+\.|\S*results/\S+", "N", line) for line in kept})

    assert lines(run.output) == lines(_console_text(golden))


def _console_text(golden: Path) -> str:
    text = (golden / "console.txt").read_text()
    for theirs, ours in STAND_INS.items():
        text = text.replace(theirs, ours)
    return text
