"""The loop of a run: collect, advance the trainers, advance the lessons, until everyone is done.

Unthreaded (the default) everything happens in the calling thread, in this order, so that a seed repeats a run bit
for bit. With ``threaded: true`` a trainer advances in its own thread (``TrainerThread``) and only the two queues
and the pool's rows connect it to this loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from trajtrainer.errors import EnvironmentFaultError
from trajtrainer.runtime.collector import Collector
from trajtrainer.runtime.lessons import LessonKeeper
from trajtrainer.runtime.signals import StopRequest
from trajtrainer.runtime.trainer_thread import TrainerThread
from trajtrainer.timers import TimerNode, Timers
from trajtrainer.trainers.trainer import Trainer

logger = logging.getLogger(__name__)

# Upper bound of one wait for messages, so that progress is shown and a stop is seen while an environment is silent.
WAIT_S = 0.25
# One of the waits for a trainer's thread: systems that do not interrupt a wait let signals through in between.
_JOIN_S = 0.25
# When it is told that a trainer's thread is waited for.
_PATIENCE_S = 5.0


class Controller:
    """Runs the loop. ``trainers`` is filled by the collector's behaviour factory as behaviours appear."""

    def __init__(
        self,
        collector: Collector,
        trainers: dict[str, Trainer],
        lessons: LessonKeeper,
        stop: StopRequest,
        timers: Timers,
        *,
        training: bool,
        on_step: Callable[[], None],
        max_episodes: int | None = None,
    ) -> None:
        """
        Args:
            collector: of the experience.
            trainers: name -> trainer, of the behaviours that have appeared.
            lessons: of the environment's parameters.
            stop: asks for the end.
            timers: of the run.
            training: whether lessons go on and the loop ends when all trainers are finished.
            on_step: called after each step.
            max_episodes: without training, the loop ends when each trainer has counted so many; None for no end.
        """
        self.trainers = trainers
        self._collector = collector
        self._lessons = lessons
        self._stop = stop
        self._timers = timers
        self._training = training
        self._on_step = on_step
        self._max_episodes = max_episodes
        self._threads: dict[str, TrainerThread] = {}

    def run(self) -> None:
        """Return when every trainer is past its max_steps or episodes, or a stop was requested, and none is at work.

        Raises:
            TrajtrainerError: the environment or a trainer failed. The trainers' state is intact.
        """
        self._lessons.log_lessons()
        self._lessons.reset_environment()
        block = self._timers.innermost()
        try:
            self._loop(block)
        except BaseException:
            self._stop.request()  # updates in threads need not come to their end
            raise
        finally:
            block.end_part()
            self._end_threads()
        for thread in self._threads.values():
            thread.raise_failure()

    def _loop(self, block: TimerNode) -> None:
        try:
            while not (self._stop.requested or self._done()):
                block.part("TrainerController.advance")
                self._advance()
                self._on_step()
            self._take_in_the_rest()
        except EnvironmentFaultError as fault:
            self._take_in_the_rest()
            if not self._stop.requested:
                raise
            # Whoever stops a whole group of processes ends the environments, too.
            logger.warning("%s", fault)

    def _advance(self) -> None:
        self._collector.collect(WAIT_S)
        for name, trainer in self.trainers.items():
            if trainer.context.settings.threaded:
                self._watch_thread(name, trainer)
            elif trainer.is_due():
                with self._timers("trainer_advance"):
                    trainer.advance()
        if self._training:
            self._lessons.update(self.trainers)

    def _take_in_the_rest(self) -> None:
        """What was not worth taking in yet (``Trainer.is_due``)."""
        for trainer in self.trainers.values():
            if not trainer.context.settings.threaded:
                trainer.advance()

    def _done(self) -> bool:
        return bool(self.trainers) and all(self._is_done(trainer) for trainer in self.trainers.values())

    def _is_done(self, trainer: Trainer) -> bool:
        if self._training:
            return trainer.has_enough
        return self._max_episodes is not None and trainer.episodes.num_episodes >= self._max_episodes

    def _watch_thread(self, name: str, trainer: Trainer) -> None:
        thread = self._threads.get(name)
        if thread is None:
            thread = self._threads[name] = TrainerThread(trainer, self._timers)
            thread.start()
        thread.raise_failure()

    def _end_threads(self) -> None:
        """Waits until all threads have taken in what is left, and have ended: what they work on is saved next."""
        for thread in self._threads.values():
            thread.trainer.source.close()
        with self._timers("trainer_threads"):
            tell_s = time.monotonic() + _PATIENCE_S
            for thread in self._threads.values():
                while thread.is_alive():
                    thread.join(_JOIN_S)
                    if time.monotonic() > tell_s:
                        logger.info("Waiting for the %s to end its update.", thread.name)
                        tell_s = float("inf")
