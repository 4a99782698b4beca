"""What is named as a file, but is none: a pipe into which nobody writes never keeps a command waiting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = {
    "config": ("x.yaml", "cannot be read"),
    "learn": ("x.yaml", "cannot be read"),
    "inspect": ("x.onnx", "cannot be read"),
    "import --env=sim:Basic -o new.onnx": ("x.zip", "cannot be read"),
    "export": ("x.pt", "There is no file or folder"),
    "evaluate --env=sim:Basic": ("x.onnx", "cannot be read"),
    "demo info": ("x.demo", "cannot be read"),
    "demo  info": ("x.npz", "cannot be read"),
    "demo   info": ("last_replay_buffer.npz", "cannot be read"),
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
    for name, _ in COMMANDS.values():
        if not (tmp_path / name).exists():
            os.mkfifo(tmp_path / name)
    calls = [[*command.split(), str(tmp_path / name)] for command, (name, _) in COMMANDS.items()]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(calls), capture_output=True, text=True, timeout=120, check=True
    )

    assert done.stdout.count("exit code 1") == len(calls), done.stdout
    told = done.stderr.split("---\n")
    for (name, expected), text, argv in zip(COMMANDS.values(), told, calls, strict=False):
        shown = text if argv[0] != "inspect" else done.stdout
        assert expected in shown, argv
        assert name in shown
        assert "Traceback" not in shown
    assert (
        done.stderr.count("it is a pipe or a device") + done.stdout.count("it is a pipe or a device") >= len(calls) - 1
    )  # a checkpoint is not even looked for
