"""Registries of algorithms and reward signals, and what the settings of each kind share."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from attrs import field, frozen

from trajtrainer.core.plugins import Reference, Registry
from trajtrainer.settings.checks import Fault, check_settings_class, count, fraction, not_negative, satisfies
from trajtrainer.settings.network import NetworkSettings


class ScheduleType(enum.Enum):
    """How a number changes up to ``max_steps``."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"
    ADAPTIVE = "adaptive"


of_set_course = satisfies(lambda schedule: schedule is not ScheduleType.ADAPTIVE, "constant, linear or cosine")


@frozen
class Hyperparameters:
    """The ``hyperparameters`` that every algorithm has.

    An algorithm with a buffer adds ``buffer_size``, which limits how far actors may get ahead of learning.

    Attributes:
        batch_size: steps of each gradient step. With continuous actions 256 to 5,120 (``sac`` and ``xqc``: 64 to
            1,024), with discrete ones 32 to 512; larger where the reward is noisy, and always several times smaller
            than ``buffer_size``.
        learning_rate: step size of the gradient descent. 1e-5 to 1e-3: lower where the reward rises and falls again or
            the losses blow up.
    """

    critic_may_see_more: ClassVar[bool] = False
    """Whether its critics see the sensors of ``network_settings.critic_only``. Otherwise that is refused."""

    batch_size: int = field(default=1024, validator=count)
    learning_rate: float = field(default=3e-4, validator=not_negative)

    def faults(self, network: NetworkSettings) -> Iterator[Fault]:  # noqa: ARG002
        """Yield what the algorithm cannot do with these networks. Paths start at the behavior."""
        yield from ()


@dataclass(frozen=True, slots=True)
class AlgorithmRow:
    """An algorithm.

    Attributes:
        settings: the attrs class of its ``hyperparameters``.
        algorithm: the subclass of ``Algorithm``. None if it is not implemented yet.
        offline: it learns from the behavior's ``dataset`` instead of an environment, and its steps are gradient steps.
        replays: it learns from single steps of a replay buffer, which does not keep the course of episodes.
    """

    settings: type[Hyperparameters]
    algorithm: Reference | None
    offline: bool = False
    replays: bool = False

    def __post_init__(self) -> None:
        check_settings_class(self.settings, Hyperparameters)


ALGORITHMS: Registry[AlgorithmRow] = Registry(
    "algorithm",
    "trajtrainer.algorithms",
    AlgorithmRow,
    {
        name: f"trajtrainer.learning.algos.{name}.settings:ROW"
        for name in ("ppo", "sac", "xqc", "poca", "bc", "dagger", "iql")
    },
)
"""``trainer_type`` -> algorithm."""


@frozen
class RewardSignalSettings:
    """Settings that all reward signals have. ``extrinsic`` has no others, and does not use its network.

    Attributes:
        gamma: discount of future rewards. 0.8 to 0.995: closer to 1 where actions pay off late, lower where they pay
            off at once.
        strength: factor of the reward. 1 for the environment's own reward; for other signals, choose it by how large
            their sums are in comparison.
        network_settings: network of the signal itself, for gail, curiosity and rnd.
    """

    gamma: float = field(default=0.99, validator=fraction)
    strength: float = 1.0
    network_settings: NetworkSettings = field(
        factory=NetworkSettings,
        validator=satisfies(lambda network: network.memory is None, "no memory (reward networks have none)"),
    )


@dataclass(frozen=True, slots=True)
class RewardSignalRow:
    """A reward signal.

    Attributes:
        settings: the attrs class of the section under its name.
        create: called with the ``BehaviorSpec``, these settings and the ``torch.device``; returns a ``RewardSignal`` of
            this name.
    """

    settings: type[RewardSignalSettings]
    create: Reference

    def __post_init__(self) -> None:
        check_settings_class(self.settings, RewardSignalSettings)


REWARD_SIGNALS: Registry[RewardSignalRow] = Registry(
    "reward signal",
    "trajtrainer.reward_signals",
    RewardSignalRow,
    {
        "extrinsic": RewardSignalRow(RewardSignalSettings, "trajtrainer.learning.rewards.signal:ExtrinsicReward"),
        "curiosity": "trajtrainer.learning.rewards.settings:CURIOSITY",
        "gail": "trajtrainer.learning.rewards.settings:GAIL",
        "rnd": "trajtrainer.learning.rewards.settings:RND",
    },
)
"""Key under ``reward_signals`` -> reward signal."""
