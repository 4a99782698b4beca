"""The server: one player's messages in and answers out, and nobody else's business."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Iterator

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlagents_envs.exception import UnityWorkerInUseException

from tests.unity.client import LIMIT_S, Exchange, connected, free_port, handshake, header, in_background, status, until
from trajtrainer.unity.communicator import Communicator
from trajtrainer.unity.faults import LaunchError, PlayerQuitError, PortInUseError


@pytest.fixture(params=["asleep", "awake"])
def communicator(request: pytest.FixtureRequest) -> Iterator[Communicator]:
    made = Communicator(0, busy_wait=request.param == "awake")
    yield made
    made.close()


def refusal(exchange: Exchange, request: bytes) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        exchange(request)
    code: grpc.StatusCode = caught.value.code()
    return code


def refusal_while_waiting(communicator: Communicator, stranger: Exchange, request: bytes) -> grpc.StatusCode:
    """The same while somebody waits for messages, and gets none."""
    refused = in_background(refusal, stranger, request)
    while not refused.done():
        assert communicator.receive(0.001) is None
    return refused.result()


def test_messages_and_answers_alternate(communicator: Communicator) -> None:
    with connected(communicator.port) as exchange:
        for index, request in enumerate((handshake(), b"one", b"two", b"")):
            answer = in_background(exchange, request)
            assert communicator.receive(LIMIT_S) == request
            assert not answer.done()
            communicator.answer(f"answer {index}".encode())
            assert answer.result(LIMIT_S) == f"answer {index}".encode()


def test_receive_gives_up(communicator: Communicator) -> None:
    assert communicator.receive(0.0) is None
    assert communicator.receive(0.01) is None


def test_wake_ends_a_wait(communicator: Communicator) -> None:
    received = in_background(communicator.receive, None)
    communicator.wake()
    assert received.result(LIMIT_S) is None


def test_answering_nothing_is_a_mistake(communicator: Communicator) -> None:
    with pytest.raises(RuntimeError, match="no message to answer"):
        communicator.answer(b"")


def test_messages_larger_than_the_default_limit_of_grpc(communicator: Communicator) -> None:
    large = bytes(20 << 20)
    with connected(communicator.port) as exchange:
        for request in (handshake(), large):
            answer = in_background(exchange, request)
            assert communicator.receive(LIMIT_S) == request
            communicator.answer(large)
            assert answer.result(LIMIT_S) == large


@pytest.mark.parametrize("garbage", [b"", b"\xff\xff rubbish", header(), header(400), b"GET / HTTP/1.1\r\n\r\n"])
def test_whoever_does_not_open_with_a_handshake_is_refused(
    communicator: Communicator, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(communicator.port) as stranger:
        assert refusal(stranger, garbage) is grpc.StatusCode.INVALID_ARGUMENT
        assert refusal(stranger, garbage) is grpc.StatusCode.INVALID_ARGUMENT
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    assert communicator.receive(0.0) is None
    with connected(communicator.port) as player:
        answer = in_background(player, handshake())
        assert communicator.receive(LIMIT_S) == handshake()
        communicator.answer(b"welcome")
        assert answer.result(LIMIT_S) == b"welcome"


@given(st.lists(st.binary(max_size=60), max_size=4))
@settings(deadline=None, max_examples=20)
def test_strangers_do_not_disturb_the_player(rubbish: list[bytes]) -> None:
    """Before the player's call, while it is held, and between two calls."""
    made = Communicator(0)
    with connected(made.port) as player, connected(made.port) as stranger:
        for request in (handshake(), b"step", b"step 2"):
            answer = in_background(player, request)
            assert made.receive(LIMIT_S) == request
            for sent in (handshake(), header(400), *rubbish):
                assert refusal_while_waiting(made, stranger, sent) is grpc.StatusCode.RESOURCE_EXHAUSTED
            made.answer(b"answer to " + request)
            assert answer.result(LIMIT_S) == b"answer to " + request
            assert refusal_while_waiting(made, stranger, handshake()) is grpc.StatusCode.RESOURCE_EXHAUSTED
        made.close()


def test_many_strangers_at_once_do_not_block_the_player(communicator: Communicator) -> None:
    with connected(communicator.port) as player, connected(communicator.port) as stranger:
        held = in_background(player, handshake())
        assert communicator.receive(LIMIT_S) == handshake()
        refused = [in_background(refusal, stranger, handshake()) for _ in range(30)]
        assert {each.result(LIMIT_S) for each in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        communicator.answer(b"welcome")
        assert held.result(LIMIT_S) == b"welcome"


def test_a_second_call_of_the_player_is_refused(communicator: Communicator) -> None:
    with connected(communicator.port) as player:
        held = in_background(player, handshake())
        assert communicator.receive(LIMIT_S) == handshake()
        assert refusal(player, b"too early") is grpc.StatusCode.FAILED_PRECONDITION
        communicator.answer(b"welcome")
        assert held.result(LIMIT_S) == b"welcome"
        assert communicator.receive(0.0) is None


def test_other_methods_do_not_exist(communicator: Communicator) -> None:
    with connected(communicator.port, method="/communicator_objects.UnityToExternalProto/Initialize") as exchange:
        assert refusal(exchange, handshake()) is grpc.StatusCode.UNIMPLEMENTED


def test_a_lost_connection_is_noticed(communicator: Communicator) -> None:
    with connected(communicator.port) as player:
        lost = in_background(player, handshake())
        assert communicator.receive(LIMIT_S) == handshake()
    assert lost.exception(LIMIT_S) is not None
    with pytest.raises(PlayerQuitError, match="closed its connection"):
        communicator.receive(LIMIT_S)
    with pytest.raises(PlayerQuitError, match="closed its connection"):
        communicator.answer(b"welcome")


def test_idle_strangers_do_not_pile_up(communicator: Communicator) -> None:
    with connected(communicator.port) as player:
        held = in_background(player, handshake())
        assert communicator.receive(LIMIT_S) == handshake()
        strangers = [socket.create_connection(("127.0.0.1", communicator.port)) for _ in range(40)]
        try:
            for stranger in strangers[:24]:
                stranger.settimeout(LIMIT_S)
                while stranger.recv(1000):  # what is sent first, and then the end
                    pass
            communicator.answer(b"welcome")
            assert held.result(LIMIT_S) == b"welcome"
        finally:
            for stranger in strangers:
                stranger.close()


def test_goodbye_to_a_player_that_waits(communicator: Communicator) -> None:
    with connected(communicator.port) as player:
        held = in_background(player, handshake())
        assert communicator.receive(LIMIT_S) == handshake()
        communicator.say_goodbye()
        assert status(held.result(LIMIT_S)) == 400


def test_goodbye_to_a_player_that_is_at_work(communicator: Communicator) -> None:
    with connected(communicator.port) as player:
        first = in_background(player, handshake())
        assert communicator.receive(LIMIT_S) == handshake()
        communicator.answer(b"welcome")
        assert first.result(LIMIT_S) == b"welcome"
        communicator.say_goodbye()
        assert status(player(b"next message")) == 400


def test_close_answers_what_nobody_received() -> None:
    communicator = Communicator(0)
    with connected(communicator.port) as player:
        held = in_background(player, handshake())
        until(lambda: communicator._unanswered is not None)
        communicator.close()
        assert status(held.result(LIMIT_S)) == 400


def test_close_lets_a_large_answer_arrive() -> None:
    """Larger than the player's window: it must ask for the rest."""
    communicator = Communicator(0)
    large = bytes(4 << 20)
    with connected(communicator.port) as player:
        held = in_background(player, handshake())
        assert communicator.receive(LIMIT_S) == handshake()
        communicator.answer(large)
        communicator.close()
        assert held.result(LIMIT_S) == large


def test_the_port_is_free_again_after_close() -> None:
    port = free_port()
    for _ in range(3):
        communicator = Communicator(port)
        assert communicator.port == port
        with connected(port) as player:
            held = in_background(player, handshake())
            assert communicator.receive(LIMIT_S) == handshake()
            communicator.close()
            assert status(held.result(LIMIT_S)) == 400


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_port_in_use(address: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"Port {port} of .* is in use.*--base-port") as caught:
            Communicator(port, address)
        assert isinstance(caught.value, UnityWorkerInUseException)


def test_two_communicators_do_not_share_a_port(communicator: Communicator) -> None:
    with pytest.raises(PortInUseError):
        Communicator(communicator.port)


@pytest.mark.parametrize("address", ["192.0.2.1", "no such host.invalid"])
def test_an_address_that_is_not_ours(address: str) -> None:
    with pytest.raises(LaunchError, match="listen_address"):
        Communicator(0, address)


def test_only_this_machine_can_connect_by_default() -> None:
    communicator = Communicator(free_port())
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.2", communicator.port))  # would fail if all interfaces were taken
    finally:
        communicator.close()


def test_a_program_that_forgets_to_close_ends_all_the_same() -> None:
    program = (
        "from tests.unity.client import *\n"
        "from trajtrainer.unity.communicator import Communicator\n"
        "communicator = Communicator(0)\n"
        "with connected(communicator.port) as player:\n"
        "    held = in_background(player, handshake())\n"
        "    assert communicator.receive(30) == handshake()\n"
        "    raise SystemExit(5)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 5
