"""Messages between a child and its parent: one byte, and sometimes something pickled after it.

Observations and actions are not in here, they stand in shared memory. Both ends are ours and of one version.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any

from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import Statistic

if sys.platform == "win32":
    from multiprocessing.connection import PipeConnection

    Pipe = PipeConnection
else:
    from multiprocessing.connection import Connection

    Pipe = Connection

# To the child.
START = b"S"  # start an environment, in place of the last one; the order of its raw images may follow
PARAMETERS = b"P"  # Parameters; they go out with the next RESET or STEP
RESET = b"R"
STEP = b"A"  # the actions stand in their memory
ACTION_MEMORY = b"B"  # address of larger memory for actions from now on
EVENT_MEMORY = b"E"  # answers NEED: address of larger memory for events from now on
END = b"X"  # close the environment and end
# To the parent.
CONNECTED = b"c"  # the environment is there and waits for its first reset
EVENT = b"e"  # an event stands in its memory
EVENT_WITH_MORE = b"m"  # the same, with EventExtras
NEED = b"n"  # bytes that an event needs, more than its memory has
FAULT = b"f"  # the error; the environment is gone, the child waits for START
LOG = b"l"  # a log record


@dataclass(slots=True)
class EventExtras:
    """The rare parts of an event.

    Attributes:
        layouts: behaviours whose agents come for the first time: id, spec, numpy types of the observations.
        new_specs, statistics, is_reset, raw_images: see ``EnvironmentEvent``.
    """

    layouts: list[tuple[str, BehaviorSpec, tuple[str, ...]]]
    new_specs: dict[str, BehaviorSpec] = field(default_factory=dict)
    statistics: list[Statistic] = field(default_factory=list)
    is_reset: bool = False
    raw_images: dict[str, RawImageOrder] = field(default_factory=dict)


class ChildBugError(RuntimeError):
    """A child failed in a way nobody foresaw. The message ends with its traceback."""


def post(connection: Pipe, kind: bytes, *content: Any) -> None:
    """Send a message.

    Raises:
        OSError: the other end is gone.
    """
    connection.send_bytes(kind + pickle.dumps(content[0]) if content else kind)


def read(connection: Pipe) -> tuple[bytes, bytes]:
    """Wait for a message; return its kind and what is pickled after it.

    Raises:
        EOFError, OSError: the other end is gone.
    """
    message = connection.recv_bytes()
    return message[:1], message[1:]


def content_of(pickled: bytes) -> Any:
    """Return what ``post`` was given."""
    return pickle.loads(pickled)  # noqa: S301  (from a process of our own, over a pipe that only the two of us hold)


def portable(error: Exception) -> Exception:
    """Return ``error`` as it can be sent: itself if a user can cause it, otherwise its traceback."""
    if isinstance(error, TrajtrainerError):
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301
        except Exception:
            return TrajtrainerError(str(error))
        return error
    return ChildBugError("".join(["An environment's worker failed.\n", *traceback.format_exception(error)]))
