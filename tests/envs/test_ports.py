"""Who has a port, asked in the ways of the systems."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ports import free_ports
from trajtrainer.envs import ports

WAYS = {"proc": ports.listener_of_proc, "lsof": ports.listener_of_lsof}
Way = Callable[[int], tuple[int, str] | None]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    if request.param == "proc" and sys.platform != "linux":
        pytest.skip("a way of Linux")
    if request.param == "lsof" and shutil.which("lsof") is None:
        pytest.skip("There is no lsof here.")
    return WAYS[request.param]


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


def test_every_way_finds_it(way: Way, port: int) -> None:
    found = way(port)
    assert found is not None
    assert found[0] == os.getpid()
    assert found[1]


def test_a_port_without_a_listener_has_no_holder(way: Way) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody can listen there, either
        assert way(bound.getsockname()[1]) is None


@pytest.mark.skipif(os.name != "posix", reason="a script for POSIX shells")
@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (r"p4711\ncPython\nf5\n", (4711, "Python")),
        (r"p4711\ncPython\nf5\nf6\np4712\ncUnity Hub\nf9\n", (4711, "Python")),
        (r"p4711\n", (4711, "")),
        ("", None),
        (r"lsof: no pwd entry\n", None),
    ],
)
def test_what_lsof_tells(
    told: str, expected: tuple[int, str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = tmp_path / "lsof"
    stand_in.write_text(f"#!/bin/sh\nprintf '{told}'\n")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ports.listener_of_lsof(5004) == expected


def test_without_lsof_nobody_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert ports.listener_of_lsof(5004) is None


def test_a_port_of_another_process_shifts_the_run_without_blame_for_its_own_actors(tmp_path: Path) -> None:
    configuration = tmp_path / "basic.yaml"
    configuration.write_text(
        "behaviors:\n  Basic:\n    trainer_type: ppo\n    max_steps: 200\n"
        "    hyperparameters: {batch_size: 16, buffer_size: 64}\n"
        "evaluation: {interval: 100, episodes: 1, deterministic: false}\n"
    )
    first = free_ports(6)  # two actors and an evaluation, and as many again
    command = [
        *(sys.executable, "-m", "trajtrainer", "learn", str(configuration), "--env=sim:Basic", "--run-id=a"),
        *(f"--results-dir={tmp_path}", "--actors=2", f"--base-port={first}"),
    ]
    with socket.socket() as foreign:
        foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        foreign.bind(("127.0.0.1", first))
        foreign.listen()
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = [line for line in (done.stdout + done.stderr).splitlines() if "in use" in line]
    assert len(told) == 1, told
    assert f"Port {first} is in use by process {os.getpid()} (" in told[0]
    assert f"port {first + 3}." in told[0]
