"""``trajtrainer evaluate`` whose file operations fail: tests/disk/campaign.py."""

from __future__ import annotations

from tests.disk.kinds import PLAYED, RESULTS

PRELOADED = ("trajtrainer.tools.evaluate.evaluate",)
COMMANDS = [
    ["evaluate", "run", *PLAYED, "--json", f"{RESULTS}/found.json"],
    ["evaluate", "run", *PLAYED, "--csv", f"{RESULTS}/found.csv"],
]
