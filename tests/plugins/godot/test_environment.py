"""A game as an environment: what it is told, what it may do, and how it ends."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.envs.sim.faults import fault
from tests.plugins.godot.games import (
    Json,
    Player,
    Scripted,
    batch_of,
    connected,
    env_info,
    first,
    framed,
    no_real_godot,
    real,
    scripted,
    simulated,
    step,
    straight,
)
from tests.ports import free_port, is_taken
from trajtrainer.core.errors import InvalidDataError, UnsupportedError
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.unity.faults import PlayerDiedError, PlayerQuitError, PlayerTimeoutError, PortInUseError
from trajtrainer.plugins.godot.environment import GodotGame, method_name
from trajtrainer.settings.environment import ConstantSettings, EngineSettings, EnvironmentSettings, UniformSettings
from trajtrainer.testing import EnvironmentContract

POLICY = "shared_policy"
posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")


class TestGodot(EnvironmentContract):
    arguments: tuple[str, ...] = ("Chase+Basic",)

    def make(self) -> Environment:
        path, *arguments = self.arguments
        port = free_port()
        settings = EnvironmentSettings(env_path=f"godot:sim:{path}", env_args=arguments, base_port=port, seed=3)
        return GodotGame(settings, EngineSettings())


class TestOldPlugin(TestGodot):
    arguments = ("3DBall", "--old-env-info", "--agents", "3")


class TestPictures(TestGodot):
    arguments = ("VisualBall", "--agents", "2", "--reset-at-once")


# -- what it is told


def test_the_first_step_that_is_told_comes_after_the_old_episodes_have_ended() -> None:
    answers = [env_info(2), first(1, 2), step(3, 4, done=[True, True], reward=[5, 5]), step(5, 6, reward=[1, 2])]
    with scripted(*answers) as (environment, game):
        player = Player(environment)
        event = player.reset()
        assert event.is_reset
        assert event.new_specs.keys() == event.steps.keys() == {POLICY}
        assert event.steps[POLICY].obs[0].tolist() == [[3, 3], [4, 4]]
        assert event.steps[POLICY].reward.tolist() == [0, 0]
        assert event.steps[POLICY].num_terminal == 0
        event = player.step(shared_policy=[[0.5, -1], [1, 0]])
        assert not event.is_reset
        assert not event.new_specs
        assert event.steps[POLICY].reward.tolist() == [1, 2]
    assert game.told() == ["handshake", "env_info", "reset", "action", "action", "close"]
    assert game.heard[0] == {"type": "handshake", "major_version": "0", "minor_version": "7"}
    assert game.heard[3]["action"] == [{"move": [0, 0]}] * 2
    assert game.heard[4]["action"] == [{"move": [0.5, -1]}, {"move": [1, 0]}]


def test_a_reset_while_the_game_is_at_work_waits_for_its_message() -> None:
    answers = [env_info(1), first(1), step(2), step(3, reward=[9], done=[True]), first(4), step(5), step(6)]
    with scripted(*answers) as (environment, game):
        player = Player(environment)
        event = player.reset()
        environment.send(0, {POLICY: batch_of(player.specs[POLICY], 1)})
        event = player.reset()
        assert event.is_reset
        assert event.steps[POLICY].obs[0].tolist() == [[5, 5]]
        assert not player.step().is_reset
    assert game.told() == ["handshake", "env_info", "reset", "action", "action", "reset", "action", "action", "close"]


def test_parameters_are_calls_before_the_next_message() -> None:
    called: Json = {"type": "call", "returns": [None]}
    answers = [env_info(1), called, first(1), step(2), called, called, step(3), step(4)]
    with scripted(*answers) as (environment, game):
        player = Player(environment)
        player.reset({"level": ConstantSettings(value=2)})
        environment.set_parameters({"level": ConstantSettings(value=3), "wind": ConstantSettings(value=-0.5)})
        player.step()
        player.step()
    assert game.told() == [
        "handshake",
        "env_info",
        "call",
        "reset",
        "action",
        "call",
        "call",
        "action",
        "action",
        "close",
    ]
    assert [message["method"] for message in game.heard if message["type"] == "call"] == [
        "level_2",
        "level_3",
        "wind_minus_0_5",
    ]


def test_a_parameter_that_is_set_twice_is_told_once() -> None:
    with scripted(env_info(1), {"type": "call", "returns": [0]}, first(1), step(2)) as (environment, game):
        environment.set_parameters({"level": ConstantSettings(value=1)})
        Player(environment).reset({"level": ConstantSettings(value=2)})
    assert [message.get("method") for message in game.heard[2:3]] == ["level_2"]


def test_values_that_no_method_is_named_after() -> None:
    with pytest.raises(UnsupportedError, match="'level' is drawn at random"):
        method_name("level", UniformSettings())
    for name, value in (("my level", 1.0), ("level", 1e30), ("3d", 1.0)):
        with pytest.raises(UnsupportedError, match="GDScript does not allow"):
            method_name(name, ConstantSettings(value=value))


def test_curricula_change_a_simulation() -> None:
    with simulated("Chase") as environment:
        player = Player(environment)
        event = player.reset({"reach": ConstantSettings(value=2.5)})
        ends = sum(player.step().steps[POLICY].num_terminal for _ in range(10))
        assert ends > 30  # nearly every target is reached at once
        event = player.reset({"reach": ConstantSettings(value=0)})
        ends = sum(player.step().steps[POLICY].num_terminal for _ in range(10))
        assert not ends
        assert event.is_reset


def test_sending_is_checked() -> None:
    with scripted(env_info(1), first(1), step(2)) as (environment, _):
        with pytest.raises(ValueError, match="no worker 1"):
            environment.send(1, {})
        with pytest.raises(RuntimeError, match="is waiting for a message"):
            environment.wait(1.0)
        environment.reset({})
        with pytest.raises(RuntimeError, match="has not answered yet"):
            environment.send(0, {})


def test_waiting_has_a_limit() -> None:
    with scripted(env_info(1)) as (environment, _):
        environment.reset({})
        begin_s = time.monotonic()
        assert environment.wait(0.6) == []
        assert 0.5 < time.monotonic() - begin_s < 25.0
        assert environment.wait(0.0) == []


def test_ids_and_seeds_are_of_the_worker(tmp_path: Path) -> None:
    def observed(seed: int, worker: int) -> object:
        settings = EnvironmentSettings(env_path="godot:sim:Chase", base_port=free_port() - worker, seed=seed)
        environment = GodotGame(settings, EngineSettings(), worker=worker, log_folder=tmp_path)
        try:
            (event, *_) = [Player(environment).reset()]
            assert event.worker == worker
            assert event.steps[POLICY].agent.tolist() == [worker << 32 | agent for agent in range(4)]
            return event.steps[POLICY].obs[0].ravel().tolist()
        finally:
            environment.close()

    assert observed(3, worker=1) == observed(4, worker=0)
    assert observed(3, worker=1) != observed(3, worker=0)


# -- ends


def test_what_is_assumed_about_ends_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    done = step(1, done=[True])
    with scripted(env_info(1), first(1), done, done, done) as (environment, _):
        player = Player(environment)
        player.reset()
        assert "end of the task" not in caplog.text
        player.step()
        player.step()
    assert caplog.text.count("treated as the end of the task") == 1


def test_it_is_not_said_again_after_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    said: set[str] = set()
    for _ in range(2):
        with simulated("Chase", "--only-done", said=said) as environment:
            player = Player(environment)
            event = player.reset()
            for _ in range(40):
                event = player.step(shared_policy=straight(event))
    assert caplog.text.count("treated as the end of the task") == 1


def test_a_simulation_tells_of_its_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with simulated("Chase") as environment:
        player = Player(environment)
        event = player.reset()
        reached = 0
        for _ in range(60):
            event = player.step(shared_policy=straight(event))
            batch = event.steps[POLICY]
            last = batch.obs[0][: batch.num_terminal]
            assert (np.linalg.norm(last[:, :2] - last[:, 2:], axis=1) < 0.1).all()
            assert not batch.interrupted.any()
            reached += batch.num_terminal
        assert reached > 5
        event = player.reset()
        for _ in range(200):
            event = player.step()
        assert event.steps[POLICY].interrupted.all()
    assert "Ends of episodes" not in caplog.text


# -- pictures


@pytest.mark.parametrize(("arguments", "warns"), [([], True), (["--no-headless"], False)])
def test_pictures_need_a_window(
    arguments: list[str], warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build = tmp_path / "game.x86_64"
    game = "python -m trajtrainer.plugins.godot.simulation VisualBall"
    build.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/told\nexec {game} "$@"\n')
    build.chmod(0o755)
    settings = EnvironmentSettings(env_path=f"godot:{build}", env_args=arguments, base_port=free_port(), seed=3)
    environment = GodotGame(settings, EngineSettings(time_scale=8))
    environment.close()
    assert ("Godot does not render without a window" in caplog.text) == warns
    told = (tmp_path / "told").read_text().split()
    assert ("--headless" in told, "--disable-render-loop" in told) == (warns, warns)
    assert told[-3:] == [f"--port={settings.base_port}", "--env_seed=3", "--speedup=8"]


# -- faults


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("crash@3:7", PlayerDiedError, "The game exited with return code 7"),
        ("crash@3:SIGKILL", PlayerDiedError, "was killed by the signal SIGKILL"),
        ("crash-in-reset@1", PlayerDiedError, "The game exited with return code 1"),
        ("hang@3", PlayerTimeoutError, "stopped answering within 2 s"),
        ("rubbish@3", InvalidDataError, "not JSON"),
        ("rubbish@0", PlayerDiedError, "return code 0. A connection from .* was rejected: it is not a game"),
        ("nan-observation@3", InvalidDataError, "nan as an observation: .*sensor 'obs' .*element 0"),
        ("infinite-observation@3:2", InvalidDataError, "inf as an observation: .*element 0"),
        ("nan-reward@3", InvalidDataError, "nan as a reward"),
        ("wrong-size@3:1", InvalidDataError, "not 4 numbers"),
        ("never-connect", PlayerTimeoutError, "did not connect within 2 s. .*Sync node"),
        ("quit@3", PlayerDiedError, "exited with return code 0"),
    ],
)
def test_games_that_misbehave(kind: str, error: type[Exception], message: str) -> None:
    def play() -> None:
        with simulated("Chase", *fault(kind), timeout_wait=2 if kind == "never-connect" else 60) as environment:
            player = Player(environment)
            player.reset()
            if kind.startswith("hang"):
                environment._timeout_s = 2.0  # only now, as the start may take longer
            for _ in range(5):
                player.step()

    with pytest.raises(error, match=message):
        play()


@posix
def test_a_game_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trajtrainer.envs.unity.launcher._CLOSE_GRACE_S", 0.3)
    monkeypatch.setattr("trajtrainer.envs.unity.launcher._TERMINATE_GRACE_S", 0.3)
    with simulated("Chase", *fault("linger")) as environment:
        Player(environment).reset()
        process = environment._process
        assert process is not None
    assert process.has_ended
    assert "SIGKILL" in process.describe_end()


@posix
def test_a_game_that_is_killed_is_noticed_at_once() -> None:
    with simulated("Chase") as environment:
        Player(environment).reset()
        assert environment._process is not None
        os.kill(environment._process.pid, signal.SIGKILL)
        begin_s = time.monotonic()
        with pytest.raises(PlayerDiedError, match="SIGKILL"):  # noqa: PT012
            environment.send(0, {})
            environment.wait(30.0)
        assert time.monotonic() - begin_s < 25.0
        with pytest.raises(PlayerDiedError):
            environment.send(0, {})


def test_a_game_that_leaves() -> None:
    leaves = scripted(env_info(1), lambda: None)
    with leaves as (environment, _), pytest.raises(PlayerQuitError, match="closed its connection"):
        Player(environment).reset()


def test_nobody_presses_play() -> None:
    port = free_port()
    with pytest.raises(PlayerTimeoutError, match="did not connect within 1 s"):
        GodotGame(EnvironmentSettings(env_path="godot", base_port=port, timeout_wait=1), EngineSettings())
    assert not is_taken(port)


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = EnvironmentSettings(env_path="godot", base_port=taken.getsockname()[1])
        with pytest.raises(PortInUseError, match="is in use"):
            GodotGame(settings, EngineSettings())


def test_strangers_are_turned_away(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    strangers: list[socket.socket] = []

    def disturb() -> None:
        for content in (b"GET / HTTP/1.1\r\n\r\n", framed({"type": "hello"}), b""):
            stranger = connected(port)
            stranger.sendall(content)
            if not content:
                stranger.close()
            strangers.append(stranger)

    disturbing = threading.Thread(target=disturb)
    disturbing.start()
    settings = EnvironmentSettings(env_path="godot", base_port=port, timeout_wait=20)

    def join() -> None:
        disturbing.join()
        time.sleep(0.3)
        Scripted(port, [env_info(1), first(1), step(2)])

    threading.Thread(target=join).start()
    environment = GodotGame(settings, EngineSettings())
    try:
        assert Player(environment).reset().is_reset
        assert caplog.text.count("was rejected") == 3
    finally:
        environment.close()
        for stranger in strangers:
            stranger.close()


# -- a real Godot


@pytest.mark.skipif(no_real_godot() is not None, reason=str(no_real_godot()))
def test_a_real_game() -> None:
    with real("--speedup=8", "--env_seed=1", "--action_repeat=1") as (port, process):
        environment = GodotGame(EnvironmentSettings(env_path="godot", base_port=port), EngineSettings())
        try:
            player = Player(environment)
            event = player.reset()
            assert event.new_specs[POLICY].action_spec.continuous_size == 2
            assert event.steps[POLICY].obs[0].shape == (4, 4)
            returns, running = [], np.zeros(4)
            for _ in range(100):
                event = player.step(shared_policy=straight(event))
                batch = event.steps[POLICY]
                ended = batch.agent[: batch.num_terminal]
                returns += (running[ended] + batch.reward[: batch.num_terminal]).tolist()
                running[ended] = 0.0
                running += batch.reward[batch.num_terminal :]
            assert len(returns) > 20
            assert min(returns) > 0.9  # the target, and the way to it
            player.reset()
        finally:
            environment.close()
        assert process.wait(60) == 0
