"""Messages between a process and its child: one byte for the kind and, usually, a pickled object.

Log records are sent as messages, too. Large data goes through shared memory instead. Both processes run the same
version of this package.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.core.printable import with_safe_arguments

if sys.platform == "win32":
    from multiprocessing.connection import PipeConnection

    Pipe = PipeConnection
else:
    from multiprocessing.connection import Connection

    Pipe = Connection

# Message kinds that all types of child processes use.
END = b"X"  # tells a child to shut down
CONNECTED = b"c"  # tells the parent that the child is ready
FAULT = b"f"  # carries the error that ended the child's task
LOG = b"l"  # carries a log record


class ChildBugError(RuntimeError):
    """A child raised an error that users cannot cause, so it is a bug. The message ends with its traceback."""


class LockedPipe:
    """A child's end of a pipe. It is thread-safe, because any thread may send log records."""

    def __init__(self, connection: Pipe) -> None:
        self.connection = connection
        self._lock = threading.Lock()

    def post(self, kind: bytes, *content: object) -> None:
        """Send a message. Raises ``OSError`` if the parent is gone."""
        with self._lock:
            post(self.connection, kind, *content)

    def close(self) -> None:
        """Close the pipe once no thread is sending."""
        with self._lock:
            self.connection.close()


def post(connection: Pipe, kind: bytes, *content: object) -> None:
    """Send a message with at most one object. Raises ``OSError`` if the other end is gone."""
    connection.send_bytes(kind + pickle.dumps(content[0]) if content else kind)


def read(connection: Pipe) -> tuple[bytes, Any]:
    """Wait for a message. Return its kind and its content (None if there is no content).

    Raises:
        EOFError, OSError: the other end is gone.
    """
    message = connection.recv_bytes()
    # Safe to unpickle: the data comes from our own process, over a pipe that no other process has open.
    return message[:1], pickle.loads(message[1:]) if len(message) > 1 else None  # noqa: S301


def portable(error: Exception) -> Exception:
    """Return a picklable form of ``error``: the error itself if a user can cause it, otherwise its traceback."""
    if isinstance(error, TrajtrainerError):
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301
        except Exception:
            return TrajtrainerError(str(error))
        return error
    return ChildBugError("".join(["A child process or thread failed.\n", *traceback.format_exception(error)]))


class _LogForwarder(logging.Handler):
    def __init__(self, post: Callable[[bytes, object], None]) -> None:
        super().__init__()
        self._post = post

    def emit(self, record: logging.LogRecord) -> None:
        record = with_safe_arguments(record)
        text = self.format(record)
        fields = {**record.__dict__, "msg": text, "message": text, "args": None, "exc_info": None, "exc_text": None}
        with contextlib.suppress(Exception):
            self._post(LOG, fields)


def forward_log(post: Callable[[bytes, object], None], level: int) -> None:
    """Send this package's log to the parent and nowhere else. ``post`` may be called from any thread."""
    logger = logging.getLogger("trajtrainer")
    logger.setLevel(level)
    logger.propagate = False
    logger.handlers = [_LogForwarder(post)]


def relay_log(fields: dict[str, Any], source: str, prefix_from: int = logging.WARNING) -> None:
    """Log a child's record in this process. Records of level ``prefix_from`` or higher are prefixed with ``source``."""
    if fields["levelno"] >= prefix_from:
        fields["msg"] = f"{source}: {fields['msg']}"
    record = logging.makeLogRecord(fields)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
