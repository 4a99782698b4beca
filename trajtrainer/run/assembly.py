"""Assembles the parts of a run and starts its loop; closes everything at the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from attrs import evolve

from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.core.seeds import seed_global_generators
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.run.actors.pool import ActorPool
from trajtrainer.run.behavior import Behavior
from trajtrainer.run.launching import LaunchedPlayers
from trajtrainer.run.logs import ConsoleHandler, shell_line
from trajtrainer.run.loop import TrainingLoop, make_loop
from trajtrainer.run.placement import (
    EnvironmentFactory,
    learner_on_other_cores,
    seed_of_environments,
    start_actors,
)
from trajtrainer.run.progress import ProgressView
from trajtrainer.run.run import Run
from trajtrainer.run.signals import StopInterrupt, StopRequest, stop_when_asked
from trajtrainer.run.user_calls import Watch
from trajtrainer.settings.run import RunSettings

if TYPE_CHECKING:
    from trajtrainer.run.evaluations import EvaluationController

logger = logging.getLogger(__name__)

_STOPPED_EARLY = "Stopped before the environment was connected; nothing was trained."
# Maximum time to wait for the statistics writers when the run ends because user code is stuck.
_WRITERS_S = 30.0


@dataclass(slots=True)
class Session:
    """An open run.

    Attributes:
        settings: settings of the run; if they had no seed, a random one has been filled in.
        folder: the run folder.
        run: objects that all behaviors share.
        stop: the stop request.
        behaviors: behaviors by name, in order of appearance.
        loop: the main loop; None until the environment has started, or if the run was stopped before that.
        outcome: ``finished``, ``stopped`` or ``failed``; None while the run is open.
    """

    settings: RunSettings
    folder: RunFolder
    run: Run
    stop: StopRequest
    behaviors: dict[str, Behavior] = field(default_factory=dict)
    loop: TrainingLoop | None = None
    outcome: str | None = None

    @property
    def exit_code(self) -> int:
        """The exit code: 143 after SIGTERM, 1 if a statistics writer missed data, otherwise 0 (even after SIGINT)."""
        return self.stop.exit_code or int(not self.run.is_complete)

    def note_end(self, kind: type[BaseException] | None, *_: object) -> None:
        """Record how the run ended. ``kind`` is the class of the exception that ended it, if any."""
        if kind is not None and issubclass(kind, Exception):
            self.outcome = "failed"
        else:
            is_done = bool(self.behaviors) and all(each.is_done() for each in self.behaviors.values())
            self.outcome = "finished" if is_done else "stopped"

    def state(self) -> str:
        """Return the state of the run, as shown by ``trajtrainer page``."""
        return self.outcome or ("stopping" if self.stop.requested else "running")

    def step(self) -> bool:
        """Run one iteration of the loop. Returns False if it was the last one, or if there is no loop."""
        return self.loop is not None and self.loop.step()


@contextmanager
def looping(
    opened: Session,
    handler: ConsoleHandler | None,
    make_environment: EnvironmentFactory,
    players: LaunchedPlayers | None,
    resume_command: str,
) -> Iterator[None]:
    """Open everything and start the loop; at the end, close everything in reverse order.

    Args:
        opened: the session, which gets the loop and its behaviors.
        handler: the console handler of the log; None for no live view.
        make_environment: makes the environments of actors and evaluations.
        players: the environment of the loop, if its players have been launched.
        resume_command: see ``session``.
    """
    run = opened.run
    with ExitStack() as stack:
        stack.enter_context(run.calls.working())
        closing = _ClosingLines(run, opened.behaviors, resume_command)
        watch = stack.enter_context(_watch(opened, run, closing).watching())
        for writer in run.writers:
            writer.follow(opened.state)
        if run.folder.writes:
            stack.enter_context(stop_when_asked(run.stop, run.folder.take_stop))
        stack.callback(run.write_timers)  # written last, so that they include the time of closing
        stack.callback(run.close_writers)
        stack.push(opened.note_end)
        stack.callback(closing.log_resume_command)
        with run.timers("run_training.setup"):
            view = ProgressView() if handler is None else _view(handler, debug=run.settings.debug)
            stack.callback(view.close)
        run.stop.on_abort(view.abandon)
        stack.enter_context(learner_on_other_cores(run))
        actors, is_stopped = None, False
        try:
            actors = _start(run, make_environment, players, stack)
        except StopInterrupt:
            logger.info("%s", _STOPPED_EARLY)
            is_stopped = True
        if is_stopped:  # Outside the except block, so that exceptions of the caller are not chained to StopInterrupt.
            yield
            return
        run.begin()
        with run.timers("TrainerController.start_learning"):
            opened.loop = make_loop(run, actors, view, opened.behaviors)
            if run.is_training and run.settings.has_evaluations:
                _evaluate(run, opened.loop, make_environment, stack)
            with opened.loop.running():
                yield
        closing.log_results()
        if watch.fault is not None:
            raise watch.fault


def _view(handler: ConsoleHandler, *, debug: bool) -> ProgressView:
    from trajtrainer.run.live_view import make_view  # lazy import: runs started from Python may have no view

    return make_view(handler, debug=debug)


def _watch(opened: Session, run: Run, closing: _ClosingLines) -> Watch:
    """Create the watchdog that saves and ends the run if a call to user code hangs."""

    def is_saved() -> bool:
        return opened.loop is None or opened.loop.is_saved

    def save() -> bool:
        assert opened.loop is not None
        try:
            opened.loop.save()
        except TrajtrainerError as error:
            logger.error("%s", error)
            return False
        return True

    def end(code: int) -> None:
        try:
            if opened.loop is None:
                logger.info("%s", _STOPPED_EARLY)
            closing.log_results()
            closing.log_resume_command()
            opened.note_end(TrajtrainerError if code == 1 else None)
            # In a separate thread, because the stuck call may be inside a writer.
            closer = threading.Thread(target=run.close_writers, name="close writers", daemon=True)
            closer.start()
            closer.join(_WRITERS_S)
            run.write_timers()
        finally:
            run.stop.leave_process(code)

    limit = run.settings.env_settings.python_timeout
    limit_s = float(limit) if limit > 0 else None
    return Watch(run.calls, run.stop, limit_s, is_saved=is_saved, save=save, end=end)


def _start(
    run: Run, make_environment: EnvironmentFactory, players: LaunchedPlayers | None, stack: ExitStack
) -> ActorPool | None:
    """Start the actors, register them with ``stack`` to be closed, and wait until the first one is ready.

    Returns None if no behavior needs experience.

    Raises:
        StopInterrupt: the run was stopped before the first actor was ready.
    """
    with run.stop.interrupting(), run.timers("env_start"):
        # Players are told the chosen device. Assume the raw image order that earlier sessions detected, if any.
        settings = evolve(run.settings, torch_settings=evolve(run.settings.torch_settings, device=str(run.device)))
        settings = settings.presuming(run.status.raw_image_order())
        if run.stop.ends_process:
            # Only on the command line: a user's program may have seeded the global generators itself.
            seed_global_generators(seed_of_environments(run, settings.env_settings, make_environment))
        connect_launched = None if players is None else partial(players.connected, str(run.device))
        actors = start_actors(run, settings, make_environment, connect_launched)
        if actors is not None:
            pool = actors

            def end() -> None:
                present = pool.transport.present
                whose = f" of actor {', '.join(map(str, present))}" if present else ""
                logger.warning("The environment%s did not close in time. Killing it.", whose)
                pool.kill()

            stack.callback(_close, run, "env_close", pool, end)
            run.stop.on_abort(pool.kill)
    return actors


def _evaluate(run: Run, loop: TrainingLoop, make_environment: EnvironmentFactory, stack: ExitStack) -> None:
    """Add an evaluator of all behaviors to the loop, and register it with ``stack`` to be closed."""
    # Lazy import: only runs with evaluations need it.
    from trajtrainer.run.evaluations import make_evaluations

    shared, reset = None if loop.pool is None else loop.pool.transport.shared, loop.lessons.reset_environment
    loop.evaluations = evaluations = make_evaluations(run, loop.behaviors, make_environment, shared, reset)
    run.stop.on_abort(evaluations.kill)
    stack.callback(_close, run, "evaluation_close", evaluations, evaluations.kill)


def _close(run: Run, timer: str, opened: ActorPool | EvaluationController, end: Callable[[], None]) -> None:
    """Close ``opened``. Call ``end`` if that takes longer than the grace period after a signal."""
    with run.timers(timer), run.stop.limiting(end):
        opened.close()


@dataclass(slots=True)
class _ClosingLines:
    """Logs the last lines of a run. Each is logged only once, no matter which thread ends the run."""

    run: Run
    behaviors: Mapping[str, Behavior]
    resume_command: str
    _said: set[str] = field(default_factory=set, init=False)

    def log_results(self) -> None:
        if self._is_first("results"):
            for line in self.run.actor_report.table():
                logger.info("%s", line)
            for behavior in self.behaviors.values():
                behavior.log_result()
            if self.run.folder.writes and self.behaviors:
                page, board = ["trajtrainer", "page"], ["tensorboard", "--logdir"]
                folder = self.run.folder.path
                logger.info("Curves: %s (or %s)", shell_line([*page, folder]), shell_line([*board, folder]))

    def log_resume_command(self) -> None:
        can_continue = self.resume_command and any(behavior.can_continue for behavior in self.behaviors.values())
        if can_continue and self._is_first("resume command"):
            logger.info("To continue: %s", self.resume_command)

    def _is_first(self, what: str) -> bool:
        is_first = what not in self._said
        self._said.add(what)
        return is_first
