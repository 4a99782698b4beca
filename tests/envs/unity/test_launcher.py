"""Players' processes: arguments, how they end, and that none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trajtrainer.envs.unity import launcher
from trajtrainer.envs.unity.faults import LaunchError
from trajtrainer.envs.unity.launcher import PlayerProcess, player_arguments

LIMIT_S = 300.0
posix = pytest.mark.skipif(os.name != "posix", reason="signals and scripts of POSIX systems")


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({}, ["--mlagents-port", "5005"]),
        ({"no_graphics": True}, ["-nographics", "-batchmode", "--mlagents-port", "5005"]),
        ({"no_graphics_monitor": True}, ["--mlagents-port", "5005"]),
        ({"no_graphics_monitor": True, "worker_id": 2}, ["-nographics", "-batchmode", "--mlagents-port", "5005"]),
        (
            {"log_folder": "/logs", "worker_id": 3, "additional_args": ["--level", "2"]},
            ["--mlagents-port", "5005", "-logFile", os.path.abspath("/logs/Player-3.log"), "--level", "2"],
        ),
        (
            {"log_folder": "/logs", "additional_args": ["-LOGFILE", "mine.log"]},
            ["--mlagents-port", "5005", "-LOGFILE", "mine.log"],
        ),
    ],
)
def test_arguments(keywords: dict[str, object], expected: list[str]) -> None:
    assert player_arguments(5005, **keywords) == expected  # type: ignore[arg-type]


def test_the_logs_path_is_absolute() -> None:
    arguments = player_arguments(5005, log_folder="results/run/run_logs")
    assert arguments[-1] == os.path.abspath("results/run/run_logs/Player-0.log")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["game", "-logFile", "a.log"], Path("a.log")),
        (["game", "-logfile", "a.log", "x"], Path("a.log")),
        (["game", "-logFile", "-"], None),
        (["game", "-logFile"], None),
        (["game"], None),
    ],
)
def test_log_file(arguments: list[str], expected: Path | None) -> None:
    assert launcher.log_file(arguments) == expected


@contextmanager
def started(*arguments: str) -> Iterator[tuple[PlayerProcess, threading.Event]]:
    """A process that is gone afterwards, and the event of its end."""
    ended = threading.Event()
    process = PlayerProcess(arguments, show_output=False, on_exit=ended.set)
    try:
        yield process, ended
    finally:
        process.kill()
        assert ended.wait(LIMIT_S)


def python(program: str) -> tuple[str, str, str]:
    return sys.executable, "-c", program


def test_an_end_is_noticed_with_its_return_code() -> None:
    with started(*python("raise SystemExit(7)")) as (process, ended):
        assert ended.wait(LIMIT_S)
        assert process.has_ended
        assert process.describe_end() == "exited with return code 7"


@posix
def test_a_signal_is_named() -> None:
    with started(*python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")) as (process, ended):
        assert ended.wait(LIMIT_S)
        assert process.describe_end() == "was killed by the signal SIGSEGV"


class Pipe:
    """A named pipe that a player opens when it is ready, and that closes when it is gone."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ready"
        os.mkfifo(self.path)

    def opened(self, then: str) -> str:
        """A program that opens the pipe, says so, and holds it."""
        return f"import time; pipe = open({str(self.path)!r}, 'w'); print('ready', file=pipe, flush=True); {then}"

    def wait_until_opened(self) -> None:
        self._reader = self.path.open()
        assert self._reader.readline() == "ready\n"

    def wait_until_closed(self) -> None:
        thread = threading.Thread(target=self._reader.read, daemon=True)
        thread.start()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        self._reader.close()


@posix
def test_stop_asks_then_forces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A player that ignores SIGTERM ends all the same, and so does what it has started."""
    pipe = Pipe(tmp_path)
    child = pipe.opened("time.sleep(600)")
    program = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"subprocess.run([sys.executable, '-c', {child!r}])"
    )
    monkeypatch.setattr(launcher, "_TERMINATE_GRACE_S", 0.1)
    with started(*python(program)) as (process, ended):
        pipe.wait_until_opened()
        process.stop(0.0)
        assert ended.wait(LIMIT_S)
        assert process.describe_end() == "was killed by the signal SIGKILL"
        pipe.wait_until_closed()


@posix
def test_stop_of_a_player_that_obeys() -> None:
    with started(*python("import time; time.sleep(600)")) as (process, ended):
        process.stop(0.0)
        assert ended.is_set()
        assert process.describe_end() == "was killed by the signal SIGTERM"
        process.stop(0.0)


def test_stop_lets_a_player_end_by_itself() -> None:
    with started(*python("pass")) as (process, _):
        process.stop(LIMIT_S)
        assert process.describe_end() == "exited with return code 0"


@posix
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_no_player_outlives_the_trainer(tmp_path: Path, name: str) -> None:
    """Whatever ends the trainer: the guard ends a player that would hang for ever."""
    pipe = Pipe(tmp_path)
    program = (
        "import sys, time\n"
        "from trajtrainer.envs.unity.launcher import PlayerProcess\n"
        f"player = [sys.executable, '-c', {pipe.opened('time.sleep(600)')!r}]\n"
        "PlayerProcess(player, show_output=False, on_exit=lambda: None)\n"
        "print(flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(python(program), stdout=subprocess.PIPE) as trainer:
        pipe.wait_until_opened()
        assert trainer.stdout is not None
        assert trainer.stdout.readline()
        trainer.send_signal(signal.Signals[name])
        pipe.wait_until_closed()


@posix
def test_a_file_that_is_not_executable(tmp_path: Path) -> None:
    file = tmp_path / "Ball.x86_64"
    file.write_text("#!/bin/sh\n")
    file.chmod(0o644)
    with pytest.raises(LaunchError, match=f'"chmod -R 755 {file}"'):
        PlayerProcess([str(file)], show_output=False, on_exit=lambda: None)


@posix
def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    file = tmp_path / "Ball.x86_64"
    file.write_bytes(b"MZ\x90\x00")
    file.chmod(0o755)
    with pytest.raises(LaunchError, match="a build for this operating system"):
        PlayerProcess([str(file)], show_output=False, on_exit=lambda: None)


def test_the_tail_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "Player-0.log"
    program = f"open({str(log)!r}, 'w').write('\\n'.join(f'line {{i}}' for i in range(5000)))"
    with started(*python(program), "-logFile", str(log)) as (process, ended):
        assert ended.wait(LIMIT_S)
        tail = process.last_words().splitlines()
    assert tail[0] == f"The end of its log {log}:"
    assert tail[1:] == [f"  line {index}" for index in range(4985, 5000)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "location of its log is unknown"),
        (["-logFile", "/nowhere/at/all.log"], "cannot be read"),
        (["-logFile", os.devnull], "is empty"),
    ],
)
def test_logs_that_tell_nothing(arguments: list[str], text: str) -> None:
    with started(*python("pass"), *arguments) as (process, ended):
        assert ended.wait(LIMIT_S)
        assert text in process.last_words()


def test_the_cause_on_standard_error_comes_before_the_log(tmp_path: Path) -> None:
    log = tmp_path / "Player-0.log"
    log.write_text(
        "Mono path[0] = '/game'\nKeyNotFoundException: the cause in the log\n\nUnloadTime: 0.7 ms\n"
        "Memory Statistics:\n[ALLOC_TEMP_TLS] TLS Allocator\n" + "      Peak Allocated Bytes 0.6 KB\n" * 500
    )
    program = "import sys; sys.stderr.write('early\\n' * 50_000 + 'Segmentation fault: the cause\\n'); sys.exit(3)"
    with started(*python(program), "-logFile", str(log)) as (process, ended):
        assert ended.wait(LIMIT_S)
        found = process.last_words().splitlines()
    assert found[0] == "The end of its standard error output:"
    assert found[1:16] == ["  early"] * 14 + ["  Segmentation fault: the cause"]
    assert found[16:] == [
        f"The end of its log {log}:",
        "  Mono path[0] = '/game'",
        "  KeyNotFoundException: the cause in the log",
    ]


@posix
def test_an_end_is_noticed_while_something_else_holds_standard_error() -> None:
    program = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "sys.stderr.write('the cause'); sys.stderr.flush()"
    )
    with started(*python(program)) as (process, ended):
        assert ended.wait(LIMIT_S)
        assert "the cause" in process.last_words()
        os.killpg(process.pid, signal.SIGKILL)


def test_logs_are_set_aside_and_the_oldest_go(tmp_path: Path) -> None:
    log = launcher.own_log(str(tmp_path), 0)
    launcher.set_aside(log)
    other = tmp_path / "Player-1.log"
    other.write_text("of another worker")
    for player in range(8):
        launcher.set_aside(log)
        log.write_text(f"player {player}")
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found.pop("Player-1.log") == "of another worker"
    assert found == {"Player-0.log": "player 7"} | {f"Player-0.{n}.log": f"player {7 - n}" for n in range(1, 6)}


@posix
@pytest.mark.parametrize(("grace_s", "text"), [(0.0, ""), (0.01, "did not exit on its own within 0.01 s")])
def test_only_who_was_given_time_is_said_to_have_let_it_pass(
    grace_s: float, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with started(*python("import time; time.sleep(600)")) as (process, _):
        process.stop(grace_s)
    assert text in caplog.text
    assert "within 0 s" not in caplog.text
