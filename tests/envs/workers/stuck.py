"""A child process that no longer reacts, and has started a program."""

from __future__ import annotations

import ctypes
from pathlib import Path

from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.process import ChildProcess, begin_child

# Both programs write into the named pipe once the child is stuck, and hold it open.
WAYS = {
    "busy": "exec > '{pipe}'; echo; sleep 600",
    "suspended": "exec > '{pipe}'; kill -s STOP $PPID; echo; sleep 600",
}


def run_stuck(command: str, connection: messages.Pipe, lifeline: messages.Pipe) -> None:
    """Call a function of C that keeps the interpreter until the command ends."""
    begin_child(messages.LockedPipe(connection), lifeline, 0, lambda: None)
    ctypes.PyDLL(None).system(command.encode())


def start(pipe: Path, way: str) -> ChildProcess:
    command = WAYS[way].format(pipe=pipe)
    return ChildProcess(run_stuck, command, "stuck", title="stuck process", log_as="Stuck")
