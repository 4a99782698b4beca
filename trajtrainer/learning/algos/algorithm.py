"""The contract of learning algorithms.

Shape legend: B packed steps, S trajectories, V reward signals.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trajtrainer.core.columns import Columns
from trajtrainer.core.seeds import derived_seeds
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import FloatArray
from trajtrainer.core.timers import Timers
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.acting import ActorPolicy, Policy
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.mlagents import CheckpointLayout
from trajtrainer.learning.rewards.signal import RewardSignal
from trajtrainer.settings.trainer import TrainerSettings

if TYPE_CHECKING:
    from trajtrainer.experience.replay import Replay
    from trajtrainer.learning.algos.cloning import BehavioralCloning

T = TypeVar("T")

Statistics = dict[str, NDArray[np.floating]]
"""Tag -> any number of values. The trainer reports each value; a summary writes their mean."""


@dataclass(frozen=True, slots=True)
class LearningContext:
    """What an algorithm knows about the behavior that it learns.

    Attributes:
        behavior: name without team.
        spec: what its agents see and do.
        settings: of the behavior.
        obs_dtypes: per sensor, f32 or u8, as the environment sends observations.
        seed: of the run.
        device: of networks and updates.
        training: False to count episodes only (inference).
        timers: of the run.
        is_stopping: whether the run is about to end. It may become true at any time, and then stays true.
        expert: the policy to imitate, for trainers that have one.
        max_policy_lag: how many versions older than the newest policy the policy that acted may be. None where acting
            does not continue during an update, or updates do not use up experience.
        episode_limit: steps after which the environment ends an episode, if it says so.
        messages: returns the number of messages of all environments in this session.
        evaluation_interval: steps between two evaluations of the behavior; None without evaluations.
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
    expert: Policy | None = None
    max_policy_lag: int | None = None
    episode_limit: int | None = None
    messages: Callable[[], int] = lambda: 0
    evaluation_interval: int | None = None

    @property
    def has_teacher(self) -> bool:
        """Whether the expert gives distributions over actions, not just actions."""
        return isinstance(self.expert, ActorPolicy)

    @property
    def weights_seed(self) -> int:
        """Depends on the run's seed and the behavior's name only, not on the order in which behaviors appear."""
        return derived_seeds(self.seed, self.behavior)[0]

    @property
    def draws_seed(self) -> int:
        """Seeds all random numbers of learning, independently of the weights."""
        return derived_seeds(self.seed, self.behavior)[1]


class Algorithm(ABC):
    """Networks and optimizers of one behavior, and how they learn from experience. Users may subclass this.

    It knows nothing about queues, files or summaries. The trainer calls, always from one thread::

        networks = MyAlgorithm.make_networks(context)         # torch's generator has weights_seed here
        algorithm = MyAlgorithm(context, networks, signals)
        statistics = algorithm.add(packed, rewards)           # for everything that arrives until max_steps
        if algorithm.is_ready(step):
            statistics = algorithm.update(step, show_progress)

    Attributes:
        may_be_nan: tags of statistics that have no value for some behaviors. If any other statistic is not finite, the
            weights have diverged, and the run ends.
        holds_rows: how far acting may run ahead if it continues during updates (``threaded: true``, actors elsewhere).
            True: by ``max_lead`` rows that were not learned from; ``update`` frees them as it shows its progress.
            False: by rows that were not added yet, or by policy versions.
        needs_groups: whether ``add`` receives the groupmates of each step (``PackedSteps.groups``), and their rewards
            as the column ``groupmate_reward``.
        counts_group_rewards: whether it distinguishes a group's reward from an agent's own. If not, the trainer warns
            about group rewards.
        clones: whether ``update`` calls ``clone``. If not, ``behavioral_cloning`` is refused.
        context: of the behavior.
        networks: name in the checkpoint -> network. ``actor`` acts and is exported.
        signals: reward signals in the order of the value heads.
        gradient_steps: updates of the policy's weights so far, counted by ``update``.
        cloning: of demonstrations, if the settings ask for it.
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
        """Start with the networks of ``make_networks``, which are on ``context.device`` by now."""
        self.context = context
        self.networks = networks
        self.signals = signals
        self.gradient_steps = 0

    @classmethod
    @abstractmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        """Make the networks: name in the checkpoint -> network, one of them an ``Actor`` named ``actor``.

        Draw weights from torch's global generator, which the caller has seeded.

        Raises:
            UnsupportedError: no encoder fits a sensor, or the algorithm does not support the action space.
        """

    @staticmethod
    def max_lead(settings: TrainerSettings) -> int:
        """How many rows acting may be ahead of learning if it continues during updates."""
        return settings.buffer_size

    @property
    def actor(self) -> Actor:
        """The network that acts. It is being trained: read it only between two calls."""
        actor = self.networks["actor"]
        assert isinstance(actor, Actor)
        return actor

    def until_stop(self, steps: Iterable[T]) -> Iterator[T]:
        """Yield ``steps`` until the run is about to end, which is checked before each of them."""
        goes_on = iter(self.context.is_stopping, True)
        return (step for _, step in zip(goes_on, steps, strict=False))

    @property
    def drain_threshold(self) -> tuple[int, int]:
        """How many rows, or how many steps, should be waiting before the trainer drains them: large batches save time.

        Rows include the padding of sequences. 0: do not wait. This moves no other event to another step, because the
        trainer drains earlier when a summary, a checkpoint, an evaluation or the end is due.
        """
        return 1, 1

    def reserve(self, num_steps: int) -> Columns[NDArray[Any]] | None:  # noqa: ARG002
        """Reserve rows for the next ``num_steps`` steps, so that ``add`` need not copy them.

        Returns:
            Columns of that many rows. The trainer fills those that a ``PackedSteps`` has, and passes them on in the
            next call of ``add``. None if the steps may be written anywhere.
        """
        return None

    @abstractmethod
    def add(self, packed: PackedSteps, rewards: FloatArray) -> Statistics:
        """Add trajectories to learn from, in the order in which they ended, and update the normalizers.

        Args:
            packed: B steps of S trajectories.
            rewards: of each signal, times its strength, f32 [V, B].
        """

    @abstractmethod
    def is_ready(self, step: int) -> bool:
        """Whether there is enough for an update at trainer step ``step``."""

    def uses_spare_time(self, step: int) -> bool:  # noqa: ARG002
        """Whether another update at this step is useful while the environments compute; it should be a short one."""
        return False

    @abstractmethod
    def update(self, step: int, show_progress: Callable[[float], None]) -> Statistics:
        """Update the networks. If the run is about to end, return between two gradient steps.

        Args:
            step: of the trainer, for schedules.
            show_progress: may be called between two gradient steps, with the fraction of the update that is done,
                whenever the policy in its present state may act. A trainer in a thread of its own publishes it.
        """

    def clone(self, step: int) -> dict[str, float]:
        """Learn from demonstrations, if there are any, as part of an update. Returns statistics."""
        return {} if self.cloning is None else self.cloning.update(step, self.until_stop)

    def reset_worker(self, worker: int | None) -> None:  # noqa: B027
        """Drop the memory of unfinished episodes: one worker's, or all (None) aborted them."""

    @abstractmethod
    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        """Name in the checkpoint -> state of an optimizer. Tensors are not copied."""

    @abstractmethod
    def load_optimizer_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Restore what ``optimizer_states`` returned.

        Raises:
            KeyError: a state is missing.
            ValueError: a state does not fit.
        """

    def generators(self) -> dict[str, torch.Generator]:
        """Name in the checkpoint -> random generator, so that a resumed run draws the same numbers."""
        return {}

    def extra_state(self) -> dict[str, Any]:
        """Everything else that an identical continuation needs: plain data and tensors by names in the checkpoint."""
        return {}

    def load_extra_state(self, extra: Mapping[str, Any], step: int) -> None:  # noqa: B027
        """Restore what ``extra_state`` returned, at trainer step ``step`` of a resumed run.

        Any part of it may be missing: ML-Agents' checkpoints have none.

        Raises:
            CheckpointError: it belongs to other networks.
        """

    @property
    def saved_replay(self) -> Replay | None:
        """The experience to save with each checkpoint; None if there is none."""
        return None
