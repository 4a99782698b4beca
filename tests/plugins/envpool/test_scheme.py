"""What is said of ``--env=envpool:ID`` where EnvPool need not be installed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.envs.test_select import make
from tests.settings.command_line import parse_command_line
from trajtrainer.core.errors import SettingsError
from trajtrainer.settings.checks import ConfigurationError

CONFIG = Path(__file__).resolve().parents[3] / "config"


def test_a_missing_package_is_named_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(SettingsError, match=r"needs the package envpool.*pip install 'trajtrainer\[envpool\]'"):
        make("envpool:CartPole-v1")


def test_wrappers_are_refused_with_what_to_use_instead() -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_command_line(["--env=envpool:Pong-v5", "--wrapper", "a:B"])
    assert "--wrapper" in str(error.value)
    assert "has options instead of wrappers (env_args: [stack_num=4])" in str(error.value)


def test_the_shipped_configurations_name_what_envpool_has() -> None:
    known = pytest.importorskip("envpool", reason="the extra 'envpool' is not installed").list_all_envs()
    named = [
        re.findall(r"^  env_path: envpool:(\S+)", path.read_text(), re.MULTILINE) for path in CONFIG.rglob("*.yaml")
    ]
    assert any(named)
    assert {each for names in named for each in names} <= set(known)
