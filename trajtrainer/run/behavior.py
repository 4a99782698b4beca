"""One behavior of a run: how it acts, how it learns, and its files."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import evolve
from torch import Tensor

from trajtrainer.core.errors import DemonstrationError, OutOfMemoryError, SettingsError, UnsupportedError, first_line
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.queues import PolicyQueue
from trajtrainer.core.seeds import derived_seeds
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.stats import StatsReporter
from trajtrainer.envs.select import episode_limit
from trajtrainer.experience.recordings.demonstrations import Demonstrations
from trajtrainer.learning.algos.acting import ActorPolicy
from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.trainers.episodes import EpisodeRecord, MeanReturn, RecordedEpisodes
from trajtrainer.learning.trainers.factory import create_trainer, is_automatic
from trajtrainer.learning.trainers.self_play import SelfPlay
from trajtrainer.learning.trainers.trainer import BehaviorTrainer
from trajtrainer.policies.checkpoints.best import EVALUATION, MEASURES, RATING, TRAINING, BestModel, BestModels
from trajtrainer.policies.checkpoints.file import read_checkpoint
from trajtrainer.policies.checkpoints.manager import CheckpointManager, ReplayFile, replay_file_of
from trajtrainer.policies.checkpoints.state import copied, from_checkpoint, is_ours, to_checkpoint
from trajtrainer.policies.play.result import EvaluationResult
from trajtrainer.run.actors.link import Learner
from trajtrainer.run.actors.messages import NewBehavior
from trajtrainer.run.actors.pacing import Pacing
from trajtrainer.run.coupling import Coupling, TrainerThread
from trajtrainer.run.hooks import BestCheckpoint, Evaluation, SavedCheckpoint
from trajtrainer.run.logs import fields, shell_line
from trajtrainer.run.other_policies import make_expert, players_of_files
from trajtrainer.run.progress import BehaviorSnapshot
from trajtrainer.run.run import Run
from trajtrainer.run.selection import ModelSelector, Snapshots
from trajtrainer.run.writers import Throughput, UpdatesPerStep, hyperparameters_text
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import trainer_mapping

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Behavior:
    """Everything that a run has of one behavior.

    Attributes:
        run: that it belongs to.
        learner: as its actors see it.
        trainer: of the learner.
        episodes: of its agents; without any if it learns from a data set.
        checkpoints: its saved states.
        replay: the file for its experience, if the settings ask for one.
        self_play: of its teams; None if all of them learn.
        selector: selects its best models, and ends its training early; None without training.
        evaluation: the result of its last evaluation in this session; None before the first.
        evaluated_at: the step of the model that was evaluated.
        first_gradient_step: gradient steps made before this session, in a run that is resumed.
        thread: in which the trainer advances with ``threaded: true``; the first ``advance`` starts it.
    """

    run: Run
    learner: Learner
    trainer: BehaviorTrainer
    episodes: EpisodeRecord
    checkpoints: CheckpointManager
    replay: ReplayFile | None
    self_play: SelfPlay | None = None
    selector: ModelSelector | None = None
    thread: TrainerThread | None = None
    evaluation: EvaluationResult | None = field(default=None, init=False)
    evaluated_at: int = field(default=0, init=False)
    first_gradient_step: int = field(default=0, init=False)
    _noted: tuple[EvaluationResult | None, BestModel | None] = field(default=(None, None), init=False)

    @property
    def name(self) -> str:
        return self.trainer.context.behavior

    @property
    def recorded_step(self) -> int:
        """The trainer's step once it has read everything that has arrived."""
        return max(self.trainer.step, self.trainer.first_step + self.learner.recorded.num_steps)

    def advance(self) -> None:
        """Let the trainer read its experience and update, if it is due. With a thread of its own, check that it lives.

        Raises:
            BaseException: raised by the trainer.
        """
        if self.thread is not None:
            if self.thread.ident is None:
                self.thread.start()
            self.thread.raise_failure()
        else:
            if self.trainer.is_due():
                with self.run.timers("trainer_advance"):
                    self.trainer.advance()
            self.observe()
        if self.selector is not None:
            self.selector.end_if_enough()

    def observe(self) -> None:
        """Measure the model as it is now. Called between two steps of the trainer."""
        if self.selector is not None:
            self.selector.observe()

    def finish(self) -> None:
        """Let the trainer read the experience that is left. A trainer with a thread does that when its thread ends."""
        if self.thread is None:
            self.trainer.advance()
            self.observe()

    @property
    def learns_alone(self) -> bool:
        """Whether the loop should let it learn although no experience arrives. A thread of its own does so anyway."""
        return self.thread is None and self.trainer.learns_alone and not self.is_done()

    def is_done(self) -> bool:
        """Whether it has enough steps, or without training the number of episodes that was asked for."""
        if self.run.is_training:
            return self.trainer.has_enough
        episodes = self.run.settings.inference_episodes
        return episodes is not None and self.learner.recorded.num_episodes >= episodes

    def save_checkpoint(self) -> None:
        """Save a checkpoint that is due. A failure is logged, and training continues. Called by the trainer."""
        trainer = self.trainer
        state = self._state()
        if self.checkpoints.save(trainer.step, self.episodes.reward_since_update, state, self._export):
            self._note_checkpoint(is_last=False)
        if self.selector is not None and self.selector.by != EVALUATION:  # models with evaluations are written at once
            self.selector.best_models.write()
        if self.replay is not None:
            # After the checkpoint, which would otherwise wait for all of this to reach the disk.
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
            if self.selector is not None:
                self.selector.add_last()
                self.selector.best_models.write(saves_status=False)
                if not trainer.should_still_train:
                    self.selector.note_end(self.selector.stopped_by or "max_steps")
            self.checkpoints.save_final(trainer.step, self.episodes.reward_since_update, state, self._export)
        self._note_checkpoint(is_last=True)

    def _note_checkpoint(self, *, is_last: bool) -> None:
        trainer, folder = self.trainer, self.checkpoints.folder
        path, onnx = (folder.numbered(trainer.step, suffix).absolute() for suffix in (".pt", ".onnx"))
        reward = self.episodes.reward_since_update
        exported = onnx if onnx.is_file() else None
        self.run.hooks.add(SavedCheckpoint(self.name, trainer.step, reward, path, exported, is_last))

    @property
    def newest_evaluation(self) -> Evaluation | None:
        """The newest evaluation of this session."""
        result = self.evaluation
        return None if result is None else Evaluation(self.name, self.evaluated_at, result)

    @property
    def best(self) -> BestCheckpoint | None:
        """The best model so far, including earlier sessions of a run that is resumed."""
        best, folder = self._best_model, self.checkpoints.folder
        if best is None:
            return None
        path, onnx = folder.best_checkpoint.absolute(), folder.best_exported.absolute()
        return BestCheckpoint(self.name, best.steps, best.reward, best.by, best.measure, path, onnx)

    @property
    def _best_model(self) -> BestModel | None:
        return None if self.selector is None else self.selector.best_models.best

    def note_events(self) -> None:
        """Queue a new evaluation and a new best model for the user's hooks."""
        evaluation, best = self._noted
        self._noted = (self.evaluation, self._best_model)
        if self.evaluation is not evaluation and self.newest_evaluation is not None:
            self.run.hooks.add(self.newest_evaluation)
        if self._best_model != best and self.best is not None:
            self.run.hooks.add(self.best)

    def is_finite(self) -> bool:
        """Whether all weights and statistics of the policy are finite, and so worth saving."""
        return all(bool(torch.isfinite(entry).all()) for entry in self.trainer.actor.state_dict().values())

    def snapshot(self) -> BehaviorSnapshot:
        """Its progress, for the live view."""
        trainer = self.trainer
        rewards = self.run.rewards.of(self.name)
        best, trains = self._best_model, trainer.should_still_train
        return BehaviorSnapshot(
            self.name,
            self.recorded_step,
            trainer.context.settings.max_steps,
            rewards,
            trains,
            done=self.run.is_training and not trains,
            evaluated=None if self.evaluation is None else self.evaluation.returns.mean,
            best=None if best is None else best.reward,
        )

    @property
    def can_continue(self) -> bool:
        """Whether there is something left to train, and a checkpoint to continue from."""
        return self.trainer.should_still_train and self.checkpoints.folder.checkpoint.is_file()

    @property
    def mean_return(self) -> MeanReturn | None:
        """The newest mean return. Without training it is of all episodes, since the policy stays the same."""
        return self.episodes.newest if self.run.is_training else self.episodes.so_far

    def log_result(self) -> None:
        """Log the result, and where its files are."""
        dataset = self.run.datasets.get(self.name)
        if dataset is not None:
            extra = fields("result", behavior=self.name, step=self.trainer.step)
            steps = self.trainer.step, len(dataset)
            logger.info("%s: %d gradient steps on %d recorded steps.", self.name, *steps, extra=extra)
        else:
            reward = str(self.mean_return or "no episode")
            rating = "" if self.self_play is None else f", ELO {self.self_play.elo:.1f}"
            numbers = {} if self.mean_return is None else {"mean_reward": self.mean_return.mean}
            extra = fields("result", behavior=self.name, step=self.trainer.step, **numbers)
            logger.info("%s: %d steps, %s%s.", self.name, self.trainer.step, reward, rating, extra=extra)
        if self.run.folder.writes:
            files = self.checkpoints.folder
            best = self._best_model
            if best is not None:
                found = shell_line([files.best_checkpoint])
                logger.info("  best %.3f (%s) at step %d, %s", best.reward, best.measure, best.steps, found)
            policy, checkpoints = shell_line([files.exported]), shell_line([files.path])
            logger.info("  exported policy %s, checkpoints in %s", policy, checkpoints)

    def _state(self, step: int | None = None) -> dict[str, Any]:
        """The content of a checkpoint. The same rating and mean return go into the status."""
        self_play = None if self.self_play is None else self.self_play.state()
        if self_play is not None:
            self.run.status.set_elo(self.name, self_play["elo"])
        if self.mean_return is not None:
            entry = {"steps": self.mean_return.step, "episodes": self.mean_return.episodes}
            measure = {"reward": self.mean_return.mean, "measure": MEASURES[TRAINING]}
            self.run.status.set_training(self.name, {**entry, **measure})
        selector = None if self.selector is None else self.selector.state()
        return to_checkpoint(self.trainer, self.learner.policy, self_play, selector, step=step)

    def copied_state(self, step: int | None = None) -> dict[str, Any]:
        """A copy of the content of a checkpoint as of now. Called between two steps of the trainer."""
        return copied(self._state(step))

    def _export(self, path: Path) -> None:
        # Late: it is slow to import, and not needed before the first checkpoint.
        from trajtrainer.policies.onnx.export import export_policy

        actor = self.trainer.actor
        export_policy(actor, actor.spec, path, synced=False)


def make_behavior(run: Run, messages: Callable[[], int], found: NewBehavior) -> Behavior:
    """Make all parts of a behavior that has appeared, restored from a checkpoint if the settings ask for that.

    ``messages`` as in ``LearningContext``.

    Raises:
        SettingsError: the configuration does not cover it.
        UnsupportedError: no network fits its sensors or actions.
        CheckpointError: its checkpoint cannot be used.
        OutOfMemoryError: there is not enough memory for its networks or its buffer.
    """
    name = found.behavior_id.name
    settings = run.settings.for_behavior(name)
    if run.acts_elsewhere:
        settings = evolve(settings, threaded=False)  # Learning and acting overlap anyway.
    if run.is_training and settings.is_offline:
        raise SettingsError(
            f"The environment has a behavior {name!r} that is not listed under 'behaviors', and 'default_settings' "
            f"would train it from a data set (trainer_type {settings.trainer_type}). List it under 'behaviors', with "
            "its own dataset or another trainer_type."
        )
    coupling = Coupling.of(settings, elsewhere=run.actors_elsewhere, is_training=run.is_training)
    source = coupling.source()
    policies: PolicyQueue[Tensor] = PolicyQueue()
    context = replace(
        _context(run, name, settings, found.spec, found.obs_dtypes),
        expert=make_expert(run.settings, name, settings, found.spec) if run.is_training else None,
        max_policy_lag=coupling.max_policy_lag,
        messages=messages,
    )
    reporter = StatsReporter(name, run.writers)
    with _blaming(name):
        trainer = create_trainer(context, source, policies, reporter, lambda _: behavior.save_checkpoint())
    trainer.episodes.set_reward_buffer_size(run.curriculum.reward_buffer_length(name))
    policy = _policy(run, trainer)
    self_play = None
    if settings.self_play is not None and run.is_training:
        self_play = SelfPlay(
            settings.self_play,
            run.teams,
            behavior=name,
            seed=context.seed,
            policy=policy,
            policies=policies,
            reporter=reporter,
            step=lambda: trainer.collected,
            files=players_of_files(run.settings, context, policy.memory_size),
        )
    recorded = RecordedEpisodes(run.curriculum.reward_buffer_length(name) if run.curriculum.measures(name) else 0)
    pacing = coupling.pacing(trainer, self_play)
    learner = Learner(trainer, policy, policies, self_play, pacing, coupling.lead, recorded)
    behavior = _assemble(run, learner, trainer.episodes)
    if settings.threaded:
        behavior.thread = TrainerThread(trainer, run.timers, behavior.observe, run.calls)
    if found.raw_image_order is not RawImageOrder.AUTO:
        run.status.set_raw_image_order(name, found.raw_image_order)
    _begin(behavior, found.raw_image_order)
    return behavior


def make_offline_behavior(run: Run, name: str, dataset: Demonstrations) -> Behavior:
    """Make all parts of a behavior that learns from a data set; see ``make_behavior``.

    If the environment of the run has agents of this behavior, they act by its policy but give no experience.
    """
    # Late: only runs with data sets need it.
    from trajtrainer.learning.trainers.offline import create_offline_trainer

    settings = evolve(run.settings.for_behavior(name), threaded=False)  # There is no acting to overlap with.
    obs_dtypes = [column.dtype for column in dataset.packed.obs]
    context = replace(
        _context(run, name, settings, dataset.spec, obs_dtypes),
        expert=make_expert(run.settings, name, settings, dataset.spec),
    )
    policies: PolicyQueue[Tensor] = PolicyQueue()
    reporter = StatsReporter(name, run.writers)
    with _blaming(name):
        trainer = create_offline_trainer(
            context, dataset.packed, policies, reporter, lambda _: behavior.save_checkpoint()
        )
    learner = Learner(trainer, _policy(run, trainer), policies, None, Pacing(name), lead=0)
    behavior = _assemble(run, learner, EpisodeRecord(reporter))
    _begin(behavior, RawImageOrder.AUTO)
    return behavior


def _context(
    run: Run, name: str, settings: TrainerSettings, spec: BehaviorSpec, obs_dtypes: Sequence[np.dtype[Any]]
) -> LearningContext:
    evaluations = run.settings.evaluations_of(settings) if run.is_training else None
    return LearningContext(
        behavior=name,
        spec=spec,
        settings=settings,
        obs_dtypes=obs_dtypes,
        seed=run.settings.env_settings.seed,
        device=run.device,
        training=run.is_training,
        timers=run.timers,
        is_stopping=lambda: run.stop.requested,
        episode_limit=episode_limit(run.settings.env_settings),
        evaluation_interval=None if evaluations is None else evaluations.interval,
    )


def _policy(run: Run, trainer: BehaviorTrainer) -> ActorPolicy:
    context = trainer.context
    return ActorPolicy(
        trainer.actor,
        seed=derived_seeds(context.seed, f"{context.behavior} acting")[0],
        deterministic=context.settings.network_settings.deterministic,
        evenly_first=context.settings.acts_evenly_first and run.is_training,
        device=run.acting_device,
    )


def _assemble(run: Run, learner: Learner, episodes: EpisodeRecord) -> Behavior:
    """Make the behavior, at step 0, with its files."""
    trainer, self_play = learner.trainer, learner.self_play
    settings = trainer.context.settings
    folder = run.folder.behavior(trainer.context.behavior)
    episodes.lesson = run.curriculum.num_completed
    learner.recorded.on_lesson = episodes.begin_lesson  # the actors' link puts a marker in its place
    checkpoints = CheckpointManager(folder, run.status, settings.keep_checkpoints, writes=run.folder.writes)
    replay = replay_file_of(trainer, folder.path) if run.folder.writes else None
    behavior = Behavior(run, learner, trainer, episodes, checkpoints, replay, self_play)
    if not run.is_training:
        return behavior
    evaluations = run.settings.evaluations_of(settings)
    by = TRAINING if evaluations is None else EVALUATION
    if self_play is not None:  # Returns are no measure: what one side gains the other loses.
        by = RATING

    behavior.selector = ModelSelector(
        trainer,
        episodes,
        BestModels(folder, run.status, keep=settings.keep_best, by=by, writes=run.folder.writes),
        run.status,
        by=by,
        rating=lambda: math.nan if self_play is None else self_play.elo,
        state=behavior.copied_state,
        snapshots=None if evaluations is None else Snapshots(evaluations, trainer, episodes, behavior.copied_state),
    )
    return behavior


def _begin(behavior: Behavior, order: RawImageOrder) -> None:
    """Restore a behavior if the settings ask for that, and start its statistics."""
    run, trainer = behavior.run, behavior.trainer
    _restore(behavior, order)
    behavior.learner.recorded.resume(behavior.episodes)
    behavior.first_gradient_step = trainer.algorithm.gradient_steps
    behavior._noted = (None, behavior._best_model)  # The best model of an earlier session is no event of this one.
    reporter = trainer.reporter
    if run.folder.resume:
        # A summary may be written before the trainer reaches the step of its label.
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


def _restore(behavior: Behavior, order: RawImageOrder) -> None:
    """Resume, initialize from the weights of another run, or start from scratch."""
    run, trainer, policy = behavior.run, behavior.trainer, behavior.learner.policy
    if run.folder.resume:
        loaded = behavior.checkpoints.resume()
        selector = behavior.selector
        if selector is not None:
            selector.best_models.restore()
        run.status.set_stopped(trainer.context.behavior, None)
        if loaded is not None:
            from_checkpoint(
                loaded.state, trainer, policy, str(loaded.path), behavior.self_play, selector, reset_step=False
            )
            if behavior.self_play is not None and not behavior.self_play.is_restored:
                behavior.self_play.begin_at(trainer.step, run.status.elo(behavior.name))
            _warn_about_misread_pictures(loaded.state, loaded.path, order)
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
        _warn_about_misread_pictures(state, path, order)
        logger.info("Starting training from step 0 and saving to %s.", behavior.checkpoints.folder.path)


@contextlib.contextmanager
def _blaming(behavior: str) -> Iterator[None]:
    """Name the behavior for which something does not fit, and explain an allocation that fails."""
    try:
        yield
    except (UnsupportedError, DemonstrationError) as error:
        raise type(error)(f"Behavior {behavior!r}: {error}") from error
    except (MemoryError, RuntimeError) as error:
        # On the CPU, torch has no exception class of its own for this.
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        raise OutOfMemoryError(
            f"There is not enough memory for the networks and the buffer of behavior {behavior!r} "
            f"({first_line(error)}). Reduce the size of its observations (above all of pictures), buffer_size, or "
            "hidden_units."
        ) from error


def _warn_about_misread_pictures(state: Mapping[str, Any], path: Path, order: RawImageOrder) -> None:
    if order is RawImageOrder.HWC and not is_ours(state):
        logger.warning(
            "The weights in %s were trained by ML-Agents, which reads the uncompressed pictures of this game's package "
            "in the wrong order (height, width, channels as channels, height, width). They have learned from scrambled "
            "pictures, and from now on see correct ones, as in the game. Expect lower rewards at first, or start from "
            "scratch. Pictures sent as PNG are not affected.",
            path,
        )
