"""One run from settings to exit code: put the parts together, run the loop, close everything at the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from attrs import evolve

from trajtrainer.actors.pool import ActorPool
from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.core.plugins import Registry, blaming_packages
from trajtrainer.core.timers import Timers
from trajtrainer.envs.select import make_environment as environment_of_settings
from trajtrainer.run.actors import EnvironmentFactory, learner_on_other_cores, start_actors
from trajtrainer.run.behavior import Behavior
from trajtrainer.run.device import choose_device, keep_freed_memory, set_threads
from trajtrainer.run.evaluations import EvaluationKeeper, SharedEnvironment, make_evaluations
from trajtrainer.run.hooks import Hooks
from trajtrainer.run.logs import ConsoleHandler, log_file, shell_line
from trajtrainer.run.loop import Loop, make_loop
from trajtrainer.run.preflight import Preflight, check_training, load_datasets
from trajtrainer.run.progress import NoView, make_view
from trajtrainer.run.run import Run, make_run
from trajtrainer.run.signals import StopInterrupt, StopRequest, stop_on_signals, stop_when_asked
from trajtrainer.run.user_calls import Watch
from trajtrainer.rundir.folder import RunFolder
from trajtrainer.settings.components import ALGORITHMS, REWARD_SIGNALS
from trajtrainer.settings.environment import UNSEEDED
from trajtrainer.settings.network import ENCODERS
from trajtrainer.settings.run import RunSettings

logger = logging.getLogger(__name__)

_LARGEST_DRAWN_SEED = 10_000
_STOPPED_EARLY = "Stopped before the environment was connected; nothing was trained."
# So long a run that ends without waiting for the user's code waits for writers of statistics.
_WRITERS_S = 30.0
_OF_PACKAGES: tuple[Registry[Any], ...] = (ALGORITHMS, REWARD_SIGNALS, ENCODERS)


@dataclass(slots=True)
class Session:
    """A run from its first file to its last, whose parts are put together.

    Attributes:
        settings: its own, the seed settled.
        folder: its files.
        run: the parts that its behaviors share.
        stop: asks for the end.
        behaviors: name -> what it learns, in order of appearance.
        loop: None before the environment is connected, and if it was stopped until then.
    """

    settings: RunSettings
    folder: RunFolder
    run: Run
    stop: StopRequest
    behaviors: dict[str, Behavior] = field(default_factory=dict)
    loop: Loop | None = None

    @property
    def exit_code(self) -> int:
        """Return 143 after SIGTERM; 0 when done or after SIGINT, but 1 if a tracking service lacks something."""
        return self.stop.exit_code or int(not self.run.is_tracked)

    def step(self) -> bool:
        """Make one pass of the loop; see ``Loop.step``."""
        return self.loop is not None and self.loop.step()


def run(settings: RunSettings, handler: ConsoleHandler, timers: Timers, resume_command: str) -> int:
    """Train for the command line. Return the exit code, raise what ``train`` raises."""
    return train(settings, handler, timers=timers, resume_command=resume_command).exit_code


def train(
    settings: RunSettings,
    handler: ConsoleHandler | None,
    make_environment: EnvironmentFactory = environment_of_settings,
    stop: StopRequest | None = None,
    timers: Timers | None = None,
    resume_command: str = "",
) -> Session:
    """Train, or with ``--inference`` act, until done or stopped. Arguments as ``session``.

    Raises:
        TrajtrainerError: whatever ended the run early. Everything was saved before.
    """
    with session(settings, handler, make_environment, stop, timers, resume_command) as opened:
        while opened.step():
            pass
    return opened


@contextmanager
def session(
    settings: RunSettings,
    handler: ConsoleHandler | None,
    make_environment: EnvironmentFactory = environment_of_settings,
    stop: StopRequest | None = None,
    timers: Timers | None = None,
    resume_command: str = "",
    hooks: Hooks | None = None,
) -> Iterator[Session]:
    """Open everything that a run needs; at the end save and close it, whatever happens while this lasts.

    Args:
        settings: of the run.
        handler: of the console's log, above which the live view is drawn; None for no view.
        make_environment: starts what the collector steps.
        stop: connected with the signals for as long as this lasts.
        timers: of what came before, to go on with.
        resume_command: said at the end if there is something left to train.
        hooks: told what happens.

    Raises:
        TrajtrainerError: whatever ended the run early. Everything was saved before.
    """
    timers = Timers() if timers is None else timers
    stop = StopRequest() if stop is None else stop
    with timers("run_training.setup"):
        settings = settings.with_seed(_seed(settings))
        with Preflight() as check:
            has_own = make_environment is not environment_of_settings
            settings = check_training(check, settings, env_path=None if has_own else settings.env_settings.env_path)
            folder = check(_checked_folder, settings)
        datasets = load_datasets(settings)
        device = choose_device(settings.torch_settings.device)
        set_threads()
        keep_freed_memory()
    with folder.exclusive(), log_file(folder.trainer_log, handler), blaming_packages(*_OF_PACKAGES):
        with timers("run_training.setup"):
            folder.create()
            run = make_run(settings, folder, device, timers, stop, hooks or Hooks(), datasets)
        opened = Session(settings, folder, run, stop)
        with _looping(opened, run, handler, make_environment, resume_command):
            yield opened


@contextmanager
def _looping(
    opened: Session,
    run: Run,
    handler: ConsoleHandler | None,
    make_environment: EnvironmentFactory,
    resume_command: str,
) -> Iterator[None]:
    """Open everything, begin the loop; at the end close everything in the opposite order."""
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(run.stop, saves=run.folder.writes))
        stack.enter_context(run.calls.working())
        last_words = _LastWords(run, opened.behaviors, resume_command)
        watch = stack.enter_context(_watch(opened, run, last_words))
        if run.folder.writes:
            stack.enter_context(stop_when_asked(run.stop, run.folder.take_stop))
        stack.callback(run.write_timers)  # once more when all is closed, which takes its time, too
        stack.callback(run.close_writers)
        stack.callback(last_words.say_how_to_go_on)
        with run.timers("run_training.setup"):
            view = NoView() if handler is None else make_view(handler, debug=run.settings.debug)
            stack.callback(view.close)
        run.stop.on_abort(view.abandon)
        stack.enter_context(learner_on_other_cores(run))
        actors, is_stopped = None, False
        try:
            actors = _start(run, make_environment, stack)
        except StopInterrupt:
            logger.info("%s", _STOPPED_EARLY)
            is_stopped = True
        if is_stopped:  # not above: an exception of the caller would seem to follow from this one
            yield
            return
        run.begin()
        with run.timers("TrainerController.start_learning"):
            opened.loop = make_loop(run, actors, view, opened.behaviors)
            _add_evaluations(run, opened.loop, make_environment, stack)
            with opened.loop.running():
                yield
        last_words.say_what_came_out()
        if watch.fault is not None:
            raise watch.fault


def _watch(opened: Session, run: Run, last_words: _LastWords) -> Watch:
    """Return what watches the user's code, and saves and ends the run if that does not return."""

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
            last_words.say_what_came_out()
            last_words.say_how_to_go_on()
            # In another thread, as one of them may be what is stuck.
            closing = threading.Thread(target=run.close_writers, name="end of writers", daemon=True)
            closing.start()
            closing.join(_WRITERS_S)
            run.write_timers()
        finally:
            run.stop.leave_process(code)

    limit = run.settings.env_settings.python_timeout
    limit_s = float(limit) if limit > 0 else None
    return Watch(run.calls, run.stop, limit_s, is_saved=is_saved, save=save, end=end)


def _start(run: Run, make_environment: EnvironmentFactory, stack: ExitStack) -> ActorPool | None:
    """Return the actors, the first with its environments, which ``stack`` ends; None if nothing needs experience.

    Raises:
        StopInterrupt: the run is stopped before that.
    """
    with run.stop.interrupting(), run.timers("env_start"):
        actors = start_actors(run, _settings_of_environment(run), make_environment)
        if actors is not None:
            stack.callback(_close, actors, run)
            run.stop.on_abort(actors.kill)
    return actors


def _add_evaluations(run: Run, loop: Loop, make_environment: EnvironmentFactory, stack: ExitStack) -> None:
    """Let the loop evaluate its behaviors, if the settings ask for it, until ``stack`` is closed."""
    lent = None if loop.pool is None else loop.pool.transport.shared
    shared = None if lent is None else SharedEnvironment(*lent, loop.lessons.reset_environment)
    evaluations = make_evaluations(run, loop.behaviors, make_environment, shared)
    if evaluations is not None:
        loop.evaluations = evaluations
        run.stop.on_abort(evaluations.kill)
        stack.callback(_close_evaluations, evaluations, run)


def _settings_of_environment(run: Run) -> RunSettings:
    """Return the settings with the chosen device, which the Editor is told, and what earlier sessions found."""
    settings = evolve(run.settings, torch_settings=evolve(run.settings.torch_settings, device=str(run.device)))
    return settings.presuming(run.status.raw_image_order())


def _close(actors: ActorPool, run: Run) -> None:
    def end() -> None:
        present = actors.transport.present
        whose = f" of actor {', '.join(map(str, present))}" if present else ""
        logger.warning("The environment%s does not end in time: ending it.", whose)
        actors.kill()

    with run.timers("env_close"), run.stop.limiting(end):
        actors.close()


def _close_evaluations(evaluations: EvaluationKeeper, run: Run) -> None:
    with run.timers("evaluation_close"), run.stop.limiting(evaluations.kill):
        evaluations.close()


@dataclass(slots=True)
class _LastWords:
    """What a run says at its end, each once, whichever thread ends it."""

    run: Run
    behaviors: Mapping[str, Behavior]
    resume_command: str
    _said: set[str] = field(default_factory=set, init=False)

    def say_what_came_out(self) -> None:
        if self._is_first("what came out"):
            for line in self.run.actor_report.table():
                logger.info("%s", line)
            for behavior in self.behaviors.values():
                behavior.log_result()
            if self.run.folder.writes and self.behaviors:
                logger.info("Curves: %s", shell_line(["tensorboard", "--logdir", self.run.folder.path]))

    def say_how_to_go_on(self) -> None:
        can_go_on = self.resume_command and any(behavior.can_go_on for behavior in self.behaviors.values())
        if can_go_on and self._is_first("how to go on"):
            logger.info("To go on: %s", self.resume_command)

    def _is_first(self, what: str) -> bool:
        is_first = what not in self._said
        self._said.add(what)
        return is_first


def _seed(settings: RunSettings) -> int:
    seed = settings.env_settings.seed
    return int(np.random.default_rng().integers(_LARGEST_DRAWN_SEED)) if seed == UNSEEDED else seed


def _checked_folder(settings: RunSettings) -> RunFolder:
    folder = RunFolder(settings.checkpoint_settings)
    folder.check({name: each.init_path for name, each in settings.behaviors.items()})
    return folder
