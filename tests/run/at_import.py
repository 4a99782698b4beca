"""Runs a command of trajtrainer that says at the import of torch which players are running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.run import process_tree

LIMIT_S = 300.0
# Stops at the import of torch: says which players there are, and then goes on, or waits for a signal.
PROGRAM = """
import sys, time
from pathlib import Path

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" and self in sys.meta_path:
            sys.meta_path.remove(self)
            from tests.run import process_tree
            players = process_tree.players(__import__("os").getpid())
            Path("players").write_text(" ".join(map(str, players)))
            while "wait" in sys.argv[1] and not Path("signaled").exists():
                time.sleep(0.02)

sys.meta_path.insert(0, Finder())
from trajtrainer.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


def command(folder: Path, how: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a command in a folder; ``how`` is "go", or "wait" to wait at the import until ``signaled`` exists."""
    temporary = folder / "temporary"
    temporary.mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def players(folder: Path) -> list[int]:
    """Wait for the import, and return the players that were running then."""
    deadline_s = time.monotonic() + LIMIT_S
    while not (folder / "players").exists() or not (folder / "players").read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return [int(pid) for pid in (folder / "players").read_text().split()]


def check_launch(folder: Path, *arguments: str, code: int = 0) -> str:
    """Check that a command that acts launches its player before the import, and ends it; returns the output."""
    run = command(folder, "go", *arguments)
    output, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == code, output
    launched = [int(pid) for pid in (folder / "players").read_text().split()]
    assert len(launched) == 1
    assert not any(map(process_tree.is_alive, launched))
    return output


def check_signal(folder: Path, *arguments: str) -> None:
    """Check that Ctrl-C during the import ends a command that acts, and its player, and leaves no logs."""
    run = command(folder, "wait", *arguments)
    launched = players(folder)
    run.send_signal(signal.SIGINT)
    (folder / "signaled").touch()
    output, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 130, output
    assert "Interrupted." in output
    assert "Traceback" not in output
    assert launched
    assert not any(map(process_tree.is_alive, launched))
    assert not list((folder / "temporary").glob("trajtrainer-players-*"))
