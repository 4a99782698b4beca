"""One player from its launch to its end."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlagents_envs.exception import (
    UnityCommunicatorStoppedException,
    UnityEnvironmentException,
    UnityTimeOutException,
)

from tests.envs.unity.client import LIMIT_S, Exchange, connected, handshake, header, in_background, status, until
from tests.envs.unity.messages import BEHAVIOR, Agent, Space, message, message_of
from tests.ports import free_port
from trajtrainer.core.errors import EnvironmentFaultError, InvalidDataError
from trajtrainer.core.steps import ActionBatch, Aggregation, Statistic
from trajtrainer.envs.sim.conversation import statistic_frame
from trajtrainer.envs.unity import launcher
from trajtrainer.envs.unity import session as session_module
from trajtrainer.envs.unity.faults import (
    ActionError,
    LaunchError,
    PlayerDiedError,
    PlayerQuitError,
    PlayerTimeoutError,
    PlayerVersionError,
)
from trajtrainer.envs.unity.proto.communicator_pb2 import UnityMessageProto
from trajtrainer.envs.unity.session import PlayerSession
from trajtrainer.envs.unity.side_channels import ANALYTICS_ID, EngineConfigurationChannel

SPACE = Space(branches=(2,))
posix = pytest.mark.skipif(os.name != "posix", reason="scripts and signals of POSIX systems")


def actions(count: int, choice: int = 0) -> ActionBatch:
    return ActionBatch(
        continuous=np.full((count, 2), 9.0, np.float32),
        discrete=np.full((count, 1), choice, np.int32),
        env_continuous=np.full((count, 2), 0.5, np.float32),
        log_prob=np.zeros((count, 3), np.float32),
        entropy=np.zeros(count, np.float32),
        memory=np.zeros((count, 0), np.float32),
        version=0,
    )


class Player:
    """A player under the test's command. Its handshake is done; its second message waits for the first reset."""

    def __init__(self, session: PlayerSession, exchange: Exchange, pending: Future[bytes]) -> None:
        self.session = session
        self.pending = pending
        self._exchange = exchange

    def answer(self) -> UnityMessageProto:
        """The answer to the last message."""
        return UnityMessageProto.FromString(self.pending.result(LIMIT_S))

    def send(self, data: bytes) -> None:
        self.pending = in_background(self._exchange, data)


@contextmanager
def playing(
    hello: bytes | None = None, worker_id: int = 0, *, second: bytes | None = None, **keywords: Any
) -> Iterator[Player]:
    port = free_port()
    keywords.setdefault("timeout_wait", LIMIT_S)
    with connected(port) as exchange:

        def shake_hands() -> bytes:
            exchange(hello or handshake())
            return exchange(second or header())

        pending = in_background(shake_hands)
        session = PlayerSession(base_port=port - worker_id, worker_id=worker_id, **keywords)
        try:
            yield Player(session, exchange, pending)
        finally:
            session.close()


@pytest.fixture
def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A build that does nothing, for tests that speak for it."""
    if os.name != "posix":
        pytest.skip("needs scripts of POSIX systems")
    monkeypatch.setattr(launcher, "_CLOSE_GRACE_S", 0.0)
    return script(tmp_path, "exec sleep 600")


def script(folder: Path, text: str) -> str:
    path = folder / "Build.x86_64"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_an_unknown_side_channel_is_told_whenever_the_player_speaks(caplog: pytest.LogCaptureFixture) -> None:
    frames = bytes(range(16)) + b"\x01\x00\x00\x00?"
    with playing(second=message_of({}, side_channel=frames)) as player:
        assert caplog.text.count("side channel 03020100-0504-0706-0809-0a0b0c0d0e0f") == 1
        player.session.start_reset()
        player.answer()
        player.send(message(SPACE, [Agent()], side_channel=frames))
        player.session.receive()
    assert caplog.text.count("side channel") == 1


def test_statistics_that_are_not_read_are_no_unknown_side_channel(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    frames = statistic_frame(Statistic("Goals", 3.0, Aggregation.SUM))
    with playing(second=message_of({}, side_channel=frames)) as player:
        player.session.start_reset()
        player.answer()
        player.send(message(SPACE, [Agent()], side_channel=frames))
        player.session.receive()
    (told,) = [record for record in caplog.records if "statistics" in record.getMessage()]
    assert told.levelno == logging.INFO
    assert "StatsSideChannel" in told.getMessage()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_first_reset_waits_until_it_is_wanted() -> None:
    engine = EngineConfigurationChannel()
    engine.set_configuration_parameters(time_scale=20.0)
    with playing(side_channels=[engine]) as player:
        assert not player.pending.done()
        assert player.session.owes_answer
        player.session.start_reset()
        reset = player.answer().unity_input.rl_input
        assert reset.command == 1
        assert reset.side_channel.startswith(engine.channel_id.bytes_le)
        assert not player.session.owes_answer


def test_a_few_steps() -> None:
    with playing() as player:
        player.session.start_reset()
        player.answer()
        player.send(message(SPACE, [Agent(id=0), Agent(id=7)]))
        event = player.session.receive()
        assert event.is_reset
        assert list(event.new_specs) == [BEHAVIOR]
        assert event.steps[BEHAVIOR].agent.tolist() == [0, 7]
        player.session.send_actions({BEHAVIOR: actions(2, choice=1)})
        sent = player.answer().unity_input.rl_input.agent_actions[BEHAVIOR].value
        assert [list(each.continuous_actions) for each in sent] == [[0.5, 0.5]] * 2
        assert [list(each.discrete_actions) for each in sent] == [[1]] * 2
        player.send(message(SPACE, [Agent(id=7, done=True)], announce=False))
        event = player.session.receive()
        assert not event.is_reset
        assert not event.new_specs
        assert event.steps[BEHAVIOR].num_decisions == 0
        player.session.send_actions({})
        assert not player.answer().unity_input.rl_input.agent_actions


def test_missing_actions_are_zeros() -> None:
    with playing() as player:
        player.session.start_reset()
        player.answer()
        player.send(message(SPACE, [Agent(id=0), Agent(id=7)]))
        player.session.receive()
        player.session.send_actions({})
        sent = player.answer().unity_input.rl_input.agent_actions[BEHAVIOR].value
        assert [list(each.continuous_actions) for each in sent] == [[0.0, 0.0]] * 2
        assert [list(each.discrete_actions) for each in sent] == [[0]] * 2


def test_actions_that_do_not_fit_leave_the_message_unanswered() -> None:
    with playing() as player:
        player.session.start_reset()
        player.answer()
        player.send(message(SPACE, [Agent(id=0), Agent(id=7)]))
        player.session.receive()
        with pytest.raises(ActionError, match="found 1 actions, expected one for each of 2 agents"):
            player.session.send_actions({BEHAVIOR: actions(1)})
        with pytest.raises(ActionError, match="'Other'"):
            player.session.send_actions({"Other": actions(1)})
        with pytest.raises(ActionError, match="choices"):
            player.session.send_actions({BEHAVIOR: actions(2, choice=2)})
        player.session.send_actions({BEHAVIOR: actions(2), "Other": actions(0)})
        assert len(player.answer().unity_input.rl_input.agent_actions[BEHAVIOR].value) == 2


def test_a_reset_amid_a_run() -> None:
    with playing() as player:
        player.session.start_reset()
        player.answer()
        for _ in range(2):
            player.send(message(SPACE, [Agent()]))
            assert player.session.receive().is_reset
            player.session.start_reset()
            assert player.answer().unity_input.rl_input.command == 1


def test_turns_are_kept() -> None:
    with playing() as player:
        with pytest.raises(RuntimeError, match="player is waiting for an answer"):
            player.session.poll(0.0)
        player.session.start_reset()
        with pytest.raises(RuntimeError, match="Receive its message first"):
            player.session.start_reset()


def test_poll_returns_without_a_message() -> None:
    with playing() as player:
        player.session.start_reset()
        assert player.session.poll(0.0) is None
        assert player.session.poll(0.01) is None
        player.send(message(SPACE, [Agent()]))
        assert player.session.poll(LIMIT_S) is not None


@pytest.mark.parametrize("announced", [True, False])
def test_analytics_go_where_they_are_understood(announced: bool) -> None:
    with playing(handshake(analytics=announced)) as player:
        assert player.session.capabilities.trainingAnalytics is announced
        player.session.start_reset()
        assert (ANALYTICS_ID.bytes_le in player.answer().unity_input.rl_input.side_channel) is announced


def test_only_the_first_worker_sends_analytics(idle: str) -> None:
    with playing(handshake(analytics=True), worker_id=1, file_name=idle) as player:
        player.session.start_reset()
        assert player.answer().unity_input.rl_input.side_channel == b""
        player.send(message(SPACE, [Agent(id=3)]))
        assert player.session.receive().steps[BEHAVIOR].agent.tolist() == [1 << 32 | 3]


def test_seed_and_areas_reach_the_player() -> None:
    port = free_port()
    with connected(port) as exchange:
        first = in_background(exchange, handshake())
        second = in_background(lambda: first.result(LIMIT_S) and exchange(header()))
        PlayerSession(base_port=port, seed=42, num_areas=3, timeout_wait=LIMIT_S).close()
        answer = UnityMessageProto.FromString(first.result(LIMIT_S)).unity_input.rl_initialization_input
        assert (answer.seed, answer.num_areas) == (42, 3)
        assert status(second.result(LIMIT_S)) == 400


def test_console_lines_of_a_connection(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with playing(handshake("1.4.0", "2.1.0")) as player:
        player.session.start_reset()
        player.send(message(SPACE, [Agent()]))
        player.session.receive()
        assert player.session.package_version == "2.1.0"
        assert player.session._process is None
        assert caplog.messages == [
            f"Listening on port {player.session.port}. Start training by pressing the Play button in the Unity Editor.",
            "Connected to Unity environment with package version 2.1.0 and communication version 1.4.0",
            "Connected new brain: Walker?team=0",
        ]


def test_the_editors_port_is_5004(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def communicator(port: int, address: str, **_: object) -> None:
        asked.append((port, address))
        raise LaunchError("far enough")

    monkeypatch.setattr(session_module, "Communicator", communicator)
    for keywords in (
        {},
        {"file_name": "sim:Basic", "worker_id": 2},
        {"file_name": "sim:Basic", "base_port": 6000, "worker_id": 1},
    ):
        with pytest.raises(LaunchError, match="far enough"):
            PlayerSession(**keywords)  # type: ignore[arg-type]
    assert asked == [(5004, "127.0.0.1"), (5007, "127.0.0.1"), (6001, "127.0.0.1")]


def test_the_editor_is_worker_0() -> None:
    with pytest.raises(LaunchError, match="only one: worker 0"):
        PlayerSession(worker_id=1)


def test_another_version_of_the_wire() -> None:
    port = free_port()
    with connected(port) as exchange:
        answer = in_background(exchange, handshake(api="2.0.0"))
        with pytest.raises(PlayerVersionError, match=r"'2\.0\.0'"):
            PlayerSession(base_port=port, timeout_wait=LIMIT_S)
        assert status(answer.result(LIMIT_S)) == 400


def test_a_player_that_never_connects(idle: str) -> None:
    with pytest.raises(PlayerTimeoutError) as caught:
        PlayerSession(idle, base_port=0, timeout_wait=0.05)
    for part in (
        "did not connect within 0.05 s",
        "Decision Requester",
        "Behavior Type is Default",
        "--no-graphics",
        "log",
    ):
        assert part in str(caught.value)
    assert isinstance(caught.value, UnityTimeOutException)


def test_an_editor_that_never_connects() -> None:
    with pytest.raises(PlayerTimeoutError, match="the Editor's console"):
        PlayerSession(base_port=0, timeout_wait=0.05)


def test_a_player_that_hangs_after_its_first_message() -> None:
    port = free_port()
    with connected(port) as exchange:
        first = in_background(exchange, handshake())
        with pytest.raises(PlayerTimeoutError, match="after its first message"):
            PlayerSession(base_port=port, timeout_wait=5)
        assert status(first.result(LIMIT_S)) == 200


@pytest.mark.parametrize(("second", "fault"), [(header(400), PlayerQuitError), (b"\xff", InvalidDataError)])
def test_a_player_that_says_something_else_then(second: bytes, fault: type[Exception]) -> None:
    port = free_port()
    with connected(port) as exchange:
        first = in_background(exchange, handshake())
        answer = in_background(lambda: first.result(LIMIT_S) and exchange(second))
        with pytest.raises(fault):
            PlayerSession(base_port=port, timeout_wait=LIMIT_S)
        assert status(answer.result(LIMIT_S)) == 400


@posix
@pytest.mark.parametrize(
    ("ending", "text"), [("exit 3", "return code 3"), ("kill -ABRT $$", "SIGABRT"), ("exit 0", "return code 0")]
)
def test_a_player_that_dies_at_its_start(tmp_path: Path, ending: str, text: str) -> None:
    """Noticed at once, however long the timeout; the log tells why."""
    log = 'while [ "$1" != -logFile ]; do shift; done; echo "Unable to load the scene" > "$2"'
    player = script(tmp_path, f"{log}; {ending}")
    with pytest.raises(PlayerDiedError) as caught:
        PlayerSession(player, base_port=0, timeout_wait=600, log_folder=str(tmp_path), additional_args=["--level", "2"])
    assert text in str(caught.value)
    assert "Unable to load the scene" in str(caught.value)
    assert str(tmp_path / "Player-0.log") in str(caught.value)
    assert isinstance(caught.value, UnityEnvironmentException)


def test_a_player_that_hangs() -> None:
    with playing() as player:
        player.session.timeout_wait = 0.2  # only now, as the handshake may take longer
        player.session.start_reset()
        assert player.session.poll(0.01) is None
        with pytest.raises(PlayerTimeoutError, match=r"stopped answering within 0\.2 s"):
            player.session.receive()
        with pytest.raises(PlayerTimeoutError):
            player.session.poll(0.0)


def test_waiting_adds_up_over_polls() -> None:
    with playing() as player:
        player.session.timeout_wait = 0.1
        player.session.start_reset()
        with pytest.raises(PlayerTimeoutError):  # noqa: PT012
            for _ in range(1000):
                assert player.session.poll(0.01) is None


@posix
def test_a_player_that_dies_at_work(idle: str) -> None:
    with playing(file_name=idle) as player:
        player.session.start_reset()
        assert player.session._process is not None
        os.kill(player.session._process.pid, signal.SIGKILL)
        with pytest.raises(PlayerDiedError, match="SIGKILL"):
            player.session.receive()
        with pytest.raises(PlayerDiedError):
            player.session.receive()


@posix
def test_a_player_that_dies_while_it_waits(idle: str) -> None:
    with playing(file_name=idle) as player:
        assert player.session._process is not None
        player.session.kill()
        until(lambda: player.session._process is not None and player.session._process.has_ended)
        with pytest.raises(PlayerDiedError, match="SIGKILL"):
            player.session.start_reset()
        player.session.kill()


def test_a_player_that_quits() -> None:
    with playing() as player:
        player.session.start_reset()
        player.send(header(400))
        with pytest.raises(PlayerQuitError, match="status 400") as caught:
            player.session.receive()
        assert isinstance(caught.value, UnityCommunicatorStoppedException)
        with pytest.raises(EnvironmentFaultError):
            player.session.start_reset()


@pytest.mark.parametrize(
    "data", [b"\xff", message(SPACE, [Agent(reward=math.nan)]), message(SPACE, [Agent()], side_channel=b"?")]
)
def test_a_player_that_sends_what_cannot_be_used(data: bytes) -> None:
    with playing() as player:
        player.session.start_reset()
        player.answer()
        player.send(data)
        with pytest.raises(InvalidDataError):
            player.session.receive()
        player.session.close()
        assert player.answer().header.status == 400


def test_close_says_goodbye_and_may_be_called_again() -> None:
    with playing() as player:
        player.session.close()
        player.session.close()
        assert player.answer().header.status == 400
        with pytest.raises(LaunchError, match="No Unity environment is loaded"):
            player.session.start_reset()


@posix
def test_close_ends_a_player_that_does_not_end_by_itself(idle: str) -> None:
    with playing(file_name=idle) as player:
        process = player.session._process
        assert process is not None
        player.session.close()
        assert process.has_ended
        assert process.describe_end() == "was killed by the signal SIGTERM"


@posix
def test_the_command_line_of_a_build(tmp_path: Path) -> None:
    player = script(tmp_path, f'printf "%s\\n" "$@" > {tmp_path}/arguments')
    with pytest.raises(PlayerDiedError):
        PlayerSession(
            player,
            worker_id=2,
            base_port=free_port() - 2,
            no_graphics=True,
            additional_args=["--level", "two words"],
            log_folder=str(tmp_path),
            timeout_wait=LIMIT_S,
        )
    arguments = (tmp_path / "arguments").read_text().splitlines()
    port = arguments[3]
    assert arguments == [
        *("-nographics", "-batchmode", "--mlagents-port", port),
        *("-logFile", str(tmp_path / "Player-2.log"), "--level", "two words"),
    ]


@posix
def test_a_program_that_forgets_to_close_leaves_no_player(tmp_path: Path) -> None:
    """An error that nobody catches: the player gets its goodbye at the program's end."""
    program = (
        "from tests.ports import free_port\n"
        "from tests.envs.unity.client import *\n"
        "from trajtrainer.envs.unity.session import PlayerSession\n"
        "port = free_port()\n"
        "with connected(port) as exchange:\n"
        "    first = in_background(exchange, handshake())\n"
        "    second = in_background(lambda: first.result(30) and exchange(header()))\n"
        "    session = PlayerSession(base_port=port)\n"
        "    raise SystemExit(5)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=300).returncode == 5
