"""The loop of a run: collect, advance, lessons, show, until everyone is done; then it ends in good order.

Unthreaded (the default) everything happens in the calling thread, in this order, so that a seed repeats a run bit
for bit. With ``threaded: true`` a trainer advances in its own thread (``TrainerThread``), and only the two channels
connect it to this loop. The loop does not know where acting happens (``actors.pool``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trajtrainer.actors.link import Learner
from trajtrainer.actors.pool import ActorPool
from trajtrainer.actors.statistics import ActorStatistics
from trajtrainer.core.errors import CheckpointError, EnvironmentFaultError
from trajtrainer.run.behavior import Behavior, make_behavior, make_offline_behavior
from trajtrainer.run.evaluations import EvaluationKeeper
from trajtrainer.run.lessons import LessonKeeper
from trajtrainer.run.progress import ProgressView, RunSnapshot
from trajtrainer.run.run import Run
from trajtrainer.run.writers import Throughput

logger = logging.getLogger(__name__)

# Upper bound of one wait for messages, so that progress is shown and a stop is seen while an environment is silent.
WAIT_S = 0.25
# One of the waits for a trainer's thread: systems that do not interrupt a wait let signals through in between.
_JOIN_S = 0.25
# How often timers.json is written for those who watch the run. It costs 2 ms.
_TIMERS_S = 10.0
# After this long the log says that a trainer's thread is being waited for.
_PATIENCE_S = 5.0


@dataclass(slots=True)
class Loop:
    """The loop and its end.

    ``train`` is all of it. To do something in between, call ``step`` yourself::

        with loop.running():
            while loop.step():
                ...

    Attributes:
        run: what all behaviors share.
        behaviors: name -> behavior, in order of appearance. ``pool`` adds to it.
        pool: of the actors, which collect the experience; None if no behavior needs any.
        lessons: of the environment's parameters.
        view: shows how far it is.
        evaluations: of the behaviors; None without any.
        epoch: which one it is, for the view, if there are any.
        is_saved: everything was written at the end.
        is_over: there will be no further pass.
    """

    run: Run
    behaviors: dict[str, Behavior]
    pool: ActorPool | None
    lessons: LessonKeeper
    view: ProgressView
    evaluations: EvaluationKeeper | None = None
    epoch: str = field(default="", init=False)
    is_over: bool = field(default=False, init=False)
    is_saved: bool = field(default=False, init=False)
    _timers_due_s: float = field(default=0.0, init=False)

    def train(self) -> None:
        """Return when every behavior is done, or a stop was requested; everything is saved, whatever ended it.

        Raises:
            TrajtrainerError: the environment or a trainer failed, or the last checkpoint could not be written.
        """
        with self.running():
            while self.step():
                pass

    @contextmanager
    def running(self) -> Iterator[None]:
        """Begin, and at the end save everything, whatever ended it. Leaving while ``step`` returns True stops the run.

        Raises:
            TrajtrainerError: a trainer failed in its last steps, or the last checkpoint could not be written.
        """
        try:
            with self._threads_end():
                self.begin()
                yield
                if not self.is_over:
                    self.run.stop.request()
                    self.step()
            self.show()
        except BaseException:
            # After a late further signal in a program that is not ours a trainer's thread perhaps still lives.
            if not self.run.stop.is_aborted:
                self.save()
                self._tell()
            raise
        if self.run.stop.requested and self.run.folder.writes:
            logger.info("Learning was interrupted. Please wait while the graph is generated.")
        self.save()
        self._tell()

    def begin(self) -> None:
        """Reset the environment, to the present lessons."""
        self._timers_due_s = time.monotonic() + _TIMERS_S
        self.lessons.log_lessons()
        self.lessons.reset_environment()

    def step(self) -> bool:
        """Make one pass: collect once, let every trainer that is due advance, then do what follows, in a fixed order.

        Returns:
            Whether it goes on. If not, all are done or a stop was requested, and no experience waits any more.

        Raises:
            TrajtrainerError: the environment or a trainer failed.
        """
        if self.is_over:
            return False
        with self.run.timers("TrainerController.advance"):
            try:
                self.is_over = self.run.stop.requested or self._is_done()
                if self.is_over:
                    self._take_in_the_rest()
                else:
                    self.run.calls.rest()
                    if self.pool is not None:
                        learns = any(behavior.learns_alone for behavior in self.behaviors.values())
                        self.pool.collect(0.0 if learns else WAIT_S)
                    self._follow_up()
            except EnvironmentFaultError as fault:
                self.is_over = True
                self._take_in_the_rest()
                if not self.run.stop.requested:
                    raise
                # Whoever stops a whole group of processes ends the environments, too.
                logger.warning("%s", fault)
        if self.is_over:
            self._end_threads()
            for behavior in self.behaviors.values():
                if behavior.thread is not None:
                    behavior.thread.raise_failure()
            if self.evaluations is not None:  # here, as who steps the loop wants to know what came out
                self.evaluations.finish()
        return not self.is_over

    def _follow_up(self) -> None:
        """Let every trainer that is due advance, then do what follows from that."""
        for behavior in list(self.behaviors.values()):  # another may appear during an update
            behavior.advance()
        if self.evaluations is not None:
            self.evaluations.step()
        if self.run.is_training:
            self.lessons.update(self.behaviors)
            self._play_on()
        self._tell()
        if self.view.due(self.run.rewards.num_summaries):
            self.show()
        if time.monotonic() >= self._timers_due_s:
            self.run.refresh_timers()
            self._timers_due_s = time.monotonic() + _TIMERS_S

    def _tell(self) -> None:
        """Call the functions of the user for what has happened."""
        for behavior in self.behaviors.values():
            behavior.note_news()
        self.run.hooks.tell()

    def _play_on(self) -> None:
        """Let another team learn, and other opponents play, where it is time."""
        sides = [behavior.self_play for behavior in self.behaviors.values() if behavior.self_play is not None]
        if not sides:
            return
        for side in sides:
            side.change_team()
        has_changed = self.run.teams.take_change()
        for side in sides:
            side.update_opponents()
        if has_changed:
            self.lessons.reset_environment()

    def _is_done(self) -> bool:
        all_there = self.pool is None or self.pool.has_met_behaviors
        return all_there and all(behavior.is_done() for behavior in self.behaviors.values())

    @property
    def environment_steps(self) -> int:
        """The environment steps of all actors."""
        return 0 if self.pool is None else self.pool.num_messages

    def _take_in_the_rest(self) -> None:
        if self.pool is not None:
            self.pool.finish()
        for behavior in list(self.behaviors.values()):
            behavior.take_in_the_rest()

    def show(self) -> None:
        """Show how far it is."""
        with self.run.timers("ProgressView.update"):
            snapshots = [behavior.snapshot() for behavior in self.behaviors.values()]
            self.view.update(
                RunSnapshot(snapshots, self.run.curriculum.lesson_names, self.epoch, self.run.actor_report.summary())
            )

    @contextmanager
    def _threads_end(self) -> Iterator[None]:
        """See that no thread is left when this ends."""
        try:
            yield
        except BaseException:
            self.run.stop.request()  # updates in threads need not come to their end
            raise
        finally:
            self._end_threads()

    def _end_threads(self) -> None:
        """Wait until all threads have taken in what is left, and have ended: what they work on is saved next."""
        threads = [behavior.thread for behavior in self.behaviors.values() if behavior.thread is not None]
        for thread in threads:
            thread.trainer.source.close()
        with self.run.timers("trainer_threads"):
            tell_s = time.monotonic() + _PATIENCE_S
            for thread in threads:
                while thread.is_alive():
                    thread.join(_JOIN_S)
                    self.run.calls.rest()
                    if time.monotonic() > tell_s:
                        logger.info("Waiting for the %s to end its update.", thread.name)
                        tell_s = float("inf")

    def save(self) -> None:
        """Write everything to disk, as the run ends.

        Raises:
            CheckpointError: the last checkpoint of one or more behaviors could not be written; all others were.
        """
        with self.run.stop.saving():
            try:
                if self.run.folder.writes:
                    self._save()
            finally:
                self.is_saved = True

    def _save(self) -> None:
        if not self.behaviors:
            return self.run.write_files()
        with self.run.timers("TrainerController._save_models"):
            try:
                self._save_behaviors()
            finally:
                self.run.write_files()

    def _save_behaviors(self) -> None:
        failures = []
        replays = []
        for behavior in self.behaviors.values():
            if not behavior.is_finite():
                logger.error("The weights of behavior %r are not finite and are not saved.", behavior.name)
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


def make_loop(run: Run, pool: ActorPool | None, view: ProgressView, behaviors: dict[str, Behavior]) -> Loop:
    """Make the loop of a run whose environments are connected. Behaviors that appear are put into ``behaviors``."""
    lessons = LessonKeeper(run.curriculum, pool, run.status)

    def add(make: Callable[..., Behavior], *of: Any) -> Learner:
        with run.timers("make_behavior"):
            behavior = make(run, *of)
        behaviors[behavior.name] = behavior
        reporter = behavior.trainer.reporter
        reporter.add_source(lessons.statistics)
        if pool is not None:
            reporter.add_source(Throughput({"Perf/Environment Steps per Second": lambda: pool.num_messages}))
        if run.actor_report.pool is not None:
            reporter.add_source(ActorStatistics(run.actor_report.pool))
        return behavior.learner

    learners = [add(make_offline_behavior, name, dataset) for name, dataset in run.datasets.items()]
    if pool is not None:
        pool.make_learner = partial(add, make_behavior)
        for learner in learners:
            pool.add(learner)
    return Loop(run, behaviors, pool, lessons, view)
