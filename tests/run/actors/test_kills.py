"""Actors that are killed: nothing is counted twice, nothing is left behind, and training goes on."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import trajtrainer
from tests.run import prefork
from tests.run.actors.counted import Counted, Taken
from tests.run.runs import ppo
from trajtrainer.run import placement


def settings(**actors: Any) -> dict[str, Any]:
    trainer = ppo(1500, network_settings={"hidden_units": 4, "num_layers": 1}, time_horizon=3)
    trainer |= {"checkpoint_interval": 50_000, "keep_best": 0}
    quotas = {"max_lifetime_restarts": -1, "restarts_rate_limit_n": -1}
    return {"behaviors": {"Counted": trainer}, "env_settings": quotas, "actors": actors}


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files by /proc")
def test_steps_are_counted_once_whatever_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    files = len(os.listdir("/proc/self/fd"))
    killed: set[int] = set()
    options: dict[str, Any] = {"results_dir": tmp_path, "verbose": False, "num_envs": 2}
    with trajtrainer.Training(settings(count=2), Counted, run_id="run", **options) as training:
        for _ in training.epochs(steps=600):
            running = [process for process in multiprocessing.active_children() if process.name.startswith("actor-")]
            victim = running[len(killed) % len(running)]
            victim.kill()
            killed.add(victim.pid or 0)
    assert killed
    assert not multiprocessing.active_children()
    assert len(os.listdir("/proc/self/fd")) <= files + 2, "log files and the like, but no pipes and no memory"
    agents = taken.check(training.result.behaviors["Counted"].steps, 1500)
    # The copies of an actor are stepped together, as one worker.
    assert {int(agent) >> 32 for agent in agents} == {0, 2}


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="stops processes by SIGSTOP")
def test_stopped_actors_are_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(placement, "_SLACK_S", 9.0)
    taken = Taken(monkeypatch)
    given = settings(count=2)
    given["env_settings"]["python_timeout"] = 1
    options: dict[str, Any] = {"results_dir": tmp_path, "verbose": False, "num_envs": 2}
    stopped: list[int] = []
    with trajtrainer.Training(given, Counted, run_id="run", **options) as training:
        for _ in training.epochs(steps=600):
            if not stopped:
                running = [each for each in multiprocessing.active_children() if each.name.startswith("actor-")]
                stopped = [process.pid for process in running if process.pid is not None]
                for pid in stopped:
                    os.kill(pid, signal.SIGSTOP)
    assert len(stopped) == 2
    assert not multiprocessing.active_children()
    taken.check(training.result.behaviors["Counted"].steps, 1500)
    assert (
        len(re.findall(r"Restarting actor \d in .* after: Actor \d has not reported anything for 10 s\.", caplog.text))
        >= 2
    )


def test_an_actor_whose_learner_is_gone_ends(tmp_path: Path) -> None:
    program = f"""
import sys, trajtrainer
from tests.run.actors.counted import Counted
from tests.run.actors.test_kills import settings
import multiprocessing, os, signal
with trajtrainer.Training(settings(count=1), Counted, run_id="run", results_dir={str(tmp_path)!r}) as training:
    for _ in training.epochs(steps=100):
        print("PID", multiprocessing.active_children()[0].pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""
    _, output = prefork.run(program, log=tmp_path / "log")
    pid = next(int(line.split()[1]) for line in output.splitlines() if line.startswith("PID"))
    deadline_s = time.monotonic() + 60
    while _is_running(pid) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not _is_running(pid)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
