"""``trajtrainer completion``: the scripts that shells read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trajtrainer.cli.commands import COMMANDS
from trajtrainer.cli.completion import SHELLS
from trajtrainer.cli.main import main

# Bash's side of a press of Tab behind these words.
PRESS = """
press() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_trajtrainer; echo "${COMPREPLY[*]}"; }
"""


@pytest.fixture
def bash_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    if shutil.which("bash") is None or sys.platform == "win32":
        pytest.skip("needs bash")
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "completion.bash"
    script.write_text(capsys.readouterr().out + PRESS, encoding="utf-8")
    return script


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers for the last of the words."""
    command = ["bash", "-c", '. "$0"; press "$@"', str(script), "trajtrainer", *words]
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout.split()


def test_bash_completes_commands_options_and_files(bash_script: Path) -> None:
    (bash_script.parent / "pole.yaml").touch()
    assert completed(bash_script, "") == list(COMMANDS)
    assert completed(bash_script, "ins") == ["inspect"]
    assert completed(bash_script, "learn", "--run") == ["--run-id"]
    assert completed(bash_script, "learn", "po") == ["pole.yaml"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in COMMANDS)
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stderr) == (0, "")


def test_help_says_where_a_script_goes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "--help"]) == 0
    assert "~/.config/fish/completions/trajtrainer.fish" in capsys.readouterr().out
