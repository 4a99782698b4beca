"""What the tests of earlier versions' files use: the working folder is a copy of what a version wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import yaml

from tests.ports import free_ports
from tests.upgrade.writing import KINDS, RUNS
from trajtrainer.cli.main import main

ONLINE = [name for name, (env, _) in KINDS.items() if env is not None]


def behavior_of(name: str) -> str:
    (behavior,) = KINDS[name][1]["behaviors"]
    return str(behavior)


def configuration(name: str, **changes: Any) -> str:
    """The configuration of a run with other settings of its behavior."""
    content = yaml.safe_load(Path("configurations", f"{name}.yaml").read_text(encoding="utf-8"))
    content["behaviors"][behavior_of(name)] |= changes
    path = Path("changed.yaml")
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def command(*words: str) -> int:
    return main([words[0], *words[1:], f"--results-dir={RUNS}", f"--base-port={free_ports(4)}"])


def status(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(RUNS, name, "run_logs", "training_status.json").read_text())
    return content


def checkpoint(name: str) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(Path(RUNS, name, behavior_of(name), "checkpoint.pt"), weights_only=True)
    return state


def step_of(name: str) -> int:
    return int(status(name)[behavior_of(name)]["final_checkpoint"]["steps"])


def log(name: str) -> str:
    return Path(RUNS, name, "run_logs", "trainer.log").read_text(encoding="utf-8")


def step_of_new(name: str) -> int:
    return int(status("new")[behavior_of(name)]["final_checkpoint"]["steps"])
