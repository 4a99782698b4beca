"""``scripts/bench [PART ...]``: runs benchmarks, prints a table and writes ``bench-<time>.json``.

Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import importlib
import time
from pathlib import Path

from scripts.benchmarks import jobs, policy_time, quick
from scripts.benchmarks.report import Row, show, write

_ALL = (
    "data",
    "wire",
    "ppo",
    "poca",
    "self_play",
    "overhead",
    "sac",
    "networks",
    "actors",
    "export",
    "start",
    "mlagents",
)
# These take hours, so they only run if they are given as arguments.
_ALL_LONG = ("quick", "xqc")
# "export" and "xqc" measure tenants, which may have been deleted (scripts/tenants).
PARTS, LONG = (
    tuple(part for part in parts if Path(__file__).with_name(f"{part}.py").exists()) for parts in (_ALL, _ALL_LONG)
)
_WITH_MLAGENTS = ("mlagents", "actors", "start")


def main() -> None:
    parser = argparse.ArgumentParser("scripts/bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; or {', '.join(LONG)}")
    parser.add_argument(
        "--mlagents",
        type=Path,
        metavar="VENV",
        help="virtual environment with mlagents 1.1.0, for the parts mlagents, actors, start and quick",
    )
    parser.add_argument("--output", type=Path, default=Path(f"bench-{int(time.time())}.json"))
    jobs.add_arguments(parser, list(quick.TASKS))
    parser.add_argument(
        "--step-ms",
        type=float,
        nargs="+",
        metavar="MS",
        help="quick: measure the wall time to a policy, with players that take this long per exchange (0: no delay)",
    )
    parser.add_argument(
        "--times",
        type=float,
        metavar="N",
        help="with --step-ms: stop trainers that take N times as long as config/quick",
    )
    arguments = parser.parse_args()
    known = (*PARTS, *LONG)
    unknown = set(arguments.parts) - set(known)
    if unknown:
        parser.error(f"unknown parts {', '.join(sorted(unknown))}; expected some of {', '.join(known)}")
    rows: list[Row] = []
    for part in arguments.parts or PARTS:
        module = importlib.import_module(f"scripts.benchmarks.{part}")
        if part in LONG:
            found = (policy_time if part == "quick" and arguments.step_ms else module).measure(arguments)
        else:
            found = module.measure(arguments.mlagents) if part in _WITH_MLAGENTS else module.measure()
        show(found)
        rows += found
    write(rows, arguments.output)
    print(f"Written to {arguments.output}.")


if __name__ == "__main__":
    main()
