"""``trajtrainer record`` whose file operations fail: tests/disk/campaign.py."""

from __future__ import annotations

from tests.disk.kinds import PLAYED, RESULTS

PRELOADED = ("trajtrainer.tools.record.record",)
COMMANDS = [
    ["record", "--policy=run", *PLAYED, "-o", f"{RESULTS}/recorded.demo"],
]
