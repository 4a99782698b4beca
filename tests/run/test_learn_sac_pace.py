"""The pace of SAC's gradient updates over whole runs: several players, a thread of its own, going on after a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.run.runs import FinishedRun, behaviors_settings, learn

AGENTS = 6
FIRST_STEP = 200
STEPS_PER_UPDATE = 3.0
LEAD = 250  # steps, which acting may be ahead at most


def _settings(max_steps: int, *, threaded: bool) -> dict[str, Any]:
    return behaviors_settings(
        Toy={
            "trainer_type": "sac",
            "threaded": threaded,
            "hyperparameters": {
                "batch_size": 8,
                "buffer_size": LEAD,
                "buffer_init_steps": FIRST_STEP,
                "steps_per_update": STEPS_PER_UPDATE,
            },
            "network_settings": {"hidden_units": 8, "num_layers": 1},
            "time_horizon": 16,
            "max_steps": max_steps,
            "summary_freq": 500,
            "checkpoint_interval": 400,
        }
    )


def _step(run: FinishedRun) -> int:
    steps = run.status()["Toy"]["final_checkpoint"]["steps"]
    assert isinstance(steps, int)
    return steps


def _updates(run: FinishedRun) -> int:
    """Gradient updates made until the run was saved for the last time, counted by Adam and by the pace, from 1 on."""
    content = torch.load(run.folder / "Toy" / "checkpoint.pt", weights_only=True)
    made = {int(each["step"]) for each in content["Optimizer:value_optimizer"]["state"].values()}
    assert made == {content["trajtrainer"]["sac"]["pace"]["count"] - 1}
    return made.pop()


@pytest.mark.parametrize("threaded", [False, True], ids=["inline", "threaded"])
def test_the_pace_is_kept_whoever_acts_and_however_often_the_run_was_stopped(tmp_path: Path, threaded: bool) -> None:
    player = ("--env=sim:Toy", "--num-envs=2", "--env-args", "--agents", str(AGENTS))
    resume: tuple[str, ...] = ()
    for max_steps in (600, 1000):
        run = learn(tmp_path, _settings(max_steps, threaded=threaded), *resume, *player)
        assert run.exit_code == 0, run.output
        due = (max_steps - FIRST_STEP) / STEPS_PER_UPDATE
        # Inline nothing is learned any more after the drain in which max_steps are exceeded, and no drain is larger
        # than this. In a thread that drain is learned from, too: acting ended meanwhile.
        most = (_step(run) - FIRST_STEP) / STEPS_PER_UPDATE if threaded else due
        assert due - LEAD / STEPS_PER_UPDATE <= _updates(run) <= most
        assert _step(run) <= max_steps + LEAD
        resume = ("--resume",)
