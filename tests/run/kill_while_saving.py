"""A program for ``test_kill``: saves checkpoints in child processes that it kills at random moments.

Forks, so that torch is imported once for many kills. Prints one JSON object per kill: the last step that the child
reported as saved, and what a resumed run found.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from trajtrainer.policies.checkpoints.manager import CheckpointManager
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.policies.folder.status import TrainingStatus
from trajtrainer.settings.run import CheckpointSettings


def start(results: str, *, resume: bool) -> tuple[RunFolder, CheckpointManager]:
    run = RunFolder(CheckpointSettings(run_id="killed", resume=resume, results_dir=results))
    run.check({})
    run.create()
    status = TrainingStatus.load(run.status) if resume else TrainingStatus(run.status)
    status.save()
    return run, CheckpointManager(run.behavior("Ball"), status, keep=2)


def save_for_ever(manager: CheckpointManager, step: int, report: int) -> None:
    while True:
        step += 1
        state = {"Policy": {"weight": torch.full((20_000,), float(step))}, "step": step}
        if manager.save(step, float(step), state, lambda path: path.write_bytes(bytes(50_000))):
            os.write(report, step.to_bytes(8, "little"))


def killed_child(manager: CheckpointManager, step: int, delay_s: float) -> int:
    """Returns the last step that the child reported."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            save_for_ever(manager, step, writer)
        finally:
            os._exit(1)
    os.close(writer)
    select.select([reader], [], [], 60.0 if delay_s > 0 else 0.0)  # from its first save on, or at once
    time.sleep(abs(delay_s))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    reported = step
    while block := os.read(reader, 8):
        reported = int.from_bytes(block, "little")
    os.close(reader)
    return reported


def main(results: str, kills: int, seed: int) -> None:
    randomness = random.Random(seed)
    _, manager = start(results, resume=False)
    step = 0
    for number in range(kills):
        delay = randomness.uniform(0.0, 0.02) * (-1 if number % 4 == 0 else 1)
        reported = killed_child(manager, step, delay)
        run, manager = start(results, resume=True)
        loaded = manager.resume()
        step = 0 if loaded is None else int(loaded.state["step"])
        whole = loaded is None or bool((loaded.state["Policy"]["weight"] == step).all())
        found: dict[str, Any] = {
            "reported": reported,
            "resumed": step,
            "whole": whole,
            "listed": [record.steps for record in manager.records],
            "files": sorted(path.name for path in Path(run.behavior("Ball").path).iterdir()),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
