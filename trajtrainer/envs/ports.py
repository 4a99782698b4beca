"""Ports that somebody else has taken: who, and which to take instead."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform == "win32":
    from trajtrainer.envs.windows_ports import listener_of_windows

_PROC = Path("/proc")
_LISTENING = "0A"
_LARGEST = 65535
_MOST_TRIED = 50
_LSOF_LIMIT_S = 10.0


def candidates(base_port: int, num_workers: int, ports_of_run: int) -> Iterator[int]:
    """Yield base ports to try one after the other.

    They are ``ports_of_run`` apart, so that no two environments of a run ever try the same port.

    Args:
        base_port: of this environment.
        num_workers: of this environment, each with a port of its own.
        ports_of_run: ports of all environments of the run together, which are neighbors.
    """
    highest = _LARGEST - num_workers + 1
    yield from range(base_port, min(base_port + _MOST_TRIED * ports_of_run, highest + 1), ports_of_run)


def holder(port: int) -> str | None:
    """Return which process listens on a TCP port of this machine: ``process 4711 (its command line)``.

    Returns:
        None where the system does not tell: the process is another user's, say.
    """
    if sys.platform == "win32":
        found = listener_of_windows(port)
    elif sys.platform == "linux":
        found = listener_of_proc(port)
    else:
        found = listener_of_lsof(port)
    if found is None:
        return None
    process, command = found
    return f"process {process} ({command})" if command else f"process {process}"


def listener_of_proc(port: int) -> tuple[int, str] | None:
    """Return number and command line, by the files of Linux."""
    sockets = {f"socket:[{inode}]" for inode in _listening_sockets(port)}
    if not sockets:
        return None
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and _has_open(entry, sockets):
            command = ""
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            return int(entry.name), command
    return None


def listener_of_lsof(port: int) -> tuple[int, str] | None:
    """Return the number and program, by the tool that macOS brings."""
    lsof = shutil.which("lsof", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
    if lsof is None:
        return None
    question = [lsof, "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-Fpc"]
    try:
        told = subprocess.run(question, capture_output=True, timeout=_LSOF_LIMIT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    # A line per field, each under its letter: p4711, cpython3, and more of the next process.
    fields = {line[:1]: line[1:] for line in reversed(told.stdout.decode(errors="replace").splitlines())}
    process = fields.get("p", "")
    return (int(process), fields.get("c", "")) if process.isdigit() else None


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
