"""Short runs of every kind, and what each of them leaves: the weights and the curves, without anything that is time.

A refactoring must not change a trace. On one machine it is exact (``scripts/traces``); on another processor the last
bits of sums differ, so the recorded traces are compared with a tolerance (``test_traces.py``).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.run.runs import FinishedRun, behaviors_settings, learn, ppo
from trajtrainer.settings.components import ALGORITHMS

# Times, and numbers of actors that depend on them.
TIMED = ("Perf/", "Actors/")

_SMALL: dict[str, Any] = {"summary_freq": 250, "checkpoint_interval": 100_000}
_NORMALIZE = {"normalize": True}
_MEMORY = {"memory": {"memory_size": 16, "sequence_length": 8}}
_SAC = {"batch_size": 32, "buffer_size": 2000, "buffer_init_steps": 100, "steps_per_update": 10}
_SELF_PLAY = {
    "save_steps": 300,
    "team_change": 600,
    "swap_steps": 150,
    "window": 3,
    "play_against_latest_model_ratio": 0.3,
}
_CURRICULUM = {
    "speed": {
        "curriculum": [
            {
                "name": "slow",
                "value": 1.0,
                "completion_criteria": {"behavior": "Basic", "measure": "progress", "threshold": 0.4},
            },
            {"name": "fast", "value": 2.0},
        ]
    }
}


def _ball(**changes: Any) -> dict[str, Any]:
    return behaviors_settings(**{"3DBall": ppo(1500, network_settings=_NORMALIZE, **_SMALL, **changes)})


def _sac() -> dict[str, Any]:
    given = ppo(600, network_settings=_NORMALIZE, **_SMALL, trainer_type="sac", hyperparameters=_SAC)
    del given["hyperparameters"]["learning_rate_schedule"]
    return behaviors_settings(Hybrid=given)


def _cloning(demos: Path) -> dict[str, Any]:
    hyperparameters = {"batch_size": 64, "learning_rate": 1e-3}
    given = {**ppo(200, **_SMALL), "trainer_type": "bc", "dataset": [str(demos / "3DBall.demo")]}
    return behaviors_settings(**{"3DBall": {**given, "summary_freq": 50, "hyperparameters": hyperparameters}})


def kinds(demos: Path) -> dict[str, tuple[dict[str, Any], str]]:
    """Name of a kind -> the settings and the environment, "" for none.

    Args:
        demos: the folder of the recordings that are shipped (``config/demos``).
    """
    one_actor = {"count": 1, "max_policy_lag": 0}
    grid = ppo(300, **{**_SMALL, "summary_freq": 100}, hyperparameters={"buffer_size": 128})
    found = {
        "ppo": (_ball(), "3DBall"),
        "lstm": (behaviors_settings(Memory=ppo(1500, network_settings=_MEMORY, **_SMALL)), "Memory"),
        "gridworld": (behaviors_settings(GridWorld=grid), "GridWorld"),
        "sac": (_sac(), "Hybrid"),
        "poca": (behaviors_settings(DungeonEscape=ppo(1500, trainer_type="poca", **_SMALL)), "DungeonEscape"),
        "self_play": (behaviors_settings(Duel=ppo(2000, self_play=_SELF_PLAY, **_SMALL)), "Duel"),
        "curriculum": (
            behaviors_settings(Basic=ppo(1500, **_SMALL)) | {"environment_parameters": _CURRICULUM},
            "Basic",
        ),
        "two_behaviors": (behaviors_settings(Basic=ppo(1000, **_SMALL), Hybrid=ppo(1000, **_SMALL)), "Basic+Hybrid"),
        "bc": (_cloning(demos), ""),
        "thread_actor": (_ball() | {"actors": {**one_actor, "backend": "thread"}}, "3DBall"),
        "process_actor": (_ball() | {"actors": {**one_actor, "backend": "process"}}, "3DBall"),
    }
    return {kind: run for kind, run in found.items() if _algorithms(run[0]) <= {*ALGORITHMS}}


def _algorithms(settings: Mapping[str, Any]) -> set[str]:
    return {each["trainer_type"] for each in settings["behaviors"].values()}


def record(folder: Path, settings: Mapping[str, Any], environment: str) -> dict[str, Any]:
    """Run one kind in ``folder`` and return its trace.

    Returns:
        Behavior -> ``weights`` (module -> SHA-256 of its tensors, in the order of their names), ``norms`` (module ->
        root of the sum of all squares) and ``events`` (tag -> [[step, value], ...]).
    """
    arguments = [f"--env=sim:{environment}", "--env-args", "--agents", "4"] if environment else []
    run = learn(folder, dict(settings), *arguments)
    assert run.exit_code == 0, run.output
    return {name: _of_behavior(run, name) for name in settings["behaviors"]}


def _of_behavior(run: FinishedRun, name: str) -> dict[str, Any]:
    state = torch.load(run.folder / name / "checkpoint.pt", weights_only=True)
    modules = {key: _tensors(module) for key, module in state.items() if key != "trajtrainer"}
    scalars = run.scalars(name)
    return {
        "weights": {key: _digest(tensors) for key, tensors in modules.items()},
        "norms": {
            key: math.sqrt(sum(float(each.double().square().sum()) for each in tensors.values()))
            for key, tensors in modules.items()
        },
        "events": {tag: points for tag, points in sorted(scalars.items()) if not tag.startswith(TIMED)},
    }


def _tensors(content: Any, path: str = "") -> dict[str, torch.Tensor]:
    """Path -> tensor, of all tensors in dictionaries and lists."""
    if isinstance(content, torch.Tensor):
        return {path: content}
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return {key: value for name, entry in items for key, value in _tensors(entry, f"{path}/{name}").items()}


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
