"""Runs whose players and workers crash, hang and are killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.envs.sim.faults import fault
from tests.run import process_tree
from tests.run.runs import LearnProcess, behaviors_settings, learn, ppo
from tests.run.test_learn_stopping import step_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
LONG = behaviors_settings(Basic=ppo(1_000_000, checkpoint_interval=1000))
UNLIMITED = ("--max-lifetime-restarts=-1", "--restarts-rate-limit-n=-1")
ENDS_WITHIN_S = 120.0


def environment(*arguments: str) -> tuple[str, ...]:
    return ("--env=sim:Basic", "--env-args", "--agents", "4", *arguments)


def two_workers(tmp_path: Path, *options: str) -> LearnProcess:
    """A run that has saved a checkpoint and still runs."""
    run = LearnProcess(tmp_path, LONG, "--num-envs=2", *options, *environment())
    run.wait_for(lambda: bool(list((run.folder / "Basic").glob("Basic-*.pt"))))
    run.wait_for(lambda: len(process_tree.players(run.process.pid)) == 2)
    return run


def wait_for_end(pids: Sequence[int], timeout_s: float) -> None:
    end_s = time.monotonic() + timeout_s
    while living := [pid for pid in pids if process_tree.is_alive(pid)]:
        assert time.monotonic() < end_s, [process_tree.command_of(pid) for pid in living]
        time.sleep(0.02)


def test_nothing_outlives_a_killed_controller(tmp_path: Path) -> None:
    run = two_workers(tmp_path)
    everything = process_tree.descendants(run.process.pid)
    assert len(process_tree.workers(run.process.pid)) == 2
    run.send(signal.SIGKILL)
    run.process.wait(ENDS_WITHIN_S)
    wait_for_end(everything, ENDS_WITHIN_S)
    assert "leaked" not in run.output


def test_nothing_outlives_a_controller_killed_while_its_players_hang(tmp_path: Path) -> None:
    run = LearnProcess(tmp_path, LONG, "--num-envs=2", *environment(*fault("hang@50"), *fault("linger")))
    run.wait_for(lambda: len(process_tree.players(run.process.pid)) == 2)
    everything = process_tree.descendants(run.process.pid)
    run.send(signal.SIGKILL)
    run.process.wait(ENDS_WITHIN_S)
    wait_for_end(everything, ENDS_WITHIN_S)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_saves_everything_and_ends_all_workers(tmp_path: Path, number: signal.Signals, code: int) -> None:
    run = two_workers(tmp_path)
    everything = process_tree.descendants(run.process.pid)
    if number == signal.SIGINT:  # which a terminal sends to the workers too
        for pid in process_tree.workers(run.process.pid):
            os.kill(pid, number)
    run.send(number)
    finished = run.finish(ENDS_WITHIN_S)
    assert finished.exit_code == code, finished.output
    assert finished.status()["Basic"]["final_checkpoint"]["steps"] == step_of(run.folder)
    wait_for_end(everything, ENDS_WITHIN_S)
    for word in ("Traceback", "leaked", "Exception ignored", "Restarting"):
        assert word not in finished.output


@pytest.mark.parametrize("workers", ["--num-envs=1", "--num-envs=2"])
def test_players_that_linger_hold_no_stopped_run_back_and_an_early_second_signal_costs_nothing(
    tmp_path: Path, workers: str
) -> None:
    run = LearnProcess(tmp_path, LONG, workers, *environment(*fault("linger")))
    run.wait_for(lambda: bool(list((run.folder / "Basic").glob("Basic-*.pt"))))
    everything = process_tree.descendants(run.process.pid)
    run.send(signal.SIGINT)
    run.wait_for(lambda: "Stopping: saving everything" in run.output)
    run.send(signal.SIGINT)
    finished = run.finish(ENDS_WITHIN_S)
    assert finished.exit_code == 0, finished.output
    assert "Still stopping" in finished.output or "Still saving" in finished.output
    assert "did not close in time" in finished.output
    assert finished.status()["Basic"]["final_checkpoint"]["steps"] == step_of(run.folder)
    wait_for_end(everything, ENDS_WITHIN_S)  # guards of players that were killed wait for a while


def test_a_stopped_start_waits_for_no_player_that_never_connected(tmp_path: Path) -> None:
    run = LearnProcess(tmp_path, LONG, *environment(*fault("never-connect")))
    run.wait_for(lambda: len(process_tree.players(run.process.pid)) == 1)
    everything = process_tree.descendants(run.process.pid)
    time.sleep(0.5)
    run.send(signal.SIGINT)
    finished = run.finish(ENDS_WITHIN_S)
    assert finished.exit_code == 0, finished.output
    assert "Stopped before the environment was connected" in finished.output
    assert "within 10 s" not in finished.output
    assert not finished.folder.exists()
    wait_for_end(everything, ENDS_WITHIN_S)


def test_players_and_workers_that_die_are_replaced_and_training_goes_on(tmp_path: Path) -> None:
    run = two_workers(tmp_path, *UNLIMITED)
    pid = run.process.pid
    deaths = 0
    for number in (signal.SIGKILL, signal.SIGSEGV):
        for victims in (process_tree.players, process_tree.workers):
            before = victims(pid)
            os.kill(before[deaths % 2], number)
            deaths += 1
            run.wait_for(lambda: run.output.count("Restarting worker") == deaths)  # noqa: B023
            run.wait_for(lambda: len(process_tree.players(pid)) == 2 and set(victims(pid)) != set(before))  # noqa: B023
            step = step_of(run.folder)
            run.wait_for(lambda: step_of(run.folder) > step + 1000)  # noqa: B023
    everything = process_tree.descendants(pid)
    run.send(signal.SIGINT)
    finished = run.finish(ENDS_WITHIN_S)
    assert finished.exit_code == 0, finished.output
    assert finished.output.count("Restarting worker") == deaths
    assert "SIGSEGV" in finished.output
    wait_for_end(everything, ENDS_WITHIN_S)


def test_beyond_the_quota_everything_is_saved_and_the_reason_told(tmp_path: Path) -> None:
    run = learn(tmp_path, LONG, "--num-envs=2", *environment(*fault("crash@200:3")))
    assert run.exit_code == 1, run.output
    assert run.output.count("Restarting worker[0]") <= 1
    assert "restarts_rate_limit_n: 1" in run.output
    assert "return code 3" in run.output
    assert "Traceback" not in run.output
    assert run.status()["Basic"]["final_checkpoint"]["steps"] == step_of(run.folder) > 0


def test_a_hanging_player_is_replaced(tmp_path: Path) -> None:
    settings = behaviors_settings(Basic=ppo(3000))
    once = fault("hang@100", once=tmp_path / "once")
    run = learn(tmp_path, settings, "--timeout-wait=10", *UNLIMITED, *environment(*once))
    assert run.exit_code == 0, run.output
    assert "stopped answering within 10 s" in run.output
    assert run.status()["Basic"]["final_checkpoint"]["steps"] > 3000
