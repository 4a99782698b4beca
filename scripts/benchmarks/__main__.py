"""``scripts/bench [PART ...]``: measures, prints a table and writes ``bench-<time>.json``.

Run it on a quiet machine: nothing else may be at work.
"""

from __future__ import annotations

import argparse
import importlib
import time
from pathlib import Path

from scripts.benchmarks.report import Row, show, write

PARTS = ("data", "wire", "ppo", "sac", "networks", "workers")


def main() -> None:
    parser = argparse.ArgumentParser("scripts/bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; all without any")
    parser.add_argument("--output", type=Path, default=Path(f"bench-{int(time.time())}.json"))
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown parts {', '.join(sorted(unknown))}; expected some of {', '.join(PARTS)}")
    rows: list[Row] = []
    for part in arguments.parts or PARTS:
        found = importlib.import_module(f"scripts.benchmarks.{part}").measure()
        show(found)
        rows += found
    write(rows, arguments.output)
    print(f"Written to {arguments.output}.")


if __name__ == "__main__":
    main()
