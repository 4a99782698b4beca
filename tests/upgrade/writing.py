"""Writes a corpus: one small run of each kind, and recordings, as the installed version makes them.

::

    python -m tests.upgrade.writing FOLDER

makes FOLDER, works in it with relative paths only, and takes the names of this machine out of what it wrote. The
corpus of a version is written once, by that version, and never again: see README.md beside each one.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import yaml

import trajtrainer
from trajtrainer.cli.main import main
from trajtrainer.core.filenames import EVENT_FILE_PREFIX
from trajtrainer.settings.components import ALGORITHMS

RUNS = "runs"
_TEXTS = {".yaml", ".json", ".log", ".journal"}


def trainer(kind: str, max_steps: int, **changes: Any) -> dict[str, Any]:
    """Settings of a behavior whose files are small."""
    hyper: dict[str, Any] = {"batch_size": 16, "buffer_size": 64}
    if kind == "sac":
        hyper |= {"buffer_size": 200, "buffer_init_steps": 32, "steps_per_update": 8, "save_replay_buffer": True}
    if kind == "bc":
        del hyper["buffer_size"]
    return {
        "trainer_type": kind,
        "hyperparameters": hyper,
        "network_settings": {"hidden_units": 8, "num_layers": 1},
        "keep_checkpoints": 1,
        "checkpoint_interval": max_steps // 2,
        "max_steps": max_steps,
        "time_horizon": 8,
        "summary_freq": max_steps // 2,
        **changes,
    }


def lessons(behavior: str) -> list[dict[str, Any]]:
    """Three lessons. A run is in the second when it ends."""

    def criteria(threshold: float) -> dict[str, Any]:
        return {
            "completion_criteria": {
                "measure": "progress",
                "behavior": behavior,
                "threshold": threshold,
                "min_lesson_length": 1,
            }
        }

    return [
        {"name": "near", "value": 1.0, **criteria(0.1)},
        {"name": "middle", "value": 2.0, **criteria(1.0)},
        {"name": "far", "value": 3.0},
    ]


SELF_PLAY = {
    "save_steps": 60,
    "team_change": 120,
    "swap_steps": 30,
    "window": 3,
    "play_against_latest_model_ratio": 0.5,
}
# Run id -> the simulation (None: no environment) and the sections of its configuration.
KINDS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "ppo": (
        "sim:Toy",
        {
            "behaviors": {"Toy": trainer("ppo", 1200, keep_best=2, keep_checkpoints=2)},
            "environment_parameters": {"distance": {"curriculum": lessons("Toy")}},
        },
    ),
    "sac": ("sim:Toy", {"behaviors": {"Toy": trainer("sac", 200, keep_best=0)}}),
    "poca": ("sim:DungeonEscape", {"behaviors": {"DungeonEscape": trainer("poca", 200, keep_best=0)}}),
    "selfplay": ("sim:Duel", {"behaviors": {"Duel": trainer("ppo", 240, self_play=SELF_PLAY)}}),
    "evaluated": (
        "sim:3DBall",
        {
            "behaviors": {
                "3DBall": trainer("ppo", 200, network_settings={"hidden_units": 8, "num_layers": 1, "normalize": True})
            },
            "evaluation": {"interval": 100, "episodes": 2},
        },
    ),
    "offline": (None, {"behaviors": {"Toy": trainer("bc", 40, dataset=["recordings/Toy.demo"])}}),
}
KINDS = {
    name: (env, sections)
    for name, (env, sections) in KINDS.items()
    if all(each["trainer_type"] in ALGORITHMS for each in sections["behaviors"].values())
}
SEARCH = {
    "behaviors": {"Toy": trainer("ppo", 128, summary_freq=32, keep_best=0)},
    "env_settings": {"env_path": "sim:Toy"},
    "search": {
        "trials": 2,
        "ranges": {"behaviors.Toy.hyperparameters.learning_rate": {"low": 0.001, "high": 0.1, "log": True}},
    },
}


def write(folder: Path) -> None:
    """Write the corpus into a new folder."""
    folder.mkdir(parents=True)
    os.chdir(folder)
    os.environ["OMP_NUM_THREADS"] = "1"
    Path("configurations").mkdir()
    Path("recordings").mkdir()
    for name, (env, sections) in KINDS.items():
        if name == "offline":
            _record()
        _command(["learn", _configuration(name, sections), f"--run-id={name}", *([f"--env={env}"] if env else [])])
    _command(["search", _configuration("search", SEARCH), "--run-id=search"])
    (folder / RUNS / "search" / "search.png").unlink(missing_ok=True)  # large, and nothing reads it
    _take_out_names(folder)


def _configuration(name: str, sections: dict[str, Any]) -> str:
    path = Path("configurations", f"{name}.yaml")
    path.write_text(yaml.safe_dump({**sections, "torch_settings": {"device": "cpu"}}, sort_keys=False))
    return str(path)


def _record() -> None:
    demo = "recordings/Toy.demo"
    _command(["record", "--policy=ppo", "--episodes=12", f"--output={demo}", "--env=sim:Toy"])
    _command(["demo", "convert", demo, "-o", "recordings/Toy.npz"])


def _command(words: list[str]) -> None:
    """Run a command of the command line, as a user types it."""
    options = {"demo": [], "search": [f"--results-dir={RUNS}"]}.get(words[0], [f"--results-dir={RUNS}", "--seed=1"])
    sys.argv = ["trajtrainer", *words, *options]
    if main(sys.argv[1:]) != 0:
        raise SystemExit(f"failed: {' '.join(sys.argv)}")


def _take_out_names(folder: Path) -> None:
    """Make absolute paths relative and the machine's name a neutral one; a search needs absolute paths."""
    package = Path(trajtrainer.__file__).parent
    for path in sorted(folder.rglob("*")):
        if path.name.startswith(EVENT_FILE_PREFIX):
            path.rename(path.with_name(path.name.replace(f".{socket.gethostname()}.", ".machine.")))
        elif path.suffix in _TEXTS:
            text = path.read_text(encoding="utf-8")
            for place, neutral in ((f"{folder}/", ""), (sys.executable, "python"), (f"{package}/", "trajtrainer/")):
                text = text.replace(place, neutral)
            path.write_text(text, encoding="utf-8")
    forbidden = {str(folder), str(package.parent), str(Path.home()), sys.prefix}
    for path in folder.rglob("*"):
        found = [name for name in forbidden if path.is_file() and name.encode() in path.read_bytes()]
        if found:
            raise SystemExit(f"{path} contains {found}")


if __name__ == "__main__":
    write(Path(sys.argv[1]).absolute())
