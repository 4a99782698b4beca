"""One behavior of a run: how it acts, how it learns, and its files."""

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
        evaluation: its newest evaluation in this session; None before the first.
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
    evaluation: Evaluation | None = field(default=None, init=False)
    first_gradient_step: int = field(default=0, init=False)
    _noted: BestModel | None = field(default=None, init=False)

    def begin_session(self) -> None:
        """Count from here what this session does. Called once the behavior has been restored."""
        self.first_gradient_step = self.trainer.algorithm.gradient_steps
        self._noted = self._best_model  # The best model of an earlier session is no event of this one.

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

    def note_best(self) -> None:
        """Queue a new best model for the user's hooks."""
        before, self._noted = self._noted, self._best_model
        if self._noted != before and self.best is not None:
            self.run.hooks.add(self.best)

    def is_finite(self) -> bool:
        """Whether all weights and statistics of the policy are finite, and so worth saving."""
        return all(bool(torch.isfinite(entry).all()) for entry in self.trainer.actor.state_dict().values())

    def progress(self) -> BehaviorProgress:
        """Its progress, for the live view."""
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
