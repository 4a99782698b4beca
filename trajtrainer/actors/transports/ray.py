"""Actors on the machines of a cluster, at the other ends of methods of Ray actors (docs/clusters.md).

What travels is Ray's own serialization, between processes of one job. A chunk of experience is an object of Ray's
store, that the learner reads where it stands; so is one version of weights, for all actors.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trajtrainer.actors.messages import (
    ActorDiedError,
    ActorTask,
    Buffer,
    End,
    Experience,
    Failed,
    Order,
    Report,
    Take,
    Weights,
)
from trajtrainer.actors.node_logs import write_logs
from trajtrainer.actors.transports.cluster import Cluster
from trajtrainer.actors.transports.ray_channel import FILES, ActorHost, Message
from trajtrainer.algos.acting import Policy
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.stats import StatsReporter
from trajtrainer.core.timers import Timers
from trajtrainer.core.version import __version__
from trajtrainer.data.packed_layout import PackedLayout
from trajtrainer.data.source import Chunk, ExperienceSource, PackedChunk
from trajtrainer.data.trajectory import of_workers
from trajtrainer.settings.actors import RaySettings
from trajtrainer.workers import messages
from trajtrainer.workers.log_relay import relay_log

_LOGGER = logging.getLogger(__name__)

# For players to quit by themselves.
_CLOSE_GRACE_S = 16.0
_LONGEST_WAIT_S = 1.0
_LONGEST_TEXT = 600
# Fetches on their way to each actor: while the learner reads what one has brought, the next waits there.
_FETCHES = 2
_ORDERS, _REPORTS = "orders", "reports"


class _Member:
    """One actor, started.

    Attributes:
        is_there: whether anything has come from it. It may wait for room.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.is_there = False
        self._deliver = handle.deliver.options(concurrency_group=_ORDERS, num_returns=0)
        self._fetch = handle.fetch.options(concurrency_group=_REPORTS)
        self.fetches = deque(self._fetch.remote() for _ in range(_FETCHES))

    def deliver(self, order: Order, *weights: Any) -> None:
        self._deliver.remote(order, *weights)

    def fetch_more(self) -> None:
        self.fetches.append(self._fetch.remote())


class RayTransport:
    """See ``Transport``. Ends Ray with it, if that was started for it.

    Args:
        cluster: connected.
        make_task: the task of each actor.
        count: of actors.
        settings: what each needs.
        folder: gives that of an actor's logs; None if nothing may be written.
        timers: of the run.

    Raises:
        SettingsError: a task cannot be sent, or no node of the cluster has what an actor needs.
    """

    shared = None

    def __init__(
        self,
        cluster: Cluster,
        make_task: Callable[[int], ActorTask],
        count: int,
        settings: RaySettings,
        folder: Callable[[int], Path | None],
        timers: Timers,
    ) -> None:
        self.waited_s = 0.0
        self._timers = timers
        self._cluster = cluster
        self._ray = cluster.ray
        self._make_task = make_task
        self._folder = folder
        self._members: list[_Member | None] = [None] * count
        self._published: dict[str, tuple[Buffer, Any]] = {}
        try:
            _check_room(cluster, count, settings)
            self._pickled(0)
        except SettingsError:
            cluster.close()
            raise
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

    def __len__(self) -> int:
        return len(self._members)

    def handle(self, number: int) -> Any:
        """Return Ray's handle of an actor; None where there is none."""
        member = self._members[number]
        return None if member is None else member.handle

    def start(self, number: int) -> None:
        """See ``Transport``."""
        self.drop(number)
        pickled, level = self._pickled(number)
        self._members[number] = _Member(self._host.remote(pickled, level))

    def _pickled(self, number: int) -> tuple[bytes, int]:
        task = self._make_task(number)
        try:
            return self._ray.cloudpickle.dumps(task), task.log_level
        except Exception as error:
            raise SettingsError(
                "actors.backend is ray, but what makes the environment cannot be sent to another machine "
                f"({error}). Use a function at the top of a module."
            ) from error

    def post(self, number: int, order: Order) -> None:
        """See ``Transport``."""
        member = self._members[number]
        if member is not None:
            member.deliver(order)

    def add(self, behavior: str, policy: Policy, reporter: StatsReporter, source: ExperienceSource | None) -> None:
        """See ``Transport``."""

    def publish(self, number: int, behavior: str, version: int, weights: Callable[[], Buffer]) -> None:
        """See ``Transport``."""
        member = self._members[number]
        if member is None:
            return
        newest = weights()
        known, place = self._published.get(behavior, (None, None))
        if known is not newest:
            place = self._ray.put(newest)
            self._published[behavior] = newest, place
        member.deliver(Weights(behavior, version, None), place)

    def chunk(self, number: int, report: Experience, layout: PackedLayout, first_worker: int) -> Chunk | None:  # noqa: ARG002
        """See ``Transport``. The store has room again when nobody has the bytes."""
        counts, buffer = report.place
        return PackedChunk(of_workers(layout.over(buffer, counts), first_worker), report.rows, _do_nothing)

    @property
    def present(self) -> Sequence[int]:
        """See ``Transport``."""
        return [number for number, member in enumerate(self._members) if member is not None]

    def poll(self, timeout_s: float | None, take: Take) -> int:
        """See ``Transport``."""
        with self._timers("env_step") as step:
            step.part("env_wait")
            begin_s = time.monotonic()
            reports = self._reports(timeout_s)
            self.waited_s += time.monotonic() - begin_s
            step.part("record")
            for number, report in reports:
                take(number, report)
        return len(reports)

    def _reports(self, timeout_s: float | None) -> Sequence[tuple[int, Report]]:
        heads = {member.fetches[0]: number for number, member in enumerate(self._members) if member is not None}
        timeout_s = _LONGEST_WAIT_S if timeout_s is None else min(timeout_s, _LONGEST_WAIT_S)
        if not heads:
            time.sleep(timeout_s)  # until somebody is started again; there is nothing to wait on
            return []
        try:
            ready, others = self._ray.wait(list(heads), timeout=timeout_s)
        except SystemError as error:  # Ray wraps what the handler of a signal raises meanwhile
            raise error.__cause__ or error from None
        if ready and others:
            ready += self._ray.wait(others, num_returns=len(others), timeout=0)[0]
        return [(heads[fetch], report) for fetch in ready for report in self._read(heads[fetch])]

    def _read(self, number: int) -> list[Report]:
        """Return what a fetch has brought."""
        member = self._members[number]
        assert member is not None
        found: list[Report] = []
        try:
            brought: list[Message] = self._ray.get(member.fetches.popleft())
        except self._ray.exceptions.RayError as error:
            self.drop(number)
            return [Failed(self._explained(number, error))]
        member.is_there = True
        member.fetch_more()
        for kind, content in brought:
            if kind == messages.LOG:
                relay_log(content, f"Actor {number}", logging.DEBUG)
            elif kind == FILES:
                self._write_logs(number, content)
            elif kind == messages.END:
                self.drop(number)
                return [*found, Failed(ActorDiedError(f"Actor {number} has ended."))]
            elif kind == messages.FAULT:
                self.drop(number)
                return [*found, Failed(content)]
            else:
                found.append(content)
        return found

    def _explained(self, number: int, error: Exception) -> Exception:
        text = _short(str(error))
        if isinstance(error, self._ray.exceptions.RuntimeEnvSetupError):
            return SettingsError(f"actors.ray.runtime_env cannot be set up: {text}")
        if "No module named 'trajtrainer" in text:
            return SettingsError(
                f"Actor {number} cannot start, as a node of the cluster has no trajtrainer, or an older one. Install "
                f"trajtrainer {__version__} on all nodes, or let actors.ray.runtime_env install it. Ray says: {text}"
            )
        return ActorDiedError(f"Actor {number} is lost: {text}")

    def _write_logs(self, number: int, logs: Mapping[str, bytes]) -> None:
        folder = self._folder(number)
        if folder is not None:
            try:
                write_logs(folder, logs)
            except OSError as error:
                _LOGGER.warning("The players' logs of actor %d cannot be written: %s", number, error)

    def drop(self, number: int) -> None:
        """See ``Transport``."""
        member, self._members[number] = self._members[number], None
        if member is not None:
            self._kill(member)

    def _kill(self, member: _Member) -> None:
        with contextlib.suppress(Exception):  # it is gone, or Ray is
            self._ray.kill(member.handle)

    def close(self) -> None:
        """See ``Transport``."""
        for number, member in enumerate(self._members):
            if member is not None and member.is_there:
                member.deliver(End())
            else:
                self.drop(number)
        deadline_s = time.monotonic() + _CLOSE_GRACE_S
        while any(self._members) and (remaining_s := deadline_s - time.monotonic()) > 0:
            self._reports(remaining_s)  # for the log, and the logs of players
        for number in range(len(self)):
            self.drop(number)
        self._published.clear()
        self._cluster.close()

    def kill(self) -> None:
        """See ``Transport``. Players end with the processes that have started them."""
        for member in self._members:
            if member is not None:
                self._kill(member)


def _do_nothing() -> None:
    pass


def _short(text: str) -> str:
    """Return what Ray says of an error without colours, and of a long one, with tracebacks, its begin and its end."""
    text = " ".join(re.sub(r"\x1b\[[\d;]*m", "", text).split())
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT // 2]} ... {text[-_LONGEST_TEXT // 2 :]}"


def _check_room(cluster: Cluster, count: int, settings: RaySettings) -> None:
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
