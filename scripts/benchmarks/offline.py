"""Learning without an environment: gradient steps of cloning and of implicit Q-learning, and d3rlpy's in turn.

Both learn from the same 100,000 steps of 8 floats with 2 actions, in batches of 256, through two layers of 128 units,
which go through everything that a run does with them (drawing, learning, statistics). In CPU time, so that a machine
which others use tells the same.

``scripts/bench offline --d3rlpy VENV`` names a virtual environment with ``d3rlpy``; without it only ours runs.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from scripts.benchmarks.report import RUNS, Row, interleaved
from tests.learning.algos.recorded import recording
from tests.learning.nn.specs import behavior, network, vector
from tests.plugins.imitation.learners import learner
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.plugins.imitation import bc, iql
from trajtrainer.plugins.imitation.offline import Offline

EPISODES, LENGTH = 500, 200
BATCH, HIDDEN = 256, 128
_SECONDS = 2.0
_PROGRAM = Path(__file__).with_name("offline_d3rlpy.py")


def measure(d3rlpy: Path | None = None) -> list[Row]:
    """Ours by the hand-written backward pass and by autograd, and what ``d3rlpy`` makes of the same."""
    torch.set_num_threads(1)
    packed = recording(behavior([vector(8)], 2), [LENGTH] * EPISODES)
    learners = {(kind, way): _learner(kind, way, packed) for kind in ("bc", "iql") for way in ("fast", "autograd")}
    work: dict[str, Callable[[], float]] = {
        f"{kind}, {way}": partial(_per_second, one) for (kind, way), one in learners.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        if d3rlpy is not None:
            data = Path(folder) / "steps.npz"
            _write(packed, data)
            work["iql, d3rlpy"] = partial(_d3rlpy, d3rlpy, data)
        figures = dict(zip(work, interleaved(list(work.values()), RUNS), strict=True))
    samples = [Row("BC, 2x128, batch 256", "samples per CPU second", [BATCH * x for x in figures["bc, fast"]], 50_000)]
    rows = [
        Row(f"{name}: gradient steps, 2x128, batch 256", "per CPU second", found) for name, found in figures.items()
    ]
    if d3rlpy is not None:
        pairs = zip(figures["iql, fast"], figures["iql, d3rlpy"], strict=True)
        rows.append(Row("IQL, against d3rlpy", "times", [ours / theirs for ours, theirs in pairs], 1))
    return samples + rows


def _learner(kind: str, way: str, packed: PackedSteps) -> Offline:
    with pytest.MonkeyPatch.context() as patch:
        if way == "autograd":
            for module in (bc, iql):
                patch.setattr(module, "closed_form", lambda *_: None)
        return learner(kind, behavior([vector(8)], 2), packed, net=network(hidden=HIDDEN), hyper={"batch_size": BATCH})


def _per_second(made: Offline) -> float:
    made.update(made.gradient_steps, lambda _: None)
    begin_s, begin, before = time.perf_counter(), time.process_time(), made.gradient_steps
    while time.perf_counter() - begin_s < _SECONDS:
        made.update(made.gradient_steps, lambda _: None)
    return (made.gradient_steps - before) / (time.process_time() - begin)


def _write(packed: PackedSteps, path: Path) -> None:
    ends = np.zeros(len(packed), np.float32)
    ends[packed.offset[1:] - 1] = 1.0
    np.savez(path, obs=packed.obs[0], actions=packed["continuous"], rewards=packed["reward"], ends=ends)


def _d3rlpy(venv: Path, data: Path) -> float:
    command = [str(venv / "bin" / "python"), "-P", str(_PROGRAM), str(data), str(BATCH), str(HIDDEN)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=data.parent)
    return float(done.stdout.split()[-1])
