"""Actors on the machines of a cluster (docs/clusters.md), by way of a process that is connected with Ray.

That process is lost with Ray; the learner starts another one, which connects again or starts a Ray of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trajtrainer.actors.messages import (
    ActorDiedError,
    ActorTask,
    Buffer,
    End,
    Experience,
    Failed,
    Hello,
    Order,
    Report,
    Weights,
)
from trajtrainer.actors.node_logs import write_logs
from trajtrainer.actors.transports import ray_driver
from trajtrainer.actors.transports.cluster import ClusterLostError
from trajtrainer.actors.transports.ray_channel import FILES
from trajtrainer.actors.transports.ray_driver import DriverTask, run_driver
from trajtrainer.actors.transports.remote_transport import RemoteTransport
from trajtrainer.core.errors import EnvironmentFaultError, SettingsError, TrajtrainerError
from trajtrainer.core.timers import Timers
from trajtrainer.data.packed_layout import PackedLayout
from trajtrainer.data.source import Chunk, PackedChunk
from trajtrainer.data.trajectory import of_workers
from trajtrainer.workers import messages
from trajtrainer.workers.blocks import Blocks, OpenedBlocks
from trajtrainer.workers.log_relay import relay_log
from trajtrainer.workers.process import ChildProcess

_LOGGER = logging.getLogger(__name__)

# For players to quit by themselves; for Ray to end.
_CLOSE_GRACE_S = 16.0
_SHUTDOWN_S = 15.0
_LONGEST_WAIT_S = 1.0
# How long a driver may give no sign of life, and Ray's GCS no answer. Where that refuses to answer, Ray itself ends the
# driver earlier; where the network swallows everything, perhaps never.
_SILENT_S = 60.0
_GCS_SILENT_S = 120.0


class _Driver:
    """The process that is connected with Ray, and the memory that it shares with this one.

    Attributes:
        gcs: address of Ray's GCS; empty before it is connected.
        node: id of the node that this machine is.
        gcs_silent_s: since when that has not answered; None if it does.
        silent_s: for how long nothing has come from it.
        weights: on their way to it.
        published: behavior -> newest weights that it has been sent.
    """

    def __init__(self, task: DriverTask) -> None:
        self.gcs = self.node = ""
        self.gcs_silent_s: float | None = None
        self.silent_s = 0.0
        self.weights = Blocks()
        self.published: dict[str, Buffer] = {}
        self._experience = OpenedBlocks()
        title = "process that is connected with Ray"
        self.process = ChildProcess(
            run_driver, task, "ray-driver", title=title, log_as="Ray", log_from=logging.CRITICAL
        )
        self.post = self.process.post

    def experience(self, place: Any) -> tuple[Buffer, Callable[[], None]]:
        """Return the bytes at a place, and what gives them back."""
        return self._experience.buffer(place), partial(self.post, ray_driver.FREE, (place.number,))

    def bury(self) -> str:
        """Wait for its end, but not long, free what belongs to it and return how it ended."""
        how = self.process.bury()
        self.weights.close()
        self._experience.close()
        return how


class RayTransport(RemoteTransport):
    """See ``Transport``. Ends Ray with it, if that was started for it.

    Args:
        task: of the process that is connected with Ray.
        make_task: the task of an actor, from its number and the id of the node that the learner is on.
        folder: gives that of an actor's logs; None if nothing may be written.
        timers: of the run.

    Raises:
        SettingsError: there is no cluster, a task cannot be sent, or no node has what an actor needs.
    """

    def __init__(
        self,
        task: DriverTask,
        make_task: Callable[[int, str], ActorTask],
        folder: Callable[[int], Path | None],
        timers: Timers,
    ) -> None:
        super().__init__(timers)
        self._task = task
        self._make_task = make_task
        self._folder = folder
        self._next_life = itertools.count(1)
        self._lives: list[int | None] = [None] * task.count
        self._numbers: dict[int, int] = {}  # life -> number
        self._there: set[int] = set()  # lives from which anything has come; the others may wait for room
        self._driver: _Driver | None = None
        self._dumps: Callable[[object], bytes] = importlib.import_module("ray.cloudpickle").dumps
        self._was_connected = False
        try:
            driver = self._driver = _Driver(task)
            while not driver.gcs:
                self.reports(None)
            self._pickled(0, driver)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._lives)

    @property
    def present(self) -> Sequence[int]:
        """See ``Transport``."""
        return [number for number, life in enumerate(self._lives) if life is not None]

    def start(self, number: int) -> None:
        """See ``Transport``. Where Ray is lost, an attempt to connect again begins with it."""
        self.drop(number)
        life = self._lives[number] = next(self._next_life)
        self._numbers[life] = number
        if self._driver is None:
            self._driver = _Driver(replace(self._task, is_again=True))
        elif self._driver.gcs:
            self._start(life, self._driver)

    def _start(self, life: int, driver: _Driver) -> None:
        number = self._numbers[life]
        driver.post(ray_driver.START, (life, number, *self._pickled(number, driver)))

    def _pickled(self, number: int, driver: _Driver) -> tuple[bytes, int]:
        task = self._make_task(number, driver.node)
        try:
            return self._dumps(task), task.log_level
        except Exception as error:
            raise SettingsError(
                "actors.backend is ray, but what makes the environment cannot be sent to another machine "
                f"({error}). Use a function at the top of a module."
            ) from error

    def post(self, number: int, order: Order) -> None:
        """See ``Transport``."""
        life = self._lives[number]
        if life is not None and self._driver is not None:
            self._driver.post(ray_driver.DELIVER, (life, self._dumps(order)))

    def publish(self, number: int, behavior: str, version: int, weights: Callable[[], Buffer]) -> None:
        """See ``Transport``."""
        life, driver = self._lives[number], self._driver
        if life is None or driver is None:
            return
        place, newest = None, weights()
        if driver.published.get(behavior) is not newest:
            buffer, place = driver.weights.reserve(len(newest))
            buffer[:] = newest
            driver.published[behavior] = newest
        order = self._dumps(Weights(behavior, version, None))
        driver.post(ray_driver.WEIGHTS, (life, order, behavior, place, len(newest)))

    def chunk(self, number: int, report: Experience, layout: PackedLayout, first_worker: int) -> Chunk | None:  # noqa: ARG002
        """See ``Transport``."""
        counts, (buffer, free) = report.place
        return PackedChunk(of_workers(layout.over(buffer, counts), first_worker), report.rows, free)

    def reports(self, timeout_s: float | None) -> Sequence[tuple[int, Report]]:
        """See ``RemoteTransport``."""
        timeout_s = _LONGEST_WAIT_S if timeout_s is None else min(timeout_s, _LONGEST_WAIT_S)
        driver = self._driver
        if driver is None:
            time.sleep(timeout_s)  # until somebody is started again; there is nothing to wait on
            return []
        found: list[tuple[int, Report]] = []
        begin_s = time.monotonic()
        try:
            if not driver.process.pipe.poll(timeout_s):
                driver.silent_s += time.monotonic() - begin_s
                if driver.silent_s <= _SILENT_S:
                    return []
                driver.process.kill()
                return self._lost(driver, f"The process that is connected with Ray was silent for {_SILENT_S:.0f} s.")
            driver.silent_s = 0.0
            while True:
                kind, content = messages.read(driver.process.pipe)
                found += self._taken(driver, kind, content)
                # An actor of another version is dropped before more of it is looked at.
                if (found and isinstance(found[-1][1], Hello)) or not driver.process.pipe.poll():
                    return found
        except (EOFError, OSError):
            return found or self._lost(driver)

    def _taken(self, driver: _Driver, kind: bytes, content: Any) -> list[tuple[int, Report]]:
        if kind == ray_driver.BROUGHT:
            life, pickled, place = content
            experience = None if place is None else driver.experience(place)
            if life in self._numbers:
                return self._report(life, pickled, experience)
            if experience is not None:
                experience[1]()
        elif kind == ray_driver.LOST:
            life, text, is_mistake = content
            if life in self._numbers:
                return self._end(life, SettingsError(text) if is_mistake else ActorDiedError(text))
        elif kind == ray_driver.FREE:
            driver.weights.take_back(content)
        elif kind == ray_driver.CONNECTED:
            driver.node, driver.gcs = content
            self._was_connected = True
            for life in self._numbers:
                self._start(life, driver)
        elif kind == ray_driver.BEAT:
            self._note_gcs(driver, is_silent=content)
        elif kind == messages.LOG:
            relay_log(content, "Ray", logging.CRITICAL)
        elif kind == messages.FAULT:
            return self._lost(driver, content)
        return []

    def _report(
        self, life: int, pickled: bytes, experience: tuple[Buffer, Callable[[], None]] | None
    ) -> list[tuple[int, Report]]:
        """Return what a message of an actor says."""
        number = self._numbers[life]
        kind, content = pickle.loads(pickled)  # noqa: S301  (from an actor, which runs what this run has sent)
        self._there.add(life)
        if kind == messages.LOG:
            relay_log(content, f"Actor {number}", logging.DEBUG)
        elif kind == FILES:
            self._write_logs(number, content)
        elif kind == messages.END:
            return self._end(life, ActorDiedError(f"Actor {number} has ended."))
        elif kind == messages.FAULT:
            return self._end(life, content)
        elif isinstance(content, Experience):
            return [(number, replace(content, place=(content.place[0], experience)))]
        else:
            return [(number, content)]
        return []

    def _end(self, life: int, error: Exception) -> list[tuple[int, Report]]:
        number = self._numbers[life]
        self.drop(number)
        return [(number, Failed(error))]

    def _note_gcs(self, driver: _Driver, *, is_silent: bool) -> None:
        if not is_silent:
            if driver.gcs_silent_s is not None:
                _LOGGER.info("The head of Ray's cluster answers again.")
            driver.gcs_silent_s = None
        elif driver.gcs_silent_s is None:
            driver.gcs_silent_s = time.monotonic()
            _LOGGER.warning(
                "The head of Ray's cluster (its GCS at %s) does not answer. What runs goes on for as long as Ray does; "
                "if it stays away, all actors are lost within minutes.",
                driver.gcs,
            )
        elif time.monotonic() - driver.gcs_silent_s > _GCS_SILENT_S:
            driver.process.kill()

    def _lost(self, driver: _Driver, why: Exception | str | None = None) -> list[tuple[int, Report]]:
        """Give up a driver that has ended, and with it all actors.

        Raises:
            TrajtrainerError: it is the first one, and was never connected.
        """
        self._driver = None
        how = driver.bury()
        why = why or _explained(driver, how)
        if not self._was_connected:
            raise why if isinstance(why, Exception) else ClusterLostError(f"Ray cannot be used. {why}")
        error: Exception
        if not driver.gcs:
            error = ClusterLostError(
                f"Ray is lost, and was not back after {self._task.reconnect_s:.0f} s (--timeout-wait). {why}"
            )
        elif isinstance(why, Exception) and not isinstance(why, EnvironmentFaultError):
            error = why  # a bug
        else:
            error = ActorDiedError(f"{why} All actors are lost with it.")
        lost = self.present
        self._lives, self._numbers = [None] * len(self), {}
        self._there.clear()
        return [(number, Failed(error)) for number in lost]

    def _write_logs(self, number: int, logs: Mapping[str, bytes]) -> None:
        folder = self._folder(number)
        if folder is not None:
            try:
                write_logs(folder, logs)
            except OSError as error:
                _LOGGER.warning("The players' logs of actor %d cannot be written: %s", number, error)

    def drop(self, number: int) -> None:
        """See ``Transport``."""
        life, self._lives[number] = self._lives[number], None
        if life is not None:
            del self._numbers[life]
            self._there.discard(life)
            if self._driver is not None:
                self._driver.post(ray_driver.DROP, (life,))

    def close(self) -> None:
        """See ``Transport``."""
        for number, life in enumerate(self._lives):
            if life is not None and life in self._there:
                self.post(number, End())
            else:
                self.drop(number)
        deadline_s = time.monotonic() + _CLOSE_GRACE_S
        while self._numbers and (remaining_s := deadline_s - time.monotonic()) > 0:
            self.reports(remaining_s)  # for the log, and the logs of players
        for number in range(len(self)):
            self.drop(number)
        if self._driver is not None:
            if self._driver.gcs:
                self._driver.post(messages.END)
            else:
                self._driver.process.kill()
            deadline_s = time.monotonic() + _SHUTDOWN_S
            while self._driver is not None and (remaining_s := deadline_s - time.monotonic()) > 0:
                with contextlib.suppress(TrajtrainerError):
                    self.reports(remaining_s)  # so that it never waits for this process
        if self._driver is not None:
            self._driver.process.kill()
            self._driver.bury()
            self._driver = None

    def kill(self) -> None:
        """See ``Transport``. Ray ends what its driver has started, and players end with what has started them."""
        driver = self._driver
        if driver is not None:
            driver.process.kill()


def _explained(driver: _Driver, how: str) -> str:
    """Return what is lost when a driver has ended like this."""
    if not driver.gcs or ("signal" in how and "SIGABRT" not in how):
        return f"The process that is connected with Ray {how}."
    if driver.gcs_silent_s is not None:
        return f"The head of Ray's cluster (its GCS at {driver.gcs}) is gone."
    return "Ray's daemon on this machine (its raylet) is gone."
