"""The processes of a run: workers, players, guards and what else there is."""

from __future__ import annotations

import re
from pathlib import Path

WORKER = "--multiprocessing-fork"
PLAYER = "trajtrainer.envs.sim"
GAME = re.compile(r"trajtrainer\.plugins\.\w+\.simulation")  # players that plugins bring along
GUARD = "process-guard"


def command_of(pid: int) -> list[str]:
    """Its command line; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Whether it is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """All processes that a process has started, and those that these have started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = []
    waiting = [pid]
    while waiting:
        new = children.get(waiting.pop(), [])
        found += new
        waiting += new
    return found


def workers(pid: int) -> list[int]:
    """The worker processes of a run, the lowest number first."""
    return sorted(each for each in descendants(pid) if WORKER in command_of(each))


def players(pid: int) -> list[int]:
    """The simulations of a run, the lowest worker's first."""
    found = [each for each in descendants(pid) if PLAYER in command_of(each)]
    return sorted(found, key=lambda each: port_of(command_of(each)))


def port_of(command: list[str]) -> int:
    """The port that a player was given; 0 if it is gone."""
    return int(command[command.index("--mlagents-port") + 1]) if "--mlagents-port" in command else 0
