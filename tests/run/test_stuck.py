"""The user's code does not return: it is named, and the run is saved and ends without it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import trajtrainer
from tests.run import prefork
from tests.run.runs import LearnProcess, behaviors_settings, learn, ppo
from tests.run.stuck_worlds import EPISODE, StuckWorld
from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.run import user_calls
from trajtrainer.run.user_calls import OneCall, UserCalls

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals, locks a mutex of pthreads")

ENDS_WITHIN_S = 120.0
LIMIT_S = 3  # of a call, where it is to be exceeded
AT = 700
WORLD = "--env=python:tests.run.stuck_worlds:StuckWorld"


def settings(max_steps: int = 1_000_000, **changes: Any) -> dict[str, Any]:
    return behaviors_settings(StuckWorld=ppo(max_steps, summary_freq=200, checkpoint_interval=1_000_000, **changes))


# Waits less long after a signal until it gives a call up; ``test_a_second_signal_loses_nothing`` waits as users do.
IMPATIENT = """
import sys
from trajtrainer.cli.main import main
from trajtrainer.run import user_calls
user_calls._PATIENCE_S = 1.0
sys.exit(main(sys.argv[1:]))
"""


def started(
    tmp_path: Path,
    call: str,
    at: int,
    way: str,
    given: dict[str, Any] | None = None,
    program: str | None = IMPATIENT,
) -> LearnProcess:
    """A run that is stuck."""
    told = tmp_path / "told"
    arguments = ("--env-args", f"call={call}", f"at={at}", f"way={way}", f"told={told}")
    run = LearnProcess(tmp_path, given or settings(), WORLD, *arguments, program=program)
    run.wait_for(told.is_file)
    return run


def steps_of(folder: Path) -> int:
    checkpoint = torch.load(folder / "StuckWorld" / "checkpoint.pt", weights_only=True)
    return int(checkpoint["global_step"]["_GlobalSteps__global_step"])


@pytest.mark.parametrize(
    ("number", "way", "threaded"),
    [(signal.SIGTERM, "lock", False), (signal.SIGINT, "loop", False), (signal.SIGTERM, "lock", True)],
)
def test_a_signal_saves_a_run_whose_environment_does_not_return(
    tmp_path: Path, number: signal.Signals, way: str, threaded: bool
) -> None:
    run = started(tmp_path, "step", AT, way, settings(threaded=threaded))
    run.send(number)
    finished = run.finish(ENDS_WITHIN_S)
    assert finished.exit_code == (143 if number is signal.SIGTERM else 0), finished.output
    assert "The step of the environment StuckWorld has not returned for" in finished.output
    assert f"stuck_worlds.py:{line_of(way)}, in {way})" in finished.output
    assert "Traceback" not in finished.output
    assert "To continue: " in finished.output.splitlines()[-1]
    saved = steps_of(run.folder)
    assert finished.status()["StuckWorld"]["final_checkpoint"]["steps"] == saved
    assert AT - 256 <= steps_of(run.folder) < AT
    assert (run.folder / "StuckWorld.onnx").is_file()
    assert (run.folder / "run_logs" / "timers.json").is_file()
    again = learn(
        tmp_path, settings(AT + 300), WORLD, "--resume", "--env-args", "call=none", f"told={tmp_path / 'again'}"
    )
    assert again.exit_code == 0, again.output
    assert f"Resuming training from step {saved}" in again.output


def line_of(way: str) -> int:
    """The line on which a function of ``stuck_worlds`` stays."""
    lines = Path(sys.modules[StuckWorld.__module__].__file__ or "").read_text().splitlines()
    wanted = {"loop": "        time.sleep(0.1)", "lock": "    library.pthread_mutex_lock(mutex)"}[way]
    return max(number for number, line in enumerate(lines, 1) if line == wanted)


def test_a_second_signal_loses_nothing(tmp_path: Path) -> None:
    run = started(tmp_path, "step", AT, "lock", program=None)
    run.send(signal.SIGTERM)
    run.wait_for(lambda: "Stopping: saving everything" in run.output)
    end = time.monotonic() + ENDS_WITHIN_S
    while run.process.poll() is None and time.monotonic() < end:
        run.send(signal.SIGINT)
        time.sleep(0.2)
    finished = run.finish(ENDS_WITHIN_S)
    assert finished.exit_code == 143, finished.output
    assert "exiting at once" not in finished.output
    assert AT - 256 <= steps_of(run.folder) < AT
    assert (run.folder / "StuckWorld.onnx").is_file()


@pytest.mark.parametrize(("call", "at"), [("reset", AT // EPISODE), ("step", AT)])
def test_a_call_beyond_the_limit_ends_the_run_with_everything_saved(tmp_path: Path, call: str, at: int) -> None:
    arguments = ("--env-args", f"call={call}", f"at={at}", f"told={tmp_path / 'told'}")
    finished = learn(tmp_path, settings(), WORLD, f"--python-timeout={LIMIT_S}", *arguments)
    assert finished.exit_code == 1, finished.output
    assert f"The {call} of the environment StuckWorld has not returned for" in finished.output
    assert f"It is abandoned after {LIMIT_S} s (env_settings.python_timeout)." in finished.output
    assert "Traceback" not in finished.output
    assert f"--python-timeout={LIMIT_S}" in finished.output.splitlines()[-1]
    assert finished.status()["StuckWorld"]["final_checkpoint"]["steps"] == steps_of(finished.folder) > 0


def test_the_copy_that_is_stuck_is_named(tmp_path: Path) -> None:
    arguments = ("--num-envs=2", "--env-args", "call=step", "at=50", f"told={tmp_path / 'told'}")
    finished = learn(tmp_path, settings(), WORLD, f"--python-timeout={LIMIT_S}", *arguments)
    assert "The step of the environment StuckWorld (copy 0) has not returned for" in finished.output


def test_an_environment_that_does_not_close_costs_nothing(tmp_path: Path) -> None:
    run = started(tmp_path, "close", 1, "lock", settings(500))
    run.wait_for(lambda: "Curves: " in run.output)
    run.send(signal.SIGTERM)
    finished = run.finish(ENDS_WITHIN_S)
    assert finished.exit_code == 143, finished.output
    assert "The close of the environment StuckWorld has not returned for" in finished.output
    assert finished.output.count("steps, mean return") == 1
    assert finished.status()["StuckWorld"]["final_checkpoint"]["steps"] == steps_of(run.folder) > 500


def test_an_environment_whose_making_is_stuck_is_given_up(tmp_path: Path) -> None:
    run = started(tmp_path, "make", 1, "lock")
    run.send(signal.SIGTERM)
    finished = run.finish(ENDS_WITHIN_S)
    assert finished.exit_code == 143, finished.output
    assert "The code that makes the environment python:tests.run.stuck_worlds:StuckWorld" in finished.output
    assert "nothing was trained" in finished.output


WITH_WRITER = """
import sys
from pathlib import Path
from tests.run.stuck_worlds import lock
from trajtrainer.cli.main import main
from trajtrainer.core.plugins import Registry
from trajtrainer.run import followers
from trajtrainer.core.stats import STATS_WRITERS, StatsWriter, StatsWriterRow

class Stuck(StatsWriter):
    def write_stats(self, category, values, step):
        if step >= 600:
            Path(sys.argv[1]).write_text("stuck")
            lock()

rows = {**STATS_WRITERS.builtin, "theirs": StatsWriterRow(lambda _: Stuck())}
followers.STATS_WRITERS = Registry("statistics writer", "nobody's", StatsWriterRow, rows)
sys.exit(main(["learn", *sys.argv[2:]]))
"""


@pytest.mark.parametrize(("is_stopped", "threaded"), [(False, True), (True, False)])
def test_a_statistics_writer_that_does_not_return(tmp_path: Path, is_stopped: bool, threaded: bool) -> None:
    told, config = tmp_path / "told", tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(settings(threaded=threaded)))
    limit = 1000 if is_stopped else LIMIT_S
    arguments = [str(told), str(config), f"--results-dir={tmp_path}", "--run-id=run"]
    arguments += [WORLD, f"--python-timeout={limit}", "--env-args", "call=none", f"told={tmp_path / 'none'}"]
    with (tmp_path / "log").open("w") as log:
        run = prefork.start(arguments, log, WITH_WRITER)
    try:
        end = time.monotonic() + ENDS_WITHIN_S
        while not told.is_file() and run.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        if is_stopped:
            run.send_signal(signal.SIGTERM)
        code = run.wait(ENDS_WITHIN_S)
    finally:
        run.kill()
        run.wait()
    output = (tmp_path / "log").read_text()
    assert code == (143 if is_stopped else 1), output
    assert "The call write_stats() of the statistics writer 'theirs' has not returned for" in output
    assert "stuck_worlds.py:" in output
    assert "To continue: " in output.splitlines()[-1]
    assert 400 < steps_of(tmp_path / "run") <= 600


def test_a_program_keeps_its_process_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call returns in the end, and the run with an error, everything saved."""
    monkeypatch.setattr(user_calls, "_PATIENCE_S", 0.5)
    told = tmp_path / "told"
    given = settings()
    given["env_settings"]["python_timeout"] = 5
    with pytest.raises(EnvironmentFaultError, match=r"The step of the environment StuckWorld has not returned"):
        trajtrainer.learn(
            given,
            lambda: StuckWorld("step", str(told), AT, seconds=12.0),
            run_id="run",
            results_dir=tmp_path,
            verbose=False,
        )
    assert AT - 256 <= steps_of(tmp_path / "run") <= AT


def test_whoever_holds_the_state_keeps_threads_in_the_users_code() -> None:
    calls, order = UserCalls(), []
    inside, leave, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        with calls.working():
            with calls.outside(OneCall("The call")), calls.outside(OneCall("A call within it")):
                inside.set()
                leave.wait(30)
            order.append("works")
        done.set()

    threading.Thread(target=work, daemon=True).start()
    assert inside.wait(30)
    assert [caller.describe() for caller in calls.under_way().values()] == ["The call"]
    with calls.held() as held:
        assert held
        leave.set()
        assert not done.wait(0.2)
        order.append("saves")
    assert done.wait(30)
    assert order == ["saves", "works"]
    with calls.working(), calls.held() as held:
        assert not held, "this thread is at work"


SAVING = """
import signal
from trajtrainer.run import signals
from trajtrainer.run.signals import StopRequest, stop_on_signals
signals.GRACE_S = 0.0
with stop_on_signals(StopRequest()) as stop:
    signal.raise_signal(signal.SIGTERM)
    with stop.saving():
        signal.raise_signal(signal.SIGTERM)
        print("saved", flush=True)
    signal.raise_signal(signal.SIGTERM)
    print("goes on", flush=True)
"""


def test_a_further_signal_does_not_break_off_the_saving() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SAVING],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (ended.stdout, ended.returncode) == ("saved\n", 143), ended.stderr
