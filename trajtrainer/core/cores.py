"""The number of processor cores that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores in this process's affinity mask; on systems without one, all cores of the machine."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
