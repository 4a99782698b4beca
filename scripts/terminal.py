"""``scripts/terminal``: trains 3DBall in a terminal, and saves the final screen as ``docs/images/terminal.svg``."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "terminal.svg"
COMMAND = "trajtrainer learn builtin:quick/3DBall --env=sim:3DBall --run-id=first"
WIDTH, HEIGHT = 112, 40
LIMIT_S = 120.0


def screen(folder: Path) -> str:
    """Return the text in the terminal at the end of the command, with escape sequences for colors."""
    tmux = ["tmux", "-L", f"picture-{os.getpid()}"]
    wait = f"{COMMAND}; touch done; sleep {LIMIT_S}"
    size = ["-x", str(WIDTH), "-y", str(HEIGHT)]
    subprocess.run([*tmux, "new-session", "-d", *size, "-c", str(folder), wait], check=True)
    try:
        end = time.monotonic() + LIMIT_S
        while not (folder / "done").exists():
            if time.monotonic() > end:
                sys.exit(f"The run did not end within {LIMIT_S:.0f} s.")
            time.sleep(0.1)
        captured = subprocess.run([*tmux, "capture-pane", "-e", "-p"], check=True, capture_output=True, text=True)
        return captured.stdout.rstrip()
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        shown = screen(Path(folder))
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(f"$ {COMMAND}", highlight=False)
    console.print(Text.from_ansi(shown))
    console.save_svg(str(PICTURE), title="trajtrainer")
    print(shown)


if __name__ == "__main__":
    main()
