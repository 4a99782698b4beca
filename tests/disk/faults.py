"""Lets file operations of this process fail: the Python side of ``faults.c``, which has to be in ``LD_PRELOAD``."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")
EXIT_CODE = 77  # of a process that ends in an operation
_MODES = {"enospc": (0, errno.ENOSPC), "eio": (0, errno.EIO), "full": (1, errno.ENOSPC), "die": (2, errno.ENOSPC)}
MODES = tuple(_MODES)
"""An operation fails for want of room; for another reason; all from this one on fail for want of room; the process
ends there."""


def why_not() -> str:
    """Why this cannot be done here; empty if it can."""
    if sys.platform != "linux":
        return "operations of libc are replaced on Linux only"
    return "" if shutil.which("gcc") else "there is no gcc, which builds what lets operations fail"


def build(folder: Path) -> Path:
    """The library, built into ``folder``."""
    library = folder / "faults.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


@dataclass(frozen=True)
class Operation:
    """One file operation of a process: which, on what (below the folder), and whether it failed."""

    name: str
    path: str
    failed: bool


def arm(folder: Path, number: int | None, mode: str, log: Path) -> None:
    """Count the operations below ``folder`` from here on, and let the one with this number fail.

    Args:
        folder: an absolute path without links.
        number: of the operation, from 0; None lets none fail.
        mode: one of ``MODES``.
        log: outside of ``folder``; what happens is written there (``operations``).
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    how, error = _MODES[mode]
    arm_library = ctypes.CDLL(None).faults_arm
    arm_library(os.fsencode(folder), ctypes.c_long(-1 if number is None else number), how, error, descriptor)


def operations(log: Path) -> list[Operation]:
    """What a log tells, in the order of the operations."""
    lines = [line.split("\t") for line in log.read_text(encoding="utf-8").splitlines()]
    return [Operation(name, path, what == "FAILS") for _, name, path, what in lines]
