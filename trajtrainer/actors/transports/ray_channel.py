"""An actor's end of Ray: orders come in and messages go out through the methods of a Ray actor (``ActorHost``)."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np
import torch

from trajtrainer.actors.actor import Host
from trajtrainer.actors.messages import ActorTask, Buffer, Experience, Hello, Order, Report, Weights
from trajtrainer.actors.node_logs import NodeLogs
from trajtrainer.actors.transports.remote_channel import RemoteChannel, Room
from trajtrainer.core.errors import SettingsError, TrajtrainerError
from trajtrainer.core.version import __version__
from trajtrainer.workers import messages
from trajtrainer.workers.log_relay import forward_log

# Of the messages between environments' workers FAULT, LOG and END are the same here.
REPORT = b"r"
FILES = b"t"  # logs of players: name -> its end

# What is waiting to be fetched; the learner's allowance bounds experience, and this the log.
_MOST_WAITING = 10_000


class _Message(NamedTuple):
    """One message on its way.

    Attributes:
        pickled: its kind and content, which only the learner looks at.
        experience: what stands beside it.
        is_first: it decides whether others count.
    """

    pickled: bytes
    experience: Buffer | None = None
    is_first: bool = False


class RayChannel(RemoteChannel):
    """See ``Channel``. Its other end are ``deliver`` and ``fetch``, which Ray calls in threads of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._incoming: SimpleQueue[Order] = SimpleQueue()
        self._outgoing: SimpleQueue[_Message] = SimpleQueue()

    def deliver(self, pickled: bytes, weights: Buffer | None = None) -> None:
        """Take an order, with its weights if it has any."""
        order: Order = pickle.loads(pickled)  # noqa: S301  (by the learner, whose cluster this is)
        if weights is not None:
            assert isinstance(order, Weights)
            order = replace(order, place=weights)
        self._incoming.put(order)

    def fetch(self) -> list[tuple[bytes, Buffer | None]]:
        """Wait for messages; return all that are there, up to the first that decides whether others count."""
        found = [self._outgoing.get()]
        with suppress(Empty):
            while not found[-1].is_first:
                found.append(self._outgoing.get_nowait())
        return [(each.pickled, each.experience) for each in found]

    def post(self, kind: bytes, *content: object) -> None:
        """Send a message."""
        if kind != messages.LOG or self._outgoing.qsize() < _MOST_WAITING:
            self._outgoing.put(_Message(pickle.dumps((kind, *(content or (None,))))))

    def orders(self, *, wait: bool) -> Sequence[Order]:
        """See ``Channel``. Where the learner is gone, Ray ends this process."""
        found: list[Order] = []
        with suppress(Empty):
            while True:
                found.append(self._incoming.get(block=wait and not found))
        return found

    def report(self, report: Report) -> None:
        """See ``Channel``."""
        experience = None
        if isinstance(report, Experience):
            counts, experience = report.place
            report = replace(report, place=(counts, None))
        self._outgoing.put(_Message(pickle.dumps((REPORT, report)), experience, isinstance(report, Hello)))

    def room(self, size: int) -> Room:
        """See ``Channel``. Ray copies it to its store as it is fetched."""
        buffer = np.empty(size, np.uint8)
        return Room(buffer, buffer)

    def weights(self, place: Buffer) -> Buffer:
        """See ``Channel``. A copy: what stands in the store is read-only."""
        return place.copy()


class HostedActor:
    """An actor in a thread, at one end of its channel.

    Args:
        pickled: its task, which is not looked at before this package has told its version.
        level: of the log.

    Attributes:
        channel: whose other end Ray calls.
    """

    def __init__(self, pickled: bytes, level: int) -> None:
        torch.set_num_threads(1)
        self.channel = RayChannel()
        forward_log(self.channel.post, level)
        threading.Thread(target=self._run, args=(pickled,), name="actor", daemon=True).start()

    def _run(self, pickled: bytes) -> None:
        try:
            task = self._task(pickled)
        except SettingsError as error:
            self.channel.report(Hello(__version__))
            self.channel.post(messages.FAULT, error)
            return
        host = Host(task, self.channel)
        try:
            host.run()
        except Exception as error:
            self._send_logs(task.logs)
            # First told, and only then closed, which may take seconds.
            self.channel.post(messages.FAULT, messages.portable(_placed(error)))
        finally:
            with suppress(Exception):
                host.close()
        self._send_logs(task.logs)
        self.channel.post(messages.END)

    def _task(self, pickled: bytes) -> ActorTask:
        try:
            task: ActorTask = pickle.loads(pickled)  # noqa: S301  (by the learner, whose cluster this is)
        except Exception as error:
            raise SettingsError(
                f"What makes the environments cannot be loaded on node {node_name()}: {error}. The modules that it "
                "needs have to be there: install them, or send them with actors.ray.runtime_env."
            ) from error
        if task.logs is not None:
            task.logs.arrive(_node_id())
        return task

    def _send_logs(self, logs: NodeLogs | None) -> None:
        if logs is not None:
            with suppress(OSError):
                self.channel.post(FILES, logs.take())


def _placed(error: Exception) -> Exception:
    """Let a mistake that a user can mend tell the node."""
    if isinstance(error, TrajtrainerError):
        error.args = (f"{error} (On node {node_name()}.)",)
    return error


def node_name() -> str:
    """Return what a user knows this machine by."""
    import ray

    return f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"


def _node_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())
