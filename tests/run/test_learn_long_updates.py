"""A stop comes while an update runs that would take hours."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import trajtrainer
from tests.run.api.test_learn_api import Lamp
from tests.run.runs import LearnProcess, behaviors_settings
from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.learning.algos.ppo.ppo import PPO
from trajtrainer.learning.algos.sac.sac import SAC
from trajtrainer.run.session import train
from trajtrainer.run.signals import StopRequest
from trajtrainer.settings.yaml.convert import load

ENDS_WITHIN_S = 120.0  # minutes or hours if the update goes on
HYPER: dict[str, dict[str, Any]] = {
    "ppo": {"batch_size": 32, "buffer_size": 256, "num_epoch": 100_000},
    "sac": {"batch_size": 32, "steps_per_update": 1e-6, "buffer_init_steps": 64},
}
AT_STEP = 7


def settings(kind: str, *, threaded: bool) -> dict[str, Any]:
    network = {"hidden_units": 8, "num_layers": 1}
    trainer = {"trainer_type": kind, "hyperparameters": HYPER[kind], "network_settings": network, "threaded": threaded}
    return behaviors_settings(Lamp=trainer)


def adam_steps(folder: Path) -> set[float]:
    checkpoint = torch.load(folder / "Lamp" / "checkpoint.pt", weights_only=True)
    adams = [part for name, part in checkpoint.items() if name.endswith("_optimizer")]
    assert adams
    return {float(one["step"]) for adam in adams for one in adam["state"].values()}


@pytest.mark.parametrize("threaded", [False, True], ids=["here", "threaded"])
@pytest.mark.parametrize("kind", ["ppo", "sac"])
def test_it_ends_after_a_gradient_step_and_saves_what_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, threaded: bool
) -> None:
    algorithm: Any = PPO if kind == "ppo" else SAC
    update, made, signalled_s = algorithm.gradient_step, [], []

    def spy(*args: Any, **options: Any) -> Any:
        made.append(threading.current_thread())
        if len(made) == AT_STEP:
            signalled_s.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        return update(*args, **options)

    monkeypatch.setattr(algorithm, "gradient_step", spy)
    with pytest.raises(KeyboardInterrupt):
        trajtrainer.learn(
            settings(kind, threaded=threaded), Lamp, run_id="run", results_dir=tmp_path, num_envs=4, verbose=False
        )
    assert time.monotonic() - signalled_s[0] < ENDS_WITHIN_S
    assert (made[0] is threading.main_thread()) is not threaded
    assert not any(thread in made for thread in threading.enumerate() if thread is not threading.main_thread())
    assert AT_STEP <= len(made) < AT_STEP + 1000
    assert adam_steps(tmp_path / "run") == {len(made)}
    assert (tmp_path / "run" / "Lamp.onnx").is_file()


def test_an_impatient_user_loses_nothing(tmp_path: Path) -> None:
    given = behaviors_settings(Basic=settings("sac", threaded=False)["behaviors"]["Lamp"])
    run = LearnProcess(tmp_path, given, "--env=sim:Basic")
    run.wait_for(lambda: "Connected new brain" in run.output)
    time.sleep(1.0)  # the 64 steps before the update
    run.send(signal.SIGTERM)
    run.wait_for(lambda: "Stopping: saving everything" in run.output)
    run.send(signal.SIGINT)
    finished = run.finish(ENDS_WITHIN_S)
    assert finished.exit_code == 143, finished.output
    assert "Still stopping" in finished.output or "Still saving" in finished.output
    assert "terminate called" not in finished.output
    assert (finished.folder / "Basic.onnx").is_file()


def test_a_signal_just_before_the_environment_starts_is_obeyed(tmp_path: Path) -> None:
    stop = StopRequest()
    given = {**settings("ppo", threaded=False), "checkpoint_settings": {"results_dir": str(tmp_path)}}
    run = load(yaml.safe_dump(given), "settings")

    def make(*_: Any) -> Any:
        raise EnvironmentFaultError("it was started")

    stop.request(signal.SIGTERM)
    assert train(run, None, make, stop).exit_code == 143
