"""Everything that can be known to be wrong before a command starts anything is in one error."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from trajtrainer.cli.main import main
from trajtrainer.core.errors import CheckpointError, DemonstrationError, SettingsError
from trajtrainer.core.plugins import Registry
from trajtrainer.core.stats import StatsWriterRow
from trajtrainer.run import followers
from trajtrainer.run.api.learn import learn
from trajtrainer.run.preflight import Preflight

MISTAKES: dict[str, Any] = {
    "behaviors": {
        "Imitator": {"trainer_type": "ppo", "behavioral_cloning": {"demo_path": "none.demo"}},
        "Player": {"self_play": {"opponents": ["nothing.pt"]}},
        "Reader": {"reward_signals": {"gail": {"demo_path": "none.demo"}}},
    },
    "env_settings": {"env_path": "sim:3DBal"},
    "actors": {"backend": "process", "overrides": [{"exploration_noise": 0.1}]},
    "checkpoint_settings": {"initialize_from": "earlier"},
    "torch_settings": {"device": "abacus"},
}
TOLD = [
    "behaviors.Imitator.behavioral_cloning.demo_path: there is no file or folder",
    "behaviors.Reader.reward_signals.gail.demo_path: there is no file or folder",
    "behaviors.Player.self_play.opponents: ",
    "actors.overrides has an exploration_noise, but Imitator (ppo)",
    "The pad is lost",
    "torch_settings.device is 'abacus'",
    "Did you mean '3DBall'?",
    "earlier",
]


def lost(_settings: object) -> None:
    raise SettingsError("The pad is lost.")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = {"pad": StatsWriterRow(lambda _: [], check=lost)}
    monkeypatch.setattr(followers, "STATS_WRITERS", Registry("statistics writer", "nobody's", StatsWriterRow, rows))
    return tmp_path


def write(folder: Path, settings: dict[str, Any]) -> str:
    (folder / "a.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return "a.yaml"


def problems(shown: str) -> list[str]:
    """The lines of an error with several problems, whose number it says."""
    head, *lines = shown[shown.index("error: ") :].splitlines()
    assert head == f"error: {len(lines)} problems were found, and nothing was started:"
    assert all(line.startswith("  ") for line in lines)
    return lines


def assert_told(lines: list[str], told: list[str]) -> None:
    assert len(lines) == len(told)
    for line, part in zip(lines, told, strict=True):
        assert part in line


def test_learning_reports_the_mistakes_of_all_parts_at_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", write(here, MISTAKES)]) == 1

    assert_told(problems(capsys.readouterr().err), TOLD)
    assert [path.name for path in here.iterdir()] == ["a.yaml"]


def test_a_search_reports_them_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = copy.deepcopy(MISTAKES)
    del settings["checkpoint_settings"], settings["behaviors"]["Reader"]
    section = {"trials": 2, "ranges": {"behaviors.Imitator.hyperparameters.beta": {"low": 1e-4, "high": 1e-2}}}
    settings["search"] = {**section, "behavior": "Imitator"}

    assert main(["search", write(here, settings)]) == 1

    assert_told(problems(capsys.readouterr().err), [each for each in TOLD[:-1] if "Reader" not in each])
    assert [path.name for path in here.iterdir()] == ["a.yaml"]


def test_a_recording_that_is_missing_is_among_the_mistakes_of_the_file(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"behaviors": {"A": {"max_steps": 0, "behavioral_cloning": {"demo_path": "none.demo"}}}}

    assert main(["learn", write(here, settings)]) == 1

    told = capsys.readouterr().err
    assert "2 problems in the configuration" in told
    assert "behaviors.A.max_steps: found 0" in told
    assert "behaviors.A.behavioral_cloning.demo_path: there is no file or folder" in told


def test_the_python_api_reports_them_too(here: Path) -> None:
    settings = {key: value for key, value in MISTAKES.items() if key not in ("env_settings", "checkpoint_settings")}

    with pytest.raises(SettingsError) as caught:
        learn(settings, "sim:3DBal")

    assert_told(str(caught.value).splitlines()[1:], TOLD[:-1])
    assert list(here.iterdir()) == []


ENVIRONMENT = ["--env=sim:3DBal", "--torch-device=abacus"]
WRONG = ["3DBall", "abacus", "nobody"]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["evaluate", "nobody", "--json=gone/a.json", "--csv=gone/a.csv"], ["--json gone", "--csv gone"]),
        (["tournament", "nobody", "nothing", "--json=gone/a.json"], ["--json gone"]),
        (["record", "--policy=nobody", "--output=a.txt"], ["a.txt cannot be written"]),
    ],
)
def test_commands_that_act_report_everything_at_once(
    command: list[str], told: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *ENVIRONMENT]) == 1

    lines = problems(capsys.readouterr().err)
    for part in [*told, *WRONG]:
        assert any(part in line for line in lines), part
    assert list(here.iterdir()) == []


def fail(error: Exception) -> None:
    raise error


def test_a_single_error_is_raised_as_it_is() -> None:
    error = CheckpointError("No such file.")

    with pytest.raises(CheckpointError) as caught, Preflight() as check:
        check(fail, error)

    assert caught.value is error


def test_what_is_no_message_to_the_user_is_not_collected() -> None:
    def defective() -> None:
        with Preflight() as check:
            check(fail, DemonstrationError("Damaged."))
            check(fail, ZeroDivisionError())

    with pytest.raises(ZeroDivisionError):
        defective()
