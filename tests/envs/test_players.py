"""Worker processes with real players, which crash, hang, quit and send rubbish."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.envs.clockwork import BEHAVIOR, Recorder, sent
from tests.envs.clockwork_player import AT_START, Plan, write_build
from tests.envs.sim.faults import fault
from tests.ports import free_ports
from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.unity.faults import PlayerVersionError, PortInUseError
from trajtrainer.envs.unity_worker import make_unity_environment
from trajtrainer.envs.workers import supervisor
from trajtrainer.settings.environment import EngineSettings, EnvironmentSettings
from trajtrainer.settings.run import RunSettings

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a script is a build, and signals of POSIX systems")
LIMIT_S = 300.0
PAUSE_S = 0.005  # between steps: without one, players at work take the cores from those that start
NUM_FAULTS = int(os.environ.get("TRAJTRAINER_TEST_FAULTS", "12"))
MANY_LIMIT_S = LIMIT_S + 5 * NUM_FAULTS


class Logs:
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def player_log(self, worker: int) -> Path | None:
        return None if self._folder is None else self._folder / f"Player-{worker}.log"


@contextmanager
def players(
    count: int, env_path: str, base_port: int, *arguments: str, timeout_wait: int = 60, logs: Path | None = None,
    lifetime: int = -1, rate: int = -1, engine: EngineSettings | None = None, num_areas: int = 1,
) -> Iterator[Environment]:  # fmt: skip
    settings = EnvironmentSettings(
        env_path=env_path,
        env_args=list(arguments),
        base_port=base_port,
        num_envs=count,
        num_areas=num_areas,
        timeout_wait=timeout_wait,
        seed=5,
        max_lifetime_restarts=lifetime,
        restarts_rate_limit_n=rate,
    )
    run = RunSettings(env_settings=settings, engine_settings=engine or EngineSettings())
    environment = make_unity_environment(run, Logs(logs))
    try:
        yield environment
    finally:
        environment.close()


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(supervisor, "LONGEST_DELAY_S", 0.1)


def drive(
    environment: Environment, recorder: Recorder, condition: Callable[[], bool], limit_s: float = LIMIT_S
) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, dict(recorder.seen)
        for event in environment.wait(0.25):
            actions = recorder.record(event.worker, event.steps[BEHAVIOR], is_reset=event.is_reset)
            environment.send(event.worker, {BEHAVIOR: actions})
        time.sleep(PAUSE_S)


IN_MAIN_PROCESS = [
    AT_START,
    "crash@{at}:7",
    "crash@{at}:SIGSEGV",
    "crash-in-reset@1",
    "rubbish@0",
    "rubbish@{at}",
    "quit@{at}",
]
ALL_FAULTS = [
    AT_START,
    "crash@{at}:7",
    "crash@{at}:0",
    "crash@{at}:SIGKILL",
    "crash@{at}:SIGABRT",
    "crash-in-reset@1:2",
    "rubbish@0",
    "rubbish@{at}",
    "quit@{at}",
    "nan-observation@{at}",
    "wrong-size@{at}",
    "duplicate-id@{at}",
]
IN_WORKERS = [AT_START, "crash@{at}:7", "rubbish@0"]
HANG = ["hang@{at}"]


@pytest.mark.parametrize(("faults", "count"), [(IN_MAIN_PROCESS, 1), (HANG, 1), (IN_WORKERS, 2), (HANG, 2)])
def test_faults_are_healed(tmp_path: Path, faults: list[str], count: int) -> None:
    """One after the other, in the main process as in workers; the other workers' lives go on."""
    base_port = free_ports(count)
    build = write_build(tmp_path, Plan(base_port, faults, lives=len(faults), longest=9, only_port=base_port))
    recorder = Recorder()
    with players(count, str(build), base_port, timeout_wait=5 if faults == HANG else 60) as one:
        one.reset({})
        # On a busy machine it may take several starts to be there within 5 s.
        healthy = range(len(faults), len(faults) + 8)
        drive(one, recorder, lambda: max(sent(tmp_path).get(each, 0) for each in healthy) > 20)
        drive(one, recorder, lambda: count == 1 or recorder.seen[1000] > 20)
    recorder.check()
    counts = sent(tmp_path)
    for life in range(len(faults)):
        assert counts[life] == recorder.seen.get(life, 0) < 20
    if count == 2:
        assert 1001 not in counts, "the other worker was left alone"


def test_many_faults_at_once_and_not_a_step_lost_or_doubled(tmp_path: Path) -> None:
    count = 3
    base_port = free_ports(count)
    plan = Plan(base_port, ALL_FAULTS, lives=NUM_FAULTS // count, longest=30)
    build = write_build(tmp_path, plan)
    recorder = Recorder()
    healthy = [1000 * worker + plan.lives for worker in range(count)]
    with players(count, str(build), base_port) as environment:
        environment.reset({})
        drive(environment, recorder, lambda: all(recorder.seen[number] > 20 for number in healthy), MANY_LIMIT_S)
    recorder.check()
    counts = sent(tmp_path)
    assert len(counts) == count * (plan.lives + 1)
    for number, messages in counts.items():
        seen = recorder.seen.get(number, 0)
        assert seen == messages or (number in healthy and seen == messages - 1)


def test_beyond_the_quota_the_reason_is_told(tmp_path: Path) -> None:
    base_port = free_ports(2)
    build = write_build(tmp_path, Plan(base_port, ["crash@{at}:9"], lives=9, longest=9))
    reason = r"Environment \d failed and will not be restarted.*restarts_rate_limit_n: 1.*return code 9"
    with players(2, str(build), base_port, rate=1) as environment:
        environment.reset({})
        with pytest.raises(EnvironmentFaultError, match=reason):
            drive(environment, Recorder(), lambda: False)


@pytest.mark.parametrize("count", [1, 2])
def test_a_wrong_version_is_told_at_once(count: int) -> None:
    with (
        pytest.raises(PlayerVersionError, match=r"9\.0\.0"),
        players(count, "sim:Basic", free_ports(count), *fault("wrong-version:9.0.0")),
    ):
        pass


def test_each_worker_has_its_port_seed_log_and_window(tmp_path: Path) -> None:
    base_port = free_ports(2)
    engine = EngineSettings(no_graphics_monitor=True)
    with players(2, "sim:Basic", base_port, logs=tmp_path, engine=engine, num_areas=3) as environment:
        environment.reset({})
        seen: set[int] = set()
        end_s = time.monotonic() + LIMIT_S
        while len(seen) < 2 and time.monotonic() < end_s:
            seen |= {event.worker for event in environment.wait(1.0)}
        for worker in range(2):
            log = tmp_path / f"Player-{worker}.log"
            assert f"seed {5 + worker}, 3 areas" in log.read_text()
            command = next(line for line in command_lines() if str(log) in line)
            assert command[command.index("--mlagents-port") + 1] == str(base_port + worker)
            assert ("-nographics" in command) == ("-batchmode" in command) == (worker != 0)


def command_lines() -> list[list[str]]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "cmdline").read_bytes().decode(errors="replace").split("\0"))
            except OSError:
                continue
    return found


@contextmanager
def listener(port: int) -> Iterator[None]:
    with closing(socket.socket()) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        yield


def test_a_port_that_is_taken_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    base_port = free_ports(3)
    monkeypatch.setattr("trajtrainer.envs.unity.ports.BASE_PORT", base_port)
    with listener(base_port), players(1, "sim:Basic", base_port, logs=tmp_path) as environment:
        environment.reset({})
        assert len(environment.wait(LIMIT_S)) == 1
        (message,) = [record.getMessage() for record in caplog.records if "in use" in record.getMessage()]
        assert f"Port {base_port} is in use" in message
        assert f"Using port {base_port + 1} instead." in message
        if sys.platform == "linux":
            assert f"process {os.getpid()} (" in message


def wait_for_all(count: int, base_port: int) -> None:
    """Wait until all players are there, the others beside the first one."""
    with players(count, "sim:Basic", base_port) as environment:
        environment.reset({})
        for _ in range(int(LIMIT_S)):
            environment.wait(1.0)


@pytest.mark.parametrize("count", [1, 2])
def test_a_port_that_the_user_chose_must_be_free(count: int) -> None:
    base_port = free_ports(2)
    taken = base_port + count - 1
    with listener(taken), pytest.raises(PortInUseError, match=f"Port {taken} .*process {os.getpid()}"):
        wait_for_all(count, base_port)


@pytest.mark.parametrize("count", [1, 3])
def test_a_missing_build_is_told_at_once(count: int, tmp_path: Path) -> None:
    with (
        pytest.raises(EnvironmentFaultError, match="Couldn't launch"),
        players(count, str(tmp_path / "nothing"), free_ports(count)),
    ):
        pass


def test_a_run_that_ends_while_its_only_player_starts_again_does_not_wait_for_it(tmp_path: Path) -> None:
    base_port = free_ports(1)
    build = write_build(tmp_path, Plan(base_port, ["crash@{at}:7"], lives=1, longest=3))
    recorder = Recorder()
    with players(1, str(build), base_port) as environment:
        environment.reset({})
        drive(environment, recorder, lambda: len(sent(tmp_path)) == 2)
    end_s = time.monotonic() + LIMIT_S
    while any(str(build) in line for line in command_lines()):
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_a_killed_player_is_replaced(tmp_path: Path) -> None:
    base_port = free_ports(2)
    build = write_build(tmp_path, Plan(base_port, ["quit@{at}"], lives=0, longest=9))
    recorder = Recorder()
    with players(2, str(build), base_port) as environment:
        environment.reset({})
        drive(environment, recorder, lambda: len(recorder.seen) == 2)
        os.kill(player_at(base_port), signal.SIGKILL)
        drive(environment, recorder, lambda: recorder.seen[1] > 20)
    recorder.check()


@pytest.mark.parametrize("count", [1, 2])
def test_the_log_of_a_player_that_crashed_is_kept(count: int, tmp_path: Path) -> None:
    once = fault("crash@3:7", once=tmp_path / "once")
    with players(count, "sim:Basic", free_ports(count), *once, logs=tmp_path) as environment:
        environment.reset({})
        end_s = time.monotonic() + LIMIT_S
        while not list(tmp_path.glob("Player-?.1.log")):
            assert time.monotonic() < end_s
            for event in environment.wait(0.25):
                environment.send(event.worker, {})
    (log,) = tmp_path.glob("Player-?.1.log")
    assert "fault on request: Fault(kind='crash', step=3" in log.read_text()


def player_at(port: int) -> int:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if "--mlagents-port" in command and command[command.index("--mlagents-port") + 1] == str(port):
                return int(entry.name)
    raise AssertionError(f"no player at port {port}")
