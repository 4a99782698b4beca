"""Runs of a search: what they tell, and how they end."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from trajtrainer.core.errors import SettingsError
from trajtrainer.policies.folder.series import Series, read_scalars
from trajtrainer.run.signals import StopRequest
from trajtrainer.settings.search import Measured
from trajtrainer.tools.search.trial import TrialProcess, TrialTask, measure, run

REWARD = "Environment/Cumulative Reward"


def task(folder: Path, metric: str = REWARD, **behavior: Any) -> TrialTask:
    hyperparameters = {"batch_size": 32, "buffer_size": 128}
    network = {"hidden_units": 8, "num_layers": 1}
    settings = {
        "behaviors": {
            "CartPole-v1": {
                "trainer_type": "ppo",
                "hyperparameters": hyperparameters,
                "network_settings": network,
                "max_steps": 1000,
                "summary_freq": 100,
                "time_horizon": 32,
                **behavior,
            }
        },
        "env_settings": {"env_path": "gym:CartPole-v1", "seed": 1},
        "checkpoint_settings": {"run_id": "study/trial-0000", "results_dir": str(folder)},
    }
    return TrialTask(yaml.safe_dump(settings), "CartPole-v1", metric, measured="end", sign=1, reports=4)


@pytest.mark.parametrize(
    ("measured", "sign", "expected"), [("end", 1, 7.5), ("best", 1, 9.0), ("best", -1, -2.0), ("mean", -1, 4.0)]
)
def test_one_number_stands_for_a_course(measured: str, sign: int, expected: float) -> None:
    steps = np.array([0, 100, 200, 300, 950, 1000])
    series = Series.of_points(steps, np.array([-2.0, 9.0, 1.0, 1.0, 7.0, 8.0]))
    assert measure(series, Measured(measured), sign) == expected


def test_a_run_tells_how_it_goes_and_what_it_reached(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    run(task(tmp_path), lambda message: told.append(dict(message)), StopRequest())

    series = read_scalars(tmp_path / "study" / "trial-0000" / "CartPole-v1")[REWARD]
    *reports, last = told
    assert [message["report"] for message in reports] == [1, 2, 3]
    seen = series.values[series.steps <= 250]
    assert reports[0]["value"] == pytest.approx(seen.mean())
    assert last == {"value": measure(series, Measured.END, 1)}


def test_a_metric_that_nobody_writes_is_told_with_those_that_there_are(tmp_path: Path) -> None:
    told: list[Any] = []
    run(task(tmp_path, metric="Environment/Reward", max_steps=200), told.append, StopRequest())
    assert "has not written 'Environment/Reward'; it has: " in told[-1]["error"]
    assert REWARD in told[-1]["error"]


def test_an_error_of_the_run_is_raised(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="found 0"):
        run(task(tmp_path, summary_freq=0), lambda _: None, StopRequest())


def test_a_process_that_is_told_to_end_saves_everything(tmp_path: Path) -> None:
    process = TrialProcess(task(tmp_path, max_steps=1_000_000))
    pid = process._process.pid
    assert pid is not None
    try:
        messages = process.messages()
        while not any((tmp_path / "study").glob("trial-0000/CartPole-v1/events*")):
            assert not process._process.has_unread(), process.end()
            time.sleep(0.05)
        process.stop()  # as the end of the search does, however it came about
        assert list(messages) == [{"stopped": True}]
        assert process.end() == "ended with the exit code 0"
    finally:
        process.kill()
    assert (tmp_path / "study" / "trial-0000" / "CartPole-v1" / "checkpoint.pt").is_file()
    if sys.platform != "win32":
        with pytest.raises(ProcessLookupError):
            os.killpg(pid, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX systems")
def test_a_process_whose_search_is_killed_saves_everything(tmp_path: Path) -> None:
    """Its pipes end with the search."""
    process = TrialProcess(task(tmp_path, max_steps=1_000_000))
    pid = process._process.pid
    assert pid is not None
    try:
        while not any((tmp_path / "study").glob("trial-0000/CartPole-v1/events*")):
            assert not process._process.has_unread(), process.end()
            time.sleep(0.05)
        process._process._lifeline.close()
        process._process.pipe.close()
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    finally:
        process.kill()
    assert process.end() == "ended with the exit code 0"
    assert (tmp_path / "study" / "trial-0000" / "CartPole-v1" / "checkpoint.pt").is_file()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX systems")
def test_a_process_is_killed_however_early(tmp_path: Path) -> None:
    process = TrialProcess(task(tmp_path, max_steps=1_000_000))
    process.kill()
    assert list(process.messages()) == []
    assert process.end() in ("ended with the exit code 1", "was ended by the signal SIGKILL")


@pytest.mark.skipif(sys.platform == "win32", reason="where there is no such pipe")
def test_what_a_process_printed_last_is_shown(tmp_path: Path) -> None:
    given = task(tmp_path)
    crashing = replace(
        given, settings=given.settings.replace("gym:CartPole-v1", "python:tests.tools.search.test_trial:crash")
    )
    process = TrialProcess(crashing)
    assert list(process.messages()) == []
    assert process.end() == "was ended by the signal SIGABRT\n  the last words"


def crash() -> None:
    os.write(2, b"the last words\n")
    os.abort()
