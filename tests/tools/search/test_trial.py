"""Processes of trials: what becomes of them, and how a run becomes one number."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.run.process_tree import is_alive
from trajtrainer.policies.folder.run_lock import ask_to_stop, stop_file
from trajtrainer.policies.folder.series import Series
from trajtrainer.settings.search import Measured
from trajtrainer.tools.search.trial import TrialProcess, measure

ROOT = Path(__file__).resolve().parents[3]


def configuration(folder: Path, env_path: str = "gym:CartPole-v1", **behavior: Any) -> Path:
    hyperparameters = {"batch_size": 32, "buffer_size": 128}
    network = {"hidden_units": 8, "num_layers": 1}
    settings = {
        "behaviors": {
            "CartPole-v1": {
                "trainer_type": "ppo",
                "hyperparameters": hyperparameters,
                "network_settings": network,
                "max_steps": 1_000_000,
                "summary_freq": 100,
                "time_horizon": 32,
                **behavior,
            }
        },
        "env_settings": {"env_path": env_path, "seed": 1},
        "checkpoint_settings": {"run_id": "study/trial-0000", "results_dir": str(folder)},
    }
    path = folder / "study" / "trial-0000.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(settings))
    return path


def wait_for_events(folder: Path) -> None:
    begun_s = time.monotonic()
    while not any((folder / "study").glob("trial-0000/CartPole-v1/events*")):
        assert time.monotonic() < begun_s + 120
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("measured", "sign", "expected"), [("end", 1, 7.5), ("best", 1, 9.0), ("best", -1, -2.0), ("mean", -1, 4.0)]
)
def test_one_number_stands_for_a_course(measured: str, sign: int, expected: float) -> None:
    steps = np.array([0, 100, 200, 300, 950, 1000])
    series = Series.of_points(steps, np.array([-2.0, 9.0, 1.0, 1.0, 7.0, 8.0]))
    assert measure(series, Measured(measured), sign) == expected


def test_a_process_that_is_asked_to_end_saves_everything(tmp_path: Path) -> None:
    process = TrialProcess(configuration(tmp_path))
    run = tmp_path / "study" / "trial-0000"
    try:
        wait_for_events(tmp_path)
        assert process.is_running()
        while process.is_running():
            ask_to_stop(run)
            time.sleep(0.1)
        assert process.end() == ""
    finally:
        process.kill()
    assert (run / "CartPole-v1" / "checkpoint.pt").is_file()
    stop_file(run).unlink(missing_ok=True)
    assert [path.name for path in (tmp_path / "study").iterdir() if path.is_file()] == ["trial-0000.yaml"]


@pytest.mark.skipif(sys.platform == "win32", reason="where it has no time for that")
def test_a_process_whose_search_is_killed_saves_everything(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from trajtrainer.tools.search.trial import TrialProcess\n"
        "process = TrialProcess(Path(sys.argv[1])); print(process._process.pid, flush=True); process.end()"
    )
    search = subprocess.Popen(
        [sys.executable, "-c", program, str(configuration(tmp_path))], cwd=ROOT, stdout=subprocess.PIPE
    )
    with search:
        assert search.stdout is not None
        pid = int(search.stdout.readline())
        wait_for_events(tmp_path)
        search.kill()
    begun_s = time.monotonic()
    while is_alive(pid):
        assert time.monotonic() < begun_s + 60
        time.sleep(0.1)
    assert (tmp_path / "study" / "trial-0000" / "CartPole-v1" / "checkpoint.pt").is_file()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX systems")
def test_a_process_is_killed_however_early(tmp_path: Path) -> None:
    process = TrialProcess(configuration(tmp_path))
    process.kill()
    assert process.end() == "its process was killed by the signal SIGKILL"


def test_the_error_of_a_run_is_its_last_line(tmp_path: Path) -> None:
    process = TrialProcess(configuration(tmp_path, summary_freq=0))
    failure = process.end()
    assert failure.startswith("its process exited with code 1\n")
    assert "summary_freq: found 0" in failure.splitlines()[-1]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX systems")
def test_what_a_process_printed_last_is_shown(tmp_path: Path) -> None:
    process = TrialProcess(configuration(tmp_path, "python:tests.tools.search.test_trial:crash"))
    failure = process.end().splitlines()
    assert failure[0] == "its process was killed by the signal SIGABRT"
    assert "  the last words" in failure
    assert (tmp_path / "study" / "trial-0000.log").is_file()


def crash() -> None:
    os.write(2, b"the last words\n")
    os.abort()
