"""Messages between a process and one that it has started: one byte, and sometimes something pickled after it.

What is large is in shared memory instead. Both ends are ours and of one version.
"""

from __future__ import annotations

import pickle
import sys
import threading
import traceback
from typing import Any

from trajtrainer.core.errors import TrajtrainerError

if sys.platform == "win32":
    from multiprocessing.connection import PipeConnection

    Pipe = PipeConnection
else:
    from multiprocessing.connection import Connection

    Pipe = Connection

# The kinds that all processes share.
END = b"X"  # to a child: end in order
CONNECTED = b"c"  # its environment is there
FAULT = b"f"  # the error that ended what it was told to do
LOG = b"l"  # a log record


class ChildBugError(RuntimeError):
    """A child failed in a way that was not foreseen. The message ends with its traceback."""


class LockedPipe:
    """A child's end of a pipe on which several threads send: any of them may write to the log."""

    def __init__(self, connection: Pipe) -> None:
        self.connection = connection
        self._lock = threading.Lock()

    def post(self, kind: bytes, *content: object) -> None:
        """Send a message. Raises ``OSError`` if the parent is gone."""
        with self._lock:
            post(self.connection, kind, *content)


def post(connection: Pipe, kind: bytes, *content: object) -> None:
    """Send a message.

    Raises:
        OSError: the other end is gone.
    """
    connection.send_bytes(kind + pickle.dumps(content[0]) if content else kind)


def read(connection: Pipe) -> tuple[bytes, Any]:
    """Wait for a message; return its kind and content, which is None if there is none.

    Raises:
        EOFError, OSError: the other end is gone.
    """
    message = connection.recv_bytes()
    # From a process of our own, over a pipe that only the two of us hold.
    return message[:1], pickle.loads(message[1:]) if len(message) > 1 else None  # noqa: S301


def portable(error: Exception) -> Exception:
    """Return ``error`` as it can be sent: itself if a user can cause it, otherwise its traceback."""
    if isinstance(error, TrajtrainerError):
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301
        except Exception:
            return TrajtrainerError(str(error))
        return error
    return ChildBugError("".join(["An environment's worker failed.\n", *traceback.format_exception(error)]))
