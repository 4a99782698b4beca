"""Everything that a run has once per behaviour: columns, queues, trainer, acting policy, checkpoints."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trajtrainer.algos.acting import Policy
from trajtrainer.algos.algorithm import LearningContext
from trajtrainer.curriculum import Curriculum
from trajtrainer.data.agent_processor import AgentProcessor
from trajtrainer.data.rows import RowPool
from trajtrainer.data.source import LocalSource
from trajtrainer.data.trajectory import TrajectoryBatch
from trajtrainer.errors import CheckpointError, OutOfMemoryError
from trajtrainer.export.checkpoint_file import first_line, read_checkpoint
from trajtrainer.nn.init import derived_seeds
from trajtrainer.queues import PolicyQueue, TrajectoryQueue
from trajtrainer.runtime.checkpoint_state import from_checkpoint, is_ours, to_checkpoint
from trajtrainer.runtime.checkpoints import CheckpointManager
from trajtrainer.runtime.collector import ActingBehavior
from trajtrainer.runtime.replay_files import ReplayFiles, load_replay
from trajtrainer.runtime.rundir import RunFolder
from trajtrainer.runtime.status import TrainingStatus
from trajtrainer.runtime.throughput import Throughput
from trajtrainer.runtime.writers import hyperparameters_text
from trajtrainer.settings.convert import trainer_mapping
from trajtrainer.settings.run import RunSettings
from trajtrainer.spec import BehaviorId, BehaviorSpec
from trajtrainer.stats import StatsReporter, StatsWriter
from trajtrainer.steps import StepBatch
from trajtrainer.timers import Timers
from trajtrainer.trainers.factory import create_trainer, max_lead
from trajtrainer.trainers.trainer import Trainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Behavior:
    """One behaviour's learning side."""

    trainer: Trainer
    policy: Policy
    checkpoints: CheckpointManager


@dataclass(slots=True)
class Behaviors:
    """Makes the parts of each behaviour when it first appears, and saves them.

    Attributes:
        settings: of the run, its seed settled.
        folder: of the run.
        status: the run's status file.
        writers: of statistics.
        timers: of the run.
        curriculum: tells how many episodes each behaviour's reward buffer needs.
        device: of the networks.
        on_checkpoint: called after every checkpoint, from the thread of the trainer that wrote it.
        is_stopping: whether the run shall end soon, for its trainers.
        known: name -> behaviour, in order of appearance.
        trainers: their trainers.
        replays: the files with their experience.
    """

    settings: RunSettings
    folder: RunFolder
    status: TrainingStatus
    writers: Sequence[StatsWriter]
    timers: Timers
    curriculum: Curriculum
    device: torch.device
    on_checkpoint: Callable[[], None]
    is_stopping: Callable[[], bool]
    known: dict[str, Behavior] = field(default_factory=dict)
    trainers: dict[str, Trainer] = field(default_factory=dict)
    replays: ReplayFiles = field(default_factory=ReplayFiles)

    def make(
        self, behavior_id: BehaviorId, spec: BehaviorSpec, first: StepBatch, *, misread_elsewhere: bool = False
    ) -> ActingBehavior:
        """All parts of a behaviour that appears, restored from a checkpoint where the settings ask for it.

        Args:
            behavior_id: of the behaviour.
            spec: what its agents see and do.
            first: agents of it, which show the types of their observations.
            misread_elsewhere: ML-Agents reads its uncompressed pictures in the wrong order.

        Raises:
            SettingsError: the configuration does not cover it.
            UnsupportedError: its sensors or actions fit no network.
            CheckpointError: its checkpoint cannot be used.
            OutOfMemoryError: there is no memory for its networks or its buffer.
        """
        name = behavior_id.name
        settings = self.settings.for_behavior(name)
        training = not self.settings.checkpoint_settings.inference
        files = self.folder.behavior(name)
        reporter = StatsReporter(name, self.writers)
        memory = settings.network_settings.memory
        trajectories: TrajectoryQueue[TrajectoryBatch] = TrajectoryQueue()
        pool = RowPool(
            spec,
            [obs.dtype for obs in first.obs],
            memory_size=0 if memory is None else memory.memory_size,
            limit=max_lead(settings) if settings.threaded else None,
            on_wait=trajectories.hurry,
        )
        policies: PolicyQueue[Tensor] = PolicyQueue()
        seed = self.settings.env_settings.seed
        with _told_if_too_large(name):
            context = LearningContext(
                behavior=name,
                spec=spec,
                settings=settings,
                obs_dtypes=[obs.dtype for obs in first.obs],
                seed=seed,
                device=self.device,
                training=training,
                timers=self.timers,
                is_stopping=self.is_stopping,
            )
            source = LocalSource(pool, trajectories)
            trainer = create_trainer(context, source, policies, reporter, self._checkpoint)
        trainer.episodes.set_reward_buffer_size(self.curriculum.reward_buffer_length(name))
        policy = Policy(
            trainer.actor,
            seed=derived_seeds(seed, f"{name} acting")[0],
            deterministic=settings.network_settings.deterministic,
            device=self.device,
        )
        manager = CheckpointManager(files, self.status, settings.keep_checkpoints, writes=self.folder.writes)
        self.known[name] = Behavior(trainer, policy, manager)
        self._restore(self.known[name], misread_elsewhere=misread_elsewhere)
        if self.folder.resume:
            reporter.resume(trainer.clock.summarized_step)
        self.trainers[name] = trainer
        reporter.add_hyperparameters(hyperparameters_text(trainer_mapping(settings)))
        reporter.add_source(Throughput({"Perf/Agent Steps per Second": lambda: trainer.step}))
        return ActingBehavior(
            spec=spec,
            pool=pool,
            processor=AgentProcessor(pool, settings.time_horizon),
            policy=policy,
            trajectories=trajectories,
            policies=policies,
            reporter=reporter,
        )

    def save_all(self) -> None:
        """The last checkpoint of every behaviour. One whose weights are not numbers any more keeps its older ones.

        Raises:
            CheckpointError: one or more could not be written; all others were.
        """
        failures = []
        for behavior in self.known.values():
            trainer = behavior.trainer
            if not _is_finite(trainer):
                logger.error("The weights of behavior %r are not finite and are not saved.", trainer.context.behavior)
                continue
            try:
                with self.timers("RLTrainer._checkpoint"):
                    state = to_checkpoint(trainer, behavior.policy)
                    behavior.checkpoints.save_final(
                        trainer.step, trainer.episodes.reward_since_update, state, _exporter(trainer)
                    )
            except CheckpointError as failure:
                failures.append(str(failure))
            if self.folder.writes:
                self.replays.save(trainer, behavior.checkpoints.folder.path)
        self.replays.finish()
        if failures:
            raise CheckpointError("\n".join(failures))

    def _checkpoint(self, trainer: Trainer) -> None:
        behavior = self.known[trainer.context.behavior]
        state = to_checkpoint(trainer, behavior.policy)
        behavior.checkpoints.save(trainer.step, trainer.episodes.reward_since_update, state, _exporter(trainer))
        if self.folder.writes:
            # Behind the checkpoint, whose way to the disk would otherwise be behind all of this.
            self.replays.save(trainer, behavior.checkpoints.folder.path)
        self.on_checkpoint()

    def _restore(self, behavior: Behavior, *, misread_elsewhere: bool) -> None:
        """Resumes, or takes another run's weights, or begins from scratch."""
        trainer = behavior.trainer
        name = trainer.context.behavior
        if self.folder.resume:
            loaded = behavior.checkpoints.resume()
            if loaded is not None:
                from_checkpoint(loaded.state, trainer, behavior.policy, str(loaded.path), reset_step=False)
                _warn_of_misread_pictures(loaded.state, loaded.path, misread_elsewhere=misread_elsewhere)
                logger.info("Resuming training from step %d.", trainer.step)
                if self.folder.writes:
                    load_replay(trainer, behavior.checkpoints.folder.path)
            return
        listed = name in self.settings.behaviors
        path = self.folder.initial_weights(name, trainer.context.settings.init_path, listed=listed)
        if path is not None:
            logger.info("Initializing from %s.", path)
            state = read_checkpoint(path)
            from_checkpoint(state, trainer, behavior.policy, str(path), reset_step=True)
            _warn_of_misread_pictures(state, path, misread_elsewhere=misread_elsewhere)
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


def _warn_of_misread_pictures(state: Mapping[str, Any], path: Path, *, misread_elsewhere: bool) -> None:
    if misread_elsewhere and not is_ours(state):
        logger.warning(
            "The weights of %s are of ML-Agents, which reads the uncompressed pictures of this player's package in the "
            "wrong order (height, width, channels as channels, height, width). They have learnt from scrambled "
            "pictures and see the right ones from now on, as in the game: expect lower rewards at first, or start "
            "afresh. Pictures sent as PNG are not affected.",
            path,
        )


def _is_finite(trainer: Trainer) -> bool:
    return all(bool(torch.isfinite(weights).all()) for weights in trainer.actor.parameters())


def _exporter(trainer: Trainer) -> Callable[[Path], None]:
    def export(path: Path) -> None:
        # Late: it takes long to import and is needed at the first checkpoint.
        from trajtrainer.export.onnx import export_policy

        export_policy(trainer.actor, trainer.context.spec, path)

    return export
