"""Long benchmark runs. Each runs in its own process and writes one file; it is skipped if the file exists."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def add_arguments(parser: argparse.ArgumentParser, tasks: Sequence[str]) -> None:
    """Declare the options of the long benchmarks."""
    group = parser.add_argument_group("quick and xqc")
    group.add_argument("--tasks", nargs="+", metavar="TASK", choices=tasks, help=f"some of {', '.join(tasks)}")
    group.add_argument("--seeds", type=_seeds, default=range(1, 6), metavar="N", help="1 to N, or M-N (default: 5)")
    group.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="number of parallel runs")
    group.add_argument("--minutes", type=float, metavar="N", help="do not start runs after this many minutes")
    group.add_argument("--results", type=Path, default=Path("bench-results"), metavar="FOLDER")


def _seeds(text: str) -> range:
    first, _, last = text.rpartition("-")
    return range(int(first or 1), int(last) + 1)


def make_runs(module: str, runs: Iterable[tuple[Path, Sequence[str]]], arguments: argparse.Namespace) -> None:
    """Run ``python -m module ARGUMENT... FILE`` for each (file, arguments), several in parallel."""
    end_s = time.monotonic() + 60 * arguments.minutes if arguments.minutes else float("inf")

    def make(run: tuple[Path, Sequence[str]]) -> None:
        file, given = run
        if time.monotonic() > end_s:
            return
        command = [sys.executable, "-m", module, *given, str(file.resolve())]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        log = file.with_suffix(".log")
        with log.open("w", encoding="utf-8") as output:
            done = subprocess.run(
                command, check=False, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        result = "done" if done.returncode == 0 else f"FAILED, see {log}"
        print(f"{time.strftime('%H:%M:%S')} {file.stem}: {result}", flush=True)

    with ThreadPoolExecutor(arguments.jobs) as threads:
        list(threads.map(make, runs))


def write_whole(file: Path, text: str) -> None:
    """Write a file atomically."""
    part = file.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(file)
