"""The number of processor cores that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return the number of cores in the process's affinity mask, or in the machine on systems without such masks."""
    if hasattr(os, "sched_getaffinity"):  # not available on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
