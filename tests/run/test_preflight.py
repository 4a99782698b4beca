"""Everything that can be known to be wrong before a command starts anything is in one error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run.mistakes import MISTAKES, TOLD, assert_told, lose_the_pad, problems, write
from trajtrainer.cli.main import main
from trajtrainer.core.errors import CheckpointError, DemonstrationError, SettingsError
from trajtrainer.run.api.learn import learn
from trajtrainer.run.preflight import Preflight


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lose_the_pad(monkeypatch)
    return tmp_path


def test_learning_reports_the_mistakes_of_all_parts_at_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", write(here, MISTAKES)]) == 1

    assert_told(problems(capsys.readouterr().err), TOLD)
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

    assert_told(str(caught.value).splitlines()[1:], [part for part in TOLD if part != "earlier"])
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
