"""What is valid but not built yet: refused by every command, and listed in the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import yaml

from tests.nn.specs import behavior, vector
from trajtrainer.cli.main import main
from trajtrainer.errors import UnsupportedError
from trajtrainer.rewards.factory import create_reward_signals
from trajtrainer.run.api import learn
from trajtrainer.settings.convert import trainer_settings
from trajtrainer.settings.problems import ConfigurationError
from trajtrainer.settings.rewards import REWARD_SIGNALS
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.support import NOT_YET
from trajtrainer.settings.trainer import ALGORITHMS, BehavioralCloningSettings, TrainerSettings

README = Path(__file__).resolve().parents[2] / "README.md"
ROWS: dict[str, tuple[dict[str, object], str]] = {
    "reward_signals: curiosity": ({"reward_signals": {"curiosity": {}}}, "reward_signals.curiosity: curiosity"),
    "reward_signals: gail": ({"reward_signals": {"gail": {"demo_path": "a"}}}, "reward_signals.gail: gail"),
    "behavioral_cloning": ({"behavioral_cloning": {"demo_path": "a"}}, "behavioral_cloning: behavioral_cloning"),
}
"""For each row of the README's table: a behavior that asks for it, and how the message begins."""


def table() -> list[str]:
    """The first column of the README's table, without its backticks."""
    section = README.read_text(encoding="utf-8").split("## Not yet\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(.*?)` \|", section, re.MULTILINE)


def test_the_table_stands_before_all_else() -> None:
    headings = re.findall("^## (.*)", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "Not yet"


def test_the_table_lists_what_is_refused() -> None:
    assert table() == [": ".join(path) for path in NOT_YET] == list(ROWS)


def test_every_trainer_is_built() -> None:
    assert all(row.algorithm is not None for row in ALGORITHMS.builtin.values())


@pytest.mark.parametrize("signal", REWARD_SIGNALS.builtin)
def test_every_reward_signal_is_built_or_listed(signal: str) -> None:
    parameters = {"demo_path": "a.demo"} if signal == "gail" else {}
    settings = trainer_settings({"reward_signals": {signal: parameters}})

    def create() -> list[str]:
        return [each.name for each in create_reward_signals("B", behavior([vector(3)]), settings, torch.device("cpu"))]

    if ("reward_signals", signal) in NOT_YET:
        with pytest.raises(UnsupportedError):
            create()
    else:
        assert create() == [signal]


@pytest.mark.parametrize("command", ["config", "learn"])
@pytest.mark.parametrize("row", ROWS)
def test_both_commands_refuse_it_with_its_place(
    row: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asking, message = ROWS[row]
    Path("a.yaml").write_text(yaml.safe_dump({"behaviors": {"A": {"max_steps": 5, **asking}}}), encoding="utf-8")

    assert main([command, "a.yaml"]) == 1

    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.fullmatch(rf"error: a\.yaml:[345]: behaviors\.A\.{message} is not built yet; .*\n", shown.err)
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


def test_it_is_told_beside_everything_else_that_is_wrong() -> None:
    settings = {
        "default_settings": {"reward_signals": {"gail": {"demo_path": "a"}}},
        "behaviors": {"A": {"behavioral_cloning": {"demo_path": "a"}}, "B": {"max_step": 5}},
    }

    with pytest.raises(ConfigurationError) as caught:
        learn(settings)

    assert [str(problem) for problem in caught.value.problems] == [
        "learn(): default_settings.reward_signals.gail: gail is not built yet; leave it out",
        "learn(): behaviors.A.behavioral_cloning: behavioral_cloning is not built yet; leave the section out",
        "learn(): behaviors.B.max_step: unknown option; did you mean max_steps?",
    ]


def test_settings_objects_are_refused_too() -> None:
    cloning = BehavioralCloningSettings(demo_path="a")
    settings = RunSettings(behaviors={"A": TrainerSettings(behavioral_cloning=cloning)})

    with pytest.raises(
        UnsupportedError, match=r"Behavior 'A': behavioral_cloning is not built yet; leave the section out\."
    ):
        learn(settings)
