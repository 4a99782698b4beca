"""Recordings that a configuration names are looked for before anything is started."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trajtrainer.cli.main import main
from trajtrainer.core.errors import DemonstrationError
from trajtrainer.run.api.learn import learn
from trajtrainer.settings.checks import ConfigurationError
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import BehavioralCloningSettings, TrainerSettings


def sections(path: str) -> list[tuple[str, dict[str, Any]]]:
    """Every place that may name a recording."""
    return [
        ("behavioral_cloning", {"behavioral_cloning": {"demo_path": path}}),
        ("reward_signals.gail", {"reward_signals": {"gail": {"demo_path": path}}}),
    ]


def with_batches(path: str) -> list[tuple[str, dict[str, Any]]]:
    """The same and the one that may also name an archive."""
    of_batches = {"trainer_type": "sac", "hyperparameters": {"demonstrations": {"demo_path": path}}}
    return [*sections(path), ("hyperparameters.demonstrations", of_batches)]


def configuration(folder: Path, asking: dict[str, Any], **more: Any) -> Path:
    file = folder / "a.yaml"
    file.write_text(yaml.safe_dump({"behaviors": {"A": {"max_steps": 5, **asking}}, **more}), encoding="utf-8")
    return file


@pytest.mark.parametrize("command", ["config", "learn"])
@pytest.mark.parametrize(("place", "asking"), with_batches("x.demo"))
def test_a_missing_one_is_told_with_its_place(
    place: str,
    asking: dict[str, Any],
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    configuration(tmp_path, asking)
    assert main([command, "a.yaml"]) == 1
    shown = capsys.readouterr()
    told = rf"error: a\.yaml:[456]: behaviors\.A\.{re.escape(place)}\.demo_path: there is no file or folder "
    assert re.match(told + re.escape(str(tmp_path / "x.demo")), shown.err)
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


@pytest.mark.parametrize("command", ["config", "learn"])
@pytest.mark.parametrize(("place", "asking"), sections("x.npz"))
def test_a_file_of_another_type_is_reported_before_anything_starts(
    place: str,
    asking: dict[str, Any],
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.npz").touch()
    configuration(tmp_path, asking)
    assert main([command, "a.yaml"]) == 1
    shown = capsys.readouterr()
    told = rf"error: a\.yaml:[456]: behaviors\.A\.{re.escape(place)}\.demo_path: found the file x\.npz, expected a "
    assert re.match(told, shown.err)
    assert "trajtrainer demo convert x.npz -o x.demo" in shown.err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(("_place", "asking"), with_batches("x.demo"))
def test_a_file_with_another_content_is_reported_before_anything_starts(
    _place: str, asking: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.demo").write_text("no recording", encoding="utf-8")
    with pytest.raises(DemonstrationError, match=r"Behavior 'A', demo_path: x\.demo is not a recording of Unity's"):
        learn({"behaviors": {"A": {"max_steps": 5, **asking}}}, "sim:Basic")
    assert not (tmp_path / "results").exists()


def test_without_training_none_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (_, asking), _ = sections(str(tmp_path / "x.demo"))
    file = str(configuration(tmp_path, asking))
    assert main(["config", file]) == 1
    assert main(["config", file, "--inference"]) == 0
    file = str(configuration(tmp_path, asking, checkpoint_settings={"inference": True}))
    assert main(["config", file]) == 0
    assert "x.demo" in capsys.readouterr().out


@pytest.mark.parametrize(("_place", "asking"), with_batches("demos/x.demo"))
def test_it_is_relative_to_here_or_to_a_folder_of_the_configuration(
    _place: str,
    asking: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    project, here = tmp_path / "project", tmp_path / "here"
    for folder in (project / "config" / "imitation", project / "demos", here / "demos"):
        folder.mkdir(parents=True)
    file = str(configuration(project / "config" / "imitation", asking))
    monkeypatch.chdir(here)
    (project / "demos" / "x.demo").touch()
    assert main(["config", file]) == 0
    assert f"demo_path: {project / 'demos' / 'x.demo'}\n" in capsys.readouterr().out
    (here / "demos" / "x.demo").touch()
    assert main(["config", file]) == 0
    assert "demo_path: demos/x.demo\n" in capsys.readouterr().out


def test_an_empty_folder_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (_, asking), _ = sections(str(tmp_path))
    assert main(["config", str(configuration(tmp_path, asking))]) == 1
    assert f"there is no .demo file in the folder {tmp_path}" in capsys.readouterr().err
    (tmp_path / "x.demo").touch()
    assert main(["config", str(configuration(tmp_path, asking))]) == 0


def test_it_is_told_beside_everything_else_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {
        "default_settings": {"reward_signals": {"gail": {"demo_path": "a"}}},
        "behaviors": {"A": {"behavioral_cloning": {"demo_path": "b"}}, "B": {"max_step": 5}},
    }
    with pytest.raises(ConfigurationError) as caught:
        learn(settings)
    assert [str(problem).split(". Expected")[0] for problem in caught.value.problems] == [
        f"learn(): default_settings.reward_signals.gail.demo_path: there is no file or folder {tmp_path / 'a'}",
        f"learn(): behaviors.A.behavioral_cloning.demo_path: there is no file or folder {tmp_path / 'b'}",
        "learn(): behaviors.B.max_step: unknown option; did you mean max_steps?",
    ]


def test_settings_objects_are_looked_at_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cloning = BehavioralCloningSettings(demo_path="a")
    settings = RunSettings(behaviors={"A": TrainerSettings(behavioral_cloning=cloning)})
    with pytest.raises(DemonstrationError, match="Behavior 'A', demo_path: there is no file or folder"):
        learn(settings)
