"""What the hyperparameters of all algorithms share, and the registry of algorithms."""

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
    """The course of a number up to ``max_steps``."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"
    ADAPTIVE = "adaptive"


of_set_course = satisfies(lambda schedule: schedule is not ScheduleType.ADAPTIVE, "constant, linear or cosine")


@frozen
class Hyperparameters:
    """The ``hyperparameters`` that every algorithm has.

    One with a buffer adds ``buffer_size``, which limits how far ahead of learning actors may be.

    Attributes:
        batch_size: steps of each gradient step. With continuous actions 512 to 5,120 (``sac``: 128 to 1,024), with
            discrete ones 32 to 512; larger where the reward is noisy, and always several times smaller than
            ``buffer_size``.
        learning_rate: step size of the gradient descent. 1e-5 to 1e-3: lower where the reward rises and falls again or
            the losses blow up.
    """

    critic_may_see_more: ClassVar[bool] = False
    """Whether its critics see the sensors of ``network_settings.critic_only``. Otherwise that is refused."""

    batch_size: int = field(default=1024, validator=count)
    learning_rate: float = field(default=3e-4, validator=not_negative)

    def misfits(self, network: NetworkSettings) -> Iterator[Fault]:  # noqa: ARG002
        """Yield what the algorithm cannot do with these networks; paths start at the behavior."""
        yield from ()


@dataclass(frozen=True, slots=True)
class AlgorithmRow:
    """A way to learn.

    Attributes:
        settings: the class of the ``hyperparameters``, made by ``attrs``.
        algorithm: the subclass of ``Algorithm``. None if it is not built yet.
        offline: it learns from the behavior's ``dataset`` instead of an environment, and its steps are gradient steps.
    """

    settings: type[Hyperparameters]
    algorithm: Reference | None
    offline: bool = False

    def __post_init__(self) -> None:
        check_settings_class(self.settings, Hyperparameters)


ALGORITHMS: Registry[AlgorithmRow] = Registry(
    "algorithm",
    "trajtrainer.algorithms",
    AlgorithmRow,
    {name: f"trajtrainer.algos.{name}.settings:ROW" for name in ("ppo", "sac", "xqc", "poca", "bc", "dagger", "iql")},
)
"""``trainer_type`` -> its hyperparameters and how it learns."""


@frozen
class RewardSignalSettings:
    """Settings that all reward signals have, and the extrinsic one has alone (it has no use for its network).

    Attributes:
        gamma: discount of future rewards. 0.8 to 0.995: nearer to 1 where what is done now pays off late; lower where
            it pays at once.
        strength: factor of the reward. 1 for the environment's own reward; for the others choose it by how large their
            sums are beside it.
        network_settings: networks of the signal itself; of use to gail, curiosity and rnd.
    """

    gamma: float = field(default=0.99, validator=fraction)
    strength: float = 1.0
    network_settings: NetworkSettings = field(
        factory=NetworkSettings,
        validator=satisfies(lambda network: network.memory is None, "no memory (reward networks have none)"),
    )


@dataclass(frozen=True, slots=True)
class RewardSignalRow:
    """A source of reward.

    Attributes:
        settings: the class of what stands below its name, made by ``attrs``.
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
        "extrinsic": RewardSignalRow(RewardSignalSettings, "trajtrainer.rewards.signal:ExtrinsicReward"),
        "curiosity": "trajtrainer.rewards.settings:CURIOSITY",
        "gail": "trajtrainer.rewards.settings:GAIL",
        "rnd": "trajtrainer.rewards.settings:RND",
    },
)
"""Key under ``reward_signals`` -> its settings and how it is made."""
