"""``trajtrainer report`` and ``plot`` whose file operations fail: tests/disk/campaign.py."""

from __future__ import annotations

from tests.disk.kinds import RESULTS

PRELOADED = ("matplotlib.pyplot",)
COMMANDS = [
    ["report", "run", f"--results-dir={RESULTS}", "-o", f"{RESULTS}/report.html"],
    ["plot", "run", f"--results-dir={RESULTS}", "-o", f"{RESULTS}/curves.png"],
]
