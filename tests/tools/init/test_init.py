"""``trajtrainer init``."""

from __future__ import annotations

from pathlib import Path

import pytest

import trajtrainer
from trajtrainer.cli.main import main
from trajtrainer.settings.presets import builtin_configs
from trajtrainer.settings.yaml.convert import load


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_lists_what_is_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: len(builtin_configs())]] == list(builtin_configs())
    (line,) = (line for line in lines if line.startswith("ppo/3DBall "))
    assert line.split(maxsplit=1)[1] == "3DBall: balance a ball on a platform."
    assert list(Path.cwd().iterdir()) == []


def test_it_copies_what_is_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "ppo/3DBall"]) == 0
    assert capsys.readouterr().out == "Wrote 3DBall.yaml.\n"
    assert main(["init", "builtin:sac/3DBall.yaml", "-o", "mine.yaml"]) == 0
    for name, file in (("ppo/3DBall", "3DBall.yaml"), ("sac/3DBall", "mine.yaml")):
        assert Path(file).read_text(encoding="utf-8") == builtin_configs()[name].read_text(encoding="utf-8")


def test_it_replaces_nothing_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    Path("3DBall.yaml").write_text("mine", encoding="utf-8")
    for arguments in (["ppo/3DBall"], ["--env", "sim:Nowhere", "-o", "3DBall.yaml"]):
        assert main(["init", *arguments]) == 1
    told = capsys.readouterr().err
    assert (
        "error: 3DBall.yaml already exists. Choose another name with -o FILE, or replace it with --overwrite." in told
    )
    assert Path("3DBall.yaml").read_text(encoding="utf-8") == "mine"
    assert main(["init", "ppo/3DBall", "--overwrite"]) == 0
    assert Path("3DBall.yaml").read_text(encoding="utf-8") != "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ppo/3DBal"], "builtin:ppo/3DBal; did you mean builtin:ppo/3DBall? 'trajtrainer init' lists all of them."),
        (["gym:CartPole-v1"], "To write one for an environment, use: trajtrainer init --env=gym:CartPole-v1"),
        (["ppo/3DBall", "--env", "sim:3DBall"], "Pass either the name of a shipped configuration or an environment"),
        (["--env", "sim:3DBall", "--editor"], "Give either --env or --editor"),
        (["--env", "Builds/Nowhere"], "Couldn't launch the Builds/Nowhere environment"),
        (["--env", "sim:3DBal"], "Did you mean '3DBall'?"),
        (["--env", "gym:CartPole-v1", "-o", "no/such/folder.yaml"], "is in the folder no/such, which does not exist"),
        (["ppo/3DBall", "-o", "."], "is a folder"),
    ],
)
def test_what_it_cannot_do(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", *arguments]) == 1
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    ("environment", "arguments", "told", "trainer"),
    [
        ("sim:DungeonEscape", ["--areas", "4"], "12 agents, groups of up to 3", "poca"),
        ("sim:StrikerVsGoalie", ["--areas", "4"], "does a discrete branch of 3", "ppo"),
        ("gym:CartPole-v1", [], "1 agent\n  sees observation (4 numbers)\n  does a discrete branch of 2", "ppo"),
    ],
)
def test_it_writes_what_trains(
    environment: str, arguments: list[str], told: str, trainer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = ["--env-args", *arguments] if arguments else []
    assert main(["init", "--env", environment, "--base-port", "16900", "-o", "first.yaml", *rest]) == 0
    shown = capsys.readouterr().out
    assert told in shown
    assert shown.endswith("Wrote first.yaml. To train: trajtrainer learn first.yaml --run-id=first\n")
    assert main(["config", "first.yaml"]) == 0
    settings = load(capsys.readouterr().out, "shown.yaml")
    assert {behavior.trainer_type for behavior in settings.behaviors.values()} == {trainer}
    assert settings.env_settings.env_path == environment
    plays = [behavior.self_play is not None for behavior in settings.behaviors.values()]
    assert plays == {"sim:StrikerVsGoalie": [True, True]}.get(environment, [False])
    if environment != "sim:StrikerVsGoalie":  # which would be the third of its kind
        result = trajtrainer.learn("first.yaml", run_id="first", verbose=False, max_epochs=1, epoch_steps=300)
        assert result.behaviors.keys() == settings.behaviors.keys()
