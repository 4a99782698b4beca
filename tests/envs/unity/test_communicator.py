"""The server: one player's messages in and answers out, and nobody else's business."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from hypothesis import given, settings
from hypothesis import strategies as st
from mlagents_envs.exception import UnityWorkerInUseException

from tests.envs.unity.client import (
    LIMIT_S,
    METHOD,
    Exchange,
    connected,
    handshake,
    header,
    in_background,
    status,
    until,
)
from tests.ports import free_port
from trajtrainer.envs.unity.communicator import Communicator
from trajtrainer.envs.unity.encode import goodbye
from trajtrainer.envs.unity.faults import LaunchError, PlayerQuitError, PortInUseError
from trajtrainer.envs.unity.http2 import PREFACE

FAREWELL = b"farewell"  # what the server's last ping says


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


def test_a_signal_that_ends_no_select_is_handled_all_the_same(communicator: Communicator) -> None:
    """As on Windows, where none does; elsewhere one that another thread got does not."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    other = threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,))
    other.start()
    begin = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            communicator.receive(LIMIT_S)
    finally:
        signal.signal(signal.SIGINT, former)
        other.join()
    assert time.monotonic() - begin < 5


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
@settings(deadline=None, max_examples=10)
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


class RawClient:
    """A client of few words, for what a gRPC client does not do on purpose."""

    def __init__(self, port: int) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=True))
        self.h2.initiate_connection()
        self.socket = socket.create_connection(("127.0.0.1", port), LIMIT_S)

    def call(self, stream: int, message: bytes) -> bytes:
        headers = [(":method", "POST"), (":scheme", "http"), (":path", METHOD), (":authority", "localhost")]
        self.h2.send_headers(stream, headers)
        self.h2.send_data(stream, struct.pack(">BI", 0, len(message)) + message, end_stream=True)
        return self.h2.data_to_send()

    def shake_hands(self, communicator: Communicator) -> None:
        self.socket.sendall(self.call(1, handshake()))
        assert communicator.receive(LIMIT_S) == handshake()
        communicator.answer(b"welcome")

    def received_until(self, part: bytes) -> bytes:
        received = b""
        while part not in received:
            more = self.socket.recv(1 << 16)
            assert more, "the end came first"
            received += more
        return received


def test_a_call_that_is_under_way_when_the_port_is_closed_gets_the_goodbye() -> None:
    communicator = Communicator(0)
    player = RawClient(communicator.port)
    with player.socket:
        player.shake_hands(communicator)
        player.received_until(b"grpc-status")
        closed = in_background(communicator.close)
        farewell = player.received_until(FAREWELL)
        assert b"\x00\x00\x08\x07\x00\x00\x00\x00\x00\x7f\xff\xff\xff" in farewell  # GOAWAY, any stream may count
        player.socket.sendall(player.call(3, b"next message"))
        assert goodbye() in player.received_until(b"grpc-status")
        player.socket.sendall(b"\x00\x00\x08\x06\x01\x00\x00\x00\x00" + FAREWELL)
        assert player.socket.recv(1000) == b""
    assert closed.result(LIMIT_S) is None


@pytest.mark.parametrize("is_closing", [False, True])
def test_a_call_that_is_taken_back_at_once(is_closing: bool) -> None:
    communicator = Communicator(0)
    player = RawClient(communicator.port)
    with player.socket:
        player.shake_hands(communicator)
        if is_closing:
            communicator.say_goodbye()
        reset = b"\x00\x00\x04\x03\x00\x00\x00\x00\x03" + bytes(4)
        player.socket.sendall(player.call(3, b"next message") + reset)
        if not is_closing:
            assert communicator.receive(LIMIT_S) == b"next message"
            with pytest.raises(PlayerQuitError, match="while it was waiting"):
                communicator.answer(b"answer")
        player.socket.sendall(player.call(5, b"last message"))
        if not is_closing:
            assert communicator.receive(LIMIT_S) == b"last message"
        communicator.close()
        assert goodbye() in player.received_until(FAREWELL)


def test_close_beside_a_player_that_is_quick() -> None:
    """Its next call is on its way at any time."""
    for number in range(6):
        communicator = Communicator(0)
        with connected(communicator.port) as player:

            def play(exchange: Exchange = player) -> int:
                answer = exchange(handshake())
                while status(answer) != 400:
                    answer = exchange(b"step")
                return status(answer)

            played = in_background(play)
            for _ in range(2 + number):
                assert communicator.receive(LIMIT_S) is not None
                communicator.answer(header())
            communicator.close()
            assert played.result(LIMIT_S) == 400


WINDOW_UPDATES_OF_0 = b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00" * 5000


@contextmanager
def flooded(port: int, opening: bytes = PREFACE, flood: bytes = WINDOW_UPDATES_OF_0) -> Iterator[None]:
    """Strangers that send as much as they can, and come back when they are cut off."""
    is_over = threading.Event()

    def disturb() -> None:
        while not is_over.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5) as connection:
                connection.sendall(opening)
                while not is_over.is_set():
                    connection.sendall(flood)

    strangers = [threading.Thread(target=disturb) for _ in range(2)]
    for stranger in strangers:
        stranger.start()
    try:
        yield
    finally:
        is_over.set()
        for stranger in strangers:
            stranger.join(LIMIT_S)


def test_a_wait_ends_in_time_in_a_flood() -> None:
    communicator = Communicator(0)
    with flooded(communicator.port):
        for _ in range(3):
            assert in_background(communicator.receive, 0.2).result(LIMIT_S) is None
        in_background(communicator.close).result(LIMIT_S)


def test_a_wait_ends_in_time_in_a_flood_of_the_player_itself() -> None:
    communicator = Communicator(0)
    opening = RawClient(communicator.port)
    with opening.socket:
        first = opening.call(1, handshake())
    with flooded(communicator.port, first):
        assert in_background(communicator.receive, LIMIT_S).result(LIMIT_S) == handshake()
        communicator.answer(b"welcome")
        for _ in range(3):
            assert in_background(communicator.receive, 0.2).result(LIMIT_S) is None
        in_background(communicator.close).result(LIMIT_S)


def test_a_player_finds_its_way_in_a_flood_and_goes_on(communicator: Communicator) -> None:
    with flooded(communicator.port), connected(communicator.port) as player:
        for request in (handshake(), *(b"step %d" % number for number in range(50))):
            answer = in_background(player, request)
            assert communicator.receive(LIMIT_S) == request
            communicator.answer(b"answer to " + request)
            assert answer.result(LIMIT_S) == b"answer to " + request


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


@pytest.mark.parametrize("address", ["192.0.2.1", "no such host.invalid", "a..b", "x" * 64])
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
        "from tests.envs.unity.client import *\n"
        "from trajtrainer.envs.unity.communicator import Communicator\n"
        "communicator = Communicator(0)\n"
        "with connected(communicator.port) as player:\n"
        "    held = in_background(player, handshake())\n"
        "    assert communicator.receive(30) == handshake()\n"
        "    raise SystemExit(5)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=300).returncode == 5
