"""Trials on a cluster of Ray, which is played: its tasks are run here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trajtrainer.core.errors import SettingsError
from trajtrainer.plugins.ray import cluster, trials

SHORT, LOST = Path("short.yaml"), Path("lost.yaml")


class RayError(Exception):
    """The node is gone."""


class Process:
    """Stands in for the process of a trial."""

    def __init__(self, configuration: Path) -> None:
        self._configuration = configuration
        self._left = 3

    def is_running(self) -> bool:
        self._left -= 1
        return self._left > 0

    def end(self) -> str:
        assert self._left == 0
        if self._configuration == LOST:
            raise RayError("the node died")
        return "its process exited with code 1"


class Ray:
    """As much of the package as is used. A task is run by whoever gets its result."""

    exceptions = SimpleNamespace(RayError=RayError)

    __spec__ = ModuleSpec("ray", None)

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.ready: list[Any] = []
        self.cancelled: list[Any] = []

    def is_initialized(self) -> bool:
        return False

    def shutdown(self) -> None:
        """Ends nothing."""

    def nodes(self) -> list[dict[str, Any]]:
        names = {"NodeID": "here", "NodeManagerHostname": "localhost", "NodeManagerAddress": "127.0.0.1"}
        return [{**names, "Resources": {"CPU": 3.0}, "Alive": True}]

    def init(self, **options: Any) -> None:
        if options["address"] == "10.0.0.2:6379":
            raise ConnectionError("no such cluster")
        self.options = options

    def remote(self, **reserved: Any) -> Any:
        assert reserved == {"num_cpus": 1, "max_retries": 0}

        def declare(function: Callable[..., str]) -> Any:
            return SimpleNamespace(remote=lambda *arguments: lambda: function(*arguments))

        return declare

    def wait(self, tasks: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        assert timeout == 0
        return [task for task in tasks if task in self.ready], [task for task in tasks if task not in self.ready]

    def get(self, task: Any) -> Any:
        return task()

    def cancel(self, task: Any, *, force: bool) -> None:
        assert force
        self.cancelled.append(task)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(trials, "_POLL_S", 0.0)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return ray


def test_a_trial_is_a_task_that_keeps_a_process(ray: Ray) -> None:
    with trials.starter(Process, 3) as start:
        trial = start(SHORT)
        assert trial.is_running()
        ray.ready.append(trial._task)
        assert not trial.is_running()
        assert trial.end() == "its process exited with code 1"
    # One's own is for this machine alone.
    assert ray.options["address"] == "local"
    assert ray.options["include_dashboard"] is False
    assert ray.options["num_cpus"] == 3


def test_killing_ends_the_task(ray: Ray) -> None:
    with trials.starter(Process, 2) as start:
        trial = start(SHORT)
        trial.kill()
        assert ray.cancelled == [trial._task]


def test_a_node_that_is_lost_is_the_end_of_its_trial(ray: Ray) -> None:
    with trials.starter(Process, 1) as start:
        assert start(LOST).end() == "its process is lost with its node (the node died)"


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
