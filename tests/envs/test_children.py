"""Real worker processes, with environments that need no player."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.envs.clockwork import BEHAVIOR, Recorder, actions_for, sent
from tests.envs.fake_worlds import ClockworkMaker, EchoEnvironment
from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.core.steps import EnvironmentEvent
from trajtrainer.envs.children import EVENT, Children, EnvironmentMaker
from trajtrainer.envs.supervised import SupervisedChildren
from trajtrainer.envs.workers import supervisor
from trajtrainer.envs.workers.messages import ChildBugError, LockedPipe
from trajtrainer.envs.workers.shared_memory import SharedMemory
from trajtrainer.settings.environment import ConstantSettings, EnvironmentSettings

LIMIT_S = 300.0
UNLIMITED = EnvironmentSettings(max_lifetime_restarts=-1, restarts_rate_limit_n=-1)


class Clock:
    """The time, of which a test can skip some."""

    def __init__(self) -> None:
        self.skipped_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.skipped_s


@contextmanager
def workers(
    count: int,
    maker: EnvironmentMaker,
    settings: EnvironmentSettings = UNLIMITED,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[SupervisedChildren, Children]]:
    """Workers that are gone at the end, with all that was theirs."""
    if sys.platform == "linux":
        resource_tracker.ensure_running()  # it starts with the first process and stays
    open_before = open_files()
    children = Children(count, maker)
    environment = SupervisedChildren(children, settings, LIMIT_S, clock)
    processes = pids(children)
    try:
        yield environment, children
        processes = pids(children)
    finally:
        environment.close()
    assert not any(is_alive(pid) for pid in processes)
    if sys.platform == "linux":
        # The last event that a test keeps has memory of its own.
        assert len(open_files() - open_before) <= 1


def open_files() -> set[tuple[str, str]]:
    """Number and target of what this process has open."""
    found = set()
    for link in Path("/proc/self/fd").iterdir() if sys.platform == "linux" else ():
        with contextlib.suppress(FileNotFoundError):
            found.add((link.name, os.readlink(link)))
    return found


def pids(children: Children) -> list[int]:
    processes = [children[number].process for number in range(len(children))]
    return [process.pid for process in processes if process is not None and process.pid is not None]


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid)


def until(condition: Callable[[], bool], timeout_s: float = LIMIT_S) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def next_event(environment: SupervisedChildren) -> EnvironmentEvent:
    (event,) = environment.wait(LIMIT_S)
    return event


def statistics(event: EnvironmentEvent) -> dict[str, float]:
    return {statistic.key: statistic.value for statistic in event.statistics}


def answer(environment: SupervisedChildren, event: EnvironmentEvent) -> None:
    batch = event.steps[BEHAVIOR]
    observations = np.asarray(batch.obs[0][batch.num_terminal :], np.float32)
    environment.send(event.worker, {BEHAVIOR: actions_for(observations)})


def drive(environment: SupervisedChildren, recorder: Recorder, condition: Callable[[], bool]) -> None:
    """Steps until ``condition`` holds."""
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s
        for event in environment.wait(0.25):
            batch = event.steps[BEHAVIOR]
            actions = recorder.record(event.worker, batch, is_reset=event.is_reset)
            environment.send(event.worker, {BEHAVIOR: actions})


def test_what_workers_send_is_recorded_and_what_they_get_fits(tmp_path: Path) -> None:
    recorder = Recorder()
    with workers(3, ClockworkMaker(tmp_path)) as (environment, _):
        environment.reset({})
        drive(environment, recorder, lambda: len(recorder.seen) == 3 and min(recorder.seen.values()) > 100)
    recorder.check()
    assert recorder.seen.keys() == sent(tmp_path).keys() == {0, 1000, 2000}
    for incarnation, count in sent(tmp_path).items():
        assert recorder.seen[incarnation] <= count <= recorder.seen[incarnation] + 1


def test_parameters_statistics_and_messages_of_any_size() -> None:
    with workers(1, EchoEnvironment) as (environment, _):
        environment.reset({"level": ConstantSettings(value=3.0)})
        event = next_event(environment)
        assert event.is_reset
        assert list(event.new_specs) == [BEHAVIOR]
        assert statistics(event).pop("process") != os.getpid()
        assert statistics(event)["level"] == 3.0
        for copies in (1, 5000, 2, 40_000, 1):
            environment.set_parameters({"copies": ConstantSettings(value=copies)})
            answer(environment, event)
            event = next_event(environment)
            assert not event.is_reset
            assert not event.new_specs
            assert len(event.steps[BEHAVIOR]) == copies + 2
            assert event.steps[BEHAVIOR].agent[-1] == 2
            assert event.steps[BEHAVIOR].obs[0][-1].tolist() == [0, 2, 0, 0]


def test_a_signal_that_ends_a_wait_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows ends a wait for pipes so, once the signal's handler is through; elsewhere Python waits on."""
    recorder = Recorder()
    interrupted: list[object] = []

    def interrupt_at_first(*arguments: Any) -> list[Any]:
        if len(interrupted) < 3:
            interrupted.append(arguments)
            raise InterruptedError(errno.EINTR, "Interrupted system call")
        return wait(*arguments)

    with workers(1, ClockworkMaker(tmp_path)) as (environment, children):
        environment.reset({})
        monkeypatch.setattr("trajtrainer.envs.workers.process.wait", interrupt_at_first)
        before = pids(children)
        drive(environment, recorder, lambda: bool(recorder.seen))
        assert len(interrupted) == 3
        assert pids(children) == before
    recorder.check()


def test_a_worker_that_is_silent_holds_nobody_back(tmp_path: Path) -> None:
    recorder, clock = Recorder(), Clock()
    maker = ClockworkMaker(tmp_path, faults=["hang"], lives=1, longest=2)
    with workers(1, maker, clock=clock) as (environment, children):
        environment.reset({})
        (stuck,) = pids(children)
        drive(environment, recorder, lambda: recorder.seen[0] == 1)
        clock.skipped_s = 2 * LIMIT_S  # there is no second answer
        drive(environment, recorder, lambda: recorder.seen[1] > 5)
        assert pids(children) != [stuck]


@dataclass
class Talkative:
    """Logs behind the main process's back, and only then answers. The file ``answered`` says that it has."""

    marks: Path

    def __call__(self, worker: int) -> EchoEnvironment:
        post = LockedPipe.post

        def telling(pipe: LockedPipe, kind: bytes, *content: object) -> None:
            post(pipe, kind, *content)
            if kind == EVENT:
                (self.marks / "answered").touch()

        LockedPipe.post = telling  # type: ignore[method-assign, assignment]
        return _TalkativeEnvironment(worker)


class _TalkativeEnvironment(EchoEnvironment):
    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        logging.getLogger("trajtrainer.test").warning("about to answer")
        return super().wait(timeout_s)


def test_an_answer_behind_a_log_record_is_not_late(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The main process was busy for longer than a worker may be silent, and finds the record first."""
    clock = Clock()
    with workers(1, Talkative(tmp_path), clock=clock) as (environment, children):
        (pid,) = pids(children)
        environment.reset({})
        until(lambda: (tmp_path / "answered").exists())
        clock.skipped_s = 2 * LIMIT_S
        assert next_event(environment).is_reset
        assert pids(children) == [pid]
    assert "about to answer" in caplog.text
    assert "Restarting" not in caplog.text


def test_three_hundred_faults_and_not_a_step_lost_or_doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments that fail at their start, in a reset and at work, and processes that end in the midst of it."""
    monkeypatch.setattr(supervisor, "FIRST_DELAY_S", 0.0)
    kinds = ["raise"] * 20 + ["start", "reset"] * 2 + ["exit", "kill"]
    maker = ClockworkMaker(tmp_path, faults=kinds, lives=75, longest=40)
    recorder = Recorder()
    with workers(4, maker) as (environment, _):
        environment.reset({})
        healthy = [1000 * worker + maker.lives for worker in range(4)]
        drive(environment, recorder, lambda: all(recorder.seen[number] > 20 for number in healthy))
    recorder.check()
    counts = sent(tmp_path)
    assert len(counts) == 4 * maker.lives + 4, "each of 300 lives ended with a fault, and nobody was started twice"
    died = [number for number in counts if number not in healthy]
    assert {number: counts[number] for number in died if counts[number]} == {
        number: count for number, count in recorder.seen.items() if number in died
    }


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_worker_killed_from_outside_is_replaced(tmp_path: Path, name: str) -> None:
    recorder = Recorder()
    with workers(2, ClockworkMaker(tmp_path, step_s=0.001)) as (environment, children):
        environment.reset({})
        drive(environment, recorder, lambda: len(recorder.seen) == 2)
        first, second = pids(children)
        os.kill(first, signal.Signals[name])
        drive(environment, recorder, lambda: 1 in recorder.seen and recorder.seen[1000] > 20)
        assert pids(children)[1] == second
        assert pids(children)[0] != first
    recorder.check()


def test_a_bug_is_shown_with_its_traceback(tmp_path: Path) -> None:
    maker = ClockworkMaker(tmp_path, faults=["bug"], lives=1, longest=2)
    with workers(1, maker) as (environment, _):
        environment.reset({})
        with pytest.raises(ChildBugError, match=r"(?s)fake_worlds\.py.*KeyError: 'a bug on request'"):
            drive(environment, Recorder(), lambda: False)


def test_beyond_the_quota(tmp_path: Path) -> None:
    maker = ClockworkMaker(tmp_path, faults=["raise"], lives=9, longest=2)
    with workers(1, maker, EnvironmentSettings()) as (environment, _):
        environment.reset({})
        with pytest.raises(EnvironmentFaultError, match=r"Environment 0 .*restarts_rate_limit_n: 1.*raised on request"):
            drive(environment, Recorder(), lambda: False)


def test_a_start_that_always_fails(tmp_path: Path) -> None:
    maker = ClockworkMaker(tmp_path, faults=["start"], lives=9)
    with pytest.raises(EnvironmentFaultError, match="raised on request"), workers(2, maker, EnvironmentSettings()):
        pass


def test_shared_memory_has_no_name_that_could_be_left_behind(tmp_path: Path) -> None:
    with workers(1, EchoEnvironment) as (environment, children):
        environment.reset({})
        for _ in range(2):  # from then on both ends have opened what the other has made
            answer(environment, next_event(environment))
        next_event(environment)
        for memory in (children[0]._steps.memory, children[0]._actions.memory):
            assert memory is not None
            with pytest.raises(OSError, match="No such file"):
                SharedMemory.open(memory.address)


def test_workers_log_through_the_main_process(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "trajtrainer"), workers(2, LoggingMaker()) as (environment, _):
        environment.reset({})
        seen: set[int] = set()
        end_s = time.monotonic() + LIMIT_S
        while len(seen) < 2 and time.monotonic() < end_s:
            seen |= {event.worker for event in environment.wait(1.0)}
    messages = [record.getMessage() for record in caplog.records if record.name == "trajtrainer.test"]
    assert sorted(messages) == ["Environment 0: careful", "Environment 1: careful", "hello from 0"]


class LoggingMaker:
    """Logs as an environment may while it starts."""

    def __call__(self, worker: int) -> EchoEnvironment:
        logger = logging.getLogger("trajtrainer.test")
        logger.info("hello from %d", worker)
        logger.warning("careful")
        return EchoEnvironment(worker)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_many_workers_are_small_and_without_torch() -> None:
    count = int(os.environ.get("TRAJTRAINER_TEST_WORKERS", "6"))
    with workers(count, EchoEnvironment) as (environment, children):
        environment.reset({})
        seen: set[int] = set()
        end_s = time.monotonic() + 10 * LIMIT_S
        while len(seen) < count and time.monotonic() < end_s:
            seen |= {event.worker for event in environment.wait(1.0)}
        assert seen == set(range(count))
        for pid in pids(children):
            assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
            assert resident_mb(pid) < 90


def resident_mb(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def test_scripts_without_a_main_guard_may_have_workers(tmp_path: Path) -> None:
    """The script is not run again in the workers."""
    script = tmp_path / "script.py"
    script.write_text(
        "print('run', flush=True)\n"
        "from tests.envs.fake_worlds import EchoEnvironment\n"
        "from trajtrainer.envs.children import Children\n"
        "from trajtrainer.envs.supervised import SupervisedChildren\n"
        "from trajtrainer.settings.environment import EnvironmentSettings\n"
        "environment = SupervisedChildren(Children(2, EchoEnvironment), EnvironmentSettings(), 60.0)\n"
        "environment.reset({})\n"
        "print(len(environment.wait(60.0)) > 0)\n"
        "environment.close()\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert (done.stdout.split(), done.stderr, done.returncode) == (["run", "True"], "", 0)


@pytest.mark.skipif(sys.platform == "win32", reason="such limits are of POSIX systems")
@pytest.mark.parametrize(("most", "outcome"), [(128, "ulimit -n 640"), (4096, "limit (640, 4096)")])
def test_too_few_open_files_are_told_before_anything_starts(most: int, outcome: str) -> None:
    """A limit that may be raised is raised."""
    program = (
        "import resource\n"
        "from trajtrainer.envs.children import Children\n"
        "from trajtrainer.envs.unity.faults import LaunchError\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (128, {most}))\n"
        "try:\n"
        "    Children(64, None)\n"
        "    print('limit', resource.getrlimit(resource.RLIMIT_NOFILE))\n"
        "except LaunchError as error:\n"
        "    print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert outcome in found.stdout
