"""Missing data sets and experts are reported together with everything else, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.run.mistakes import assert_told, problems, write
from trajtrainer.cli.main import main
from trajtrainer.core.errors import SettingsError
from trajtrainer.run.api.learn import learn

MISTAKES: dict[str, Any] = {
    "behaviors": {
        "Imitator": {"trainer_type": "ppo", "behavioral_cloning": {"demo_path": "none.demo"}},
        "Pupil": {"trainer_type": "dagger", "hyperparameters": {"expert": "nobody"}},
        "Player": {"self_play": {"opponents": ["nothing.pt"]}},
        "Reader": {"trainer_type": "bc", "dataset": "none.npz"},
    },
    "actors": {"backend": "process", "overrides": [{"exploration_noise": 0.1}]},
    "torch_settings": {"device": "abacus"},
}
TOLD = [
    "behaviors.Imitator.behavioral_cloning.demo_path: there is no file or folder",
    "behaviors.Reader.dataset: there is no file or folder",
    "behaviors.Pupil.hyperparameters.expert: ",
    "behaviors.Player.self_play.opponents: ",
    "actors.overrides has an exploration_noise, but Imitator (ppo)",
    "Did you mean '3DBall'?",
    "torch_settings.device is 'abacus'",
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_learning_reports_the_mistakes_of_all_parts_at_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", write(here, MISTAKES), "--env=sim:3DBal"]) == 1

    assert_told(problems(capsys.readouterr().err), TOLD)
    assert [path.name for path in here.iterdir()] == ["a.yaml"]


def test_the_python_api_reports_them_too(here: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        learn(MISTAKES, "sim:3DBal")

    assert_told(str(caught.value).splitlines()[1:], TOLD)
    assert list(here.iterdir()) == []
