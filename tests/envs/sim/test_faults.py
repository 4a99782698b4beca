"""Players that misbehave on request."""

from __future__ import annotations

import math
import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.envs.sim import faults
from tests.envs.sim.faults import KINDS, Fault, fault
from tests.envs.sim.trainer import WAIT_SECONDS, Trainer, player, session
from trajtrainer.envs.unity.proto import communicator_pb2 as pb

BASIC = "Basic?team=0"


def started(trainer: Trainer) -> None:
    trainer.shake_hands()
    trainer.reset()


@pytest.mark.parametrize(
    ("kind", "code"),
    [("crash@3", 1), ("crash@3:7", 7), ("crash@3:SIGSEGV", -signal.SIGSEGV), ("crash@3:SIGKILL", -signal.SIGKILL)],
)
def test_a_crash_comes_instead_of_its_step(kind: str, code: int) -> None:
    with session("Basic", *fault(kind)) as (trainer, process):
        started(trainer)
        trainer.step()
        trainer.command(pb.STEP)
        assert process.wait(WAIT_SECONDS) == code


def test_a_crash_in_a_reset() -> None:
    with session("Basic", *fault("crash-in-reset@2:4")) as (trainer, process):
        started(trainer)
        trainer.step()
        trainer.command(pb.RESET)
        assert process.wait(WAIT_SECONDS) == 4


def test_a_hang_keeps_the_connection_and_answers_nothing() -> None:
    with session("Basic", *fault("hang@2")) as (trainer, process):
        started(trainer)
        trainer.command(pb.STEP)
        with pytest.raises(queue.Empty):
            trainer.receive(timeout=0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == -signal.SIGTERM


def test_quitting_is_announced() -> None:
    with session("Basic", *fault("quit@2")) as (trainer, process):
        started(trainer)
        assert trainer.step().message == pb.UnityMessageProto(header=pb.HeaderProto(status=400))
        trainer.end()
        assert process.wait(WAIT_SECONDS) == 0


def test_lingering_outlives_the_end_and_a_polite_signal() -> None:
    with session("Basic", *fault("linger")) as (trainer, process):
        started(trainer)
        trainer.end()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.kill()
        assert process.wait(WAIT_SECONDS) == -signal.SIGKILL


@pytest.mark.parametrize("step", [0, 2])
def test_rubbish_instead_of_a_message(step: int) -> None:
    with session("Basic", *fault(f"rubbish@{step}")) as (trainer, _):
        if step:
            started(trainer)
            trainer.command(pb.STEP)
        call = trainer.receive()
        with pytest.raises(Exception, match="pars"):
            _ = call.message


def test_a_wrong_version() -> None:
    with session("Basic", *fault("wrong-version:2.0.0")) as (trainer, _):
        hello = trainer.receive().message.unity_output.rl_initialization_output
        assert hello.communication_version == "2.0.0"


@pytest.mark.parametrize(
    ("kind", "reward", "first_number"),
    [
        ("nan-reward@2:1", math.nan, 0.0),
        ("infinite-reward@2:1", -math.inf, 0.0),
        ("nan-observation@2:1", -0.01, math.nan),
        ("infinite-observation@2:1", -0.01, math.inf),
    ],
)
def test_bad_numbers_in_one_step_and_record(kind: str, reward: float, first_number: float) -> None:
    with session("Basic", "--agents", "2", *fault(kind)) as (trainer, _):
        started(trainer)
        for bad in (True, False):
            good_record, record = trainer.step().infos[BASIC]
            found = [record.reward, record.observations[0].float_data.data[0]]
            assert found == pytest.approx([reward, first_number] if bad else [-0.01, 0.0], nan_ok=True)
            assert good_record.reward == pytest.approx(-0.01)


def test_an_observation_that_is_too_short() -> None:
    with session("Basic", *fault("wrong-size@2")) as (trainer, _):
        started(trainer)
        observation = trainer.step().infos[BASIC][0].observations[0]
        assert (list(observation.shape), len(observation.float_data.data)) == ([20], 19)


def test_a_slow_start_connects_in_the_end() -> None:
    began = time.monotonic()
    with session("Basic", *fault("slow-start:0.5")) as (trainer, _):
        started(trainer)
        assert time.monotonic() - began >= 0.5


def test_faults_for_another_port_or_a_second_time_do_not_happen(tmp_path: Path) -> None:
    trainer = Trainer()
    once = tmp_path / "happened"
    try:
        for arguments, code in (
            (fault("crash@1:5", port=1), None),
            (fault("crash@1:5", once=once), 5),
            (fault("crash@1:5", once=once), None),
            (fault("crash@1:5", port=trainer.port), 5),
        ):
            with player(trainer.port, "Basic", *arguments) as process:
                trainer.shake_hands()
                trainer.command(pb.RESET)
                if code is None:
                    trainer.receive()
                    trainer.end()
                assert process.wait(WAIT_SECONDS) == (code or 0)
    finally:
        trainer.stop()


@pytest.mark.skipif(sys.platform == "win32", reason="processes are found by their ids of POSIX")
def test_a_player_that_never_connects_ends_with_its_parent() -> None:
    start = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-m', 'trajtrainer.envs.sim', 'Basic',"
        f" *{fault('never-connect')}], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE);"
        " p.stderr.readline(); print(p.pid)"
    )
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, timeout=WAIT_SECONDS, check=True)
    orphan = int(done.stdout)
    deadline = time.monotonic() + WAIT_SECONDS
    while _alive(orphan):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat")
    # Nobody may be there to collect an orphan's exit code.
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("crash@120:3", Fault("crash", 120, "3")),
        ("crash@1", Fault("crash", 1, "1")),
        ("crash@1:SIGSEGV", Fault("crash", 1, "SIGSEGV")),
        ("crash-in-reset", Fault("crash-in-reset", 1, "1")),
        ("hang@5", Fault("hang", 5, "")),
        ("slow-start:0.25", Fault("slow-start", 1, "0.25")),
        ("wrong-version", Fault("wrong-version", 1, "9.0.0")),
        ("nan-reward@4:2", Fault("nan-reward", 4, "2")),
    ],
)
def test_faults_are_read(text: str, expected: Fault) -> None:
    assert Fault.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("explode@3", "there is no fault 'explode'; known are crash, "),
        ("crash", "needs a step: crash@STEP"),
        ("crash@x", "not of the form crash@STEP:ARGUMENT"),
        ("crash@3:SIGNOTHING", "does not take the argument 'SIGNOTHING'"),
        ("hang@3:1", "not of the form hang@STEP"),
        ("linger@3", "not of the form linger"),
        ("slow-start:long", "does not take the argument 'long'"),
        ("nan-reward@3:x", "does not take the argument 'x'"),
    ],
)
def test_faults_that_do_not_exist_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fault.parse(text)


def test_every_kind_is_described() -> None:
    documentation = faults.__doc__ or ""
    assert all(f"``{kind}" in documentation for kind in KINDS)
