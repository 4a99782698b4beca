"""Creates the behaviors of a run when they first appear, and restores them from checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.learning.trainers.episodes import EpisodeRecord
from trajtrainer.learning.trainers.factory import is_automatic
from trajtrainer.policies.checkpoints.best import EVALUATION, RATING, TRAINING, BestModels
from trajtrainer.policies.checkpoints.manager import CheckpointManager
from trajtrainer.run.actors.link import Learner
from trajtrainer.run.actors.messages import NewBehavior
from trajtrainer.run.behavior import Behavior
from trajtrainer.run.coupling import TrainerThread
from trajtrainer.run.learners import make_learner, make_offline_learner
from trajtrainer.run.restoring import restore
from trajtrainer.run.run import Run
from trajtrainer.run.selection import ModelSelector
from trajtrainer.run.writers import Throughput, UpdatesPerStep, hyperparameters_text
from trajtrainer.settings.yaml.convert import trainer_mapping

if TYPE_CHECKING:
    from trajtrainer.experience.recordings.demonstrations import Demonstrations


def make_behavior(run: Run, messages: Callable[[], int], found: NewBehavior) -> Behavior:
    """Create a new behavior, and restore it from a checkpoint if the settings say so.

    For ``messages``, see ``LearningContext``.

    Raises:
        SettingsError: the configuration has no settings for the behavior.
        UnsupportedError: no network supports its sensors or actions.
        CheckpointError: the checkpoint cannot be used.
        OutOfMemoryError: there is not enough memory for the networks or the buffer.
    """
    learner, trainer = make_learner(run, messages, found, lambda _: behavior.save_checkpoint())
    behavior = _assemble(run, learner, trainer.episodes)
    if trainer.context.settings.threaded:
        behavior.thread = TrainerThread(trainer, run.timers, behavior.observe, run.calls)
    if found.raw_image_order is not RawImageOrder.AUTO:
        run.status.set_raw_image_order(behavior.name, found.raw_image_order)
    _begin(behavior, found.raw_image_order)
    return behavior


def make_offline_behavior(run: Run, name: str, dataset: Demonstrations) -> Behavior:
    """Create a behavior that learns from a data set. See ``make_behavior`` for errors.

    If there are agents of this behavior in the environment, they act with its policy, but it does not learn from them.
    """
    learner, episodes = make_offline_learner(run, name, dataset, lambda _: behavior.save_checkpoint())
    behavior = _assemble(run, learner, episodes)
    _begin(behavior, RawImageOrder.AUTO)
    return behavior


def _assemble(run: Run, learner: Learner, episodes: EpisodeRecord) -> Behavior:
    """Create the behavior, not restored yet."""
    trainer, self_play = learner.trainer, learner.self_play
    settings = trainer.context.settings
    folder = run.folder.behavior(trainer.context.behavior)
    episodes.lesson = run.curriculum.num_completed
    learner.recorded.on_lesson = episodes.begin_lesson  # ``BehaviorLink`` replaces this
    checkpoints = CheckpointManager(folder, run.status, settings.keep_checkpoints, writes=run.folder.writes)
    replay = None
    if run.folder.writes and trainer.algorithm.saved_replay is not None:
        # Lazy import: only needed for saved replay buffers.
        from trajtrainer.policies.checkpoints.replay_file import replay_file_of

        replay = replay_file_of(trainer, folder.path)
    behavior = Behavior(run, learner, trainer, episodes, checkpoints, replay, self_play)
    if not run.is_training:
        return behavior
    evaluations = run.settings.evaluations_of(settings)
    by = TRAINING if evaluations is None else EVALUATION
    if self_play is not None:  # Returns do not measure progress in zero-sum games.
        by = RATING
    behavior.selector = ModelSelector(
        trainer,
        episodes,
        BestModels(folder, run.status, keep=settings.keep_best, by=by, writes=run.folder.writes),
        run.status,
        rating=lambda: math.nan if self_play is None else self_play.elo,
        copied_state=behavior.copied_state,
        evaluations=evaluations,
    )
    return behavior


def _begin(behavior: Behavior, order: RawImageOrder) -> None:
    """Restore a behavior if the settings say so, and start its statistics."""
    run, trainer = behavior.run, behavior.trainer
    restore(behavior, order)
    behavior.learner.recorded.resume(behavior.episodes)
    behavior.begin_session()
    reporter = trainer.reporter
    if run.folder.resume:
        # The last summary may have a later step than the checkpoint.
        reporter.resume(max(trainer.step, trainer.last_summary))
    mapping = trainer_mapping(trainer.context.settings)
    reporter.add_hyperparameters(hyperparameters_text(mapping))
    reporter.add_settings(mapping)
    counters = {
        "Perf/Agent Steps per Second": lambda: trainer.step,
        "Perf/Optimizer Steps per Second": lambda: trainer.algorithm.gradient_steps,
    }
    reporter.add_source(Throughput(counters))
    if is_automatic(trainer.context.settings):
        reporter.add_source(UpdatesPerStep(lambda: trainer.algorithm.gradient_steps, lambda: trainer.step))
