"""One behaviour of a run: how it acts, how it learns, and its files."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from attrs import evolve
from torch import Tensor

from trajtrainer.actors.link import Learner
from trajtrainer.actors.messages import NewBehavior
from trajtrainer.algos.acting import Policy
from trajtrainer.algos.algorithm import LearningContext
from trajtrainer.checkpoints.best import EVALUATION, MEASURES, RATING, TRAINING, BestModel, BestModels
from trajtrainer.checkpoints.file import read_checkpoint
from trajtrainer.checkpoints.manager import CheckpointManager
from trajtrainer.checkpoints.replay import ReplayFile, replay_file_of
from trajtrainer.checkpoints.state import copied, from_checkpoint, is_ours, to_checkpoint
from trajtrainer.core.errors import OutOfMemoryError, SettingsError, first_line
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.queues import PolicyQueue
from trajtrainer.core.stats import StatsReporter
from trajtrainer.evaluation.result import EvaluationResult
from trajtrainer.nn.init import derived_seeds
from trajtrainer.run.coupling import Coupling
from trajtrainer.run.experts import make_expert
from trajtrainer.run.hooks import BestCheckpoint, Evaluation, SavedCheckpoint
from trajtrainer.run.judge import Judge
from trajtrainer.run.logs import shell_line
from trajtrainer.run.opponents import players_of_files
from trajtrainer.run.progress import BehaviorSnapshot
from trajtrainer.run.run import Run
from trajtrainer.run.snapshots import Snapshots
from trajtrainer.run.throughput import Throughput
from trajtrainer.run.trainer_thread import TrainerThread
from trajtrainer.run.writers import hyperparameters_text
from trajtrainer.settings.convert import trainer_mapping
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.trainers.episodes import MeanReturn
from trajtrainer.trainers.factory import create_trainer
from trajtrainer.trainers.self_play import SelfPlay
from trajtrainer.trainers.trainer import Trainer

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Behavior:
    """Everything that a run has of one behaviour.

    Attributes:
        run: which it is part of.
        learner: the learner, as its actors see it.
        trainer: of the learner.
        checkpoints: its saved states.
        replay: the file with its experience beside them, where the settings ask for it.
        self_play: of its teams; None if all of them learn.
        judge: finds its best models, and when it has trained enough; None without training.
        evaluation: the result of its last evaluation in this process; None before the first.
        evaluated_at: the step at which that was what was trained.
        first_gradient_step: gradient steps that an earlier run had made, which this one resumes.
        thread: the one in which the trainer advances, with ``threaded: true`` and from the first ``advance`` on.
    """

    run: Run
    learner: Learner
    trainer: Trainer
    checkpoints: CheckpointManager
    replay: ReplayFile | None
    self_play: SelfPlay | None = None
    judge: Judge | None = None
    evaluation: EvaluationResult | None = field(default=None, init=False)
    evaluated_at: int = field(default=0, init=False)
    first_gradient_step: int = field(default=0, init=False)
    thread: TrainerThread | None = field(default=None, init=False)
    _told: tuple[EvaluationResult | None, BestModel | None] = field(default=(None, None), init=False)

    @property
    def name(self) -> str:
        """The name of the behaviour."""
        return self.trainer.context.behavior

    def advance(self) -> None:
        """Let the trainer take in what came and update, if it is due; with a thread of its own, see that this lives.

        Raises:
            BaseException: whatever the trainer raised.
        """
        if self.trainer.context.settings.threaded:
            if self.thread is None:
                self.thread = TrainerThread(self.trainer, self.run.timers, self._look, self.run.calls)
                self.thread.start()
            self.thread.raise_failure()
        elif self.trainer.is_due():
            with self.run.timers("trainer_advance"):
                self.trainer.advance()
            self._look()
        if self.judge is not None:
            self.judge.end_if_enough()

    def _look(self) -> None:
        """Look at what the trainer has become, between two of its steps."""
        if self.judge is not None:
            self.judge.look()

    def take_in_the_rest(self) -> None:
        """Let the trainer take in what was not worth it yet; one with a thread does so as this ends."""
        if not self.trainer.context.settings.threaded:
            self.trainer.advance()
            self._look()

    @property
    def learns_by_itself(self) -> bool:
        """Return whether it goes on learning in this thread, whatever the environment does."""
        context = self.trainer.context
        return context.dataset is not None and not context.settings.threaded and self.trainer.is_due()

    def is_done(self) -> bool:
        """Return whether it has collected enough: past ``max_steps``, or the episodes asked for without training."""
        if self.run.is_training:
            return self.trainer.has_enough
        episodes = self.run.settings.inference_episodes
        return episodes is not None and self.trainer.episodes.num_episodes >= episodes

    def save_checkpoint(self) -> None:
        """Save a checkpoint that is due. A failure is logged and training goes on. Called by the trainer."""
        trainer = self.trainer
        state = self._state()
        if self.checkpoints.save(trainer.step, trainer.episodes.reward_since_update, state, self._export):
            self._tell_of_checkpoint(is_last=False)
        if self.judge is not None and self.judge.by != EVALUATION:  # whose models are written as they come
            self.judge.best_models.write()
        if self.replay is not None:
            # Behind the checkpoint, whose way to the disk would otherwise be behind all of this.
            self.replay.save()
        self.run.write_files()

    def save_final(self) -> None:
        """Save the last checkpoint of the run.

        Raises:
            CheckpointError: it could not be written.
        """
        trainer = self.trainer
        with self.run.timers("RLTrainer._checkpoint"):
            state = self._state()
            if self.judge is not None:
                self.judge.take_last()
                self.judge.best_models.write(saves_status=False)
                if not trainer.clock.should_still_train:
                    self.judge.note_end(self.judge.stopped_by or "max_steps")
            self.checkpoints.save_final(trainer.step, trainer.episodes.reward_since_update, state, self._export)
        self._tell_of_checkpoint(is_last=True)

    def _tell_of_checkpoint(self, *, is_last: bool) -> None:
        trainer, folder = self.trainer, self.checkpoints.folder
        path, onnx = (folder.numbered(trainer.step, suffix).absolute() for suffix in (".pt", ".onnx"))
        reward = trainer.episodes.reward_since_update
        exported = onnx if onnx.is_file() else None
        self.run.hooks.note(SavedCheckpoint(self.name, trainer.step, reward, path, exported, is_last))

    @property
    def newest_evaluation(self) -> Evaluation | None:
        """The newest evaluation in this process."""
        result = self.evaluation
        return None if result is None else Evaluation(self.name, self.evaluated_at, result)

    @property
    def best(self) -> BestCheckpoint | None:
        """The best model so far, of an earlier run that this one resumes, too."""
        best, folder = self._best_model, self.checkpoints.folder
        if best is None:
            return None
        path, onnx = folder.best_checkpoint.absolute(), folder.best_exported.absolute()
        return BestCheckpoint(self.name, best.steps, best.reward, best.by, best.measure, path, onnx)

    @property
    def _best_model(self) -> BestModel | None:
        return None if self.judge is None else self.judge.best_models.best

    def note_news(self) -> None:
        """Note a new evaluation and a new best model for the functions of the user."""
        evaluation, best = self._told
        self._told = (self.evaluation, self._best_model)
        if self.evaluation is not evaluation and self.newest_evaluation is not None:
            self.run.hooks.note(self.newest_evaluation)
        if self._best_model != best and self.best is not None:
            self.run.hooks.note(self.best)

    def is_finite(self) -> bool:
        """Return whether all weights of the policy are numbers, so that they are worth saving."""
        return all(bool(torch.isfinite(weights).all()) for weights in self.trainer.actor.parameters())

    def snapshot(self) -> BehaviorSnapshot:
        """Return how far it is, for the live view."""
        trainer = self.trainer
        rewards = self.run.rewards.of(self.name)
        best, trains = self._best_model, trainer.clock.should_still_train
        return BehaviorSnapshot(
            self.name,
            trainer.step,
            trainer.context.settings.max_steps,
            rewards,
            trains,
            done=self.run.is_training and not trains,
            evaluated=None if self.evaluation is None else self.evaluation.returns.mean,
            best=None if best is None else best.reward,
        )

    @property
    def can_go_on(self) -> bool:
        """Return whether there is something left to train, and a checkpoint to train it from."""
        return self.trainer.clock.should_still_train and self.checkpoints.folder.checkpoint.is_file()

    @property
    def mean_return(self) -> MeanReturn | None:
        """The newest mean return: without training of all episodes, as the policy stays the same."""
        episodes = self.trainer.episodes
        return episodes.newest if self.run.is_training else episodes.so_far

    def log_result(self) -> None:
        """Tell what came out, and where it is."""
        dataset = self.run.datasets.get(self.name)
        if dataset is not None:
            logger.info("%s: %d gradient steps on %d recorded steps.", self.name, self.trainer.step, len(dataset))
            self._log_files()
            return
        reward = str(self.mean_return or "no episode")
        rating = "" if self.self_play is None else f", ELO {self.self_play.elo:.1f}"
        logger.info("%s: %d steps, %s%s.", self.name, self.trainer.step, reward, rating)
        self._log_files()

    def _log_files(self) -> None:
        if self.run.folder.writes:
            files = self.checkpoints.folder
            best = None if self.judge is None else self.judge.best_models.best
            if best is not None:
                found = shell_line([files.best_checkpoint])
                logger.info("  best %.3f (%s) at step %d, %s", best.reward, best.measure, best.steps, found)
            policy, checkpoints = shell_line([files.exported]), shell_line([files.path])
            logger.info("  policy for Unity %s, checkpoints in %s", policy, checkpoints)

    def _state(self) -> dict[str, Any]:
        """Return the content of a checkpoint, and put the same rating into the status."""
        self_play = None if self.self_play is None else self.self_play.state()
        if self_play is not None:
            self.run.status.set_elo(self.name, self_play["elo"])
        if self.mean_return is not None:
            entry = {"steps": self.mean_return.step, "episodes": self.mean_return.episodes}
            measure = {"reward": self.mean_return.mean, "measure": MEASURES[TRAINING]}
            self.run.status.set_training(self.name, {**entry, **measure})
        judge = None if self.judge is None else self.judge.state()
        return to_checkpoint(self.trainer, self.learner.policy, self_play, judge)

    def copied_state(self) -> dict[str, Any]:
        """Return the content of a checkpoint of this moment, for later. Called between two steps of the trainer."""
        return copied(self._state())

    def _export(self, path: Path) -> None:
        # Late: it takes long to import and is needed at the first checkpoint.
        from trajtrainer.export.onnx import export_policy

        export_policy(self.trainer.actor, self.trainer.context.spec, path, synced=False)


def make_behavior(run: Run, found: NewBehavior) -> Behavior:
    """Make all parts of a behaviour that appears, restored from a checkpoint where the settings ask for it.

    Raises:
        SettingsError: the configuration does not cover it.
        UnsupportedError: its sensors or actions fit no network.
        CheckpointError: its checkpoint cannot be used.
        OutOfMemoryError: there is no memory for its networks or its buffer.
    """
    name = found.behavior_id.name
    settings = run.settings.for_behavior(name)
    if run.acts_elsewhere or name in run.datasets:
        settings = evolve(settings, threaded=False)  # learning and acting overlap already, or nothing is acted for it
    if run.is_training and settings.is_offline and name not in run.datasets:
        raise SettingsError(
            f"The environment has a behavior {name!r}, which 'default_settings' would train from a data set "
            f"(trainer_type {settings.trainer_type}). List it under 'behaviors', with its own dataset or another "
            "trainer_type."
        )
    behavior = _make_parts(run, found, settings)
    behavior.trainer.episodes.set_reward_buffer_size(run.curriculum.reward_buffer_length(name))
    if found.raw_image_order is not RawImageOrder.AUTO:
        run.status.set_raw_image_order(name, found.raw_image_order)
    _restore(behavior, found.raw_image_order)
    behavior.first_gradient_step = behavior.trainer.algorithm.gradient_steps
    behavior._told = (None, behavior._best_model)  # that of an earlier run is no news
    reporter = behavior.trainer.reporter
    if run.folder.resume:
        reporter.resume(behavior.trainer.clock.summarized_step)
    mapping = trainer_mapping(settings)
    reporter.add_hyperparameters(hyperparameters_text(mapping))
    reporter.add_settings(mapping)
    trainer = behavior.trainer
    counters = {
        "Perf/Agent Steps per Second": lambda: trainer.step,
        "Perf/Optimizer Steps per Second": lambda: trainer.algorithm.gradient_steps,
    }
    reporter.add_source(Throughput(counters))
    return behavior


def _make_parts(run: Run, found: NewBehavior, settings: TrainerSettings) -> Behavior:
    """Make the channels and the trainer, as at step 0."""
    name = found.behavior_id.name
    seed = run.settings.env_settings.seed
    dataset = run.datasets.get(name)
    coupling = Coupling.of(
        settings, elsewhere=run.actors_elsewhere, is_training=run.is_training, learns=dataset is None
    )
    source = coupling.source()
    policies: PolicyQueue[Tensor] = PolicyQueue()
    reporter = StatsReporter(name, run.writers)
    context = LearningContext(
        behavior=name,
        spec=found.spec,
        settings=settings,
        obs_dtypes=found.obs_dtypes,
        seed=seed,
        device=run.device,
        training=run.is_training,
        timers=run.timers,
        is_stopping=lambda: run.stop.requested,
        dataset=None if dataset is None else dataset.packed,
        expert=make_expert(run.settings, name, settings, found.spec) if run.is_training else None,
        max_policy_lag=coupling.max_policy_lag,
    )
    with _told_if_too_large(name):
        trainer = create_trainer(context, source, policies, reporter, lambda _: behavior.save_checkpoint())
    policy = Policy(
        trainer.actor,
        seed=derived_seeds(seed, f"{name} acting")[0],
        deterministic=settings.network_settings.deterministic,
        evenly_first=settings.acts_evenly_first and run.is_training,
        device=run.acting_device,
    )
    self_play = None
    if settings.self_play is not None and run.is_training:
        self_play = SelfPlay(
            settings.self_play,
            run.teams,
            behavior=name,
            seed=seed,
            policy=policy,
            policies=policies,
            reporter=reporter,
            step=lambda: trainer.collected,
            files=players_of_files(run.settings, trainer.context, policy.memory_size),
        )
    pacing = coupling.pacing(trainer, self_play)
    learner = Learner(trainer, policy, policies, self_play, pacing, coupling.lead)
    folder = run.folder.behavior(name)
    checkpoints = CheckpointManager(folder, run.status, settings.keep_checkpoints, writes=run.folder.writes)
    replay = replay_file_of(trainer, folder.path) if run.folder.writes else None
    behavior = Behavior(run, learner, trainer, checkpoints, replay, self_play)
    if run.is_training:
        behavior.judge = _make_judge(behavior)
    return behavior


def _make_judge(behavior: Behavior) -> Judge:
    run, trainer, self_play = behavior.run, behavior.trainer, behavior.self_play
    settings, folder = trainer.context.settings, behavior.checkpoints.folder
    evaluations = run.settings.evaluations_of(settings)
    by = TRAINING if evaluations is None else EVALUATION
    if self_play is not None:  # what one side earns the other loses
        by = RATING

    def lesson() -> int:
        return sum(run.curriculum.lesson_numbers.values())

    return Judge(
        trainer,
        BestModels(folder, run.status, keep=settings.keep_best, by=by, writes=run.folder.writes),
        run.status,
        by=by,
        rating=lambda: math.nan if self_play is None else self_play.elo,
        lesson=lesson,
        state=behavior.copied_state,
        snapshots=None if evaluations is None else Snapshots(evaluations, trainer, behavior.copied_state, lesson),
    )


def _restore(behavior: Behavior, order: RawImageOrder) -> None:
    """Resume, or take another run's weights, or begin from scratch."""
    run, trainer, policy = behavior.run, behavior.trainer, behavior.learner.policy
    if run.folder.resume:
        loaded = behavior.checkpoints.resume()
        judge = behavior.judge
        if judge is not None:
            judge.best_models.restore()
            judge.note_end(None)
        if loaded is not None:
            from_checkpoint(
                loaded.state, trainer, policy, str(loaded.path), behavior.self_play, judge, reset_step=False
            )
            if behavior.self_play is not None and not behavior.self_play.is_restored:
                behavior.self_play.begin_at(trainer.step, run.status.elo(behavior.name))
            _warn_of_misread_pictures(loaded.state, loaded.path, order)
            logger.info("Resuming training from step %d.", trainer.step)
            if behavior.replay is not None:
                behavior.replay.load()
        return
    listed = behavior.name in run.settings.behaviors
    path = run.folder.initial_weights(behavior.name, trainer.context.settings.init_path, listed=listed)
    if path is not None:
        logger.info("Initializing from %s.", path)
        state = read_checkpoint(path)
        from_checkpoint(state, trainer, policy, str(path), reset_step=True)
        _warn_of_misread_pictures(state, path, order)
        logger.info("Starting training from step 0 and saving to %s.", behavior.checkpoints.folder.path)


@contextlib.contextmanager
def _told_if_too_large(behavior: str) -> Iterator[None]:
    """Turn an allocation that fails into a message."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # torch has no class of its own for it on the CPU.
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        raise OutOfMemoryError(
            f"There is no memory for the networks and the buffer of behavior {behavior!r} ({first_line(error)}). Make "
            "its observations smaller (pictures above all), or buffer_size and hidden_units."
        ) from error


def _warn_of_misread_pictures(state: Mapping[str, Any], path: Path, order: RawImageOrder) -> None:
    if order is RawImageOrder.HWC and not is_ours(state):
        logger.warning(
            "The weights of %s are of ML-Agents, which reads the uncompressed pictures of this player's package in the "
            "wrong order (height, width, channels as channels, height, width). They have learnt from scrambled "
            "pictures and see the right ones from now on, as in the game: expect lower rewards at first, or start "
            "afresh. Pictures sent as PNG are not affected.",
            path,
        )
