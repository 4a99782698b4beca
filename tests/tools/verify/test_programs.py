"""Programs that run a policy as source code."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from trajtrainer.core.errors import CheckpointError, SettingsError
from trajtrainer.tools.verify import programs
from trajtrainer.tools.verify.programs import language_of


def test_all_programs_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None if program in ("mcs", "mono") else program)
    with pytest.raises(SettingsError, match=r"^To run Crawler\.cs, mcs and mono must be installed\.$"):
        language_of(Path("Crawler.cs"))
    assert language_of(Path("Crawler.js")).programs == ("node",)
    assert language_of(Path("Crawler.c")) is language_of(Path("Crawler.h"))


def test_a_program_that_does_not_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_SECONDS", 0.5)
    endless = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(CheckpointError, match=r"Crawler\.js did not decide within 0\.5 s\. Try fewer --decisions"):
        programs._run(Path("Crawler.js"), endless, str(tmp_path), b"")


def test_a_program_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no-such-program cannot be started: No such file"):
        programs._run(Path("Crawler.js"), [str(tmp_path / "no-such-program")], str(tmp_path), b"")
