"""``trajtrainer.Training``: a run in a Python program, which iterates over its epochs.

The run must not interfere with the program's signals (``GuestStop``), its number of torch threads or the global random
generators (``ProcessState``).
"""

from __future__ import annotations

import contextlib
import logging
import random
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from signal import SIGINT
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import torch

from trajtrainer.core.errors import SettingsError
from trajtrainer.core.timers import Timers
from trajtrainer.run.api.arguments import (
    EnvironmentSource,
    SettingsSource,
    at_least_one,
    combine_arguments,
    maker,
    name_of,
)
from trajtrainer.run.api.epochs import EPOCH_STEPS, EpochMeter, EpochStats
from trajtrainer.run.api.results import LearnResult, result_of
from trajtrainer.run.assembly import Session
from trajtrainer.run.hooks import BestCheckpoint, Evaluation, Hooks, SavedCheckpoint
from trajtrainer.run.logs import banner, console_logging
from trajtrainer.run.session import session
from trajtrainer.run.signals import StopRequest
from trajtrainer.settings.flags import python_names

logger = logging.getLogger(__name__)

T = TypeVar("T")


class GuestStop(StopRequest):
    """A stop request for runs inside a user's program, such as a notebook kernel. Signals do not exit the process.

    Attributes:
        raises: True if a signal raises its exception immediately, because the program's own code is running.
    """

    ends_process = False

    def __init__(self) -> None:
        super().__init__()
        self.raises = False

    def interrupt(self) -> None:
        super().interrupt()
        if self.raises and self.signal is not None:
            self.raises = False
            self.raise_signal()

    def abort(self, number: int) -> None:
        # The run ends without saving, but the program continues.
        self.is_aborted = True
        self.emergency()
        if threading.current_thread() is threading.main_thread():
            self.signal = signal.Signals(number)
            self.raise_signal()

    def raise_signal(self) -> None:
        """Raise the exception that the signal normally raises. Does nothing if there was no signal.

        Raises:
            KeyboardInterrupt: after SIGINT.
            SystemExit: after any other signal.
        """
        if self.signal is signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is not None:
            sys.exit(self.exit_code)


class ProcessState:
    """Process-wide state that differs between a run and the surrounding program.

    It contains torch's number of threads and the states of the global random generators, which environments may use.
    The run starts with a copy of the program's state.
    """

    def __init__(self) -> None:
        self._other = _state()

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """Switch to the run's state inside the ``with`` block. A nested call switches back to the program's state."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        other, self._other = self._other, _state()
        threads, torch_state, numpy_state, python_state = other
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def _state() -> tuple[int, torch.Tensor, Any, Any]:
    # Without the default generators of GPUs: trajtrainer does not use them, because it has its own generators.
    return torch.get_num_threads(), torch.get_rng_state(), np.random.get_state(), random.getstate()


@dataclass(eq=False, repr=False)
class Training:
    """A run as a context manager, with an iterator over its epochs. The arguments are those of ``learn``.

    >>> import trajtrainer  # doctest: +SKIP
    >>> with trajtrainer.Training("builtin:gym/CartPole", "gym:CartPole-v1", run_id="pole") as training:
    ...     for epoch in training.epochs(steps=10_000):
    ...         print(epoch.epoch, epoch.behavior.episodes.returns.mean)
    ...         if epoch.behavior.episodes.returns.mean > 400:
    ...             break
    >>> training.result.behaviors["CartPole-v1"].onnx

    When the block ends, the run is stopped and everything is saved, even after an exception, Ctrl-C or another signal.
    While the program's own code is running, a signal raises its exception immediately; otherwise, it is raised at the
    start of the next iteration. The code in the loop does not affect the training, which is bit-identical. The
    exception is ``threaded: true``: then, trainers keep learning while the body of the loop runs.
    """

    settings: SettingsSource = None
    environment: EnvironmentSource | None = None
    _: KW_ONLY
    run_id: str | None = None
    results_dir: str | Path | None = None
    resume: bool | None = None
    force: bool | None = None
    initialize_from: str | None = None
    inference: bool | None = None
    seed: int | None = None
    num_envs: int | None = None
    env_args: Mapping[str, Any] | Sequence[str] | None = None
    episodes: int | None = None
    torch_device: str | None = None
    verbose: bool = True
    on_epoch: Callable[[EpochStats], object] | None = None
    stop_when: Callable[[EpochStats], object] | None = None
    on_evaluation: Callable[[Evaluation], object] | None = None
    on_best: Callable[[BestCheckpoint], object] | None = None
    on_checkpoint: Callable[[SavedCheckpoint], object] | None = None
    called: str = "Training()"  # for error messages
    _stop: GuestStop = field(default_factory=GuestStop, init=False)
    _stack: ExitStack | None = field(default=None, init=False)
    _session: Session | None = field(default=None, init=False)
    _iterator: Generator[EpochStats] | None = field(default=None, init=False)

    def __enter__(self) -> Training:
        """Start the environment, and create or resume the run.

        Raises:
            TrajtrainerError: the settings are wrong, the folder is in use, or the environment does not start.
        """
        if self._stack is not None:
            raise SettingsError(f"{self.called}: this run has already started. Create a new object for another run.")
        self._stack = ExitStack()
        self._process = ProcessState()
        with self._python_names(), self._process.exchanged(), ExitStack() as stack:
            handler = stack.enter_context(console_logging(debug=False)) if self.verbose else None
            timers = Timers()
            with timers("run_training.settings"):
                options = {
                    "run_id": self.run_id,
                    "results_dir": None if self.results_dir is None else str(self.results_dir),
                    "resume": self.resume,
                    "force": self.force,
                    "initialize_from": self.initialize_from,
                    "inference": self.inference,
                    "seed": self.seed,
                    "num_envs": self.num_envs,
                    "torch_device": self.torch_device,
                    "env": name_of(self.environment, self.called),
                }
                settings = combine_arguments(self.settings, options, self.env_args, self.episodes, self.called)
            if handler is not None:
                handler.show(debug=settings.debug)
                handler.say(banner())
            hooks = Hooks(
                on_checkpoint=self._outside(self.on_checkpoint),
                on_evaluation=self._outside(self.on_evaluation),
                on_best=self._outside(self.on_best),
            )
            opened = session(settings, handler, maker(self.environment), self._stop, timers, hooks=hooks)
            self._session = stack.enter_context(opened)
            self._stack = stack.pop_all()
        return self

    def epochs(self, steps: int = EPOCH_STEPS, max_epochs: int | None = None) -> Iterator[EpochStats]:
        """Train, and yield the statistics of each epoch.

        Epoch n ends as soon as the trainers of all behaviors together have processed n times ``steps`` agent steps,
        including earlier sessions of the run. For behaviors that learn only from demonstrations, gradient steps are
        counted instead. Trainers process whole trajectories, several at a time, so an epoch may be somewhat longer or
        shorter than ``steps``. The last epoch ends with the run, and may be shorter.

        Args:
            steps: number of steps in an epoch.
            max_epochs: the number of the last epoch.

        Yields:
            The statistics of each epoch.

        Raises:
            TrajtrainerError: the environment or a trainer failed.
            KeyboardInterrupt: after SIGINT (except with ``inference``, where the loop ends).
            SystemExit: after another signal.
        """
        at_least_one(steps, "steps of an epoch", self.called)
        if max_epochs is not None:
            at_least_one(max_epochs, "max_epochs", self.called)
        if self._session is None:
            raise SettingsError(
                f"{self.called}: call epochs() inside a with statement: with Training(...) as training."
            )
        self._iterator = self._epochs(self._session, steps, max_epochs)
        return self._iterator

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the run if it has not finished, save everything, and close the environment.

        Raises:
            TrajtrainerError: one of these actions failed.
            KeyboardInterrupt: after SIGINT.
            SystemExit: after another signal.
        """
        self._stop.raises = False
        assert self._stack is not None
        if self._iterator is not None:
            self._iterator.close()
        with self._python_names(), self._process.exchanged():
            stop = self._stop
            if stop.signal is not None and not stop.is_aborted and isinstance(error, KeyboardInterrupt | SystemExit):
                # The signal has stopped the run normally, so do not pass on its exception, which would count as a
                # failure.
                self._stack.close()
            else:
                self._stack.__exit__(kind, error, traceback)
        if error is None:
            self._raise_signal()

    @property
    def result(self) -> LearnResult:
        """The result so far. Its files are complete once the ``with`` block has ended.

        Raises:
            SettingsError: the run has not started.
        """
        if self._session is None:
            raise SettingsError(f"{self.called}: there is no result before the with statement has started the run.")
        return result_of(self._session)

    def _outside(self, function: Callable[[T], object] | None) -> Callable[[T], object] | None:
        """Wrap a user's callback so that it is called with the program's state, not the run's."""
        if function is None:
            return None

        def call(event: T) -> None:
            with self._process.exchanged(), self._at_rest():
                function(event)

        return call

    def _epochs(self, opened: Session, steps: int, max_epochs: int | None) -> Generator[EpochStats]:
        if opened.loop is None:
            return self._raise_signal()
        meter, last = EpochMeter(opened.loop, steps), "" if max_epochs is None else f" of {max_epochs}"
        while max_epochs is None or meter.current <= max_epochs:
            opened.loop.epoch = f"{meter.current}{last}"
            stats = None
            with self._python_names(), self._process.exchanged():
                while stats is None and opened.step():
                    if meter.is_over():
                        stats = meter.finish()
            if stats is None:  # the run has ended
                stats = meter.rest()
            self._raise_signal()
            if stats is None:
                return None
            with self._at_rest():
                if self.on_epoch is not None:
                    self.on_epoch(stats)
                is_last = self.stop_when is not None and bool(self.stop_when(stats))
                yield stats
            if is_last:
                logger.info("Epoch %d is the last one, because stop_when returned True.", stats.epoch)
                opened.stop.request()

    @contextlib.contextmanager
    def _at_rest(self) -> Iterator[None]:
        """Let signals interrupt the user's code immediately, because nothing in the run is in progress."""
        assert self._session is not None
        assert self._session.loop is not None
        is_ending, run = self._session.loop.is_over or self._is_inference, self._session.loop.run
        with run.timers("callbacks"), run.calls.outside(None):
            try:
                self._stop.raises = not is_ending
                if not is_ending:
                    self._stop.interrupt()  # after the line above, so that no signal is lost
                yield
            finally:
                self._stop.raises = False

    def _python_names(self) -> AbstractContextManager[None]:
        return python_names([each.name for each in fields(self) if each.init])

    @property
    def _is_inference(self) -> bool:
        return self._session is not None and self._session.settings.checkpoint_settings.inference

    def _raise_signal(self) -> None:
        """Raise the signal's exception, unless the signal was the normal way to end inference."""
        if not (self._is_inference and self._stop.signal is SIGINT):
            self._stop.raise_signal()
