"""The number of processor cores for this process."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return the number of cores that the process may run on; where the system does not tell, that of the machine."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
