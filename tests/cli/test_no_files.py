"""What is named as a file, but is none: a pipe into which nobody writes never keeps a command waiting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

COMMANDS = {
    "config": ("x.yaml", "cannot be read"),
    "learn": ("x.yaml", "cannot be read"),
    "inspect": ("x.onnx", "cannot be read"),
    "export": ("x.pt", "There is no file or folder"),
}
SCRIPT = """
import json, sys
from trajtrainer.cli.main import main
for argv in json.load(sys.stdin):
    print("exit code", main(argv), flush=True)
    print("---", file=sys.stderr, flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are files on POSIX only")
def test_commands_refuse_pipes(tmp_path: Path) -> None:
    assert_pipes_are_refused(COMMANDS, tmp_path)


def assert_pipes_are_refused(commands: Mapping[str, tuple[str, str]], folder: Path) -> None:
    """Commands -> the name of a pipe, which is given to each behind its words, and a part of what is said."""
    for name, _ in commands.values():
        if not (folder / name).exists():
            os.mkfifo(folder / name)
    calls = [[*command.split(), str(folder / name)] for command, (name, _) in commands.items()]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(calls), capture_output=True, text=True, timeout=120, check=True
    )

    assert done.stdout.count("exit code 1") == len(calls), done.stdout
    told = done.stderr.split("---\n")
    for (name, expected), text, argv in zip(commands.values(), told, calls, strict=False):
        shown = text if argv[0] != "inspect" else done.stdout
        assert expected in shown, argv
        assert name in shown
        assert "Traceback" not in shown
    by_name = [call for call in calls if call[0] != "export"]  # which does not even look for a checkpoint
    assert (done.stderr + done.stdout).count("it is a pipe or a device") >= len(by_name)
