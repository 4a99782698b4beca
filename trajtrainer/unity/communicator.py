"""The trainer's end of the wire: a gRPC server with one method, which one player calls again and again (reference 5.1).

Each call brings a message and waits for its answer; the player stands still until then. The thread that calls
``receive`` reads the sockets itself, because handing a message from thread to thread costs more than the message. While
nobody does (an update can take minutes) a second thread looks every now and then, so that strangers are turned away and
pings are answered.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections import deque
from enum import IntEnum
from typing import Any

from google.protobuf.message import DecodeError

from trajtrainer.cores import usable_cores
from trajtrainer.unity.encode import goodbye
from trajtrainer.unity.faults import PlayerQuitError
from trajtrainer.unity.http2 import MAX_WINDOW, Call, Http2Connection, Http2Error
from trajtrainer.unity.listen import LOOPBACK, listen
from trajtrainer.unity.proto.communicator_pb2 import UnityMessageProto

_LOGGER = logging.getLogger(__name__)
_METHOD = "/communicator_objects.UnityToExternalProto/Exchange"
_READ_BYTES = 1 << 18
_MAX_CONNECTIONS = 16
_KEEPER_S = 0.2
# A thread that sleeps until a message comes is woken so late (0.2 ms on a virtual machine) that a player which answers
# this quickly is better waited for awake.
_QUICK_S = 1e-3
_CLOSE_GRACE_S = 1.0


class _Status(IntEnum):
    """Of gRPC."""

    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12


class _Client:
    """One connection: bytes between its socket and its HTTP/2."""

    def __init__(self, connection: socket.socket, address: Any) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.name = f"{address[0]}:{address[1]}"
        self.http = Http2Connection()
        self.is_open = True

    def read(self) -> list[Call]:
        """The calls that are complete. An error closes the connection."""
        try:
            data = self.socket.recv(_READ_BYTES)
            if data:
                return self.http.receive(data)
        except BlockingIOError:
            return []
        except (OSError, Http2Error) as error:
            _LOGGER.debug("Connection from %s: %s", self.name, error)
        self.is_open = False
        return []

    def write(self) -> None:
        """Sends what can be sent now. An error closes the connection."""
        outgoing = self.http.outgoing
        try:
            while outgoing:
                del outgoing[: self.socket.send(outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False

    def end_if_done(self) -> None:
        """Tells the other side that nothing more comes, once it has everything."""
        if not self.http.outgoing and not self.http.is_answering:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)


class Communicator:
    """Listens on one port for one player.

    The first connection that opens with a handshake is the player's. Calls over any other, and a second call beside the
    first, are refused and change nothing.

    Args:
        address: where to listen; the default is reachable from this machine alone.
        port: 0 takes any free one.
        busy_wait: may keep a core busy while it waits for a player that answered its last message within a millisecond.

    Raises:
        PortInUseError: somebody else listens there.
        LaunchError: the address is not one of this machine, or the port is not allowed.
    """

    def __init__(self, port: int, address: str = LOOPBACK, *, busy_wait: bool = False) -> None:
        self._busy_wait = busy_wait and usable_cores() > 1
        self._is_quick = False
        self._listeners = listen(address, port)
        self.port: int = self._listeners[-1].getsockname()[1]
        self._lock = threading.RLock()  # of all below; whoever waits for messages holds it
        self._inbox: deque[bytes] = deque()
        self._clients: deque[_Client] = deque()
        self._player: _Client | None = None
        self._unanswered: int | None = None
        self._closing = False
        self._refused = 0
        self._is_woken = False
        self._waker, self._wake_end = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for each in (*self._listeners, self._wake_end):
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ)
        self._closed = threading.Event()
        threading.Thread(target=self._keep, name=f"player-port-{self.port}", daemon=True).start()

    def receive(self, timeout_s: float | None = None) -> bytes | None:
        """Waits for the player's next message. It must be answered before the next one can come.

        Returns:
            None after ``timeout_s`` seconds, or when ``wake`` was called.

        Raises:
            PlayerQuitError: the player has closed its connection.
        """
        begin = time.monotonic()
        deadline = None if timeout_s is None else begin + timeout_s
        with self._lock:
            if self._busy_wait and self._is_quick:
                awake_until = begin + (_QUICK_S if timeout_s is None else min(_QUICK_S, timeout_s))
                while not (self._inbox or self._serve(0.0) or time.monotonic() >= awake_until):
                    pass
            while not self._inbox:
                if self._is_woken:
                    self._is_woken = False
                    return None
                if self._player is not None and not self._player.is_open:
                    raise PlayerQuitError("The player closed its connection.")
                remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not self._serve(remaining) and remaining is not None and remaining <= 0.0:
                    return None
            self._is_quick = time.monotonic() < begin + _QUICK_S
            return self._inbox.popleft()

    def wake(self) -> None:
        """Makes one ``receive`` return None. For other threads, and what they have to tell."""
        with contextlib.suppress(OSError):  # closed in the meantime
            self._waker.send(b"\0")

    def answer(self, reply: bytes) -> None:
        """Answers the message that was received last.

        Raises:
            PlayerQuitError: the connection is gone.
        """
        with self._lock:
            if self._player is None or self._unanswered is None:
                raise RuntimeError("There is no message to answer: receive one first.")
            if not self._reply(reply):
                raise PlayerQuitError("The player closed its connection while it waited for an answer.")

    def say_goodbye(self) -> None:
        """Makes the player quit: by the answer that it waits for, or else by the answer to its next message."""
        self._closing = True
        self.wake()  # so that the lock is free
        with self._lock:
            if self._unanswered is not None:
                self._reply(goodbye())

    def close(self) -> None:
        """Says goodbye, frees the port and ends the thread."""
        if self._closed.is_set():
            return
        self.say_goodbye()
        self._closed.set()
        with self._lock:
            for listener in self._listeners:
                self._selector.unregister(listener)
                listener.close()
            self._part_from_clients()
            self._selector.close()
            self._waker.close()
            self._wake_end.close()

    def _part_from_clients(self) -> None:
        """Lets them take what is on its way: closing at once could take it from them."""
        for client in list(self._clients):
            client.http.go_away()
            self._send(client)
        deadline = time.monotonic() + _CLOSE_GRACE_S
        while self._clients and (remaining := deadline - time.monotonic()) > 0:
            for client in self._clients:
                client.end_if_done()
            self._serve(remaining)
        while self._clients:
            self._drop(self._clients[0])

    def _keep(self) -> None:
        while not self._closed.wait(_KEEPER_S):
            if self._lock.acquire(blocking=False):
                try:
                    while not self._closed.is_set() and self._serve(0.0):
                        pass
                finally:
                    self._lock.release()

    def _serve(self, timeout_s: float | None) -> bool:
        """Waits for any socket and does what it asks for. Returns False after ``timeout_s`` seconds without any."""
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            if key.data is not None:
                self._take(key.data)
            elif key.fileobj is self._wake_end:
                self._wake_end.recv(64)
                self._is_woken = True
            else:
                self._accept(key.fileobj)
        return bool(ready)

    def _accept(self, listener: Any) -> None:
        try:
            connection, address = listener.accept()
        except OSError:
            return  # gone again
        client = _Client(connection, address)
        self._clients.append(client)
        self._selector.register(connection, selectors.EVENT_READ, client)
        self._send(client)
        strangers = [each for each in self._clients if each is not self._player]
        if len(strangers) > _MAX_CONNECTIONS:
            self._drop(strangers[0])

    def _take(self, client: _Client) -> None:
        """Reads what a client has sent and sends what it waits for."""
        for call in client.read():
            self._exchange(client, call)
        self._send(client)

    def _send(self, client: _Client) -> None:
        if client.is_open and client.http.outgoing:
            client.write()
        if not client.is_open:
            self._drop(client)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.http.outgoing else 0)
        if self._selector.get_key(client.socket).events != events:
            self._selector.modify(client.socket, events, client)

    def _drop(self, client: _Client) -> None:
        client.is_open = False
        if client in self._clients:
            self._clients.remove(client)
            self._selector.unregister(client.socket)
            client.socket.close()

    def _exchange(self, client: _Client, call: Call) -> None:
        refusal = self._refusal(client, call)
        if refusal is not None:
            self._refuse(client, call.stream, *refusal)
        elif self._closing:
            client.http.answer(call.stream, goodbye())
        else:
            self._unanswered = call.stream
            self._inbox.append(call.message)

    def _reply(self, message: bytes) -> bool:
        """Sends the answer. Returns False if nobody waits for it any more."""
        player, stream, self._unanswered = self._player, self._unanswered, None
        if player is None or stream is None or not player.is_open or not player.http.is_waiting(stream):
            return False
        player.http.answer(stream, message)
        self._send(player)
        return player.is_open

    def _refusal(self, client: _Client, call: Call) -> tuple[_Status, str] | None:
        """Why a call is not the player's next message."""
        if call.method != _METHOD:
            return _Status.UNIMPLEMENTED, "There is no such method here."
        if self._player is None:
            if not _is_handshake(call.message):
                return _Status.INVALID_ARGUMENT, "The first message must be the handshake of an ML-Agents player."
            self._player = client
            client.http.message_limit = MAX_WINDOW
        elif client is not self._player:
            return _Status.RESOURCE_EXHAUSTED, "This trainer already has a player. Use another port."
        elif self._unanswered is not None:
            return _Status.FAILED_PRECONDITION, "The message before this one has not been answered yet."
        return None

    def _refuse(self, client: _Client, stream: int, status: _Status, reason: str) -> None:
        self._refused += 1
        if self._refused == 1:
            _LOGGER.warning("Refused a call on port %d from %s: %s", self.port, client.name, reason)
        client.http.refuse(stream, status, reason)


def _is_handshake(request: bytes) -> bool:
    try:
        output = UnityMessageProto.FromString(request).unity_output
    except DecodeError:
        return False
    return bool(output.rl_initialization_output.communication_version)
