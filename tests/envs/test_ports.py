"""Which process has a port."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ports import free_ports
from tests.run.runs import learn
from trajtrainer.envs.unity import ports


@pytest.fixture(params=["127.0.0.1", "::1"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family) as listening:
        try:
            listening.bind((request.param, 0))
        except OSError:
            pytest.skip(f"{request.param} is no address of this machine.")
        listening.listen()
        yield listening.getsockname()[1]


def test_the_process_is_named(port: int) -> None:
    told = ports.holder(port)
    assert told is not None
    assert told.startswith(f"process {os.getpid()} (")


def test_a_process_that_hides_its_command_is_named_by_its_number(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def hide(process: psutil.Process) -> list[str]:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "cmdline", hide)
    assert ports.holder(port) == f"process {os.getpid()}"


def test_processes_that_hide_their_sockets_hide_only_those(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    show = psutil.Process.net_connections

    def hide(process: psutil.Process, kind: str) -> list[Any]:
        if process.pid != os.getpid():
            raise psutil.AccessDenied(process.pid)
        return show(process, kind)

    monkeypatch.setattr(psutil.Process, "net_connections", hide)
    assert str(ports.holder(port)).startswith(f"process {os.getpid()} (")


def test_a_port_without_a_listener_has_no_holder() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # no other program can listen there, either
        assert ports.holder(bound.getsockname()[1]) is None


def test_a_port_of_another_process_shifts_the_run_without_blame_for_its_own_actors(tmp_path: Path) -> None:
    settings = {
        "behaviors": {
            "Basic": {
                "trainer_type": "ppo",
                "max_steps": 200,
                "hyperparameters": {"batch_size": 16, "buffer_size": 64},
            }
        },
        "evaluation": {"interval": 100, "episodes": 1, "deterministic": False},
    }
    first = free_ports(6)  # two actors and an evaluation, and as many again
    with socket.socket() as foreign:
        foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        foreign.bind(("127.0.0.1", first))
        foreign.listen()
        done = learn(tmp_path, settings, "--env=sim:Basic", "--actors=2", f"--base-port={first}")
    assert done.exit_code == 0, done.output
    told = [line for line in done.output.splitlines() if "in use" in line]
    assert len(told) == 1, told
    assert f"Port {first} is in use by process {os.getpid()} (" in told[0]
    assert f"port {first + 3} instead." in told[0]
