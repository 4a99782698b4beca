"""The learner's end of actors on the machines of a Ray cluster (docs/operate/clusters.md).

A separate process, the driver, connects the learner to Ray (see the diagram in ``driver.py``). If Ray dies, the driver
dies, too. The learner then starts another driver, which reconnects or starts a new local cluster.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve

from trajtrainer.core.errors import EnvironmentFaultError, SettingsError, TrajtrainerError
from trajtrainer.core.timers import Timers
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.messages import relay_log
from trajtrainer.envs.workers.process import ChildProcess
from trajtrainer.envs.workers.shared_memory import Blocks, OpenedBlocks
from trajtrainer.plugins.ray import driver as ray_driver
from trajtrainer.plugins.ray.cluster import ClusterLostError, address_of_program
from trajtrainer.plugins.ray.driver import DriverTask, Life, run_driver
from trajtrainer.plugins.ray.node import FILES
from trajtrainer.run.actors.messages import (
    ActorDiedError,
    ActorTask,
    Buffer,
    End,
    Failed,
    LoadWeights,
    Order,
    Report,
    log_level,
    write_logs,
)
from trajtrainer.run.actors.transports.remote import RemoteTransport
from trajtrainer.settings.run import RunSettings

_LOGGER = logging.getLogger(__name__)

# Time for players to quit and for Ray to shut down.
_CLOSE_GRACE_S = 16.0
_SHUTDOWN_S = 15.0
_LONGEST_WAIT_S = 1.0
# Maximum time between two heartbeats of a driver. While it connects, it only sends one before each attempt, and an
# attempt takes longer than the usual interval.
_SILENT_S = 60.0
_CONNECTING_S = 180.0


class _Driver:
    """The process that is connected to Ray, and the memory that it shares with the learner.

    Attributes:
        node: id of the learner's node; empty until the driver is connected.
        gcs: address of Ray's GCS; empty until the driver is connected.
        silent_s: how long the learner has been waiting for a message from the driver, in seconds.
        published: behavior -> the newest weights that the driver has received.
    """

    def __init__(self, task: DriverTask) -> None:
        self.node = self.gcs = ""
        self.gcs_is_silent = False
        self.silent_s = 0.0
        self.weights = Blocks()
        self.published: dict[str, Buffer] = {}
        self.experience = OpenedBlocks()
        title = "process that is connected to Ray"
        self.process = ChildProcess(
            run_driver, task, "ray-driver", title=title, log_as="Ray", log_from=logging.CRITICAL
        )
        self.post = self.process.post

    def bury(self) -> str:
        """Wait briefly for the process to end, free the shared memory, and return a message about the failure."""
        how = self.process.bury()
        self.weights.close()
        self.experience.close()
        if not self.gcs or ("signal" in how and "SIGABRT" not in how):
            return f"The process that is connected to Ray {how}."
        if self.gcs_is_silent:
            return f"The head of Ray's cluster (its GCS at {self.gcs}) is gone."
        return "Ray's daemon on this machine (its raylet) is gone."


def make_transport(
    settings: RunSettings,
    make_task: Callable[[int, str], ActorTask],
    log_folder: Callable[[int], Path | None],
    timers: Timers,
) -> RayTransport:
    """Create the transport to actors on a cluster. See ``ActorBackend.transport`` and ``RayTransport``."""
    given = settings.actors
    assert given is not None
    cluster = evolve(given.ray, address=given.ray.address or address_of_program())
    level = log_level(0, debug=settings.debug)
    driver = DriverTask(cluster, given.count, level, settings.env_settings.timeout_wait)
    return RayTransport(driver, make_task, log_folder, timers)


class RayTransport(RemoteTransport):
    """The learner's end of the connection to the actors. If Ray was started for this run, it ends with the transport.

    Args:
        task: the task of the driver.
        make_task: creates an actor's task, given the actor's number and the id of the learner's node.
        folder: returns the folder for an actor's logs, or None if nothing may be written.
        timers: the run's timers.

    Raises:
        SettingsError: there is no cluster, or no node has the resources that an actor needs.
    """

    def __init__(
        self,
        task: DriverTask,
        make_task: Callable[[int, str], ActorTask],
        folder: Callable[[int], Path | None],
        timers: Timers,
    ) -> None:
        super().__init__(timers)
        self._task = task  # with ``is_again`` after a driver has been connected
        self._make_task = make_task
        self._folder = folder
        self._starts = itertools.count(1)
        self._lives: dict[int, Life] = {}
        self._heard: set[Life] = set()  # lives that have sent a message; the others may be waiting for resources
        self._dumps: Callable[[object], bytes] = importlib.import_module("ray.cloudpickle").dumps
        self._driver: _Driver | None = _Driver(task)
        try:
            while not self._driver.gcs:
                for _ in self.reports(None):
                    pass
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return self._task.count

    @property
    def present(self) -> Sequence[int]:
        return sorted(self._lives)

    def start(self, number: int) -> None:
        """Start an actor. If the connection to Ray is lost, this also tries to reconnect."""
        self._lives[number] = number, next(self._starts)
        if self._driver is None:
            self._driver = _Driver(self._task)
        elif self._driver.gcs:
            self._start(number, self._driver)

    def _start(self, number: int, driver: _Driver) -> None:
        task = self._make_task(number, driver.node)
        try:
            pickled = self._dumps(task)
        except Exception as error:
            raise SettingsError(
                f"actors.backend is ray, but the function that makes the environment cannot be pickled ({error}), so "
                "it cannot be sent to another machine. Use a function at the top level of a module."
            ) from error
        driver.post(ray_driver.START, (self._lives[number], pickled, task.log_level))

    def post(self, number: int, order: Order) -> None:
        if number in self._lives and self._driver is not None:
            self._driver.post(ray_driver.DELIVER, (self._lives[number], self._dumps(order)))

    def publish(self, number: int, behavior: str, version: int, weights: Callable[[], Buffer]) -> None:
        driver = self._driver
        if number not in self._lives or driver is None:
            return
        place, newest = None, weights()
        if driver.published.get(behavior) is not newest:
            buffer, place = driver.weights.reserve(len(newest))
            buffer[:] = newest
            driver.published[behavior] = newest
        order = self._dumps(LoadWeights(behavior, version, None))
        driver.post(ray_driver.WEIGHTS, (self._lives[number], order, behavior, place, len(newest)))

    def reports(self, timeout_s: float | None) -> Iterator[tuple[int, Report]]:
        timeout_s = _LONGEST_WAIT_S if timeout_s is None else min(timeout_s, _LONGEST_WAIT_S)
        driver = self._driver
        if driver is None:
            time.sleep(timeout_s)  # there is nothing to wait for until an actor is restarted
            return iter(())
        begin_s = time.monotonic()
        if driver.process.has_unread(timeout_s):
            driver.silent_s = 0.0
            return self._read(driver)
        driver.silent_s += time.monotonic() - begin_s
        limit_s = _SILENT_S if driver.gcs else _CONNECTING_S
        if driver.silent_s <= limit_s:
            return iter(())
        driver.process.kill()
        what = "is connected" if driver.gcs else "connects"
        return self._lost(
            driver, ActorDiedError(f"The process that {what} to Ray has not answered for {limit_s:.0f} s.")
        )

    def _read(self, driver: _Driver) -> Iterator[tuple[int, Report]]:
        while self._driver is driver:
            try:
                message = driver.process.read()
            except (EOFError, OSError):
                yield from self._lost(driver)
                return
            if message is not None:
                yield from self._handle(driver, *message)
            if not driver.process.has_unread():
                return

    def _handle(self, driver: _Driver, kind: bytes, content: Any) -> Iterator[tuple[int, Report]]:
        if kind == ray_driver.BROUGHT:
            life, pickled, place = content
            experience = None
            if place is not None:
                free = partial(driver.post, ray_driver.FREE, (place.number,))
                try:
                    experience = driver.experience.buffer(place), free
                except OSError:  # The driver has died, and its memory is gone. The next read will find the closed pipe.
                    return
            if life == self._lives.get(life[0]):
                self._heard.add(life)
                yield from self._handle_actor(life[0], pickled, experience)
            elif experience is not None:
                free()
        elif kind == ray_driver.LOST:
            life, error = content
            if life == self._lives.get(life[0]):
                yield self._end(life[0], error if isinstance(error, SettingsError) else ActorDiedError(str(error)))
        elif kind == ray_driver.FREE:
            driver.weights.take_back(content)
        elif kind == ray_driver.CONNECTED:
            driver.node, driver.gcs = content
            self._task = replace(self._task, is_again=True)
            for number in self._lives:
                self._start(number, driver)
        elif kind == ray_driver.BEAT:
            driver.gcs_is_silent = content
        elif kind == messages.FAULT:
            yield from self._lost(driver, content)

    def _handle_actor(
        self, number: int, pickled: bytes, experience: tuple[Buffer, Callable[[], None]] | None
    ) -> Iterator[tuple[int, Report]]:
        kind, content = pickle.loads(pickled)  # noqa: S301  (from an actor, which runs the code of this run)
        if kind == messages.LOG:
            relay_log(content, f"Actor {number}", logging.DEBUG)
        elif kind == FILES:
            folder = self._folder(number)
            if folder is not None:
                try:
                    write_logs(folder, content)
                except OSError as error:
                    _LOGGER.warning("The players' logs of actor %d cannot be written: %s", number, error)
        elif kind == messages.END:
            yield self._end(number, ActorDiedError(f"Actor {number} has exited."))
        elif kind == messages.FAULT:
            yield self._end(number, content)
        elif experience is not None:
            counts, _ = content.place
            yield number, replace(content, place=(counts, *experience))
        else:
            yield number, content

    def _end(self, number: int, error: Exception) -> tuple[int, Report]:
        self.drop(number)
        return number, Failed(error)

    def _lost(self, driver: _Driver, error: Exception | None = None) -> Iterator[tuple[int, Report]]:
        """Give up a driver that has ended, and all actors with it.

        Raises:
            TrajtrainerError: no driver has ever been connected.
        """
        self._driver = None
        what = driver.bury()
        why = what if error is None else error
        if not self._task.is_again:
            raise error or ClusterLostError(f"Ray cannot be used. {what}")
        if not driver.gcs and not isinstance(error, ActorDiedError):  # otherwise, another attempt may succeed
            error = ClusterLostError(
                f"The connection to Ray was lost and has not come back within {self._task.reconnect_s:.0f} s "
                f"(--timeout-wait). {why}"
            )
        elif error is None or isinstance(error, EnvironmentFaultError):  # otherwise, it is a bug
            error = ActorDiedError(f"{why} All actors are lost with it.")
        lost = self.present
        self._lives.clear()
        yield from ((number, Failed(error)) for number in lost)

    def drop(self, number: int) -> None:
        life = self._lives.pop(number, None)
        if life is not None and self._driver is not None:
            self._driver.post(ray_driver.DROP, (life,))

    def close(self) -> None:
        for number in self._lives:
            self.post(number, End())
        self.read_while(lambda: self._heard.intersection(self._lives.values()), _CLOSE_GRACE_S)
        for number in self.present:
            self.drop(number)
        if self._driver is not None:
            if self._driver.gcs:
                self._driver.post(messages.END)
            else:
                self._driver.process.kill()
            with suppress(TrajtrainerError):
                self.read_while(lambda: self._driver, _SHUTDOWN_S)
        if self._driver is not None:
            self._driver.process.kill()
            self._driver.bury()
            self._driver = None

    def kill(self) -> None:
        """Kill the driver. Ray then ends the driver's actors, and players end with the actors that started them."""
        driver = self._driver
        if driver is not None:
            driver.process.kill()
