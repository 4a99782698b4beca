"""Trials on a cluster of Ray, which is played: what its actors do is done here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any

import pytest

from trajtrainer.actors.transports import cluster
from trajtrainer.core.errors import SettingsError
from trajtrainer.search import ray_backend
from trajtrainer.search.trial import TrialTask

TASK = TrialTask("", "Ball", "Reward", "end", 1, 4)


class RayError(Exception):
    """The node is gone."""


class Process:
    """Stands in for the process of a trial."""

    def __init__(self, task: TrialTask) -> None:
        self.task = task
        self.told: list[str] = []

    def messages(self) -> Iterator[dict[str, Any]]:
        yield {"report": 1, "value": 2.0}
        if self.task.behavior == "Lost":
            raise RayError
        yield {"value": 3.0}

    def stop(self) -> None:
        self.told.append("stop")

    def kill(self) -> None:
        self.told.append("kill")

    def end(self) -> str:
        if self.task.behavior == "Lost":
            raise RayError("the node died")
        return "ended with the exit code 0"


class Ray:
    """As much of the package as is used. Calls are answered at once; waiting for an answer raises what went wrong."""

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
        return []

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
        return SimpleNamespace(remote=lambda: getattr(actor, name))

    def get(self, call: Any) -> Any:
        return call()

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_backend, "TrialProcess", Process)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return ray


def test_a_trial_is_a_process_of_an_actor(ray: Ray) -> None:
    trial = ray_backend.starter(3)(TASK)
    assert list(trial.messages()) == [{"report": 1, "value": 2.0}, {"value": 3.0}]
    assert trial.end() == "ended with the exit code 0"
    assert len(ray.killed) == 1
    # One's own is for this machine alone.
    assert ray.options["address"] == "local"
    assert ray.options["include_dashboard"] is False
    assert ray.options["num_cpus"] == 3


def test_a_node_that_is_lost_is_the_end_of_its_trial(ray: Ray) -> None:
    trial = ray_backend.starter(1)(TrialTask("", "Lost", "Reward", "end", 1, 4))
    assert list(trial.messages()) == [{"report": 1, "value": 2.0}]
    assert trial.end() == "is lost with its node (the node died)"


def test_a_cluster_is_joined_by_its_address(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_probe", lambda _: None)
    monkeypatch.setattr(cluster, "_as_ray_takes", lambda address: address)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    ray_backend.starter(1)
    assert ray.options["address"] == "10.0.0.1:6379"
    assert "num_cpus" not in ray.options
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    with pytest.raises(SettingsError, match=r"can be reached at 10\.0\.0\.2:6379: no such cluster\."):
        ray_backend.starter(1)


def test_the_extra_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingsError, match=r"pip install 'trajtrainer\[ray\]'"):
        ray_backend.starter(1)
