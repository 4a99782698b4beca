"""The trainer's side of the connection: a gRPC server with one method, which one player calls repeatedly.

Each call carries a message, and the player blocks until it gets the answer. The thread that calls ``receive`` reads the
sockets itself, because passing a message between threads costs more than handling it. While no thread calls it (an
update can take minutes), a second thread checks the sockets from time to time, so that strangers are rejected and pings
are answered. The thread that is serving the sockets holds the lock.

Strangers (connections other than the player's) cannot delay the player, whatever they send. They are served in turns:
each turn reads a little from every socket, and the pause until the next turn is many times as long as the turn took.
Unread data stays in the sender's buffers.
"""

from __future__ import annotations

import contextlib
import logging
import math
import selectors
import socket
import threading
import time
from collections import deque
from enum import IntEnum
from typing import Any

from google.protobuf.message import DecodeError

from trajtrainer.core.cores import usable_cores
from trajtrainer.envs.unity.encode import goodbye
from trajtrainer.envs.unity.faults import PlayerQuitError
from trajtrainer.envs.unity.http2 import Call, Http2Connection, Http2Error
from trajtrainer.envs.unity.ports import LOOPBACK, listen
from trajtrainer.envs.unity.proto.communicator_pb2 import UnityMessageProto

_LOGGER = logging.getLogger(__name__)
_METHOD = "/communicator_objects.UnityToExternalProto/Exchange"
_READ_BYTES = 1 << 18
_STRANGERS_READ_BYTES = 1 << 10
_MAX_STRANGERS = 16
_TURN_S = 0.005
_REST = 50  # pause before the strangers' next turn, as a multiple of the duration of their last turn
_REST_WITHOUT_PLAYER = 1  # used until a player has connected, because any stranger may be the player
_WATCH_S = 0.2
_WATCH_BUSY_S = 0.02  # interval used while data is arriving
# Waking a sleeping thread takes so long (0.2 ms on a virtual machine) that busy waiting is better for a player that
# answers within this time.
_QUICK_S = 1e-3
_CLOSE_GRACE_S = 1.0
# Python handles a signal only when a wait returns, and a signal does not interrupt every wait: on Windows, it never
# interrupts a select.
_LONGEST_WAIT_S = 0.25


class _Status(IntEnum):
    """gRPC status codes."""

    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12


class _Client:
    """One connection: its socket and its HTTP/2 state."""

    def __init__(self, connection: socket.socket, address: Any) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.name = f"{address[0]}:{address[1]}"
        self.http = Http2Connection()
        self.is_open = True

    def write(self) -> None:
        """Send as much as possible without blocking. An error marks the connection as closed."""
        outgoing = self.http.outgoing
        try:
            while outgoing:
                del outgoing[: self.socket.send(outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False

    def end_if_done(self) -> None:
        """Shut down writing once the other side has received everything and will start no more calls."""
        if self.http.knows_the_end and not self.http.outgoing and not self.http.is_answering:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)


class Communicator:
    """Listens on one port for one player.

    The first connection that starts with a handshake is the player's. Calls over any other connection, and a second
    call before the first is answered, are refused and have no effect.

    Args:
        address: address to listen on; the default is reachable from this machine only.
        port: port to listen on; 0 for any free port.
        busy_wait: may keep a core busy while waiting for a player whose last answer took less than a millisecond.

    Raises:
        PortInUseError: another program is listening on the port.
        LaunchError: the address does not belong to this machine, or the port is not allowed.
    """

    def __init__(self, port: int, address: str = LOOPBACK, *, busy_wait: bool = False) -> None:
        self._busy_wait = busy_wait and usable_cores() > 1
        self._is_quick = False
        self._listeners = listen(address, port)
        self.port: int = self._listeners[-1].getsockname()[1]
        self._lock = threading.RLock()  # guards everything below; held by the thread that is serving the sockets
        self._inbox: deque[bytes] = deque()
        self._strangers: deque[_Client] = deque()
        self._player: _Client | None = None
        self._unanswered: int | None = None
        self._closing = self._has_said_goodbye = False
        self._refused = 0
        self._is_woken = False
        self._waker, self._wake_end = socket.socketpair()
        self._selector = selectors.DefaultSelector()  # watches the player's socket and the one that ``wake`` writes to
        self._strangers_selector = selectors.DefaultSelector()
        self._strangers_turn = 0.0
        self._wake_end.setblocking(False)
        self._selector.register(self._wake_end, selectors.EVENT_READ)
        for listener in self._listeners:
            listener.setblocking(False)
            self._strangers_selector.register(listener, selectors.EVENT_READ)
        self._closed = threading.Event()
        threading.Thread(target=self._keep, name=f"player-port-{self.port}", daemon=True).start()

    def receive(self, timeout_s: float | None = None) -> bytes | None:
        """Wait for the player's next message, which must be answered before another one can arrive.

        Returns:
            The message; None after ``timeout_s`` seconds, or when ``wake`` was called.

        Raises:
            PlayerQuitError: the player has closed its connection.
        """
        begin = time.monotonic()
        deadline = None if timeout_s is None else begin + timeout_s
        with self._lock:
            if self._busy_wait and self._is_quick:
                awake_until = begin + (_QUICK_S if timeout_s is None else min(_QUICK_S, timeout_s))
                while not (self._inbox or self._is_woken or time.monotonic() >= awake_until):
                    self._serve(0.0)
            is_over = False
            while not self._inbox:
                if self._is_woken:
                    self._is_woken = False
                    return None
                if self._player is not None and not self._player.is_open:
                    raise PlayerQuitError("The player closed its connection.")
                if is_over:
                    return None
                remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
                self._serve(remaining)
                is_over = remaining == 0.0
            self._is_quick = time.monotonic() < begin + _QUICK_S
            return self._inbox.popleft()

    def wake(self) -> None:
        """Make one call of ``receive`` return None. For use from other threads."""
        with contextlib.suppress(OSError):  # the socket may already be closed
            self._waker.send(b"\0")

    def answer(self, reply: bytes) -> None:
        """Answer the message that was received last.

        Raises:
            PlayerQuitError: the connection is gone.
        """
        with self._lock:
            if self._player is None or self._unanswered is None:
                raise RuntimeError("There is no message to answer: receive one first.")
            if not self._reply(reply):
                raise PlayerQuitError("The player closed its connection while it was waiting for an answer.")

    def say_goodbye(self) -> None:
        """Tell the player to quit, in the answer that it is waiting for or in the answer to its next message."""
        self._closing = True
        self.wake()  # so that a waiting ``receive`` releases the lock
        with self._lock:
            if self._unanswered is not None:
                self._has_said_goodbye = self._reply(goodbye())

    def close(self) -> None:
        """Tell the player to quit, free the port and stop the thread."""
        if self._closed.is_set():
            return
        self.say_goodbye()
        self._closed.set()
        with self._lock:
            self._strangers_turn = math.inf
            self._strangers_selector.close()
            for each in (*self._listeners, *(stranger.socket for stranger in self._strangers)):
                each.close()
            self._strangers.clear()
            player = self._player
            if player is not None and player.is_open:
                # Wait for one more message from the player, so that the goodbye can be its answer, and for the player
                # to read its answers. Closing the connection immediately could discard them.
                deadline = time.monotonic() + _CLOSE_GRACE_S
                while (
                    player.is_open
                    and not self._has_said_goodbye
                    and (remaining := deadline - _CLOSE_GRACE_S / 2 - time.monotonic()) > 0
                ):
                    self._serve(remaining)
                player.http.go_away()
                self._send(player)
                while player.is_open and (remaining := deadline - time.monotonic()) > 0:
                    player.end_if_done()
                    self._serve(remaining)
                self._drop(player)
            self._selector.close()
            self._waker.close()
            self._wake_end.close()

    def _keep(self) -> None:
        """Serve the sockets while no other thread does: once per interval, if the lock is free."""
        pause_s = _WATCH_S
        while not self._closed.wait(pause_s):
            pause_s = _WATCH_S
            if self._lock.acquire(blocking=False):
                try:
                    if not self._closed.is_set() and self._serve(0.0):
                        pause_s = _WATCH_BUSY_S
                finally:
                    self._lock.release()

    def _serve(self, timeout_s: float | None) -> bool:
        """Wait up to ``timeout_s`` for the player, ``wake`` or the strangers' next turn, and handle what arrives.

        If the strangers' turn is due, it comes first: the caller has just answered the player, which is now busy.
        Returns whether any data arrived.
        """
        wait_s = min(_LONGEST_WAIT_S, max(0.0, self._strangers_turn - time.perf_counter()))
        is_busy = wait_s == 0.0 and self._serve_strangers()
        ready = self._selector.select(wait_s if timeout_s is None else min(wait_s, timeout_s))
        for key, _ in ready:
            if key.data is not None:
                self._read(key.data, _READ_BYTES)
            else:
                self._wake_end.recv(64)
                self._is_woken = True
        return bool(ready) or is_busy

    def _serve_strangers(self) -> bool:
        """Read a little from every stranger and accept a new one. Returns whether there was anything to do."""
        begin = time.perf_counter()
        ready = self._strangers_selector.select(0.0)
        for key, _ in ready:
            if key.data is not None:
                self._read(key.data, _STRANGERS_READ_BYTES)
                continue
            listener: Any = key.fileobj
            try:
                client = _Client(*listener.accept())
            except OSError:
                continue  # The client has already disconnected.
            self._strangers.append(client)
            self._strangers_selector.register(client.socket, selectors.EVENT_READ, client)
            self._send(client)
            if len(self._strangers) > _MAX_STRANGERS:
                self._drop(self._strangers[0])
        end = time.perf_counter()
        rest = _REST if self._player is not None else _REST_WITHOUT_PLAYER
        self._strangers_turn = end + max(_TURN_S, rest * (end - begin))
        return bool(ready)

    def _read(self, client: _Client, size: int) -> None:
        """Read and handle data from a client, and send any replies. An error closes the connection."""
        try:
            data = client.socket.recv(size)
            client.is_open = bool(data)
            calls = client.http.receive(data) if data else []
        except BlockingIOError:
            calls = []
        except (OSError, Http2Error) as error:
            _LOGGER.debug("Connection from %s: %s", client.name, error)
            client.is_open, calls = False, []
        for call in calls:
            self._exchange(client, call)
        self._send(client)

    def _send(self, client: _Client) -> None:
        if client.is_open and client.http.outgoing:
            client.write()
        if not client.is_open:
            self._drop(client)
            return
        selector = self._selector_of(client)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.http.outgoing else 0)
        if selector.get_key(client.socket).events != events:
            selector.modify(client.socket, events, client)

    def _selector_of(self, client: _Client) -> selectors.BaseSelector:
        return self._selector if client is self._player else self._strangers_selector

    def _drop(self, client: _Client) -> None:
        client.is_open = False
        if client in self._strangers:
            self._strangers.remove(client)
        if client.socket.fileno() >= 0:  # not yet closed by an earlier call
            self._selector_of(client).unregister(client.socket)
            client.socket.close()

    def _exchange(self, client: _Client, call: Call) -> None:
        """Accept a call if it is the player's next message; refuse it otherwise."""
        refusal: tuple[_Status, str] | None = None
        if call.method != _METHOD:
            refusal = _Status.UNIMPLEMENTED, "This server has no such method."
        elif self._player is None:
            version = ""
            with contextlib.suppress(DecodeError):
                output = UnityMessageProto.FromString(call.message).unity_output
                version = output.rl_initialization_output.communication_version
            if version:
                self._strangers.remove(client)
                self._strangers_selector.unregister(client.socket)
                self._selector.register(client.socket, selectors.EVENT_READ, client)
                self._player = client
                client.http.trust()
            else:
                refusal = _Status.INVALID_ARGUMENT, "The first message must be the handshake of an ML-Agents player."
        elif client is not self._player:
            refusal = _Status.RESOURCE_EXHAUSTED, "This trainer already has a player. Use another port."
        elif self._unanswered is not None:
            refusal = _Status.FAILED_PRECONDITION, "The previous message has not been answered yet."
        if refusal is not None:
            self._refused += 1
            if self._refused == 1:
                _LOGGER.warning("Refused a call on port %d from %s: %s", self.port, client.name, refusal[1])
            client.http.refuse(call.stream, *refusal)
        elif self._closing:
            self._has_said_goodbye = client.http.is_waiting(call.stream)
            client.http.answer(call.stream, goodbye())
        else:
            self._unanswered = call.stream
            self._inbox.append(call.message)

    def _reply(self, message: bytes) -> bool:
        """Send the answer. Return False if the player is no longer waiting for it."""
        player, stream, self._unanswered = self._player, self._unanswered, None
        if player is None or stream is None or not player.is_open or not player.http.is_waiting(stream):
            return False
        player.http.answer(stream, message)
        self._send(player)
        return player.is_open
