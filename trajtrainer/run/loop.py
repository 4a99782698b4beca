"""The main loop of a run: collect, advance and show progress until all behaviors are done, then save everything.

By default, everything happens in the calling thread in a fixed order, so that runs with the same seed are
bit-identical. With ``threaded: true``, a trainer runs in its own thread (``TrainerThread``), and communicates with this
loop only through the experience source and the policy queue. Acting may happen in other processes or on other machines:
see the diagram in ``actors.pool``.
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

# Maximum time to wait for messages, so that progress is shown and stop requests are noticed even if environments are
# slow.
WAIT_S = 0.25
# Timeout of a single wait for a trainer thread. On systems that cannot interrupt a wait, signals are handled in
# between.
_JOIN_S = 0.25
# Interval for writing timers.json, which pages show during the run. Writing it takes 2 ms.
_TIMERS_S = 10.0
# If a trainer thread takes longer than this to finish, log that the run is waiting for it.
_PATIENCE_S = 5.0


@dataclass(slots=True)
class TrainingLoop:
    """The main loop of a run, which saves everything at the end.

    ::

        with loop.running():
            while loop.step():
                ...

    Attributes:
        run: objects that all behaviors share.
        behaviors: behaviors by name, in order of appearance. ``pool`` adds new ones.
        pool: the actors; None if no behavior needs experience.
        lessons: controls the lessons of the environment parameters.
        view: shows the progress.
        evaluations: the controller of evaluations; None without evaluations.
        epoch: text for the view, such as "3 of 10"; empty without epochs.
        is_saved: True once everything has been saved at the end.
        is_over: True after the last iteration.
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
            TrajtrainerError: a trainer failed while processing the remaining experience, or the last checkpoint could
                not be written.
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
            stop.request()  # do not finish updates in trainer threads
            self._end_threads()
            # Do not save after an abort in a user's program, because a trainer thread may still be running.
            if not stop.is_aborted:
                self.save()
                self._call_hooks()
            raise
        if stop.requested and self.run.folder.writes:
            logger.info("Learning was interrupted. Please wait while the graph is generated.")
        self.save()
        self._call_hooks()

    def step(self) -> bool:
        """Run one iteration: collect once, advance every trainer that is due, and do the follow-up work.

        Stop requests are only handled here. They end the loop as if all behaviors were done.

        Returns:
            False if this was the last iteration, after processing all experience.

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
                # probably a signal to the process group, which also ended the environments
                logger.warning("%s", fault)
        if self.is_over:
            self._end_threads()
            for behavior in self.behaviors.values():
                if behavior.thread is not None:
                    behavior.thread.raise_failure()
            if self.evaluations is not None:  # here, so that the caller of ``step`` can use the results
                self.evaluations.finish()
        return not self.is_over

    def _follow_up(self) -> None:
        """Handle evaluations, lessons, self-play, hooks, the view and timers."""
        if self.evaluations is not None:
            self.evaluations.step()
        if self.run.is_training:
            if self.pool is None:  # otherwise, messages from the environments trigger updates
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
        """Wait until all trainer threads have processed the remaining experience, so that the results can be saved."""
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
        """Save everything at the end of the run.

        Raises:
            CheckpointError: the last checkpoint of a behavior could not be written; everything else has been saved.
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
    """Create the loop of a run after its environments have started. It adds new behaviors to ``behaviors``."""
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
