"""``trajtrainer.Training``: a run from Python, as an iterator over its epochs."""

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
from trajtrainer.run.api.arguments import EnvironmentSource, SettingsSource, at_least_one, maker, name_of, settle
from trajtrainer.run.api.epochs import EPOCH_STEPS, EpochMeter, EpochStats
from trajtrainer.run.api.results import LearnResult, result_of
from trajtrainer.run.hooks import BestCheckpoint, Evaluation, Hooks, SavedCheckpoint
from trajtrainer.run.logs import ConsoleHandler, banner, console_logging
from trajtrainer.run.session import Session, session
from trajtrainer.run.signals import StopRequest
from trajtrainer.settings.flags import python_names
from trajtrainer.settings.run import RunSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")


class GuestStop(StopRequest):
    """In a program that is not ours a further signal must not end the process (a notebook's kernel, say).

    Attributes:
        raises: a signal raises at once, as the program itself is at work and the run at rest.
    """

    ends_process = False

    def __init__(self) -> None:
        super().__init__()
        self.raises = False

    def interrupt(self) -> None:
        """See ``StopRequest``; outside of our work raise what the signal would have raised without us."""
        super().interrupt()
        if self.raises and self.signal is not None:
            self.raises = False
            self.raise_signal()

    def abort(self, number: int) -> None:
        """See ``StopRequest``: leave the run without saving, but not the program."""
        self.is_aborted = True
        self.emergency()
        if threading.current_thread() is threading.main_thread():
            self.signal = signal.Signals(number)
            self.raise_signal()

    def raise_signal(self) -> None:
        """Raise what the signal that came would have raised without us; nothing if none came.

        Raises:
            KeyboardInterrupt: after SIGINT.
            SystemExit: after another one.
        """
        if self.signal is signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is not None:
            sys.exit(self.exit_code)


class ProcessState:
    """What belongs to the whole process and differs between a run and the program around it.

    These are torch's number of threads and the states of the global random generators (the networks have generators of
    their own, but environments may use the global ones). The run's are those of the program when it began.
    """

    def __init__(self) -> None:
        self._other = _state()

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """Exchange the run's state and the program's while this lasts. Within itself it exchanges them back."""
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
    # The device's generators are never used: all of ours are objects of their own.
    return torch.get_num_threads(), torch.get_rng_state(), np.random.get_state(), random.getstate()


@dataclass(eq=False, repr=False)
class Training:
    """A run as a context manager, whose epochs are iterated over. Takes the arguments of ``learn``.

    >>> import trajtrainer  # doctest: +SKIP
    >>> with trajtrainer.Training("builtin:gym/CartPole", "gym:CartPole-v1", run_id="pole") as training:
    ...     for epoch in training.epochs(steps=10_000):
    ...         print(epoch.epoch, epoch.behavior.episodes.returns.mean)
    ...         if epoch.behavior.episodes.returns.mean > 400:
    ...             break
    >>> training.result.behaviors["CartPole-v1"].onnx

    Whatever ends the block ends the run in good order, everything saved: leaving the loop, an exception, Ctrl-C or
    another signal. A signal raises at once while the program's own code is at work, and otherwise out of the loop's
    head. Training is the same, bit for bit, whatever is done in the loop (without ``threaded: true``, in which case
    trainers go on with what they have meanwhile).
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
    called: str = "Training()"  # for messages
    _stop: GuestStop = field(default_factory=GuestStop, init=False)
    _stack: ExitStack | None = field(default=None, init=False)
    _session: Session | None = field(default=None, init=False)
    _iterator: Generator[EpochStats] | None = field(default=None, init=False)

    def __enter__(self) -> Training:
        """Start the environment, and make or resume what is known of the run.

        Raises:
            TrajtrainerError: the settings are wrong, the folder is taken, or the environment does not come.
        """
        if self._stack is not None:
            raise SettingsError(f"{self.called}: this run is over or under way; make another object for another run.")
        self._stack = ExitStack()
        self._process = ProcessState()
        with self._python_names(), self._process.exchanged(), ExitStack() as stack:
            handler = stack.enter_context(_console(verbose=self.verbose))
            timers = Timers()
            with timers("run_training.settings"):
                settings = self._settle()
            if handler is not None:
                handler.show(debug=settings.debug)
                handler.say(banner())
            opened = session(settings, handler, maker(self.environment), self._stop, timers, hooks=self._hooks())
            self._session = stack.enter_context(opened)
            self._stack = stack.pop_all()
        return self

    def epochs(self, steps: int = EPOCH_STEPS, max_epochs: int | None = None) -> Iterator[EpochStats]:
        """Train, and yield what happened in each epoch.

        Epoch n ends as soon as the trainers have taken in n times ``steps`` agent steps of all behaviors together,
        those of a resumed run included; of behaviors that learn from demonstrations alone gradient steps count in
        their place. Trainers take in whole trajectories, several at a time, so that an epoch may be longer or shorter
        than ``steps`` by some. The last one ends with the run and may be shorter.

        Args:
            steps: of an epoch.
            max_epochs: end with the epoch of this number.

        Yields:
            What happened since the epoch before.

        Raises:
            TrajtrainerError: the environment or a trainer failed.
            KeyboardInterrupt: SIGINT came (not with ``inference``, where the loop ends).
            SystemExit: another signal came.
        """
        at_least_one(steps, "steps of an epoch", self.called)
        if max_epochs is not None:
            at_least_one(max_epochs, "max_epochs", self.called)
        if self._session is None:
            raise SettingsError(f"{self.called}: epochs() belongs into the block of a with statement.")
        self._iterator = self._epochs(self._session, steps, max_epochs)
        return self._iterator

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop where it is, if it is not done, save everything, and close the environment.

        Raises:
            TrajtrainerError: something failed in that.
            KeyboardInterrupt: SIGINT came meanwhile.
            SystemExit: another signal came.
        """
        self._stop.raises = False
        assert self._stack is not None
        if self._iterator is not None:
            self._iterator.close()
        with self._python_names(), self._process.exchanged():
            if self._was_raised_for_signal(error):
                self._stack.close()
            else:
                self._stack.__exit__(kind, error, traceback)
        if error is None:
            self._raise_signal()

    @property
    def result(self) -> LearnResult:
        """The result so far; with all files after the block.

        Raises:
            SettingsError: it has not begun.
        """
        if self._session is None:
            raise SettingsError(f"{self.called}: there is no result before the block of its with statement.")
        return result_of(self._session)

    def _settle(self) -> RunSettings:
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
        return settle(self.settings, options, self.env_args, self.episodes, self.called)

    def _hooks(self) -> Hooks:
        return Hooks(
            on_checkpoint=self._outside(self.on_checkpoint),
            on_evaluation=self._outside(self.on_evaluation),
            on_best=self._outside(self.on_best),
        )

    def _outside(self, function: Callable[[T], object] | None) -> Callable[[T], object] | None:
        """Return the user's function to be called from within the run: as if it were called from outside."""
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
            stats = self._next(opened, meter)
            self._raise_signal()
            if stats is None:
                return None
            with self._at_rest():
                if self.on_epoch is not None:
                    self.on_epoch(stats)
                is_last = self.stop_when is not None and bool(self.stop_when(stats))
                yield stats
            if is_last:
                logger.info("Epoch %d is the last one, as stop_when says.", stats.epoch)
                opened.stop.request()

    def _next(self, opened: Session, meter: EpochMeter) -> EpochStats | None:
        with self._python_names(), self._process.exchanged():
            while opened.step():
                if meter.is_over():
                    return meter.take()
        return meter.rest()

    @contextlib.contextmanager
    def _at_rest(self) -> Iterator[None]:
        """Let the user's code be interrupted by a signal at once, which cannot do harm there."""
        assert self._session is not None
        assert self._session.loop is not None
        is_ending, run = self._session.loop.is_over or self._is_inference, self._session.loop.run
        with run.timers("callbacks"), run.calls.outside(None):
            try:
                self._stop.raises = not is_ending
                if not is_ending:
                    self._stop.interrupt()  # behind the line above: what came just before is not lost
                yield
            finally:
                self._stop.raises = False

    def _python_names(self) -> AbstractContextManager[None]:
        return python_names([each.name for each in fields(self) if each.init])

    @property
    def _is_inference(self) -> bool:
        return self._session is not None and self._session.settings.checkpoint_settings.inference

    def _was_raised_for_signal(self, error: BaseException | None) -> bool:
        """Return whether a signal that ends the run in good order is all that has happened."""
        stop = self._stop
        return stop.signal is not None and not stop.is_aborted and isinstance(error, KeyboardInterrupt | SystemExit)

    def _raise_signal(self) -> None:
        """Raise what the signal that ended the run would have raised without us."""
        if not (self._is_inference and self._stop.signal is SIGINT):
            self._stop.raise_signal()


def _console(*, verbose: bool) -> AbstractContextManager[ConsoleHandler | None]:
    return console_logging(debug=False) if verbose else contextlib.nullcontext()
