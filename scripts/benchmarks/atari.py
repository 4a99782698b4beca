"""Pong of Atari by ``config/gym/Pong.yaml``, and Sample Factory on the same cores if it is there.

Both have 8 copies of the same environment within the same wrappers, the same network (three convolutions and two layers
of 512 units, which policy and values have in common), 128 steps of each copy per update and 4 epochs of 4 minibatches
of 256. Ours steps the copies in its loop, in an actor process, in two, and with EnvPool, where that is installed;
Sample Factory collects in two processes, while it learns (async) or not (sync), or does all in one process (serial).
The clock runs from about the 2048th step to the last ones.

``scripts/bench atari --sf VENV`` names a virtual environment with ``sample-factory`` and ``ale-py``; without it the
first half alone runs. ``python -m scripts.benchmarks.atari SEED STEPS KIND`` is one run.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from scripts.benchmarks.epochs import SPEED, learned
from scripts.benchmarks.gym import in_process
from scripts.benchmarks.report import Row, interleaved

CONFIG = Path(__file__).resolve().parents[2] / "config" / "gym"
RUNS = 3
MAX_STEPS = 14_000
WARM_UP = 2048
# Kind -> file, and the section of its actors.
KINDS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "loop": ("Pong", None),
    "actor": ("Pong", {"count": 1, "envs": 8}),
    "two actors": ("Pong", {"count": 2, "envs": 4}),
    "EnvPool": ("Pong-envpool", None),
    "EnvPool, an actor": ("Pong-envpool", {"count": 1}),
}
SF_KINDS = ("sync", "async", "serial")
_SF_PROGRAM = Path(__file__).with_name("atari_sf.py")


def measure(sf: Path | None = None) -> list[Row]:
    """All kinds of ours for which there are packages and, in turn, those of the virtual environment ``sf``."""
    needs = {"Pong": "ale_py", "Pong-envpool": "envpool"}
    ours = [kind for kind, (file, _) in KINDS.items() if importlib.util.find_spec(needs[file]) is not None]
    theirs = [] if sf is None else list(SF_KINDS)
    commands = {f"trajtrainer, {kind}": [sys.executable, "-m", "scripts.benchmarks.atari", kind] for kind in ours}
    commands |= {
        f"Sample Factory, {kind}": [str(sf and sf / "bin" / "python"), str(_SF_PROGRAM), kind] for kind in theirs
    }
    found: dict[str, list[float]] = {name: [] for name in commands}

    def run(name: str) -> float:
        *command, kind = commands[name]
        # In one process Sample Factory leaves torch all cores.
        threads = 2 if kind == "serial" else 1
        seed = str(len(found[name]) + 1)
        found[name].append(in_process([*command, seed, str(MAX_STEPS), kind], threads)[SPEED])
        return 0.0

    interleaved([partial(run, name) for name in commands], RUNS)
    rows = [Row(f"Pong, 8 copies, {name}", SPEED, runs) for name, runs in found.items()]
    others = [runs for name, runs in found.items() if name.startswith("Sample")]
    if others:
        best = [max(speeds) for speeds in zip(*others, strict=True)]
        rows += [
            Row(
                f"Pong, {name}, against Sample Factory's best",
                "times",
                [mine / other for mine, other in zip(runs, best, strict=True)],
                1 if "actor" in name else None,
            )
            for name, runs in found.items()
            if name.startswith("traj")
        ]
    return rows


def run(seed: int, max_steps: int, kind: str) -> dict[str, float]:
    """One training of ours."""
    file, actors = KINDS[kind]
    settings = yaml.safe_load((CONFIG / f"{file}.yaml").read_text())
    (behavior,) = settings["behaviors"].values()
    behavior["max_steps"] = max_steps
    settings["actors"] = {"backend": "inline"} if actors is None else actors
    settings["env_settings"]["num_envs"] = 8
    if file == "Pong-envpool":
        settings["env_settings"]["env_args"] = [f"num_threads={1 if actors else 2}"]
    settings["torch_settings"] = {"device": "cpu"}
    return learned(settings, seed, WARM_UP)[1]


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
