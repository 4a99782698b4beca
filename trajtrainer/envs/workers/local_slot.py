"""Run one environment in this process, which spares it a child and two hops per step."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue

from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.steps import ActionBatch
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.envs.workers.child import EnvironmentMaker, start_environment
from trajtrainer.envs.workers.slot import CONNECTED, Report


class LocalSlot:
    """The only slot of a run, and all ``Slots`` at once.

    The first environment is made by ``start`` itself, which a signal may interrupt. Later ones are made in a thread, so
    that a run that shall end does not wait for a player that does not come.
    """

    number = 0

    def __init__(self, make_environment: EnvironmentMaker) -> None:
        self._make_environment = make_environment
        self._environment: Environment | None = None
        self._starting: _Start | None = None
        self._report: Report | None = None
        self._is_first = True

    def __getitem__(self, number: int) -> LocalSlot:
        return (self,)[number]

    def __len__(self) -> int:
        return 1

    def start(self, order: RawImageOrder = RawImageOrder.AUTO) -> None:
        """See ``Slot``."""
        self._end_environment()
        if not self._is_first:
            self._starting = _Start(partial(start_environment, self._make_environment, self.number, order))
            return
        self._is_first = False
        try:
            self._environment = start_environment(self._make_environment, self.number, order)
            self._report = CONNECTED
        except EnvironmentFaultError as fault:
            self._report = fault

    def reset(self, parameters: Parameters) -> None:
        """See ``Slot``."""
        if self._environment is not None:
            try:
                self._environment.reset(parameters)
            except EnvironmentFaultError as fault:
                self._fail(fault)

    def send(self, actions: Mapping[str, ActionBatch], parameters: Parameters) -> None:
        """See ``Slot``."""
        if self._environment is not None:
            try:
                self._environment.set_parameters(parameters)
                self._environment.send(self.number, actions)
            except EnvironmentFaultError as fault:
                self._fail(fault)

    def reports(self, timeout_s: float | None) -> Sequence[tuple[int, Report]]:
        """See ``Slots``."""
        if self._report is None:
            self._look(timeout_s)
        report, self._report = self._report, None
        return [] if report is None else [(self.number, report)]

    def kill(self) -> None:
        """See ``Slot``. A player that is just starting has a guard that ends it after this process."""
        if self._environment is not None:
            self._environment.kill()

    def close(self) -> None:
        """See ``Slots``."""
        if self._starting is not None:
            self._starting.abandon()
            self._starting = None
        self._end_environment()

    def _look(self, timeout_s: float | None) -> None:
        if self._starting is not None:
            made = self._starting.result(timeout_s)
            if made is None:
                return
            self._starting = None
            if isinstance(made, EnvironmentFaultError):
                self._report = made
            elif isinstance(made, Exception):
                raise made
            else:
                self._environment = made
                self._report = CONNECTED
        elif self._environment is not None:
            try:
                self._report = next(iter(self._environment.wait(timeout_s)), None)
            except EnvironmentFaultError as fault:
                self._fail(fault)
        else:
            time.sleep(timeout_s or 0.0)  # until it is started again; there is nothing to wait on

    def _fail(self, fault: EnvironmentFaultError) -> None:
        self._report = fault
        self._end_environment()

    def _end_environment(self) -> None:
        if self._environment is not None:
            try:
                self._environment.close()  # ``kill`` may have to help
            finally:
                self._environment = None


class _Start:
    """Make an environment in a thread."""

    def __init__(self, make_environment: Callable[[], Environment]) -> None:
        self._make_environment = make_environment
        self._made: SimpleQueue[Environment | Exception] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_abandoned = False
        threading.Thread(target=self._make, name="start-environment", daemon=True).start()

    def result(self, timeout_s: float | None) -> Environment | Exception | None:
        """Return the environment or why there is none; None if it is not known after ``timeout_s`` seconds."""
        try:
            return self._made.get(timeout=timeout_s)
        except Empty:
            return None

    def abandon(self) -> None:
        """Close the environment as soon as it is there."""
        with self._lock:
            self._is_abandoned = True
        with contextlib.suppress(Empty):
            made = self._made.get_nowait()
            if not isinstance(made, Exception):
                made.close()

    def _make(self) -> None:
        made: Environment | Exception
        try:
            made = self._make_environment()
        except Exception as error:
            made = error
        with self._lock:
            if not self._is_abandoned:
                self._made.put(made)
                return
        if not isinstance(made, Exception):
            made.close()
