"""One behavior of a run: its learner, trainer, checkpoints and results."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trajtrainer.learning.trainers.episodes import EpisodeRecord, MeanReturn
from trajtrainer.learning.trainers.trainer import BehaviorTrainer
from trajtrainer.policies.checkpoints.best import EVALUATION, MEASURES, TRAINING, BestModel
from trajtrainer.policies.checkpoints.manager import CheckpointManager
from trajtrainer.policies.checkpoints.state import copied, to_checkpoint
from trajtrainer.run.actors.link import Learner
from trajtrainer.run.coupling import TrainerThread
from trajtrainer.run.hooks import BestCheckpoint, Evaluation, SavedCheckpoint
from trajtrainer.run.logs import fields, shell_line
from trajtrainer.run.progress import BehaviorProgress
from trajtrainer.run.run import Run
from trajtrainer.run.selection import ModelSelector

if TYPE_CHECKING:
    from trajtrainer.learning.trainers.self_play import SelfPlay
    from trajtrainer.policies.checkpoints.replay_file import ReplayFile

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Behavior:
    """The objects of one behavior in a run.

    Attributes:
        run: the run that the behavior is part of.
        learner: the learner, with the interface for actors.
        trainer: the learner's trainer.
        episodes: statistics of the agents' episodes; empty if it learns from a data set.
        checkpoints: saves and loads checkpoints.
        replay: saves the replay buffer; None if the settings do not ask for it.
        self_play: assigns opponents to the learning team; None if all teams learn.
        selector: selects the best models, and ends training early; None without training.
        evaluation: newest evaluation in this session; None before the first.
        first_gradient_step: number of gradient steps in earlier sessions of a resumed run.
        thread: the trainer's own thread with ``threaded: true``; started by the first ``advance``.
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
    evaluation: Evaluation | None = field(default=None, init=False)
    first_gradient_step: int = field(default=0, init=False)
    _noted: BestModel | None = field(default=None, init=False)

    def begin_session(self) -> None:
        """Record the gradient steps and best model of earlier sessions. Called after restoring."""
        self.first_gradient_step = self.trainer.algorithm.gradient_steps
        self._noted = self._best_model  # no event for the best model of an earlier session

    @property
    def name(self) -> str:
        return self.trainer.context.behavior

    @property
    def recorded_step(self) -> int:
        """The step that the trainer will reach when it has processed all experience received so far."""
        return max(self.trainer.step, self.trainer.first_step + self.learner.recorded.num_steps)

    def advance(self) -> None:
        """Process experience and update, if this is due. If the trainer has its own thread, only check it for errors.

        Raises:
            BaseException: an exception of the trainer, in this thread or in its own.
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
        """Let the selector measure the current model. Called after the trainer has advanced."""
        if self.selector is not None:
            self.selector.observe()

    def finish(self) -> None:
        """Process the remaining experience. If the trainer has its own thread, that thread does it before it ends."""
        if self.thread is None:
            self.trainer.advance()
            self.observe()

    @property
    def learns_alone(self) -> bool:
        """True if the loop should call ``advance`` even without new experience. Always False with a trainer thread."""
        return self.thread is None and self.trainer.learns_alone and not self.is_done()

    def is_done(self) -> bool:
        """Return whether training is complete or, without training, whether enough episodes have ended."""
        if self.run.is_training:
            return self.trainer.has_enough
        episodes = self.run.settings.inference_episodes
        return episodes is not None and self.learner.recorded.num_episodes >= episodes

    def save_checkpoint(self) -> None:
        """Save a checkpoint, when the trainer asks for it. Failures are logged, and training continues."""
        trainer = self.trainer
        state = self._state()
        if self.checkpoints.save(trainer.step, self.episodes.reward_since_update, state, self._export):
            self._note_checkpoint(is_last=False)
        if self.selector is not None and self.selector.by != EVALUATION:  # evaluations have already written them
            self.selector.best_models.write()
        if self.replay is not None:
            # Last, because the checkpoint should not have to wait until the replay buffer has been written.
            self.replay.save()
        self.run.write_files()

    def save_final(self) -> None:
        """Save the last checkpoint of the run.

        Raises:
            CheckpointError: the checkpoint could not be written.
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
    def best(self) -> BestCheckpoint | None:
        """The best model so far, including earlier sessions of a resumed run."""
        best, folder = self._best_model, self.checkpoints.folder
        if best is None:
            return None
        path, onnx = folder.best_checkpoint.absolute(), folder.best_exported.absolute()
        return BestCheckpoint(self.name, best.steps, best.reward, best.by, best.measure, path, onnx)

    @property
    def _best_model(self) -> BestModel | None:
        return None if self.selector is None else self.selector.best_models.best

    def note_best(self) -> None:
        """Queue a new best model for the user's hooks."""
        before, self._noted = self._noted, self._best_model
        if self._noted != before and self.best is not None:
            self.run.hooks.add(self.best)

    def is_finite(self) -> bool:
        """Return whether all weights and normalizer statistics are finite, so that the policy can be saved."""
        return all(bool(torch.isfinite(entry).all()) for entry in self.trainer.actor.state_dict().values())

    def progress(self) -> BehaviorProgress:
        """Return the behavior's progress, for the live view."""
        trainer = self.trainer
        rewards = self.run.rewards.of(self.name)
        best, trains = self._best_model, trainer.should_still_train
        return BehaviorProgress(
            self.name,
            self.recorded_step,
            trainer.context.settings.max_steps,
            rewards,
            trains,
            done=self.run.is_training and not trains,
            evaluated=None if self.evaluation is None else self.evaluation.result.returns.mean,
            best=None if best is None else best.reward,
        )

    @property
    def can_continue(self) -> bool:
        """True if training is not complete and there is a checkpoint to continue from."""
        return self.trainer.should_still_train and self.checkpoints.folder.checkpoint.is_file()

    @property
    def mean_return(self) -> MeanReturn | None:
        """The mean return in the newest summary; without training, the mean return of all episodes."""
        return self.episodes.newest if self.run.is_training else self.episodes.so_far

    def log_result(self) -> None:
        """Log the result and the paths of its files."""
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
        """Return the content of a checkpoint, and record its rating and mean return in the status."""
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
        """Return a copy of what a checkpoint would contain now. Called while the trainer is not advancing."""
        return copied(self._state(step))

    def _export(self, path: Path) -> None:
        # Lazy import: slow, and not needed before the first checkpoint.
        from trajtrainer.policies.onnx.export import export_policy

        actor = self.trainer.actor
        export_policy(actor, actor.spec, path, synced=False)
