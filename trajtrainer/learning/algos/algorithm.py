"""The interface of learning algorithms.

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
"""Maps tags to any number of values. The trainer reports each value, and a summary contains their mean."""


@dataclass(frozen=True, slots=True)
class LearningContext:
    """The behavior to learn, and the information about the run that an algorithm needs.

    Attributes:
        behavior: name of the behavior, without the team.
        spec: the agents' observations and actions.
        settings: the behavior's settings.
        obs_dtypes: dtype of each sensor's observations as the environment sends them, f32 or u8.
        seed: seed of the run.
        device: device of the networks and the updates.
        training: False for inference, which only counts episodes.
        timers: timers of the run.
        is_stopping: returns True if the run is about to end. Once True, it never becomes False again.
        expert: the policy to imitate, for trainers that need one.
        max_policy_lag: how many versions the acting policy may be behind the newest one. None if acting pauses during
            updates, or if updates do not consume experience.
        episode_limit: number of steps after which the environment ends an episode, if the environment reports it.
        messages: returns the number of messages that all environments have sent in this session.
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
        """True if the expert provides distributions over actions, not just actions."""
        return isinstance(self.expert, ActorPolicy)

    @property
    def weights_seed(self) -> int:
        """The seed of the weights. It depends on the run's seed and the behavior's name, not on other behaviors."""
        return derived_seeds(self.seed, self.behavior)[0]

    @property
    def draws_seed(self) -> int:
        """The seed of all other random numbers used in learning."""
        return derived_seeds(self.seed, self.behavior)[1]


class Algorithm(ABC):
    """The networks and optimizers of one behavior, and how they learn from experience. Users may subclass this.

    An algorithm does not deal with queues, files or summaries. The trainer calls it from a single thread::

        networks = MyAlgorithm.make_networks(context)         # torch's generator is seeded with weights_seed
        algorithm = MyAlgorithm(context, networks, signals)
        statistics = algorithm.add(packed, rewards)           # for everything that arrives until max_steps
        if algorithm.is_ready(step):
            statistics = algorithm.update(step, show_progress)

    Attributes:
        may_be_nan: tags of statistics that are undefined for some behaviors. If any other statistic is not finite, the
            weights have diverged, and the run ends.
        holds_rows: how to limit how far acting runs ahead of learning if acting continues during updates (``threaded:
            true`` or remote actors). If True, the limit is ``max_lead`` rows that no update has used; ``update`` frees
            rows as it reports progress. If False, the limit applies to rows that have not been added yet, or to policy
            versions.
        needs_groups: True if ``add`` needs the groupmates of each step (``PackedSteps.groups``), and their rewards as
            the column ``groupmate_reward``.
        counts_group_rewards: True if the algorithm distinguishes group rewards from an agent's own rewards. If False,
            the trainer warns about group rewards.
        context: the behavior to learn.
        networks: the networks by their names in the checkpoint. ``actor`` acts and is exported.
        signals: the reward signals in the order of the value heads.
        gradient_steps: number of gradient steps so far, counted by ``update``.
        cloning: behavioral cloning, if the settings enable it.
        checkpoint_layout: where ML-Agents' checkpoints store the networks and optimizers, if ML-Agents supports them.
    """

    may_be_nan: ClassVar[frozenset[str]] = frozenset()
    holds_rows: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = False
    counts_group_rewards: ClassVar[bool] = False
    cloning: BehavioralCloning | None = None
    checkpoint_layout: CheckpointLayout = CheckpointLayout()

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        """Create the algorithm with the networks from ``make_networks``, moved to ``context.device``."""
        self.context = context
        self.networks = networks
        self.signals = signals
        self.gradient_steps = 0

    @classmethod
    @abstractmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        """Create the networks by their names in the checkpoint, including an ``Actor`` named ``actor``.

        Initialize weights with torch's global generator, which the caller has seeded.

        Raises:
            UnsupportedError: no encoder fits a sensor, or the algorithm does not support the action space.
        """

    @staticmethod
    def max_lead(settings: TrainerSettings) -> int:
        """Return how many rows acting may run ahead of learning if acting continues during updates."""
        return settings.buffer_size

    @property
    def actor(self) -> Actor:
        """The network that acts. Read it only between calls, because training changes it."""
        actor = self.networks["actor"]
        assert isinstance(actor, Actor)
        return actor

    def until_stop(self, steps: Iterable[T]) -> Iterator[T]:
        """Yield items from ``steps``, but stop as soon as the run is about to end."""
        goes_on = iter(self.context.is_stopping, True)
        return (step for _, step in zip(goes_on, steps, strict=False))

    @property
    def drain_threshold(self) -> tuple[int, int]:
        """How many rows or steps should be waiting before the trainer drains them, because larger batches save time.

        Rows include the padding of sequences. With 0, the trainer does not wait. Waiting never delays other events: the
        trainer drains earlier when a summary, a checkpoint, an evaluation or the end of training is due.
        """
        return 1, 1

    def reserve(self, num_steps: int) -> Columns[NDArray[Any]] | None:  # noqa: ARG002
        """Reserve rows for the next ``num_steps`` steps, so that ``add`` does not have to copy them.

        Returns:
            Columns with ``num_steps`` rows; None to let the trainer allocate its own. The trainer fills the columns
            that a ``PackedSteps`` has, and passes them to the next call of ``add``.
        """
        return None

    @abstractmethod
    def add(self, packed: PackedSteps, rewards: FloatArray) -> Statistics:
        """Add trajectories to learn from, in the order in which they ended, and update the normalizers.

        Args:
            packed: B steps of S trajectories.
            rewards: rewards of each signal, multiplied by its strength, f32 [V, B].
        """

    @abstractmethod
    def is_ready(self, step: int) -> bool:
        """Return whether there is enough experience for an update at trainer step ``step``."""

    def uses_spare_time(self, step: int) -> bool:  # noqa: ARG002
        """Return whether another short update at this step is useful while the environments are busy."""
        return False

    @abstractmethod
    def update(self, step: int, show_progress: Callable[[float], None]) -> Statistics:
        """Update the networks. If the run is about to end, return after the current gradient step.

        Args:
            step: the trainer step, for schedules.
            show_progress: may be called between two gradient steps with the completed fraction of the update, if the
                current policy is ready to act. The trainer then publishes it if acting continues during updates.
        """

    def clone(self, step: int) -> dict[str, float]:
        """Run behavioral cloning, if it is enabled, as part of an update, and return its statistics."""
        return {} if self.cloning is None else self.cloning.update(step, self.until_stop)

    def reset_worker(self, worker: int | None) -> None:  # noqa: B027
        """Drop the state of unfinished episodes after one worker, or all workers (None), aborted them."""

    @abstractmethod
    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        """Return the states of the optimizers by their names in the checkpoint. Tensors are not copied."""

    @abstractmethod
    def load_optimizer_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Restore the state returned by ``optimizer_states``.

        Raises:
            KeyError: a state is missing.
            ValueError: a state does not fit the optimizer.
        """

    def generators(self) -> dict[str, torch.Generator]:
        """Return the random generators by name in the checkpoint, so that a resumed run draws the same numbers."""
        return {}

    def extra_state(self) -> dict[str, Any]:
        """Return all other state needed to resume exactly: plain data and tensors by name in the checkpoint."""
        return {}

    def load_extra_state(self, extra: Mapping[str, Any], step: int) -> None:  # noqa: B027
        """Restore the state returned by ``extra_state``, at trainer step ``step`` of a resumed run.

        Any part may be missing; ML-Agents' checkpoints contain none of it.

        Raises:
            CheckpointError: the state belongs to other networks.
        """

    @property
    def saved_replay(self) -> Replay | None:
        """The experience to save with each checkpoint, if any."""
        return None
