"""The contract of learning algorithms.

Shape legend: B packed steps, S trajectories, V reward signals.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trajtrainer.algos.acting import Acts, Policy
from trajtrainer.algos.cloning import BehavioralCloning
from trajtrainer.core.columns import Columns
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import FloatArray
from trajtrainer.core.timers import Timers
from trajtrainer.data.replay import Replay
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.init import derived_seeds
from trajtrainer.nn.mlagents import CheckpointLayout
from trajtrainer.rewards.signal import RewardSignal
from trajtrainer.settings.trainer import TrainerSettings

T = TypeVar("T")

Statistics = dict[str, NDArray[np.floating]]
"""Tag -> values, any number of them. The trainer reports each value; a summary writes their mean."""


@dataclass(frozen=True, slots=True)
class LearningContext:
    """The context of everything that learns one behavior.

    Attributes:
        behavior: name without team.
        spec: what its agents see and do.
        settings: of the behavior.
        obs_dtypes: per sensor, f32 or u8, as the environment gives observations.
        seed: of the run.
        device: of networks and update.
        training: False to count episodes only (inference).
        timers: of the run.
        is_stopping: whether the run shall end soon. May become true at any time, and stays so.
        expert: to be imitated, where the trainer asks one.
        max_policy_lag: policies by which experience that is learned from may be older than the newest one, where
            updates use experience up while acting goes on elsewhere; None otherwise.
        episode_limit: steps after which the environment ends an episode, where it says so.
    """

    behavior: str
    spec: BehaviorSpec
    settings: TrainerSettings
    obs_dtypes: Sequence[np.dtype[Any]]
    seed: int
    device: torch.device
    training: bool
    timers: Timers
    is_stopping: Callable[[], bool]
    expert: Acts | None = None
    max_policy_lag: int | None = None
    episode_limit: int | None = None

    @property
    def has_teacher(self) -> bool:
        """Whether the expert tells its distribution over actions."""
        return isinstance(self.expert, Policy)

    @property
    def weights_seed(self) -> int:
        """The seed of the networks' first weights.

        It depends on the run's seed and the behavior's name only, not on the order in which behaviors appear.
        """
        return derived_seeds(self.seed, self.behavior)[0]

    @property
    def draws_seed(self) -> int:
        """The seed of everything that is drawn while learning; see ``weights_seed``."""
        return derived_seeds(self.seed, self.behavior)[1]


class Algorithm(ABC):
    """Networks and optimizers of one behavior, and how they learn from experience. Users may subclass this.

    Knows nothing of queues, files or summaries. The trainer calls, always from one thread::

        networks = MyAlgorithm.make_networks(context)         # in the state that the weights' seed gives
        algorithm = MyAlgorithm(context, networks, signals)
        statistics = algorithm.add(packed, rewards)           # for what arrives until max_steps
        if algorithm.is_ready(step):
            statistics = algorithm.update(step, show_progress)

    Attributes:
        may_be_nan: tags of statistics that have no value for some behaviors. Any other one that is not a finite number
            tells that the weights have diverged, and ends the run.
        holds_rows: whether acting, where it goes on meanwhile (``threaded: true``, actors elsewhere), may be ahead by
            rows that were not learned from (see ``max_lead``), which ``update`` frees as it shows its progress.
            Otherwise it may be ahead by rows that were not taken in, or by policy versions.
        needs_groups: whether ``add`` is given the groupmates of each step (``PackedSteps.groups``), and their rewards
            as the column ``groupmate_reward``.
        counts_group_rewards: whether it tells a group's reward from an agent's own. Otherwise the trainer warns of it.
        clones: whether ``update`` calls ``clone``. Otherwise ``behavioral_cloning`` is refused.
        context: of the behavior.
        networks: name -> network, by the names of the checkpoint; ``actor`` is the one that acts and is exported.
        signals: reward signals in the order of the value heads.
        gradient_steps: updates of the policy's weights so far, which ``update`` counts.
        cloning: of demonstrations, where the settings ask for it.
        checkpoint_layout: where ML-Agents keeps the networks and optimizers, if it knows them.
    """

    may_be_nan: ClassVar[frozenset[str]] = frozenset()
    holds_rows: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = False
    counts_group_rewards: ClassVar[bool] = False
    clones: ClassVar[bool] = False
    cloning: BehavioralCloning | None = None
    checkpoint_layout: CheckpointLayout = CheckpointLayout()

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        """Take the networks and signals as they are, on their device.

        Args:
            context: of the behavior.
            networks: as ``make_networks`` returned them.
            signals: in the order of the settings.
        """
        self.context = context
        self.networks = networks
        self.signals = signals
        self.gradient_steps = 0

    @classmethod
    @abstractmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        """The networks by their names in the checkpoint, ``actor`` (an ``Actor``) among them.

        Weights are drawn from torch's global generator, which is seeded for it.

        Raises:
            UnsupportedError: a sensor that no encoder takes, or an action space that is not built.
        """

    @staticmethod
    def max_lead(settings: TrainerSettings) -> int:
        """How many rows acting may be ahead of learning, where it goes on meanwhile."""
        return settings.buffer_size

    @property
    def actor(self) -> Actor:
        """The network that acts. Being trained: read it only between two calls."""
        actor = self.networks["actor"]
        assert isinstance(actor, Actor)
        return actor

    def until_stop(self, steps: Iterable[T]) -> Iterator[T]:
        """Yield one after the other, until the run shall end."""
        return takewhile(lambda _: not self.context.is_stopping(), steps)

    @property
    def drain_threshold(self) -> tuple[int, int]:
        """How many rows, or steps, should be waiting before the trainer drains them: larger batches save time.

        Rows are those of whole sequences. 0 means that there is nothing to wait for. Nothing else happens at a
        different step because of this: the trainer drains earlier where a summary, a checkpoint or the end is due.
        """
        return 1, 1

    def reserve(self, num_steps: int) -> Columns[NDArray[Any]] | None:  # noqa: ARG002
        """Where the next ``num_steps`` steps should be written, which saves ``add`` a copy.

        Returns:
            Columns of so many rows; those that a ``PackedSteps`` has, too, are filled and are part of the next ones
            that ``add`` is given. None for anywhere.
        """
        return None

    @abstractmethod
    def add(self, packed: PackedSteps, rewards: FloatArray) -> Statistics:
        """Add trajectories to learn from, in the order in which they ended, and update normalizers by them.

        Args:
            packed: B steps of S trajectories.
            rewards: of each signal, times its strength, f32 [V, B].

        Returns:
            What is to be reported of them.
        """

    @abstractmethod
    def is_ready(self, step: int) -> bool:
        """Whether there is enough for an update at trainer step ``step``."""

    @abstractmethod
    def update(self, step: int, show_progress: Callable[[float], None]) -> Statistics:
        """Update the networks. Ends between two gradient steps when the run shall end.

        Args:
            step: of the trainer, for schedules.
            show_progress: may be called between two gradient steps, with the part of the update that is done (0 to 1),
                whenever the policy as it is then may act. In a thread of its own the trainer publishes it.

        Returns:
            What is to be reported of the update.
        """

    def clone(self, step: int) -> dict[str, float]:
        """Learn from demonstrations beside an update at trainer step ``step``, if there are any. Return statistics."""
        return {} if self.cloning is None else self.cloning.update(step, self.context.is_stopping)

    def reset_worker(self, worker: int | None) -> None:  # noqa: B027
        """Drop what was remembered of unfinished episodes, which were aborted: those of one worker, or all (None)."""

    @abstractmethod
    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        """The state of each optimizer by its name in the checkpoint. Tensors are not copied."""

    @abstractmethod
    def load_optimizer_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Take what ``optimizer_states`` gave.

        Raises:
            KeyError: one is missing.
            ValueError: one does not fit.
        """

    def generators(self) -> dict[str, torch.Generator]:
        """The random generators by their names in the checkpoint, for a resumed run to go on with."""
        return {}

    def extra_state(self) -> dict[str, Any]:
        """What else an identical continuation needs: plain data and tensors, by names in the checkpoint."""
        return {}

    def load_extra_state(self, extra: Mapping[str, Any], step: int) -> None:  # noqa: B027
        """Take what ``extra_state`` gave, at trainer step ``step`` of a resumed run.

        Args:
            extra: nothing of it may be there: ML-Agents' checkpoints have none.
            step: of the trainer.

        Raises:
            CheckpointError: it is of other networks.
        """

    @property
    def saved_replay(self) -> Replay | None:
        """The experience that is to be saved beside the checkpoints; None without any."""
        return None
