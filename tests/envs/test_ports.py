"""Who has a port, asked in the ways of the systems."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
