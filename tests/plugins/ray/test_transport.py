"""Actors on a cluster of Ray: its two nodes are simulated on this machine, everything else is real."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import trajtrainer
from tests.run.actors.counted import Counted, Taken
from tests.run.actors.test_backends import KINDS, outcome, run
from tests.run.actors.test_kills import settings
from tests.run.process_tree import command_of, descendants
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.timers import Timers
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.unity.faults import LaunchError
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.messages import Pipe
from trajtrainer.plugins.ray import driver as ray_driver
from trajtrainer.plugins.ray import transport as ray_transport
from trajtrainer.plugins.ray.driver import DriverTask
from trajtrainer.plugins.ray.transport import RayTransport
from trajtrainer.run.actors.messages import ActorDiedError, ActorTask, End, Failed, Hello, NodeLogs, Report
from trajtrainer.settings.actors import RaySettings

# It looks at its variables when it is imported, so that nothing does that before ``nodes``.
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed (extra ray)")

STORE = 80 << 20


def used_bytes() -> int:
    """What Ray's stores hold, of all nodes that answer."""
    import ray
    from grpc import RpcError
    from ray._private.internal_api import node_stats

    used = 0
    for node in ray.nodes():
        with suppress(RpcError):
            stats = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"])
            used += stats.store_stats.object_store_bytes_used
    return used


def test_one_actor_that_takes_turns_with_the_learner_is_bit_equal_to_the_loop(tmp_path: Path, nodes: Any) -> None:
    inline = outcome(run(tmp_path / "inline", **KINDS["self-play"]))
    actors = {"backend": "ray", "max_policy_lag": 0, "ray": {"address": nodes.address}}
    assert outcome(run(tmp_path / "elsewhere", **KINDS["self-play"], actors=actors)) == inline


def failing(logs: NodeLogs, path: str) -> Environment:
    log = logs.player_log(0)
    assert log is not None
    log.write_text("a player's last words\n")
    raise LaunchError(f"There is no build {path}.")


def until_failed(transport: RayTransport) -> dict[int, list[Report]]:
    """The reports of all actors, each of which fails."""
    found: dict[int, list[Report]] = {number: [] for number in range(len(transport))}
    deadline_s = time.monotonic() + 60
    while not all(reports and isinstance(reports[-1], Failed) for reports in found.values()):
        assert time.monotonic() < deadline_s
        for number, report in transport.reports(1.0):
            found[number].append(report)
    return found


def driver_task(nodes: Any, count: int, **needs: Any) -> DriverTask:
    return DriverTask(RaySettings(address=nodes.address, **needs), count, logging.INFO, 1.0)


def test_faults_name_the_node_and_what_players_said_is_kept(tmp_path: Path, nodes: Any) -> None:
    def make_task(number: int, node: str) -> ActorTask:
        folder(number).mkdir(exist_ok=True)
        logs = NodeLogs(folder(number), node)
        return ActorTask(number, partial(failing, logs, "/builds/game"), None, 20, logs)

    def folder(number: int) -> Path:
        return tmp_path / str(number)

    transport = RayTransport(driver_task(nodes, 2), make_task, folder, Timers())
    try:
        for number in range(2):
            transport.start(number)
        for number, (hello, failed) in until_failed(transport).items():
            assert hello == Hello(trajtrainer.__version__)
            assert isinstance(failed, Failed)
            assert isinstance(failed.error, LaunchError)
            assert str(failed.error).startswith("There is no build /builds/game. (On node ")
            assert socket.gethostname() in str(failed.error)
            assert (folder(number) / "Player-0.log").read_text() == "a player's last words\n"
    finally:
        transport.close()
    transport.close()


def stuck(task: DriverTask, connection: Pipe, lifeline: Pipe) -> None:
    """A driver that connects, and whose successor hangs while it connects."""
    if task.is_again:
        time.sleep(600)
    messages.post(connection, ray_driver.CONNECTED, ("node", "127.0.0.1:1"))


def test_a_driver_that_hangs_while_it_connects_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_transport, "run_driver", stuck)
    monkeypatch.setattr(ray_transport, "_CONNECTING_S", 8.0)
    task = DriverTask(RaySettings(), 1, logging.INFO, 1.0)
    transport = RayTransport(
        task, lambda number, _: ActorTask(number, Unknown(), None, 20), lambda _: tmp_path, Timers()
    )
    try:
        transport.start(0)
        (first,) = until_failed(transport)[0]
        assert isinstance(first, Failed)
        transport.start(0)
        (second,) = until_failed(transport)[0]
        assert isinstance(second, Failed)
        assert isinstance(second.error, ActorDiedError)  # so that another attempt follows
        assert str(second.error).startswith("The process that connects to Ray has not answered for 8 s.")
    finally:
        transport.close()


class Unknown:
    """Cannot be unpickled elsewhere."""

    def __call__(self) -> Environment:
        raise AssertionError

    def __reduce__(self) -> tuple[Any, ...]:
        return __import__, ("a_game_that_is_not_there",)


def unknown(number: int, _node: str) -> ActorTask:
    return ActorTask(number, Unknown(), None, 20)


def test_a_version_is_told_before_a_task_is_looked_at(nodes: Any) -> None:
    transport = RayTransport(driver_task(nodes, 1), unknown, lambda _: None, Timers())
    try:
        transport.start(0)
        seen: list[Report] = []
        while not seen:
            seen += [report for _, report in islice(transport.reports(1.0), 1)]
        assert seen == [Hello(trajtrainer.__version__)], "who is refused for it is not told of more"
        transport.post(0, End())
        (failed,) = until_failed(transport)[0]
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, SettingsError)
        assert "a_game_that_is_not_there" in str(failed.error)
        assert "runtime_env" in str(failed.error)
    finally:
        transport.close()


def test_too_many_actors_are_told_and_impossible_ones_refused(nodes: Any, caplog: pytest.LogCaptureFixture) -> None:
    def make(**needs: Any) -> RayTransport:
        return RayTransport(driver_task(nodes, 5, **needs), unknown, lambda _: None, Timers())

    make().close()
    (warning,) = [record.message for record in caplog.records if "enough for" in record.message]
    assert "actors.count is 5" in warning
    assert "2 CPU" in warning
    assert "enough for 4" in warning
    with pytest.raises(SettingsError, match=r"needs 1 CPU, 1 players\..*not enough for a single actor"):
        make(resources={"players": 1})


def test_a_folder_is_brought_to_the_nodes(tmp_path: Path, nodes: Any) -> None:
    folder = tmp_path / "sent"
    folder.mkdir()
    (folder / "sent_game.py").write_text("from tests.run.actors.counted import Counted as make\n")
    given = settings(
        count=1, backend="ray", ray={"address": nodes.address, "runtime_env": {"working_dir": str(folder)}}
    )
    given["behaviors"]["Counted"]["max_steps"] = 200
    result = trajtrainer.learn(given, "python:sent_game:make", run_id="run", results_dir=tmp_path, verbose=False)
    assert result.behaviors["Counted"].steps > 200


def test_steps_are_counted_once_whatever_is_lost(tmp_path: Path, nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    started: list[int] = []
    start = RayTransport.start

    def starting(transport: RayTransport, number: int) -> None:
        started.append(number)
        start(transport, number)

    monkeypatch.setattr(RayTransport, "start", starting)
    taken = Taken(monkeypatch)
    options: dict[str, Any] = {"results_dir": tmp_path, "verbose": False, "num_envs": 2}
    used = []
    given = settings(count=3, backend="ray", ray={"address": nodes.address})
    given["behaviors"]["Counted"]["max_steps"] = 1_000_000
    lost: list[str] = []
    deadline_s = time.monotonic() + 60
    ray.init(nodes.address, log_to_driver=False, logging_level="ERROR")
    try:
        with trajtrainer.Training(given, Counted, run_id="run", **options) as training:
            for _ in training.epochs(steps=400):
                assert time.monotonic() < deadline_s
                used.append(used_bytes())
                if not lost:
                    os.kill(actors()[0], signal.SIGKILL)
                    lost.append("an actor")
                elif len(lost) == 1 and len(started) == 3 + 1:
                    nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
                    lost.append("a node")
                elif len(lost) == 2 and len(started) > 3 + 1:
                    break
    finally:
        ray.shutdown()
    taken.check(training.result.behaviors["Counted"].steps, 1200)
    assert max(used) < 2 << 20
    deadline_s = time.monotonic() + 60
    while actors() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not actors()


def actors() -> list[int]:
    return [pid for pid in descendants(os.getpid()) if "ActorHost" in " ".join(command_of(pid))]
