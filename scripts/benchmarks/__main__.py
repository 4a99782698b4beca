"""``scripts/bench [PART ...]``: measures, prints a table and writes ``bench-<time>.json``.

Run it on a quiet machine: nothing else may be at work.
"""

from __future__ import annotations

import argparse
import importlib
import time
from pathlib import Path

from scripts.benchmarks import learning, policy_time, quick, xqc
from scripts.benchmarks.report import Row, show, write

_ALL = (
    "data",
    "wire",
    "envs",
    "ppo",
    "poca",
    "self_play",
    "scaling",
    "overhead",
    "sac",
    "networks",
    "workers",
    "actors",
    "cluster",
    "growth",
    "attack",
    "offline",
    "gym",
    "atari",
    "godot",
    "export",
    "mlagents",
)
# Some measure a plugin or a tool, which may not be there.
PARTS = tuple(part for part in _ALL if Path(__file__).with_name(f"{part}.py").exists())
# They take hours, so they run only when they are asked for.
LONG = {"learning": learning.measure, "quick": quick.measure, "xqc": xqc.measure}
# Part -> option that names the virtual environment of what it is compared with.
OTHERS = {
    "gym": "sb3",
    "atari": "sf",
    "offline": "d3rlpy",
    "mlagents": "mlagents",
    "actors": "mlagents",
    "godot": "godot_rl",
}


def main() -> None:
    parser = argparse.ArgumentParser("scripts/bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; or {', '.join(LONG)}")
    parser.add_argument("--sb3", type=Path, metavar="VENV", help="with stable-baselines3, for gym and learning")
    parser.add_argument("--sf", type=Path, metavar="VENV", help="with sample-factory and ale-py, for the part atari")
    parser.add_argument("--d3rlpy", type=Path, metavar="VENV", help="with d3rlpy, for the part offline")
    parser.add_argument(
        "--mlagents", type=Path, metavar="VENV", help="with mlagents 1.1.0, for the parts mlagents, actors and quick"
    )
    parser.add_argument("--godot-rl", type=Path, metavar="VENV", help="with godot-rl 0.8.2, for the part godot")
    parser.add_argument("--output", type=Path, default=Path(f"bench-{int(time.time())}.json"))
    learning.add_arguments(parser, [*learning.TASKS, *quick.TASKS])
    parser.add_argument(
        "--step-ms",
        type=float,
        nargs="+",
        metavar="MS",
        help="quick: measure the wall time to a policy, with players that take so long per exchange (0: as they can)",
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
        other = OTHERS.get(part)
        if part in LONG:
            measure = policy_time.measure if part == "quick" and arguments.step_ms else LONG[part]
            found = measure(arguments)
        else:
            found = module.measure() if other is None else module.measure(getattr(arguments, other))
        show(found)
        rows += found
    write(rows, arguments.output)
    print(f"Written to {arguments.output}.")


if __name__ == "__main__":
    main()
