"""Trials on a cluster of Ray, which is played: its driver is a thread, and what its actors do is done here."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import pytest

from trajtrainer.core.errors import EnvironmentFaultError, SettingsError
from trajtrainer.envs.workers import messages
from trajtrainer.plugins.ray import cluster, trials

TASK = "short"


class RayError(Exception):
    """The node is gone."""


class Process:
    """Stands in for the process of a trial."""

    def __init__(self, task: str) -> None:
        self.task = task
        self.told: list[str] = []

    def messages(self) -> Iterator[dict[str, Any]]:
        yield {"report": 1, "value": 2.0}
        if self.task == "lost":
            raise RayError
        if self.task == "long":
            threading.Event().wait()
        yield {"value": 3.0}

    def stop(self) -> None:
        self.told.append("stop")

    def kill(self) -> None:
        self.told.append("kill")

    def end(self) -> str:
        if self.task == "lost":
            raise RayError("the node died")
        return "ended with the exit code 0"


class Ray:
    """As much of the package as is used. Waiting for an answer makes the call, stopping and killing do not wait."""

    exceptions = SimpleNamespace(RayError=RayError)

    __spec__ = ModuleSpec("ray", None)

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.actors: list[Any] = []
        self.killed: list[Any] = []

    def is_initialized(self) -> bool:
        return False

    def shutdown(self) -> None:
        """Ends nothing."""

    def nodes(self) -> list[dict[str, Any]]:
        names = {"NodeID": "here", "NodeManagerHostname": "localhost", "NodeManagerAddress": "127.0.0.1"}
        return [{**names, "Resources": {"CPU": 3.0}, "Alive": True}]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "here")

    def init(self, **options: Any) -> None:
        if options["address"] == "10.0.0.2:6379":
            raise ConnectionError("no such cluster")
        self.options = options

    def remote(self, **reserved: Any) -> Any:
        def declare(cls: type) -> Any:
            def make(*arguments: Any) -> Any:
                actor = cls(*arguments)
                self.actors.append(actor)
                calls = {name: self.call(actor, name) for name in ("next", "stop", "kill", "end")}
                return SimpleNamespace(**calls)

            return SimpleNamespace(remote=make)

        assert reserved["num_cpus"] == 1
        return declare

    def call(self, actor: Any, name: str) -> Any:
        method = getattr(actor, name)
        return SimpleNamespace(remote=method if name in ("stop", "kill") else lambda: method)

    def get(self, call: Any) -> Any:
        return call()

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


class Driver:
    """Stands in for the process of a driver."""

    def __init__(self, target: Callable[..., None], task: object, _: str, **about: Any) -> None:
        self.pipe, other = Pipe()

        def run() -> None:
            with other:
                target(task, other, None)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        Driver.last = self

    def post(self, kind: bytes, *content: object) -> None:
        with suppress(OSError):
            messages.post(self.pipe, kind, *content)

    def read(self) -> tuple[bytes, Any]:
        return messages.read(self.pipe)

    def end(self, grace_s: float) -> None:
        self.post(messages.END)
        self._thread.join(grace_s)
        assert not self._thread.is_alive()

    last: Driver


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(trials, "ChildProcess", Driver)
    monkeypatch.setattr(trials, "begin_child", lambda *_: None)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    main = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return ray


def test_a_trial_is_a_process_of_an_actor(ray: Ray) -> None:
    with trials.starter(Process, 3) as start:
        trial = start(TASK)
        assert list(trial.messages()) == [{"report": 1, "value": 2.0}, {"value": 3.0}]
        assert trial.end() == "ended with the exit code 0"
        assert len(ray.killed) == 1
    # One's own is for this machine alone.
    assert ray.options["address"] == "local"
    assert ray.options["include_dashboard"] is False
    assert ray.options["num_cpus"] == 3


def test_stopping_and_killing_reach_the_process_while_others_run(ray: Ray) -> None:
    with trials.starter(Process, 2) as start:
        trial = start("long")
        assert next(trial.messages()) == {"report": 1, "value": 2.0}
        trial.stop()
        trial.kill()
        other = start(TASK)
        assert len(list(other.messages())) == 2
    assert [actor._process.told for actor in ray.actors] == [["stop", "kill"], []]


def test_a_node_that_is_lost_is_the_end_of_its_trial(ray: Ray) -> None:
    with trials.starter(Process, 1) as start:
        trial = start("lost")
        assert list(trial.messages()) == [{"report": 1, "value": 2.0}]
        assert trial.end() == "is lost with its node (the node died)"


def test_the_end_of_ray_is_one_message_for_all_trials(ray: Ray) -> None:
    with trials.starter(Process, 2) as start:
        running = start("long")
        told = running.messages()
        assert next(told) == {"report": 1, "value": 2.0}
        Driver.last.end(60.0)  # as Ray ends the process that is connected with it
        for messages_of_trial in (told, start(TASK).messages()):
            with pytest.raises(EnvironmentFaultError, match=r"Ray has ended.* the same command with --resume\."):
                next(messages_of_trial)


def test_a_cluster_is_joined_by_its_address(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_probe", lambda _: None)
    services = SimpleNamespace(canonicalize_bootstrap_address=lambda address: address)
    monkeypatch.setitem(sys.modules, "ray._private.services", services)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with trials.starter(Process, 1):
        pass
    assert ray.options["address"] == "10.0.0.1:6379"
    assert "num_cpus" not in ray.options
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    with (
        pytest.raises(SettingsError, match=r"at 10\.0\.0\.2:6379: no such cluster\."),
        trials.starter(Process, 1),
    ):
        pass


def test_the_extra_that_is_not_installed(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingsError, match=r"pip install 'trajtrainer\[ray\]'"), trials.starter(Process, 1):
        pass
