"""Ports that somebody else has taken: who, and which to take instead."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_LISTENING = "0A"
_LARGEST = 65535
_MOST_TRIED = 50


def candidates(base_port: int, num_workers: int) -> Iterator[int]:
    """Base ports to try one after the other.

    They are ``num_workers`` apart, so that no two workers of a run ever try the same port.
    """
    highest = _LARGEST - num_workers + 1
    yield from range(base_port, min(base_port + _MOST_TRIED * num_workers, highest + 1), num_workers)


def holder(port: int) -> str | None:
    """Which process listens on a TCP port of this machine: ``process 4711 (its command line)``.

    Returns:
        None where the system does not tell: it is not Linux, or the process is another user's.
    """
    sockets = {f"socket:[{inode}]" for inode in _listening_sockets(port)}
    if not sockets:
        return None
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and _has_open(entry, sockets):
            command = ""
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            return f"process {entry.name} ({command})" if command else f"process {entry.name}"
    return None


def _listening_sockets(port: int) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = (_PROC / "net" / name).read_text().splitlines()[1:]
        for line in lines:
            columns = line.split()
            if columns[3] == _LISTENING and int(columns[1].rpartition(":")[2], 16) == port:
                yield columns[9]


def _has_open(process: Path, sockets: set[str]) -> bool:
    with contextlib.suppress(OSError):
        for link in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(link) in sockets:
                    return True
    return False
