"""Runs an actor on a node of a Ray cluster. It runs in a thread, and Ray calls the methods of its channel."""

from __future__ import annotations

import importlib
import pickle
import socket
import threading
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue

import numpy as np
import torch

from trajtrainer.core.errors import SettingsError, TrajtrainerError
from trajtrainer.core.version import __version__
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.messages import forward_log
from trajtrainer.run.actors.actor import Host
from trajtrainer.run.actors.messages import REPORT, ActorTask, Buffer, Experience, Hello, LoadWeights, Order, Report
from trajtrainer.run.actors.transports.remote import RemoteChannel, run_host

FILES = b"t"  # the players' logs: name -> end of the text

# If more messages than this are waiting to be fetched, log records are dropped. Experience is limited by the learner's
# allowance instead.
_MOST_WAITING = 10_000


class RayChannel(RemoteChannel):
    """The actor's end of the connection to the learner.

    Ray calls ``deliver`` and ``fetch`` in its own threads, and kills this process if the learner's driver has ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self._outgoing: SimpleQueue[tuple[bytes, Buffer | None]] = SimpleQueue()

    def deliver(self, pickled: bytes, weights: Buffer | None = None) -> None:
        """Receive an order, together with its weights if it has any."""
        order: Order = pickle.loads(pickled)  # noqa: S301  (from the learner, whose cluster this is)
        if isinstance(order, LoadWeights) and weights is not None:
            order = replace(order, place=weights.copy())  # Ray's store is read-only.
        self.incoming.put(order)

    def fetch(self) -> list[tuple[bytes, Buffer | None]]:
        """Wait for messages and return all of them, pickled, each with its experience if it has any."""
        found = [self._outgoing.get()]
        with suppress(Empty):
            while True:
                found.append(self._outgoing.get_nowait())
        return found

    def post(self, kind: bytes, content: object = None) -> None:
        if kind != messages.LOG or self._outgoing.qsize() < _MOST_WAITING:
            self._outgoing.put((pickle.dumps((kind, content)), None))

    def report(self, report: Report) -> None:
        experience = None
        if isinstance(report, Experience):
            counts, experience = report.place
            report = replace(report, place=(counts, None))
        self._outgoing.put((pickle.dumps((REPORT, report)), experience))

    def reserve(self, size: int) -> tuple[Buffer, Buffer]:
        buffer = np.empty(size, np.uint8)
        return buffer, buffer  # Ray copies the buffer to its store when the learner fetches it.


def hosted_actor(pickled: bytes, level: int) -> RayChannel:
    """Run an actor in a thread of this Ray actor, and return its channel.

    The task is still pickled, because a different version of this package may not be able to load it. In that case, the
    channel still reports this node's version with ``Hello``.
    """
    torch.set_num_threads(1)
    channel = RayChannel()
    forward_log(channel.post, level)
    threading.Thread(target=_run, args=(pickled, channel), name="actor", daemon=True).start()
    return channel


def _run(pickled: bytes, channel: RayChannel) -> None:
    try:
        task: ActorTask = pickle.loads(pickled)  # noqa: S301  (from the learner, whose cluster this is)
    except Exception as error:
        channel.report(Hello(__version__))
        mistake = SettingsError(
            f"The function that makes the environments cannot be loaded on node {_node_name()}: {error}. Its modules "
            "must exist there: install them on the node, or send them with actors.ray.runtime_env."
        )
        channel.post(messages.FAULT, mistake)
        return
    logs = task.logs
    if logs is not None:
        logs.arrive(importlib.import_module("ray").get_runtime_context().get_node_id())

    def send_logs() -> None:
        if logs is not None:
            with suppress(OSError):
                channel.post(FILES, logs.collect())

    def post(kind: bytes, content: object = None) -> None:
        if isinstance(content, TrajtrainerError):
            content.args = (f"{content} (On node {_node_name()}.)",)
        channel.post(kind, content)

    run_host(Host(task), channel, post, send_logs)


def _node_name() -> str:
    """Return the name and address of this machine, for error messages."""
    return f"{socket.gethostname()} ({importlib.import_module('ray').util.get_node_ip_address()})"
