"""The process between a learner and Ray.

It protects the learner: if Ray's raylet or GCS dies, Ray kills every connected process.

::

    learner                    driver (this file)                  nodes
    RayTransport  -- pipe -->  orders: a thread; never waits    -- Ray -->  ActorHost.deliver
                  <-- pipe --  serve: the main thread           <-- Ray --  ActorHost.fetch
                  <-- pipe --  watch: a thread, every 2 s
                  <-- experience: the driver's blocks, copied once from Ray's store
                  -- weights: the learner's blocks, copied once to Ray's store -->

The learner and the actors exchange pickled messages. The driver does not unpickle them, so it does not need torch.
"""

from __future__ import annotations

import logging
import math
import os
import re
import socket
import sys
import threading
import time
from collections import deque
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from trajtrainer.core.errors import EnvironmentFaultError, SettingsError
from trajtrainer.core.version import __version__
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.messages import LockedPipe
from trajtrainer.envs.workers.process import begin_child
from trajtrainer.envs.workers.shared_memory import Blocks, OpenedBlocks
from trajtrainer.plugins.ray.cluster import NAME, Cluster, connect
from trajtrainer.settings.actors import RaySettings

_LOGGER = logging.getLogger(__name__)


# An actor's number and the number of starts so far, which distinguishes messages of restarted actors.
Life = tuple[int, int]

# Messages to the driver, and their content.
START = b"S"  # life, pickled task, log level
DELIVER = b"o"  # life, pickled order
WEIGHTS = b"w"  # life, pickled order, behavior, place of newer weights (None: the same as last time), their size
DROP = b"d"  # life
# Messages from the driver.
CONNECTED = b"c"  # id of the learner's node, address of Ray's GCS
BROUGHT = b"r"  # life, pickled message of an actor, place of its experience (None: no experience)
LOST = b"x"  # life, error
BEAT = b"b"  # whether Ray's GCS is silent
# Messages in both directions, in addition to END, FAULT and LOG of ``workers.messages``.
FREE = b"v"  # number of a block that the other side may reuse

_BEAT_S = 2.0
_PROBE_S = 2.0
# If the GCS refuses connections, Ray kills the driver earlier than this. If the network drops packets, Ray may never
# kill it.
_GCS_SILENT_BEATS = 3
_GCS_GONE_S = 120.0
_RETRY_S = 2.0
_WAIT_S = 0.25
_LONGEST_TEXT = 600
# Number of pending ``fetch`` calls per actor. While the learner reads one result, the next call is already waiting at
# the actor.
_FETCHES = 2
_ORDERS, _REPORTS = "orders", "reports"


@dataclass(frozen=True, slots=True)
class DriverTask:
    """The task of a driver.

    Attributes:
        settings: the cluster's address and the resources that each actor needs.
        count: number of actors.
        log_level: log level of this package.
        reconnect_s: how long to try to connect if an earlier driver was lost.
        is_again: True if an earlier driver was connected, and was lost.
    """

    settings: RaySettings
    count: int
    log_level: int
    reconnect_s: float
    is_again: bool = False


def run_driver(task: DriverTask, connection: messages.Pipe, lifeline: messages.Pipe) -> None:
    """Connect to Ray and serve the learner until it sends END or disappears."""
    pipe = LockedPipe(connection)
    begin_child(pipe, lifeline, task.log_level, lambda: None)
    if task.log_level > logging.DEBUG:  # The learner logs one line about a lost driver; Ray would print many.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
    # Ray uses this to find the folder of the running script, so that its workers can import modules from it.
    sys.modules["__main__"].__file__ = sys.argv[0]
    with suppress(OSError):  # the learner has ended
        try:
            with closing(_connect(task, pipe)) as cluster:
                try:
                    _Relay(cluster, task.settings, pipe).serve()
                except cluster.ray.exceptions.RayError as error:
                    pipe.post(messages.FAULT, EnvironmentFaultError(f"Ray fails: {_short(str(error))}"))
        except OSError:
            raise
        except Exception as error:
            pipe.post(messages.FAULT, messages.portable(error))


def _connect(task: DriverTask, pipe: LockedPipe) -> Cluster:
    settings = task.settings
    cpus = math.ceil(task.count * settings.num_cpus) or 1
    deadline_s = time.monotonic() + (task.reconnect_s if task.is_again else 0.0)
    while True:
        pipe.post(BEAT, False)
        try:
            cluster = connect(settings.address, cpus, NAME, settings.runtime_env_of_ray())
            break
        except Exception:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_RETRY_S)
    if not task.is_again:  # When a cluster restarts, nodes may join later.
        try:
            check_capacity(cluster, task.count, settings)
        except SettingsError:
            cluster.close()
            raise
    return cluster


class ActorHost:
    """The Ray actor that runs one of the learner's actors. Modules for running actors are only imported on its node."""

    def __init__(self, pickled: bytes, level: int) -> None:
        from trajtrainer.plugins.ray.node import hosted_actor

        self._channel = hosted_actor(pickled, level)

    def deliver(self, order: bytes, weights: Any = None) -> None:
        self._channel.deliver(order, weights)

    def fetch(self) -> list[tuple[bytes, Any]]:
        return self._channel.fetch()


class _RemoteActor:
    """One start of an actor, with the handle and functions to reach it through Ray."""

    def __init__(self, life: Life, handle: Any) -> None:
        self.life = life
        self.handle = handle
        self.deliver = handle.deliver.options(concurrency_group=_ORDERS, num_returns=0).remote
        self.fetch = handle.fetch.options(concurrency_group=_REPORTS).remote
        self.fetches = deque(self.fetch() for _ in range(_FETCHES))


class _Relay:
    """Passes the learner's orders on to the actors, and the actors' messages to the learner."""

    def __init__(self, cluster: Cluster, settings: RaySettings, pipe: LockedPipe) -> None:
        self._cluster = cluster
        self._ray = cluster.ray
        context = cluster.ray.get_runtime_context()
        self._here = str(context.get_node_id())
        self._gcs = str(context.gcs_address)
        self._pipe = pipe
        # Each group has one thread, so orders and reports are both kept in sequence. Ray does not restart actors. The
        # learner does, because it knows which messages of an actor have arrived.
        host = self._ray.remote(concurrency_groups={_ORDERS: 1, _REPORTS: 1})(ActorHost)
        self._host = host.options(
            num_cpus=settings.num_cpus,
            resources=settings.resources,
            scheduling_strategy="SPREAD",
            max_restarts=0,
            max_task_retries=0,
        )
        self._actors: dict[Life, _RemoteActor] = {}
        self._experience = Blocks()
        self._weights = OpenedBlocks()
        self._published: dict[str, Any] = {}  # behavior -> newest weights, in Ray's store
        self._read_blocks: deque[int] = deque()
        self._has_actors = threading.Event()
        self._is_over = False
        self._error: Exception | None = None
        pipe.post(CONNECTED, (self._here, self._gcs))

    def serve(self) -> None:
        """Pass on the actors' reports to the learner until it sends END.

        Raises:
            OSError: the learner has ended.
            RayError: Ray has ended.
        """
        threading.Thread(target=self._watch, name="signs of life", daemon=True).start()
        threading.Thread(target=self._follow_orders, name="orders", daemon=True).start()
        while not self._is_over:
            while self._read_blocks:
                self._pipe.post(FREE, self._read_blocks.popleft())
            heads = {actor.fetches[0]: actor for actor in list(self._actors.values())}
            if not heads:
                self._has_actors.clear()
                self._has_actors.wait(_WAIT_S)
                continue
            ready, others = self._ray.wait(list(heads), timeout=_WAIT_S)
            if ready and others:
                ready += self._ray.wait(others, num_returns=len(others), timeout=0)[0]
            for fetch in ready:
                self._bring(heads[fetch])
        if self._error is not None:
            raise self._error

    def _bring(self, actor: _RemoteActor) -> None:
        """Pass the result of ``fetch`` on to the learner."""
        if actor.life not in self._actors:
            return
        try:
            brought = self._ray.get(actor.fetches.popleft())
        except self._ray.exceptions.RayError as error:
            self._drop(actor.life)
            self._pipe.post(LOST, (actor.life, self._loss(actor.life[0], error)))
            return
        actor.fetches.append(actor.fetch())
        for pickled, experience in brought:
            place = None
            if experience is not None:
                buffer, place = self._experience.reserve(len(experience))
                buffer[:] = experience
            self._pipe.post(BROUGHT, (actor.life, pickled, place))

    def _loss(self, number: int, error: Exception) -> Exception:
        """Return the error for a lost actor: a ``SettingsError`` if the user can fix the cause."""
        text = _short(str(error))
        if isinstance(error, self._ray.exceptions.RuntimeEnvSetupError):
            return SettingsError(f"actors.ray.runtime_env cannot be set up: {text}")
        if "No module named 'trajtrainer" in text:
            return SettingsError(
                f"Actor {number} cannot start: a node of the cluster does not have trajtrainer, or has an older "
                f"version. Install trajtrainer {__version__} on all nodes, or have actors.ray.runtime_env install it. "
                f"Ray reports: {text}"
            )
        return EnvironmentFaultError(f"Actor {number} is lost: {text}")

    def _follow_orders(self) -> None:
        """Carry out the learner's orders.

        This thread never sends to the learner, so there is no deadlock if both sides send.
        """
        try:
            while True:
                kind, content = messages.read(self._pipe.connection)
                if kind == messages.END:
                    break
                self._follow(kind, *content)
        except (EOFError, OSError):  # the learner has ended, so this process ends
            pass
        except Exception as error:
            self._error = error
        self._is_over = True
        self._has_actors.set()

    def _follow(self, kind: bytes, which: Any, *rest: Any) -> None:
        actor = self._actors.get(which)
        if kind == START:
            self._actors[which] = _RemoteActor(which, self._host.remote(*rest))
            self._has_actors.set()
        elif kind == FREE:
            self._experience.take_back(which)
        elif kind == DROP:
            self._drop(which)
        elif kind == WEIGHTS:
            order, behavior, place, size = rest
            if place is not None:
                self._published[behavior] = self._ray.put(self._weights.buffer(place)[:size])
                self._read_blocks.append(place.number)
            if actor is not None:
                actor.deliver(order, self._published[behavior])
        elif actor is not None:
            actor.deliver(*rest)

    def _drop(self, life: Life) -> None:
        actor = self._actors.pop(life, None)
        if actor is not None:
            with suppress(Exception):  # the actor or Ray has already ended
                self._ray.kill(actor.handle)

    def _watch(self) -> None:
        """Send heartbeats, and exit if Ray's GCS or this node is lost, because Ray may not kill this process."""
        num_unanswered, silent_since_s = 0, 0.0
        with suppress(OSError):
            while True:
                num_unanswered = 0 if _is_reachable(self._gcs) else num_unanswered + 1
                # Ray may keep a driver alive after it has given up the driver's node, for example after a network
                # partition, but it no longer starts actors for that driver.
                if not num_unanswered and all(node["NodeID"] != self._here for node in self._cluster.nodes()):
                    os._exit(1)
                is_silent = num_unanswered >= _GCS_SILENT_BEATS
                if is_silent and not silent_since_s:
                    silent_since_s = time.monotonic()
                    _LOGGER.warning(
                        "The head of Ray's cluster (its GCS at %s) does not answer. Actors keep running while Ray "
                        "does, but if it does not come back, all of them are lost within minutes.",
                        self._gcs,
                    )
                elif silent_since_s and not is_silent:
                    silent_since_s = 0.0
                    _LOGGER.info("The head of Ray's cluster answers again.")
                elif silent_since_s and time.monotonic() - silent_since_s > _GCS_GONE_S:
                    os._exit(1)
                self._pipe.post(BEAT, is_silent)
                time.sleep(_BEAT_S)


def _is_reachable(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S).close()
    except OSError:
        return False
    return True


def _short(text: str) -> str:
    """Return the text of an error from Ray without colors. Keep only the start and the end of a long text."""
    text = " ".join(re.sub(r"\x1b\[[\d;]*m", "", text).split())
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT // 2]} ... {text[-_LONGEST_TEXT // 2 :]}"


def check_capacity(cluster: Cluster, count: int, settings: RaySettings) -> None:
    """Check that a node has enough resources for an actor. Warn if there are not enough resources for all actors.

    Raises:
        SettingsError: no node has enough resources for an actor.
    """
    needs = {name: amount for name, amount in settings.needs().items() if amount > 0}
    nodes = cluster.nodes()
    places = [
        min((int(node["Resources"].get(name, 0) // need) for name, need in needs.items()), default=count)
        for node in nodes
    ]
    if sum(places) >= count:
        return
    needed = ", ".join(f"{amount:g} {name}" for name, amount in needs.items())
    present = "; ".join(
        f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}): "
        + ", ".join(f"{node['Resources'].get(name, 0):g} {name}" for name in needs)
        for node in nodes
    )
    shortage = f"actors.count is {count}, and each actor needs {needed}. The nodes of {cluster} have: {present}."
    if not any(places):
        raise SettingsError(
            f"{shortage} That is not enough for a single actor. Lower actors.ray.num_cpus and resources, or add nodes."
        )
    _LOGGER.warning("%s That is enough for %d; the other actors wait until a node joins.", shortage, sum(places))
