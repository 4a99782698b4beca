"""One run from settings to exit code: puts the parts together, runs the loop, saves everything at the end."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from attrs import evolve

from trajtrainer.curriculum import Curriculum
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.select import make_environment as environment_of_settings
from trajtrainer.runtime.behaviors import Behavior, Behaviors
from trajtrainer.runtime.collector import ActingBehavior, Collector
from trajtrainer.runtime.controller import Controller
from trajtrainer.runtime.device import choose_device, keep_freed_memory, set_threads
from trajtrainer.runtime.lessons import LessonKeeper
from trajtrainer.runtime.logs import ConsoleHandler, log_file, shell_line
from trajtrainer.runtime.progress import BehaviorSnapshot, NoView, ProgressView, RewardHistory, RunSnapshot, make_view
from trajtrainer.runtime.rundir import RunFolder
from trajtrainer.runtime.signals import StopInterrupt, StopRequest, stop_on_signals
from trajtrainer.runtime.status import TrainingStatus
from trajtrainer.runtime.throughput import Throughput
from trajtrainer.runtime.timers_file import timers_json
from trajtrainer.runtime.writers import ConsoleWriter, GaugeWriter, TensorboardWriter, plugin_writers
from trajtrainer.settings.convert import dump
from trajtrainer.settings.environment import UNSEEDED
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.spec import BehaviorId, BehaviorSpec
from trajtrainer.stats import StatsWriter
from trajtrainer.steps import StepBatch
from trajtrainer.timers import Timers
from trajtrainer.trainers.factory import check_supported
from trajtrainer.unity.versions import API_VERSION

logger = logging.getLogger(__name__)

_LARGEST_DRAWN_SEED = 10_000

EnvironmentFactory = Callable[[RunSettings, RunFolder], Environment]


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that came to its end.

    Attributes:
        exit_code: 0 when done or after SIGINT, 143 after SIGTERM.
        settings: its own, the seed settled.
        folder: its files.
        behaviors: name -> what it has learned, in order of appearance.
    """

    exit_code: int
    settings: RunSettings
    folder: RunFolder
    behaviors: Mapping[str, Behavior]


def run(settings: RunSettings, handler: ConsoleHandler, timers: Timers, resume_command: str) -> int:
    """``train`` for the command line. Returns the exit code, raises what ``train`` raises."""
    return train(settings, handler, timers=timers, resume_command=resume_command).exit_code


def train(
    settings: RunSettings,
    handler: ConsoleHandler | None,
    make_environment: EnvironmentFactory = environment_of_settings,
    stop: StopRequest | None = None,
    timers: Timers | None = None,
    resume_command: str = "",
) -> FinishedRun:
    """Trains, or with ``--inference`` acts, until done or stopped.

    Args:
        settings: of the run.
        handler: of the console's log, above which the live view is drawn; None for no view.
        make_environment: starts what the collector steps.
        stop: connected with the signals for as long as this lasts.
        timers: of what came before, to go on with.
        resume_command: said at the end if there is something left to train.

    Raises:
        TrajtrainerError: whatever ended the run early. Everything was saved before.
    """
    timers = Timers() if timers is None else timers
    with timers("run_training.setup"):
        settings = settings.with_seed(_seed(settings))
        check_supported(_all_behaviors(settings))
        device = choose_device(settings.torch_settings.device)
        set_threads()
        keep_freed_memory()
        folder = RunFolder(settings.checkpoint_settings)
        folder.check({name: each.init_path for name, each in settings.behaviors.items()})
    with folder.exclusive(), log_file(folder.trainer_log, handler):
        with timers("run_training.setup"):
            folder.create()
            run = _Run(
                settings, folder, handler, make_environment, device, timers, stop or StopRequest(), resume_command
            )
        return run.run()


class _Run:
    """The parts of one run and how they end."""

    def __init__(
        self,
        settings: RunSettings,
        folder: RunFolder,
        handler: ConsoleHandler | None,
        make_environment: EnvironmentFactory,
        device: torch.device,
        timers: Timers,
        stop: StopRequest,
        resume_command: str,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._handler = handler
        self._make_environment = make_environment
        self._device = device
        self._training = not settings.checkpoint_settings.inference
        self._timers = timers
        self._stop = stop
        self._resume_command = resume_command
        self._gauges = GaugeWriter()
        self._rewards = RewardHistory()
        self._writers = self._make_writers()
        self._status = (
            TrainingStatus.load(folder.status, writes=folder.writes)
            if folder.resume
            else TrainingStatus(folder.status if folder.writes else None)
        )
        self._curriculum = Curriculum(settings.environment_parameters, settings.env_settings.seed)
        self._curriculum.restore(self._status.lessons())
        self._behaviors = Behaviors(
            settings,
            folder,
            self._status,
            self._writers,
            self._timers,
            self._curriculum,
            device,
            on_checkpoint=self._write_files,
            is_stopping=lambda: stop.requested,
        )

    def _make_writers(self) -> list[StatsWriter]:
        writers: list[StatsWriter] = [ConsoleWriter(), self._gauges, self._rewards]
        if self._folder.writes:
            writers.append(TensorboardWriter(lambda behavior: self._folder.behavior(behavior).path))
        return writers + plugin_writers(self._settings)

    def run(self) -> FinishedRun:
        self._train()
        return FinishedRun(self._stop.exit_code, self._settings, self._folder, self._behaviors.known)

    def _train(self) -> None:
        stop = self._stop
        with ExitStack() as stack:
            stack.enter_context(stop_on_signals(stop, saves=self._folder.writes))
            stack.callback(self._write_timers)  # once more when all is closed, which takes its time, too
            stack.callback(self._close_writers)
            stack.callback(self._say_how_to_go_on)
            with self._timers("run_training.setup"):
                view = NoView() if self._handler is None else make_view(self._handler, debug=self._settings.debug)
                stack.callback(view.close)
            stop.on_abort(view.abandon)
            try:
                with stop.interrupting(), self._timers("env_start"):
                    environment = self._make_environment(self._settings_of_environment(), self._folder)
                    stack.callback(self._close, environment)
            except StopInterrupt:
                logger.info("Stopped before the environment was connected; nothing was trained.")
                return
            stop.on_abort(environment.kill)
            self._begin()
            with self._timers("TrainerController.start_learning"):
                self._learn(environment, view)
            self._say_what_came_out()

    def _begin(self) -> None:
        """Takes possession of the folder: up to here a run that this one overwrites is whole in its place."""
        with self._timers("run_training.setup"):
            self._folder.begin()
            self._write_files()
            self._status.save()

    def _learn(self, environment: Environment, view: ProgressView) -> None:
        # Not what is no Exception: that is a late further signal in a program that is not ours, and no trainer must
        # be saved while its thread perhaps still lives.
        try:
            self._make_controller(environment, view).run()
            self._show(view)
        except Exception:
            self._save()
            raise
        if self._stop.requested and self._folder.writes:
            logger.info("Learning was interrupted. Please wait while the graph is generated.")
        self._save()

    def _settings_of_environment(self) -> RunSettings:
        """With the device that was chosen: the Editor is told."""
        return evolve(self._settings, torch_settings=evolve(self._settings.torch_settings, device=str(self._device)))

    def _make_controller(self, environment: Environment, view: ProgressView) -> Controller:
        lessons = LessonKeeper(self._curriculum, environment, self._status)

        def make_behavior(
            behavior_id: BehaviorId, spec: BehaviorSpec, first: StepBatch, *, misread_elsewhere: bool
        ) -> ActingBehavior:
            with self._timers("make_behavior"):
                behavior = self._behaviors.make(behavior_id, spec, first, misread_elsewhere=misread_elsewhere)
            behavior.reporter.add_source(lessons.statistics)
            messages = {"Perf/Environment Steps per Second": lambda: collector.num_messages}
            behavior.reporter.add_source(Throughput(messages))
            return behavior

        collector = Collector(environment, make_behavior, self._timers)
        return Controller(
            collector,
            self._behaviors.trainers,
            lessons,
            self._stop,
            self._timers,
            training=self._training,
            max_episodes=self._settings.inference_episodes,
            on_step=lambda: self._show_if_due(view),
        )

    def _save(self) -> None:
        """Everything to disk, whatever ended the run."""
        if not self._folder.writes:
            return None
        if not self._behaviors.known:
            return self._write_files()
        with self._timers("TrainerController._save_models"):
            try:
                self._behaviors.save_all()
            finally:
                self._write_files()

    def _say_what_came_out(self) -> None:
        for name, behavior in self._behaviors.known.items():
            trainer = behavior.trainer
            rewards = trainer.episodes.recent
            reward = (
                f"mean reward {np.mean(rewards):.3f} of the last {len(rewards)} episodes" if rewards else "no episode"
            )
            logger.info("%s: %d steps, %s.", name, trainer.step, reward)
            if self._folder.writes:
                files = behavior.checkpoints.folder
                policy, checkpoints = shell_line([files.exported]), shell_line([files.path])
                logger.info("  policy for Unity %s, checkpoints in %s", policy, checkpoints)
        if self._folder.writes and self._behaviors.known:
            logger.info("Curves: %s", shell_line(["tensorboard", "--logdir", self._folder.path]))

    def _say_how_to_go_on(self) -> None:
        unfinished = any(
            behavior.trainer.clock.should_still_train and behavior.checkpoints.folder.checkpoint.is_file()
            for behavior in self._behaviors.known.values()
        )
        if self._resume_command and unfinished:
            logger.info("To go on: %s", self._resume_command)

    def _write_files(self) -> None:
        self._folder.write_configuration(dump(self._settings))
        self._write_timers()

    def _write_timers(self) -> None:
        self._folder.write_timers(timers_json(self._timers, self._gauges.gauges, sys.argv, API_VERSION))

    def _close(self, environment: Environment) -> None:
        def end() -> None:
            logger.warning("The environment does not end in time: ending it.")
            environment.kill()

        with self._timers("env_close"), self._stop.limiting(end):
            environment.close()

    def _close_writers(self) -> None:
        for writer in self._writers:
            writer.close()

    def _show_if_due(self, view: ProgressView) -> None:
        if view.due():
            self._show(view)

    def _show(self, view: ProgressView) -> None:
        with self._timers("ProgressView.update"):
            view.update(RunSnapshot(self._snapshots(), self._curriculum.lesson_names))

    def _snapshots(self) -> list[BehaviorSnapshot]:
        return [
            BehaviorSnapshot(
                name,
                behavior.trainer.step,
                behavior.trainer.context.settings.max_steps,
                self._rewards.of(name),
                behavior.trainer.clock.should_still_train,
            )
            for name, behavior in self._behaviors.known.items()
        ]


def _seed(settings: RunSettings) -> int:
    seed = settings.env_settings.seed
    return int(np.random.default_rng().integers(_LARGEST_DRAWN_SEED)) if seed == UNSEEDED else seed


def _all_behaviors(settings: RunSettings) -> dict[str, TrainerSettings]:
    defaults = settings.default_settings
    return {**({} if defaults is None else {"default_settings": defaults}), **settings.behaviors}
