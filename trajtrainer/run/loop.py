"""The main loop of a run: collect, advance and show progress until all behaviors are done, then save everything.

By default, everything happens in the calling thread, in this order, so that a run with the same seed repeats bit for
bit. With ``threaded: true``, a trainer advances in its own thread (``TrainerThread``), which only the two channels
connect to this loop. The loop does not know where acting happens; ``actors.pool`` does, and has a diagram.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from trajtrainer.core.errors import CheckpointError, EnvironmentFaultError
from trajtrainer.run.actors.link import Learner
from trajtrainer.run.actors.messages import NewBehavior
from trajtrainer.run.actors.pool import ActorPool
from trajtrainer.run.actors.statistics import ActorStatistics
from trajtrainer.run.behavior import Behavior
from trajtrainer.run.behavior_factory import make_behavior, make_offline_behavior
from trajtrainer.run.lessons import LessonController
from trajtrainer.run.progress import ProgressView, RunProgress
from trajtrainer.run.run import Run
from trajtrainer.run.writers import Throughput

if TYPE_CHECKING:
    from trajtrainer.run.evaluations import EvaluationController

logger = logging.getLogger(__name__)

# Longest wait for messages, so that progress is shown and stop requests are noticed while an environment is silent.
WAIT_S = 0.25
# Length of a single wait for a trainer's thread. Systems that cannot interrupt a wait handle signals between two waits.
_JOIN_S = 0.25
# Interval for writing timers.json, for pages that watch the run. Writing it takes 2 ms.
_TIMERS_S = 10.0
# After this long, the log mentions that the run is waiting for a trainer's thread.
_PATIENCE_S = 5.0


@dataclass(slots=True)
class TrainingLoop:
    """The main loop of a run, which saves everything at its end.

    ::

        with loop.running():
            while loop.step():
                ...

    Attributes:
        run: the parts that all behaviors share.
        behaviors: behaviors by name, in order of appearance. ``pool`` adds new ones.
        pool: the actors, which collect experience; None if no behavior needs any.
        lessons: controls the lessons of the environment parameters.
        view: shows the progress.
        evaluations: evaluates the behaviors; None without evaluations.
        epoch: the current epoch, such as "3 of 10", for the view; empty without epochs.
        is_saved: True once everything has been saved at the end.
        is_over: True if there will be no further pass.
    """

    run: Run
    behaviors: dict[str, Behavior]
    pool: ActorPool | None
    lessons: LessonController
    view: ProgressView
    evaluations: EvaluationController | None = None
    epoch: str = field(default="", init=False)
    is_over: bool = field(default=False, init=False)
    is_saved: bool = field(default=False, init=False)
    _timers_due_s: float = field(default=0.0, init=False)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Reset the environment, and save everything at the end of the ``with`` block, even after an error.

        Leaving the block before ``step`` has returned False stops the run.

        Raises:
            TrajtrainerError: a trainer failed in its last steps, or the last checkpoint could not be written.
        """
        stop = self.run.stop
        try:
            self._timers_due_s = time.monotonic() + _TIMERS_S
            self.lessons.log_lessons()
            self.lessons.reset_environment()
            yield
            if not self.is_over:
                stop.request()
                self.step()
            self.show()
        except BaseException:
            stop.request()  # Updates in threads need not finish.
            self._end_threads()
            # After an abort inside a user's program, a trainer's thread may still be running.
            if not stop.is_aborted:
                self.save()
                self._call_hooks()
            raise
        if stop.requested and self.run.folder.writes:
            logger.info("Learning was interrupted. Please wait while the graph is generated.")
        self.save()
        self._call_hooks()

    def step(self) -> bool:
        """Make one pass: collect once, advance every trainer that is due, then do the follow-up work in a fixed order.

        Stop requests are only handled here: they end the loop as if all behaviors were done.

        Returns:
            True if there is another pass. Otherwise, all experience has been processed.

        Raises:
            TrajtrainerError: the environment or a trainer failed.
        """
        if self.is_over:
            return False
        with self.run.timers("TrainerController.advance"):
            try:
                all_met = self.pool is None or self.pool.has_met_behaviors
                is_done = all_met and all(behavior.is_done() for behavior in self.behaviors.values())
                self.is_over = self.run.stop.requested or is_done
                if self.is_over:
                    self._finish()
                else:
                    self.run.calls.rest()
                    if self.pool is not None:
                        learns = any(behavior.learns_alone for behavior in self.behaviors.values())
                        self.pool.collect(0.0 if learns else WAIT_S)
                    for behavior in list(self.behaviors.values()):  # Updates handle reports, which may add behaviors.
                        behavior.advance()
                    self._follow_up()
            except EnvironmentFaultError as fault:
                self.is_over = True
                self._finish()
                if not self.run.stop.requested:
                    raise
                # A signal to the whole process group ends the environments as well.
                logger.warning("%s", fault)
        if self.is_over:
            self._end_threads()
            for behavior in self.behaviors.values():
                if behavior.thread is not None:
                    behavior.thread.raise_failure()
            if self.evaluations is not None:  # here, so that a caller of ``step`` sees the results
                self.evaluations.finish()
        return not self.is_over

    def _follow_up(self) -> None:
        """Do the follow-up work of a pass: evaluations, lessons, self-play, hooks, the view and timers."""
        if self.evaluations is not None:
            self.evaluations.step()
        if self.run.is_training:
            if self.pool is None:  # Otherwise messages from the environments trigger the checks.
                self.lessons.update(self.behaviors)
            sides = [behavior.self_play for behavior in self.behaviors.values() if behavior.self_play is not None]
            for side in sides:
                side.change_team()
            has_changed = self.run.teams.take_change() if sides else False
            for side in sides:
                side.update_opponents()
            if has_changed:
                self.lessons.reset_environment()
        self._call_hooks()
        if self.view.due(self.run.rewards.num_summaries):
            self.show()
        if time.monotonic() >= self._timers_due_s:
            self.run.refresh_timers()
            self._timers_due_s = time.monotonic() + _TIMERS_S

    def _call_hooks(self) -> None:
        """Call the user's functions for all new events."""
        for behavior in self.behaviors.values():
            behavior.note_best()
        self.run.hooks.call()

    @property
    def environment_steps(self) -> int:
        """Number of environment steps of all actors."""
        return 0 if self.pool is None else self.pool.num_messages

    def _finish(self) -> None:
        if self.pool is not None:
            self.pool.finish()
        for behavior in list(self.behaviors.values()):
            behavior.finish()

    def show(self) -> None:
        with self.run.timers("ProgressView.update"):
            behaviors = [behavior.progress() for behavior in self.behaviors.values()]
            self.view.update(
                RunProgress(behaviors, self.run.curriculum.lesson_names, self.epoch, self.run.actor_report.summary())
            )

    def _end_threads(self) -> None:
        """Wait until all trainer threads have processed the remaining experience, because their work is saved next."""
        threads = [behavior.thread for behavior in self.behaviors.values() if behavior.thread is not None]
        for thread in threads:
            thread.trainer.source.close()
        with self.run.timers("trainer_threads"):
            report_s = time.monotonic() + _PATIENCE_S
            for thread in threads:
                while thread.is_alive():
                    thread.join(_JOIN_S)
                    self.run.calls.rest()
                    if time.monotonic() > report_s:
                        logger.info("Waiting for the %s to finish its update.", thread.name)
                        report_s = float("inf")

    def save(self) -> None:
        """Write everything to disk at the end of the run.

        Raises:
            CheckpointError: the last checkpoints of some behaviors could not be written; all others were.
        """
        with self.run.stop.saving():
            try:
                if self.run.folder.writes and self.behaviors:
                    with self.run.timers("TrainerController._save_models"):
                        try:
                            self._save_behaviors()
                        finally:
                            self.run.write_files()
                elif self.run.folder.writes:
                    self.run.write_files()
            finally:
                self.is_saved = True

    def _save_behaviors(self) -> None:
        failures = []
        replays = []
        for behavior in self.behaviors.values():
            if not behavior.is_finite():
                logger.error("The weights of behavior %r are not finite, so they are not saved.", behavior.name)
                continue
            try:
                behavior.save_final()
            except CheckpointError as failure:
                failures.append(str(failure))
            if behavior.replay is not None:
                behavior.replay.save()
                replays.append(behavior.replay)
        for replay in replays:
            replay.finish()
        if failures:
            raise CheckpointError("\n".join(failures))


def make_loop(run: Run, pool: ActorPool | None, view: ProgressView, behaviors: dict[str, Behavior]) -> TrainingLoop:
    """Make the loop of a run whose environments have started. New behaviors are added to ``behaviors``."""
    lessons = LessonController(run.curriculum, pool, run.status)

    def add(make: Callable[..., Behavior], *of: Any) -> Learner:
        with run.timers("make_behavior"):
            behavior = make(run, *of)
        behaviors[behavior.name] = behavior
        reporter = behavior.trainer.reporter
        reporter.add_source(lessons.statistics)
        reporter.add_source(run.usage)
        if pool is not None:
            reporter.add_source(Throughput({"Perf/Environment Steps per Second": lambda: pool.num_messages}))
        if run.actor_report.pool is not None:
            reporter.add_source(ActorStatistics(run.actor_report.pool))
        return behavior.learner

    learners = [add(make_offline_behavior, name, dataset) for name, dataset in run.datasets.items()]
    if pool is not None:

        def make(run: Run, found: NewBehavior) -> Behavior:
            return make_behavior(run, lambda: pool.num_messages, found)

        pool.make_learner = partial(add, make)
        if run.is_training:
            pool.on_messages = partial(lessons.update, behaviors)
        for learner in learners:
            pool.add(learner)
    return TrainingLoop(run, behaviors, pool, lessons, view)
