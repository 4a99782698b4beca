"""The HTTP/2 of the server against a well-known client of it (h2), for any cutting of the bytes and any windows."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from h2.settings import SettingCodes
from hypothesis import given
from hypothesis import strategies as st

from trajtrainer.envs.unity import http2
from trajtrainer.envs.unity.http2 import PREFACE, STRANGERS_BYTES, Call, Http2Connection, Http2Error

METHOD = "/communicator_objects.UnityToExternalProto/Exchange"
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", METHOD),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]
MESSAGES = st.one_of(st.binary(max_size=40), st.integers(0, 200_000).map(bytes))
CUTS = st.lists(st.integers(1, 70_000), min_size=1, max_size=6)


def wrapped(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def pieces(data: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    """``data`` cut into parts of these sizes, again and again."""
    start = number = 0
    while start < len(data):
        size = sizes[number % len(sizes)]
        yield data[start : start + size]
        start, number = start + size, number + 1


def trusted() -> Http2Connection:
    """The server's end of a connection whose other end is known to be the player."""
    server = Http2Connection()
    server.trust()
    return server


class Client:
    """h2 on the player's side of a server's connection."""

    def __init__(self, server: Http2Connection, sizes: Sequence[int] = (1 << 20,), window: int | None = None) -> None:
        self.server = server
        self.sizes = sizes
        self.h2 = H2Connection(H2Configuration(client_side=True))
        self.h2.initiate_connection()
        if window is not None:
            self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.events: list[Event] = []
        self.calls: list[Call] = []
        self.take()

    def send(self) -> None:
        for piece in pieces(self.h2.data_to_send(), self.sizes):
            self.calls += self.server.receive(piece)

    def take(self) -> None:
        """Passes bytes to and fro until nobody has any."""
        self.send()
        while self.server.outgoing:
            data = bytes(self.server.outgoing)
            del self.server.outgoing[:]
            for piece in pieces(data, self.sizes):
                for event in self.h2.receive_data(piece):
                    self.events.append(event)
                    if isinstance(event, DataReceived):
                        assert event.stream_id is not None
                        self.h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
            self.send()

    def call(self, message: bytes, headers: Sequence[tuple[str, str]] = HEADERS) -> int:
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, headers)
        body = wrapped(message)
        while body:
            self.take()
            size = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, len(body))
            self.h2.send_data(stream, body[:size])
            body = body[size:]
        self.h2.end_stream(stream)
        self.take()
        return stream

    def answer(self, stream: int) -> tuple[dict[str, str], bytes, dict[str, str]]:
        """Headers, body and trailers of a complete answer."""
        headers: dict[str, str] = {}
        trailers: dict[str, str] = {}
        body = b""
        is_complete = False
        for event in self.events:
            if getattr(event, "stream_id", None) != stream:
                continue
            if isinstance(event, ResponseReceived):
                headers = text(event.headers)
            elif isinstance(event, DataReceived):
                body += event.data or b""
            elif isinstance(event, TrailersReceived):
                trailers = text(event.headers)
            elif isinstance(event, StreamEnded):
                is_complete = True
        assert is_complete
        return headers, body, trailers


def text(headers: object) -> dict[str, str]:
    assert isinstance(headers, list)
    return {bytes(name).decode(): bytes(value).decode() for name, value in headers}


@given(st.lists(st.tuples(MESSAGES, MESSAGES), min_size=1, max_size=4), CUTS, st.none() | st.integers(1, 300_000))
def test_calls_and_answers(exchanges: list[tuple[bytes, bytes]], sizes: list[int], window: int | None) -> None:
    if window is not None:
        window = max(window, 500)  # below it takes a round for a few bytes
    client = Client(trusted(), sizes, window)
    for number, (request, reply) in enumerate(exchanges, 1):
        stream = client.call(request)
        assert client.calls[-1] == Call(stream, METHOD, request)
        assert len(client.calls) == number
        assert client.server.is_waiting(stream)
        client.server.answer(stream, reply)
        client.take()
        headers, body, trailers = client.answer(stream)
        assert headers == {":status": "200", "content-type": "application/grpc"}
        assert body == wrapped(reply)
        assert trailers == {"grpc-status": "0"}
        assert not client.server.is_waiting(stream)
        assert not client.server.is_answering


def test_an_answer_waits_for_the_window_and_goes_on_with_it() -> None:
    client = Client(trusted(), window=10)
    stream = client.call(b"request")
    client.server.answer(stream, bytes(100))
    frames = client.h2.receive_data(bytes(client.server.outgoing))
    assert sum(len(event.data or b"") for event in frames if isinstance(event, DataReceived)) == 10
    assert client.server.is_waiting(stream)
    assert client.server.is_answering


def test_answers_of_several_calls_in_any_order() -> None:
    client = Client(trusted())
    streams = [client.call(bytes([number])) for number in range(4)]
    for stream in reversed(streams):
        client.server.answer(stream, bytes([stream]))
    client.take()
    assert [client.answer(stream)[1] for stream in streams] == [wrapped(bytes([stream])) for stream in streams]


def test_a_refused_call() -> None:
    client = Client(trusted())
    stream = client.call(b"")
    client.server.refuse(stream, 8, "Taken: 100 %, no “room”.")
    client.take()
    headers, body, trailers = client.answer(stream)
    assert (headers["grpc-status"], body, trailers) == ("8", b"", {})
    assert headers["grpc-message"] == "Taken%3A 100 %25%2C no %E2%80%9Croom%E2%80%9D."
    assert not client.server.is_waiting(stream)


def test_headers_that_change_between_calls() -> None:
    """The short form of headers, which only looks up, means something else after the table has changed."""
    client = Client(trusted())
    methods = ["/a", "/a", "/a", "/b", "/b", "/a", "/c", "/b", "/c", "/c"]
    for method in methods:
        client.call(b"", [(name, method if name == ":path" else value) for name, value in HEADERS])
        client.server.refuse(client.calls[-1].stream, 12, "")
        client.take()
    assert [call.method for call in client.calls] == methods


def test_a_call_that_is_taken_back_has_no_answer() -> None:
    client = Client(trusted())
    stream = client.call(b"")
    client.h2.reset_stream(stream)
    client.take()
    assert not client.server.is_waiting(stream)


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_call_that_is_taken_back_as_it_comes(is_refused: bool) -> None:
    """The call and its RST_STREAM in one piece: nothing may be sent on that stream any more (RFC 9113, 5.1)."""
    client = Client(trusted())
    client.h2.send_headers(1, HEADERS)
    client.h2.send_data(1, wrapped(b"message"), end_stream=True)
    client.h2.reset_stream(1)
    (call,) = client.server.receive(client.h2.data_to_send())
    assert call == Call(1, METHOD, b"message")
    if is_refused:
        client.server.refuse(1, 8, "taken")
    else:
        client.server.answer(1, b"answer")
    assert not client.server.outgoing
    assert not client.server.is_answering


def test_calls_under_way_outlive_the_farewell() -> None:
    """RFC 9113, 6.8: a call that was sent before the client read of the end counts; a ping tells when none can come."""
    client = Client(trusted())
    client.h2.send_headers(1, HEADERS)
    client.h2.send_data(1, wrapped(b"message"), end_stream=True)
    client.server.go_away()
    go_away, ping = bytes(client.server.outgoing[:17]), bytes(client.server.outgoing[17:])
    assert go_away == frame(0x7, 0, 0, struct.pack(">II", 2**31 - 1, 0))
    assert ping == frame(0x6, 0, 0, ping[9:])
    assert client.server.receive(client.h2.data_to_send()) == [Call(1, METHOD, b"message")]
    assert not client.server.knows_the_end
    client.server.receive(frame(0x6, 0x1, 0, ping[9:]))
    assert client.server.knows_the_end


def test_no_more_calls_at_once_than_announced() -> None:
    server = trusted()
    client = Client(server)
    client.h2.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 100  # as if it had not heard of the limit
    client.h2.remote_settings.acknowledge()
    streams = [2 * number + 1 for number in range(20)]
    for stream in streams:
        client.h2.send_headers(stream, HEADERS)
    client.take()
    resets = [event for event in client.events if isinstance(event, StreamReset)]
    assert [event.stream_id for event in resets] == streams[16:]
    assert {event.error_code for event in resets} == {ErrorCodes.REFUSED_STREAM}
    assert all(client.server.is_waiting(stream) for stream in streams[:16])


def test_headers_in_parts_padding_and_unknown_frames() -> None:
    client = Client(trusted())
    block = client.h2.encoder.encode(HEADERS)
    padded = bytes([3]) + bytes(5) + block[:4] + bytes(3)
    data = frame(0x1, 0x8 | 0x20, 1, padded) + frame(0x9, 0, 1, block[4:9]) + frame(0x9, 0x4, 1, block[9:])
    data += frame(0x2, 0, 1, bytes(5)) + frame(0x77, 0xFF, 5, b"what is it")
    data += frame(0x0, 0x8 | 0x1, 1, bytes([2]) + wrapped(b"message") + bytes(2))
    assert [call for byte in data for call in client.server.receive(bytes([byte]))] == [Call(1, METHOD, b"message")]


def test_pings_are_answered() -> None:
    client = Client(trusted())
    client.h2.ping(b"8 bytes.")
    client.send()
    assert bytes(client.server.outgoing) == frame(0x6, 0x1, 0, b"8 bytes.")


def test_who_asks_and_never_listens_is_cut_off() -> None:
    server = Client(trusted()).server
    pings = frame(0x6, 0, 0, bytes(8)) * 10_000
    with pytest.raises(Http2Error, match="does not read them"):
        server.receive(pings)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(0x0, 0, 1, b"x"), "never opened"),
        (frame(0x1, 0x4, 2, b"\x82"), "not a new stream"),
        (frame(0x1, 0x4, 1, b"\xff\xff\xff\xff\xff"), "invalid headers"),
        (frame(0x1, 0x8 | 0x4, 1, b"\x09\x82"), "padding"),
        (frame(0x1, 0x8 | 0x4, 1, b""), "too short"),
        (frame(0x1, 0x5, 1, b"\x82"), "without a message"),
        (frame(0x1, 0x4, 1, b"\x82") + frame(0x0, 0x1, 1, b"\x01\x00\x00\x00\x01x"), "compressed"),
        (frame(0x1, 0x4, 1, b"\x82") + frame(0x0, 0x1, 1, b"\x00\x00\x00\x00\x09x"), "different length"),
        (frame(0x1, 0x0, 1, b"\x82") + frame(0x0, 0x0, 1, b""), "incomplete headers"),
        (frame(0x1, 0x0, 1, b"\x82") + frame(0x9, 0x0, 3, b""), "incomplete headers"),
        (frame(0x1, 0x0, 1, b"\x82") + frame(0x9, 0x0, 1, bytes(9_000)), "incomplete headers"),
        (frame(0x1, 0x4, 1, b"\x20" * 3 + b"\x82"), "size of their table"),
        (frame(0x1, 0x4, 1, b"\x3f\xe1\x1f" * 3 + b"\x82"), "size of their table"),
        (frame(0x1, 0x4, 1, b"\x82" * 9_000), "too large"),
        (frame(0x1, 0x4, 1, bytes(3) * 2_000), "invalid headers"),
        *[(b"\xff\xff\xff" + bytes([kind, 0x4, 0, 0, 0, 1]), "with 16777215 bytes") for kind in (*range(1, 10), 0x77)],
        (frame(0x4, 0, 0, b"\x00\x04\xff\xff\xff\xff"), "window"),
        (frame(0x4, 0, 0, b"\x00\x05\x00\x00\x00\x01"), "frame size of 1"),
        (frame(0x4, 0, 0, b"12345"), "invalid length"),
        (frame(0x5, 0, 1, bytes(4)), "may not send"),
        (frame(0x8, 0, 0, b"\x7f\xff\xff\xff"), "window"),
        (frame(0x8, 0, 0, b"\x7f"), "too short"),
    ],
)
def test_what_is_against_the_rules(data: bytes, reason: str) -> None:
    server = Client(trusted()).server
    with pytest.raises(Http2Error, match=reason):
        server.receive(data)


HEADER_BLOCK = b"\x82\x86\x84"
FLOODS = {
    "WINDOW_UPDATE of 0": frame(0x8, 0, 0, bytes(4)),
    "unknown frames": frame(0x77, 0, 0, b""),
    "PRIORITY": frame(0x2, 0, 1, bytes(5)),
    "PING": frame(0x6, 0x1, 0, bytes(8)),
    "SETTINGS": frame(0x4, 0x1, 0, b""),
    "empty DATA": frame(0x0, 0, 1, b""),
    "DATA": frame(0x0, 0, 1, bytes(1000)),
    "empty CONTINUATION": frame(0x9, 0, 3, b""),
}
OPENED = frame(0x1, 0x4, 1, HEADER_BLOCK)
OPEN_BLOCK = frame(0x1, 0, 3, HEADER_BLOCK)


def flood(server: Http2Connection, name: str, size: int) -> int:
    """Sends ``size`` bytes of a flood, or less if the server had enough. Returns how many it took."""
    start = OPENED + (OPEN_BLOCK if name == "empty CONTINUATION" else b"")
    taken = 0
    for piece in pieces(start + FLOODS[name] * (size // len(FLOODS[name])), [999]):
        try:
            server.receive(piece)
        except Http2Error:
            return taken
        taken += len(piece)
        del server.outgoing[:]
    return taken


@pytest.mark.parametrize("name", FLOODS)
def test_a_stranger_that_floods_is_cut_off(name: str) -> None:
    server = Http2Connection()
    server.receive(PREFACE)
    taken = flood(server, name, 1 << 20)
    assert STRANGERS_BYTES - 2_000 < taken < STRANGERS_BYTES


def test_a_stranger_that_calls_and_resets_is_cut_off() -> None:
    server = Http2Connection()
    server.receive(PREFACE)
    calls = [frame(0x1, 0x4, 2 * n + 1, HEADER_BLOCK) + frame(0x3, 0, 2 * n + 1, bytes(4)) for n in range(700)]
    server.receive(b"".join(calls[:500]))
    with pytest.raises(Http2Error, match="without a handshake"):
        server.receive(b"".join(calls[500:]))


def test_a_stranger_cannot_announce_a_large_frame() -> None:
    """Which would have to be kept until it is whole (RFC 9113, 4.2)."""
    server = Client(Http2Connection()).server
    with pytest.raises(Http2Error, match="16385 bytes"):
        server.receive(frame(0x0, 0, 1, bytes(16_385))[:9])


@pytest.mark.parametrize("name", sorted(FLOODS.keys() - {"empty CONTINUATION", "DATA"}))
def test_the_player_has_no_allowance(name: str) -> None:
    """It asks for the speed of its line by pings, and opens windows, as long as a training takes."""
    client = Client(trusted())
    assert flood(client.server, name, 1 << 18) > 250_000
    assert client.server.receive(frame(0x0, 0x1, 1, wrapped(b"")))


def test_the_player_may_send_large_frames_and_messages() -> None:
    client = Client(Http2Connection())
    assert client.h2.max_outbound_frame_size == 16_384
    client.server.trust()
    client.take()
    assert client.h2.max_outbound_frame_size == 2**24 - 1
    client.call(bytes(20 << 20))
    assert len(client.calls[0].message) == 20 << 20


def test_a_message_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(trusted())
    monkeypatch.setattr(http2, "MAX_WINDOW", 1023)
    with pytest.raises(Http2Error, match="more than 1023 bytes"):
        client.call(bytes(1024))


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"P" * 30, PREFACE[:-1] + b"x"])
def test_other_protocols(first: bytes) -> None:
    with pytest.raises(Http2Error, match="does not speak"):
        Http2Connection().receive(first)


@given(st.binary(max_size=400), CUTS)
def test_rubbish_is_refused_or_ignored(rubbish: bytes, sizes: list[int]) -> None:
    server = Http2Connection()
    try:
        for piece in pieces(PREFACE + rubbish, sizes):
            server.receive(piece)
    except Http2Error:
        pass


@given(st.data())
def test_damaged_bytes_are_refused_or_ignored(data: st.DataObject) -> None:
    """A bit of a true conversation is turned."""
    client = Client(trusted())
    client.h2.send_headers(1, HEADERS)
    client.h2.send_data(1, wrapped(b"a message"), end_stream=True)
    sent = bytearray(client.h2.data_to_send())
    sent[data.draw(st.integers(0, len(sent) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        calls = client.server.receive(bytes(sent))
    except Http2Error:
        return
    assert len(calls) <= 1


def test_pieces() -> None:
    assert [*pieces(b"abcdefg", [2, 3])] == [b"ab", b"cde", b"fg"]
    assert all(first != second for first, second in pairwise([*pieces(b"abc", [1])]))
