"""What all trainers have in common: trajectories in, statistics, summaries, checkpoints and policies out.

Letters: V reward signals, B packed steps, S trajectories.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trajtrainer.columns import Columns
from trajtrainer.data.rows import RowPool
from trajtrainer.data.trajectory import PackedSteps, TrajectoryBatch, gather, release
from trajtrainer.errors import CheckpointError
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.init import derived_seeds
from trajtrainer.queues import EpisodesAborted, PolicyQueue, PolicyUpdate, TrajectoryQueue
from trajtrainer.rewards.extrinsic import ExtrinsicReward
from trajtrainer.rewards.signal import RewardSignal
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.spec import BehaviorSpec
from trajtrainer.stats import StatsReporter
from trajtrainer.steps import FloatArray
from trajtrainer.timers import Timers
from trajtrainer.trainers.boundaries import boundaries
from trajtrainer.trainers.episodes import EpisodeRecord
from trajtrainer.trainers.snapshots import PolicyWeights

logger = logging.getLogger(__name__)

T = TypeVar("T")


class RLTrainer(ABC):
    """Learns one behaviour from the trajectories of its queue.

    ``advance`` may be called from another thread than the one that acts; nothing else writes here. Attributes that the
    acting side reads (``step``, ``reward_buffer``, ...) are replaced or appended to, never left half-written.

    Attributes:
        behavior: name without team.
        spec: what its agents see and do.
        settings: of this behaviour.
        pool: where trajectories' rows stand.
        trajectories: what comes in.
        policies: what goes out.
        actor: the network to export. Being trained: read it only between two ``advance``.
        signals: reward signals in the order of the value heads.
        step: agent steps counted so far.
    """

    actor: Actor
    signals: list[RewardSignal]

    def __init__(
        self,
        behavior: str,
        spec: BehaviorSpec,
        settings: TrainerSettings,
        *,
        pool: RowPool,
        trajectories: TrajectoryQueue[TrajectoryBatch],
        policies: PolicyQueue[Tensor],
        reporter: StatsReporter,
        timers: Timers,
        seed: int,
        device: torch.device,
        training: bool,
        checkpoint: Callable[[RLTrainer], None],
        is_stopping: Callable[[], bool],
    ) -> None:
        """Builds the networks and begins at step 0.

        Args:
            behavior: name without team.
            spec: what its agents see and do.
            settings: of this behaviour.
            pool: where trajectories' rows stand.
            trajectories: queue to learn from.
            policies: queue for the acting side's policies.
            reporter: of this behaviour's statistics.
            timers: of the run.
            seed: of the run. Weights and shuffling depend on it and on ``behavior`` only, not on the order in which
                behaviours appear.
            device: of networks and update.
            training: False to count episodes only (inference).
            checkpoint: called with the trainer whenever ``checkpoint_interval`` steps have passed.
            is_stopping: whether the run shall end soon. Asked before every gradient step, for an update may take
                minutes. May become true at any time, and stays so.

        Raises:
            UnsupportedError: a sensor, reward signal or action space that is not built.
        """
        self.behavior = behavior
        self.spec = spec
        self.settings = settings
        self.pool = pool
        self.trajectories = trajectories
        self.policies = policies
        self.step = 0
        self._reporter = reporter
        self._timers = timers
        self._device = device
        self._training = training
        self._checkpoint = checkpoint
        self._is_stopping = is_stopping
        self._first_step = 0
        self._version = 0
        self._summarized = 0
        self._episodes = EpisodeRecord(reporter)
        self._group_rewards_seen = False
        self._build(derived_seeds(seed, behavior))
        self._policy_weights = PolicyWeights(self.actor)

    @staticmethod
    def max_lead(settings: TrainerSettings) -> int:
        """How many steps acting may be ahead of learning, when the trainer has a thread of its own."""
        return settings.hyperparameters.buffer_size

    @abstractmethod
    def _build(self, seeds: Sequence[int]) -> None:
        """Makes ``actor``, ``signals`` and what else the algorithm needs. ``seeds`` are two: weights, and all else."""

    @abstractmethod
    def _learn_from(self, packed: PackedSteps, rewards: FloatArray) -> bool:
        """Takes trajectories that count for training, with the rewards [V, B] times strength.

        Returns:
            Whether weights that the acting side uses (normalisers) have changed.
        """

    def _room(self, num_steps: int) -> Columns[NDArray[Any]] | None:  # noqa: ARG002
        """Where the algorithm would have the columns of the next steps; None for anywhere."""
        return None

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether there is enough for an update."""

    @abstractmethod
    def _update(self) -> None:
        """Updates the networks and reports statistics. Ends between two gradient steps when the run shall end."""

    @abstractmethod
    def _modules(self) -> dict[str, nn.Module]:
        """The networks of the algorithm, ``actor`` among them, by the names of ``checkpoint_state``."""

    @abstractmethod
    def _optimizer_states(self) -> dict[str, dict[str, Any]]:
        """Name -> state of each optimizer of these."""

    @abstractmethod
    def _load_optimizers(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Takes what ``_optimizer_states`` gave.

        Raises:
            KeyError: one is missing.
            ValueError: one does not fit.
        """

    @abstractmethod
    def _rng_states(self) -> dict[str, Tensor]:
        """Name -> state of each random generator."""

    @abstractmethod
    def _load_rng(self, states: Mapping[str, Tensor]) -> None:
        """Takes what ``_rng_states`` gave; generators without an entry go on as they are."""

    @property
    def should_still_train(self) -> bool:
        return self._training and self.step <= self.settings.max_steps

    @property
    def is_finished(self) -> bool:
        """Training, and past ``max_steps``."""
        return self._training and self.step > self.settings.max_steps

    @property
    def has_enough(self) -> bool:
        """Training, and past ``max_steps`` with what waits in the queue or is just being taken in."""
        return self._training and self._first_step + self.trajectories.num_put > self.settings.max_steps

    @property
    def progress(self) -> float:
        """Share of ``max_steps`` that is done, at most 1."""
        return min(1.0, self.step / self.settings.max_steps)

    @property
    def summarized_step(self) -> int:
        """The last step that the summaries written so far tell of: a summary is written ahead of the steps that reach
        its label."""
        return max(self.step, self._summarized)

    @property
    def reward_buffer(self) -> deque[float]:
        """Rewards of the newest episodes, oldest first."""
        return self._episodes.reward_buffer

    @property
    def recent_rewards(self) -> Sequence[float]:
        """Rewards of up to 100 newest episodes of this process, oldest first; no lesson change clears them."""
        return self._episodes.recent

    @property
    def num_episodes(self) -> int:
        """How many episodes have ended in this process."""
        return self._episodes.num_episodes

    @property
    def best_reward(self) -> float | None:
        """Highest mean of ``reward_buffer`` at a summary; None before the first episode."""
        return self._episodes.best_reward

    @property
    def checkpoint_reward(self) -> float | None:
        """Mean reward of the episodes since the last policy update; None without any."""
        returns = self._episodes.returns_since_update
        return float(np.mean(returns)) if returns else None

    def set_reward_buffer_size(self, size: int) -> None:
        """How many episodes ``reward_buffer`` keeps (curricula ask for it)."""
        self._episodes.reward_buffer = deque(self.reward_buffer, maxlen=size)

    def is_due(self) -> bool:
        """Whether ``advance`` has something to do that should not wait for more trajectories.

        Who calls ``advance`` only then must call it once more at the end.
        """
        return True

    def _comes_to_boundary(self, num_steps: int) -> bool:
        """Whether so many more steps lead to a summary, a checkpoint or the end, or the queue's content is needed."""
        settings, after = self.settings, self.step + num_steps
        intervals = (settings.summary_freq, settings.checkpoint_interval)
        passed = any(self.step // interval != after // interval for interval in intervals)
        return passed or after > settings.max_steps or self.trajectories.is_needed

    def advance(self) -> bool:
        """Takes all there is in the queue, then updates and publishes a policy if one is due. Does not wait.

        No update begins, and one that is under way ends early, when the run shall end.

        Returns:
            Whether there was anything to do.
        """
        trained_before = self.should_still_train
        items = self.trajectories.drain()
        changed = False
        if items:
            with self._timers("process_trajectory"):
                changed = self._process(items)
        # In a thread of its own a trainer may find thousands of steps, of which only the last pass max_steps.
        may_update = trained_before if self.settings.threaded else self.should_still_train
        updated = may_update and not self._is_stopping() and self._is_ready()
        if updated:
            with self._timers("_update_policy"):
                self._update()
            self._version += 1
            self._episodes.returns_since_update.clear()
            self.policies.put(self.policy_update())
        elif changed:
            weights = self._policy_weights.of_normalizers()
            self.policies.put(PolicyUpdate(self._version, weights, partial=True))
        return bool(items) or updated

    def _until_stop(self, steps: Iterable[T]) -> Iterator[T]:
        """One after the other, until the run shall end."""
        return takewhile(lambda _: not self._is_stopping(), steps)

    def policy_update(self) -> PolicyUpdate[Tensor]:
        """The acting side's weights as they are now (a copy)."""
        return PolicyUpdate(self._version, self._policy_weights.all())

    def _process(self, items: Sequence[TrajectoryBatch | EpisodesAborted]) -> bool:
        """Takes a drain in, in its order. Returns whether weights that the acting side uses have changed."""
        changed = False
        for part in self._copy_out(items):
            if isinstance(part, EpisodesAborted):
                self._forget(part.worker)
            else:
                changed |= self._count_by_boundaries(part)
        return changed

    def _copy_out(self, items: Sequence[TrajectoryBatch | EpisodesAborted]) -> list[PackedSteps | EpisodesAborted]:
        """Copies trajectories out of the pool, those between two aborts together, and gives their rows back."""
        parts: list[PackedSteps | EpisodesAborted] = []
        batches: list[TrajectoryBatch] = []
        room = self._room(sum(item.num_steps for item in items if isinstance(item, TrajectoryBatch)))
        end = 0
        for is_batch, group in groupby(items, lambda item: isinstance(item, TrajectoryBatch)):
            if is_batch:
                found = [item for item in group if isinstance(item, TrajectoryBatch)]
                start, end = end, end + sum(batch.num_steps for batch in found)
                parts.append(gather(self.pool, found, None if room is None else room.slice(start, end)))
                batches += found
            else:
                parts += [item for item in group if isinstance(item, EpisodesAborted)]
        if batches:
            self._give_back(batches)
        return parts

    def _count_by_boundaries(self, packed: PackedSteps) -> bool:
        changed = False
        start = 0
        settings = self.settings
        for boundary in boundaries(self.step, packed.lengths, settings.summary_freq, settings.checkpoint_interval):
            if boundary.trajectory > start:
                changed |= self._count(packed.trajectories(start, boundary.trajectory))
            start = boundary.trajectory
            # The run may have been killed between its summary and the steps that reach its label.
            if boundary.summary is not None and boundary.summary > self._summarized:
                self._write_summary(boundary.summary)
            # Once finished the weights stay as they are, and copies would push older checkpoints out.
            if boundary.checkpoint and self.should_still_train:
                with self._timers("RLTrainer._checkpoint"):
                    self._checkpoint(self)
        return self._count(packed.trajectories(start, packed.num_trajectories) if start else packed) or changed

    def _give_back(self, batches: Sequence[TrajectoryBatch]) -> None:
        """Returns the rows of a drain, which were copied, to the pool."""
        release(self.pool, batches)

    def _count(self, packed: PackedSteps) -> bool:
        """Counts trajectories between two boundaries and hands those up to ``max_steps`` to the algorithm."""
        ends = self.step + packed.offset[1:].astype(np.int64)
        self.step = int(ends[-1])
        self._reporter.set("Step", float(self.step))
        self._warn_of_group_rewards(packed)
        # Networks of reward signals are not for evaluation alone: without training only the environment's counts.
        signals = [s for s in self.signals if self._training or isinstance(s, ExtrinsicReward)]
        rewards = np.empty((len(signals), len(packed)), np.float32)
        for row, signal in zip(rewards, signals, strict=True):
            np.multiply(signal.evaluate(packed), np.float32(signal.strength), out=row)
        self._episodes.add(packed, [signal.title for signal in signals], rewards)
        if not self._training:
            return False
        kept = int(np.searchsorted(ends, self.settings.max_steps, side="right"))
        if not kept:
            return False
        if kept < packed.num_trajectories:
            packed = packed.trajectories(0, kept)
        return self._learn_from(packed, rewards[:, : len(packed)])

    def _warn_of_group_rewards(self, packed: PackedSteps) -> None:
        if not self._group_rewards_seen and packed["group_reward"].any():
            self._group_rewards_seen = True
            logger.warning(
                "Behavior %r receives group rewards, which %s counts as each agent's own. The trainer 'poca' is made "
                "for groups.",
                self.behavior,
                self.settings.trainer_type,
            )

    def _write_summary(self, step: int) -> None:
        self._summarized = step
        self._episodes.note_best()
        self._reporter.set("Is Training", float(self.should_still_train))
        self._reporter.write(step)

    def _forget(self, worker: int | None) -> None:
        self._episodes.forget(worker)

    def checkpoint_state(self) -> dict[str, Any]:
        """All that an identical continuation needs besides the environment, as ``export.checkpoint_interop`` says.

        ``extra`` holds what ML-Agents forgets. When the next summary and checkpoint are due follows from the step, and
        from the summary that was written ahead of it. The update buffer and unfinished episodes are left out, since the
        environment starts anew. Tensors are not copied: save them before the next ``advance``.
        """
        return {
            "step": self.step,
            "modules": {name: module.state_dict() for name, module in self._modules().items()},
            "optimizers": self._optimizer_states(),
            "rewards": {name: module.state_dict() for name, module in self._reward_modules().items()},
            "extra": {
                "version": self._version,
                "summarized": self._summarized,
                "rng": self._rng_states(),
                "reward_optimizers": {
                    signal.name: state for signal in self.signals if (state := signal.optimizer_state()) is not None
                },
                "episodes": self._episodes.state(),
            },
        }

    def restore(self, state: Mapping[str, Any], *, reset_step: bool) -> None:
        """Takes what ``checkpoint_state`` gave, or the part of it that another program's checkpoint holds, and
        publishes the policy.

        Args:
            state: as of ``checkpoint_state``; ``rewards``, ``extra`` and what it holds may be absent.
            reset_step: begin a new run with these networks and optimizers: the step, counters and random numbers start
                anew. Otherwise the run goes on where it was.

        Raises:
            CheckpointError: the state is not of networks like these. They may be loaded in part then.
        """
        extra = state.get("extra", {})
        reward_states = state.get("rewards", {})
        rewards = {name: module for name, module in self._reward_modules().items() if name in reward_states}
        try:
            for name, module in self._modules().items():
                module.load_state_dict(state["modules"][name])
            for name, module in rewards.items():
                module.load_state_dict(reward_states[name])
            self._load_optimizers(state["optimizers"])
            for signal in self.signals:
                if signal.name in extra.get("reward_optimizers", {}):
                    signal.load_optimizer_state(extra["reward_optimizers"][signal.name])
        except (KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"Behavior {self.behavior!r}: the checkpoint is not of these networks. Use the network_settings, "
                f"reward_signals and trainer_type it was saved with. ({error})"
            ) from error
        if not reset_step:
            self.step = self._first_step = int(state["step"])
            self._version = int(extra.get("version", 0))
            self._summarized = int(extra.get("summarized", 0))
            self._load_rng(extra.get("rng", {}))
            self._episodes.restore(extra.get("episodes", {}))
        self.policies.put(self.policy_update())

    def _reward_modules(self) -> dict[str, nn.Module]:
        return {name: module for signal in self.signals for name, module in signal.modules().items()}
