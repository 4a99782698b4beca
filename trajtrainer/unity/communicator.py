"""The trainer's end of the wire: a gRPC server with one method, which one player calls again and again (reference 5.1).

Each call brings a message and waits for its answer; the player stands still until then. The main thread takes messages
with ``receive`` and lets the player go on with ``answer``; gRPC's threads pass the bytes on. Nothing polls: whoever has
to wait does so on a queue.
"""

from __future__ import annotations

import errno
import logging
import socket
import sys
import threading
from queue import Empty, SimpleQueue
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from trajtrainer.unity.daemon_threads import DaemonThreads
from trajtrainer.unity.encode import goodbye
from trajtrainer.unity.faults import LaunchError, PlayerQuitError, PortInUseError
from trajtrainer.unity.proto.communicator_pb2 import UnityMessageProto

_LOGGER = logging.getLogger(__name__)
_METHOD = "/communicator_objects.UnityToExternalProto/Exchange"
LOOPBACK = "127.0.0.1"
_LOOPBACK_6 = "::1"
# One thread holds the player's call, the others turn strangers away.
_NUM_THREADS = 3
_STOP_GRACE_S = 1.0
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # unlimited, that is 2 GiB; the default of 4 MiB is too small for pictures
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),  # else two trainers would share a port, each getting some of the players
)


class _Call:
    """A message of the player that waits for its answer."""

    __slots__ = ("_answer", "context", "request")

    def __init__(self, request: bytes, context: Any) -> None:
        self.request = request
        self.context = context
        self._answer: SimpleQueue[bytes] = SimpleQueue()

    def answer(self, reply: bytes) -> None:
        self._answer.put(reply)

    def wait(self) -> bytes:
        return self._answer.get()


class Communicator:
    """Listens on one port for one player.

    The first connection that opens with a handshake is the player's. Calls over any other, and a second call beside the
    first, are refused and change nothing.

    Args:
        address: where to listen; the default is reachable from this machine alone.
        port: 0 takes any free one.

    Raises:
        PortInUseError: somebody else listens there.
        LaunchError: the address is not one of this machine, or the port is not allowed.
    """

    def __init__(self, port: int, address: str = LOOPBACK) -> None:
        self._lock = threading.Lock()
        self._inbox: SimpleQueue[_Call | None] = SimpleQueue()
        self._player: str | None = None
        self._unanswered: _Call | None = None
        self._closing = False
        self._refused = 0
        self._threads = DaemonThreads(_NUM_THREADS, f"player-port-{port}")
        self._server = grpc.server(self._threads, handlers=(_Handler(self._exchange),), options=_OPTIONS)
        try:
            self.port = self._listen(address, port)
        except BaseException:
            self._threads.shutdown(wait=False)
            raise
        self._server.start()

    def _listen(self, address: str, port: int) -> int:
        _check_port(address, port)
        if address == LOOPBACK and port and _has_ipv6():
            # Players connect to "localhost", which some machines take for ::1 first.
            _check_port(_LOOPBACK_6, port)
            self._server.add_insecure_port(f"[{_LOOPBACK_6}]:{port}")
        host = f"[{address}]" if ":" in address else address
        try:
            return int(self._server.add_insecure_port(f"{host}:{port}"))
        except RuntimeError as error:
            raise _port_in_use(address, port) from error

    def receive(self, timeout_s: float | None = None) -> bytes | None:
        """Waits for the player's next message. It must be answered before the next one can come.

        Returns:
            None after ``timeout_s`` seconds, or when ``wake`` was called.
        """
        try:
            call = self._inbox.get(timeout=timeout_s)
        except Empty:
            return None
        return None if call is None else call.request

    def wake(self) -> None:
        """Makes one ``receive`` return None. For other threads, and what they have to tell."""
        self._inbox.put(None)

    def answer(self, reply: bytes) -> None:
        """Answers the message that was received last.

        Raises:
            PlayerQuitError: the connection is gone.
        """
        with self._lock:
            call, self._unanswered = self._unanswered, None
        if call is None:
            raise RuntimeError("There is no message to answer: receive one first.")
        connected = call.context.is_active()
        call.answer(reply)
        if not connected:
            raise PlayerQuitError("The player closed its connection while it waited for an answer.")

    def say_goodbye(self) -> None:
        """Makes the player quit: by the answer that it waits for, or else by the answer to its next message."""
        with self._lock:
            self._closing = True
            call, self._unanswered = self._unanswered, None
        if call is not None:
            call.answer(goodbye())

    def close(self) -> None:
        """Says goodbye, frees the port and ends the threads."""
        self.say_goodbye()
        self._server.stop(_STOP_GRACE_S).wait(2 * _STOP_GRACE_S)
        self._threads.shutdown(wait=False)

    def _exchange(self, request: bytes, context: Any) -> bytes:
        call = _Call(request, context)
        with self._lock:
            refusal = self._refusal(request, context.peer())
            if refusal is None:
                if self._closing:
                    return goodbye()
                self._unanswered = call
        if refusal is not None:
            self._refuse(context, *refusal)
        self._inbox.put(call)
        return call.wait()

    def _refusal(self, request: bytes, peer: str) -> tuple[grpc.StatusCode, str] | None:
        """Why a call is not the player's next message."""
        if self._player is None:
            if not _is_handshake(request):
                return (
                    grpc.StatusCode.INVALID_ARGUMENT,
                    "The first message must be the handshake of an ML-Agents player.",
                )
            self._player = peer
        elif peer != self._player:
            return grpc.StatusCode.RESOURCE_EXHAUSTED, "This trainer already has a player. Use another port."
        elif self._unanswered is not None:
            return grpc.StatusCode.FAILED_PRECONDITION, "The message before this one has not been answered yet."
        return None

    def _refuse(self, context: Any, code: grpc.StatusCode, reason: str) -> None:
        self._refused += 1
        if self._refused == 1:
            _LOGGER.warning("Refused a call on port %d from %s: %s", self.port, context.peer(), reason)
        context.abort(code, reason)


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Knows the one method, and leaves requests and answers as bytes."""

    def __init__(self, exchange: Any) -> None:
        self._method = grpc.unary_unary_rpc_method_handler(exchange)

    def service(self, handler_call_details: Any) -> Any:
        return self._method if handler_call_details.method == _METHOD else None


def _is_handshake(request: bytes) -> bool:
    try:
        output = UnityMessageProto.FromString(request).unity_output
    except DecodeError:
        return False
    return bool(output.rl_initialization_output.communication_version)


def _check_port(address: str, port: int) -> None:
    """Tries the port before gRPC does, as gRPC's own report of a failure is a line on stderr."""
    try:
        family, kind, protocol, _, location = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            if sys.platform != "win32":  # there it would mean to share the port
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(location)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _port_in_use(address, port) from error
        raise LaunchError(
            f"Cannot listen for the player at {address}, port {port}: {error.strerror or error}. The address must be "
            "one of this machine (env_settings.listen_address) and the port above 1023 (env_settings.base_port)."
        ) from error


def _port_in_use(address: str, port: int) -> PortInUseError:
    return PortInUseError(
        f"Port {port} of {address} is in use, by another training or by a player that one left behind. End that, or "
        "choose other ports with --base-port (the Editor's port is set in Unity, Project Settings, ML-Agents)."
    )


def _has_ipv6() -> bool:
    if not socket.has_ipv6:
        return False
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind((_LOOPBACK_6, 0))
    except OSError:
        return False
    return True
