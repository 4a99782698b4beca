"""What is named as a file, but is none: a pipe into which nobody writes never keeps a command waiting."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.run import prefork

COMMANDS = {
    "config": ("x.yaml", "cannot be read"),
    "learn": ("x.yaml", "cannot be read"),
    "inspect": ("x.onnx", "cannot be read"),
    "export": ("x.pt", "There is no file or folder"),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are files on POSIX only")
def test_commands_refuse_pipes(tmp_path: Path) -> None:
    assert_pipes_are_refused(COMMANDS, tmp_path)


def assert_pipes_are_refused(commands: Mapping[str, tuple[str, str]], folder: Path) -> None:
    """Commands -> the name of a pipe, which is given to each behind its words, and a part of what is said."""
    for name, _ in commands.values():
        if not (folder / name).exists():
            os.mkfifo(folder / name)
    calls = [[*command.split(), str(folder / name)] for command, (name, _) in commands.items()]
    log = folder / "log.txt"
    with log.open("w") as file:
        process = prefork.start([json.dumps(calls)], file, module="tests.cli.in_turn")
    try:
        code = process.wait(120)
    finally:
        process.kill()
    told = log.read_text(encoding="utf-8")

    assert code == 0, told
    assert told.count("exit code 1\n") == len(calls), told
    for (name, expected), text in zip(commands.values(), told.split("---\n"), strict=False):
        assert expected in text, name
        assert name in text
        assert "Traceback" not in text
    by_name = [call for call in calls if call[0] != "export"]  # which does not even look for a checkpoint
    assert told.count("it is a pipe or a device") >= len(by_name)
