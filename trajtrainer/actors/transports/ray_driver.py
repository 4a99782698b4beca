"""The process between a learner and Ray.

Ray ends the process that is connected with it, on the spot, when its raylet or its GCS is gone. So that is not the
learner's.

::

    learner                    driver (this file)                  nodes
    RayTransport  -- pipe -->  obey: a thread that never waits  -- Ray -->  ActorHost.deliver
                  <-- pipe --  serve: the main thread           <-- Ray --  ActorHost.fetch
                  <-- blocks: shared memory, copied once from Ray's store

What travels is pickled by the learner and the actors, and not looked at here: this process needs no torch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from trajtrainer.actors.transports.cluster import Cluster, connect
from trajtrainer.core.errors import EnvironmentFaultError, SettingsError
from trajtrainer.core.version import __version__
from trajtrainer.settings.actors import RaySettings
from trajtrainer.workers import messages
from trajtrainer.workers.blocks import Blocks, OpenedBlocks
from trajtrainer.workers.messages import LockedPipe
from trajtrainer.workers.process import begin_child

_LOGGER = logging.getLogger(__name__)

# Between the learner and the driver; END and FAULT are those of environments' workers. A life is one start of an actor.
START = b"S"  # life, number of the actor, pickled task, level of its log
DELIVER = b"o"  # life, pickled order
WEIGHTS = b"w"  # life, pickled order, behavior, place of newer weights (None: those of the last time), their size
DROP = b"d"  # life
FREE = b"v"  # number of a block that was read; in both directions
CONNECTED = b"c"  # id of the node that this machine is, address of Ray's GCS
BROUGHT = b"r"  # life, pickled message of an actor, place of the experience that belongs to it (None: none)
LOST = b"x"  # life, what Ray says, whether a user can mend that
BEAT = b"b"  # sign of life: whether Ray's GCS does not answer

BEAT_S = 2.0
_RETRY_S = 2.0
_LOOK_S = 0.25
# So many signs of life without an answer make it silent.
_SILENT_BEATS = 3
_PROBE_S = 2.0
_LONGEST_TEXT = 600
# Fetches on their way to each actor: while the learner reads what one has brought, the next waits there.
_FETCHES = 2
_ORDERS, _REPORTS = "orders", "reports"


@dataclass(frozen=True, slots=True)
class DriverTask:
    """The task that a driver is given at its start.

    Attributes:
        settings: of the cluster, and what each actor needs.
        cpus: that a Ray of its own offers.
        count: of actors.
        what: asks for Ray, for messages.
        log_level: of this package.
        reconnect_s: how long to try to connect again.
        is_again: an earlier one was lost.
    """

    settings: RaySettings
    cpus: int
    count: int
    what: str
    log_level: int
    reconnect_s: float
    is_again: bool = False


def run_driver(task: DriverTask, connection: messages.Pipe, lifeline: messages.Pipe) -> None:
    """Connect with Ray and serve the learner until it says END or is gone."""
    pipe = LockedPipe(connection)
    begin_child(pipe, lifeline, task.log_level, lambda: None)
    if task.log_level > logging.DEBUG:  # its end is told in one line, and not in those of Ray
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
    # Ray lets workers import from the folder of the script that runs, which it finds by this.
    sys.modules["__main__"].__file__ = sys.argv[0]
    beat = _Beat(pipe)
    with contextlib.suppress(OSError):  # the learner is gone
        try:
            cluster = _connected(task)
            try:
                beat.gcs = str(cluster.ray.get_runtime_context().gcs_address)
                pipe.post(CONNECTED, (cluster.here, beat.gcs))
                _Driver(cluster, task.settings, pipe).serve()
            except cluster.ray.exceptions.RayError as error:
                pipe.post(messages.FAULT, EnvironmentFaultError(f"Ray fails: {_short(str(error))}"))
            finally:
                cluster.close()
        except OSError:
            raise
        except Exception as error:
            pipe.post(messages.FAULT, messages.portable(error))


def _connected(task: DriverTask) -> Cluster:
    deadline_s = time.monotonic() + (task.reconnect_s if task.is_again else 0.0)
    while True:
        try:
            cluster = connect(task.settings.address, task.cpus, task.what, task.settings.runtime_env_of_ray())
            break
        except Exception:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_RETRY_S)
    if not task.is_again:  # of a cluster that comes back, nodes may come later
        try:
            check_room(cluster, task.count, task.settings)
        except SettingsError:
            cluster.close()
            raise
    return cluster


class _Beat:
    """A thread that gives signs of life, and looks whether Ray's GCS answers.

    Attributes:
        gcs: ``HOST:PORT``; empty before it is known.
    """

    def __init__(self, pipe: LockedPipe) -> None:
        self.gcs = ""
        self._pipe = pipe
        threading.Thread(target=self._run, name="signs of life", daemon=True).start()

    def _run(self) -> None:
        unanswered = 0
        with contextlib.suppress(OSError):
            while True:
                unanswered = 0 if not self.gcs or _answers(self.gcs) else unanswered + 1
                self._pipe.post(BEAT, unanswered >= _SILENT_BEATS)
                time.sleep(BEAT_S)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S).close()
    except OSError:
        return False
    return True


class ActorHost:
    """A Ray actor: runs one of ours (``HostedActor``). Only on its node everything is imported that this needs."""

    def __init__(self, pickled: bytes, level: int) -> None:
        from trajtrainer.actors.transports.ray_channel import HostedActor

        self._channel = HostedActor(pickled, level).channel

    def deliver(self, order: bytes, weights: Any = None) -> None:
        """See ``RayChannel``."""
        self._channel.deliver(order, weights)

    def fetch(self) -> list[tuple[bytes, Any]]:
        """See ``RayChannel``."""
        return self._channel.fetch()


class _Member:
    """One life of an actor."""

    def __init__(self, life: int, number: int, handle: Any) -> None:
        self.life = life
        self.number = number
        self.handle = handle
        self._deliver = handle.deliver.options(concurrency_group=_ORDERS, num_returns=0)
        self._fetch = handle.fetch.options(concurrency_group=_REPORTS)
        self.fetches = deque(self._fetch.remote() for _ in range(_FETCHES))

    def deliver(self, order: bytes, *weights: Any) -> None:
        self._deliver.remote(order, *weights)

    def fetch_more(self) -> None:
        self.fetches.append(self._fetch.remote())


class _Driver:
    """Carries orders to actors, and brings what they have."""

    def __init__(self, cluster: Cluster, settings: RaySettings, pipe: LockedPipe) -> None:
        self._ray = cluster.ray
        self._pipe = pipe
        # Each group is one thread, so that both keep their order. Whoever is lost is started again by the learner, who
        # knows what has come from it.
        host = self._ray.remote(concurrency_groups={_ORDERS: 1, _REPORTS: 1})(ActorHost)
        self._host = host.options(
            num_cpus=settings.num_cpus,
            resources=settings.resources,
            scheduling_strategy="SPREAD",
            max_restarts=0,
            max_task_retries=0,
        )
        self._members: dict[int, _Member] = {}
        self._experience = Blocks()
        self._weights = OpenedBlocks()
        self._published: dict[str, Any] = {}  # behavior -> newest weights, in Ray's store
        self._read_blocks: deque[int] = deque()
        self._has_members = threading.Event()
        self._is_over = False
        self._error: Exception | None = None

    def serve(self) -> None:
        """Bring what actors report, until the learner says END.

        Raises:
            OSError: the learner is gone.
            RayError: Ray is.
        """
        threading.Thread(target=self._obey, name="orders", daemon=True).start()
        while not self._is_over:
            while self._read_blocks:
                self._pipe.post(FREE, self._read_blocks.popleft())
            heads = {member.fetches[0]: member for member in list(self._members.values())}
            if not heads:
                self._has_members.clear()
                self._has_members.wait(_LOOK_S)
                continue
            ready, others = self._ray.wait(list(heads), timeout=_LOOK_S)
            if ready and others:
                ready += self._ray.wait(others, num_returns=len(others), timeout=0)[0]
            for fetch in ready:
                self._bring(heads[fetch])
        if self._error is not None:
            raise self._error

    def _bring(self, member: _Member) -> None:
        """Pass on what a fetch has brought."""
        if member.life not in self._members:
            return
        try:
            brought = self._ray.get(member.fetches.popleft())
        except self._ray.exceptions.RayError as error:
            self._lose(member, error)
            return
        member.fetch_more()
        for pickled, experience in brought:
            place = None
            if experience is not None:
                buffer, place = self._experience.reserve(len(experience))
                buffer[:] = experience
            self._pipe.post(BROUGHT, (member.life, pickled, place))

    def _lose(self, member: _Member, error: Exception) -> None:
        """Report that an actor is gone, in words."""
        self._drop(member.life)
        text = _short(str(error))
        is_mistake = True
        if isinstance(error, self._ray.exceptions.RuntimeEnvSetupError):
            text = f"actors.ray.runtime_env cannot be set up: {text}"
        elif "No module named 'trajtrainer" in text:
            text = (
                f"Actor {member.number} cannot start, as a node of the cluster has no trajtrainer, or an older one. "
                f"Install trajtrainer {__version__} on all nodes, or let actors.ray.runtime_env install it. Ray says: "
                f"{text}"
            )
        else:
            text, is_mistake = f"Actor {member.number} is lost: {text}", False
        self._pipe.post(LOST, (member.life, text, is_mistake))

    def _obey(self) -> None:
        """Do what the learner says. Sends nothing itself, so that it never waits for a learner that sends."""
        try:
            while True:
                kind, content = messages.read(self._pipe.connection)
                if kind == messages.END:
                    break
                self._do(kind, *content)
        except (EOFError, OSError):  # the learner is gone, and this process ends
            pass
        except Exception as error:
            self._error = error
        self._is_over = True
        self._has_members.set()

    def _do(self, kind: bytes, which: int, *rest: Any) -> None:
        member = self._members.get(which)
        if kind == START:
            number, pickled, level = rest
            self._members[which] = _Member(which, number, self._host.remote(pickled, level))
            self._has_members.set()
        elif kind == FREE:
            self._experience.take_back(which)
        elif kind == DROP:
            self._drop(which)
        elif kind == WEIGHTS:
            order, behavior, place, size = rest
            if place is not None:
                self._published[behavior] = self._ray.put(self._weights.buffer(place)[:size])
                self._read_blocks.append(place.number)
            if member is not None:
                member.deliver(order, self._published[behavior])
        elif member is not None:
            member.deliver(*rest)

    def _drop(self, life: int) -> None:
        member = self._members.pop(life, None)
        if member is not None:
            with contextlib.suppress(Exception):  # it is gone, or Ray is
                self._ray.kill(member.handle)


def _short(text: str) -> str:
    """Return what Ray says of an error without colors, and of a long one, with tracebacks, its begin and its end."""
    text = " ".join(re.sub(r"\x1b\[[\d;]*m", "", text).split())
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT // 2]} ... {text[-_LONGEST_TEXT // 2 :]}"


def check_room(cluster: Cluster, count: int, settings: RaySettings) -> None:
    """See whether the nodes have what the actors need.

    Raises:
        SettingsError: none has what one of them needs.
    """
    needs = {name: amount for name, amount in settings.needs().items() if amount > 0}
    nodes = cluster.nodes()
    places = [
        min((int(node.resources.get(name, 0) // need) for name, need in needs.items()), default=count) for node in nodes
    ]
    if sum(places) >= count:
        return
    needed = ", ".join(f"{amount:g} {name}" for name, amount in needs.items())
    present = "; ".join(
        f"{node.name}: " + ", ".join(f"{node.resources.get(name, 0):g} {name}" for name in needs) for node in nodes
    )
    told = f"actors.count is {count}, and each actor needs {needed}. The nodes of {cluster} have: {present}."
    if not any(places):
        raise SettingsError(f"{told} None of them has room for an actor. See actors.ray.num_cpus and resources.")
    _LOGGER.warning("%s That is room for %d; the others wait until a node joins.", told, sum(places))
