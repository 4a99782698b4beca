"""What ``trajtrainer demo info`` prints where nobody reads it, or where its characters are unknown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_main import exit_code_if_unread


@pytest.mark.parametrize(("unbuffered", "exit_code"), [("", 0), ("1", 1)])
def test_who_reads_the_first_lines_only_sees_no_traceback(unbuffered: str, exit_code: int) -> None:
    recording = Path(__file__).resolve().parents[3] / "config" / "demos" / "3DBall.demo"
    found = exit_code_if_unread("-m", "trajtrainer", "demo", "info", str(recording), unbuffered=unbuffered)
    assert found == exit_code


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])  # of files and pipes on Windows
def test_an_encoding_without_our_characters_gets_question_marks(encoding: str) -> None:
    recording = Path(__file__).resolve().parents[3] / "config" / "demos" / "3DBall.demo"
    command = [sys.executable, "-m", "trajtrainer", "demo", "info", str(recording)]
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?" in done.stdout
    assert b"episodes" in done.stdout
