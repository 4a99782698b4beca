"""``trajtrainer demo`` whose file operations fail: tests/disk/campaign.py."""

from __future__ import annotations

from tests.disk.kinds import RESULTS

PRELOADED = ("trajtrainer.tools.demo.command",)
COMMANDS = [
    ["demo", "convert", "lamp.demo", "-o", f"{RESULTS}/lamp.npz"],
    ["demo", "convert", "lamp.demo", "-o", f"{RESULTS}/lamp2.demo"],
]
