"""The trainer's end of a connection to a game. Each frame is a length (4 bytes, little-endian) and the content.

The game connects to the trainer. After that, it only answers messages, and blocks until the next one arrives, so
sending never has to wait for the game.
"""

import contextlib
import logging
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence

from trajtrainer.core.cores import usable_cores
from trajtrainer.core.errors import InvalidDataError
from trajtrainer.envs.unity.faults import PlayerQuitError, PlayerTimeoutError

_LOGGER = logging.getLogger(__name__)
_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 18
_MOST_STRANGERS = 16
# Maximum length of the first message, which describes the spaces of all agents.
_LONGEST_FIRST = 1 << 24
# Waking up a sleeping thread takes time, so if the game answers faster than this, wait for its answer without sleeping.
_QUICK_S = 1e-3
# Maximum duration of a single wait: a signal does not interrupt every wait, and Python only handles it afterwards.
LONGEST_WAIT_S = 0.25


def frame(content: bytes) -> bytes:
    """Return a message with its length prefixed, ready to be sent."""
    return _LENGTH.pack(len(content)) + content


class GameConnection:
    """The connection to a game.

    Args:
        connected: the connected socket.
        address: the game's address, for error messages.
        busy_wait: whether to wait without sleeping if the game answered the previous message within a millisecond. This
            keeps a core busy.

    Attributes:
        longest: maximum length of a message from the game, in bytes.
    """

    def __init__(self, connected: socket.socket, address: str, *, busy_wait: bool = False) -> None:
        self.longest = _LONGEST_FIRST
        self.address = address
        self.socket = connected
        self._busy_wait = busy_wait and usable_cores() > 1
        self._is_quick = False
        self._received = bytearray()
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, content: bytes, timeout_s: float) -> None:
        """Send messages that are already framed.

        Raises:
            PlayerQuitError: the connection was closed.
            PlayerTimeoutError: the game did not read the messages in time.
        """
        try:
            self.socket.settimeout(timeout_s)
            self.socket.sendall(content)
        except TimeoutError as error:
            raise PlayerTimeoutError(f"The game did not read its message within {timeout_s:g} s.") from error
        except OSError as error:
            raise PlayerQuitError("The game closed its connection while it was waiting for an answer.") from error

    def receive(self, timeout_s: float) -> bytearray | None:
        """Return the game's next message, or None if it has not arrived after ``timeout_s`` seconds.

        Raises:
            PlayerQuitError: the connection was closed.
            InvalidDataError: the message is too long.
        """
        begin_s = time.monotonic()
        if self._busy_wait and self._is_quick:
            while (content := self._read(0.0)) is None and time.monotonic() < begin_s + min(_QUICK_S, timeout_s):
                pass
        else:
            content = self.content()
        while content is None and (remaining_s := begin_s + timeout_s - time.monotonic()) > 0:
            content = self._read(remaining_s)
        self._is_quick = time.monotonic() < begin_s + _QUICK_S
        return content

    def _read(self, timeout_s: float) -> bytearray | None:
        """Read from the socket once, and return the next message if it is complete."""
        if self.socket.gettimeout() != timeout_s:  # changing the timeout takes a system call
            self.socket.settimeout(timeout_s)
        try:
            data = self.socket.recv(_READ_BYTES)
        except (BlockingIOError, TimeoutError):
            return None
        except OSError as error:
            raise PlayerQuitError(f"The connection to the game is lost: {error.strerror or error}.") from error
        if not data:
            raise PlayerQuitError("The game closed its connection.")
        self._received += data
        return self.content()

    def content(self) -> bytearray | None:
        """Remove the next message from the received bytes and return it. Returns None if it is incomplete.

        Raises:
            InvalidDataError: the message is too long.
        """
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if length > self.longest:
            raise InvalidDataError(
                f"The game sent a message of {length} bytes; with the spaces that it announced, a message has at most "
                f"{self.longest}."
            )
        end = _LENGTH.size + length
        if len(self._received) < end:
            return None
        content = self._received[_LENGTH.size : end]
        del self._received[:end]
        return content

    def close(self) -> None:
        """Close the connection. Can be called more than once."""
        self.socket.close()


def accept(
    listeners: Sequence[socket.socket],
    greeting: bytes,
    is_answer: Callable[[bytearray], bool],
    check: Callable[[str], None],
    timeout_s: float,
    *,
    busy_wait: bool,
) -> tuple[GameConnection, bytearray] | str:
    """Wait for a game that connects and answers the greeting. Other connections are rejected.

    Args:
        listeners: the listening sockets.
        greeting: bytes to send on every new connection.
        is_answer: returns whether a message is a game's answer to the greeting.
        check: called several times a second with the reason why the last connection was rejected, or an empty string.
            Raises an error to stop waiting.
        timeout_s: maximum time to wait, in seconds.
        busy_wait: see ``GameConnection``.

    Returns:
        The connection and the answer. If no game has connected in time, the reason that ``check`` received last.
    """
    deadline_s = time.monotonic() + timeout_s
    reason = ""
    strangers: list[GameConnection] = []
    with selectors.DefaultSelector() as selector:
        for listener in listeners:
            listener.setblocking(False)
            selector.register(listener, selectors.EVENT_READ)
        try:
            while (remaining_s := deadline_s - time.monotonic()) > 0:
                check(reason)
                for key, _ in selector.select(min(remaining_s, LONGEST_WAIT_S)):
                    stranger: GameConnection | None = key.data
                    if stranger is None:
                        stranger = _greeted(key.fileobj, greeting, busy_wait=busy_wait)  # type: ignore[arg-type]
                        if stranger is not None:
                            strangers.append(stranger)
                            selector.register(stranger.socket, selectors.EVENT_READ, stranger)
                    else:
                        answer, fault = _answer(stranger, is_answer)
                        if answer is not None:
                            strangers.remove(stranger)
                            return stranger, answer
                        if fault:
                            reason = f"A connection from {stranger.address} was rejected: {fault}"
                            _LOGGER.warning("%s", reason)
                            selector.unregister(stranger.socket)
                            strangers.remove(stranger)
                            stranger.close()
                if len(strangers) > _MOST_STRANGERS:
                    selector.unregister(strangers[0].socket)
                    strangers.pop(0).close()
            return reason
        finally:
            for stranger in strangers:
                stranger.close()


def _greeted(listener: socket.socket, greeting: bytes, *, busy_wait: bool) -> GameConnection | None:
    with contextlib.suppress(OSError):  # already disconnected
        connected, address = listener.accept()
        stranger = GameConnection(connected, f"{address[0]}:{address[1]}", busy_wait=busy_wait)
        connected.setblocking(False)
        connected.send(greeting)  # does not block, because the greeting fits into the send buffer
        return stranger
    return None


def _answer(stranger: GameConnection, is_answer: Callable[[bytearray], bool]) -> tuple[bytearray | None, str]:
    """Return the answer on a new connection, or None if it is incomplete, and the reason to reject it, if any."""
    try:
        content = stranger.receive(1e-3)
    except PlayerQuitError:
        return None, "it was closed before it answered."
    except InvalidDataError as error:
        return None, str(error)
    if content is None or is_answer(content):
        return content, ""
    return None, f"it is not a game with the Godot RL Agents plugin; it sent {bytes(content[:40])!r}."
