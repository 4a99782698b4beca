"""Registries of algorithms and reward signals, and the base classes of their settings."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, ClassVar

from attrs import field, frozen

from trajtrainer.core.plugins import Reference, Registry
from trajtrainer.settings.checks import Fault, check_settings_class, count, fraction, not_negative, satisfies
from trajtrainer.settings.network import NetworkSettings


class ScheduleType(enum.Enum):
    """The schedule of a hyperparameter from the first step to ``max_steps``."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"
    ADAPTIVE = "adaptive"


of_set_course = satisfies(lambda schedule: schedule is not ScheduleType.ADAPTIVE, "constant, linear or cosine")


@frozen
class Hyperparameters:
    """The ``hyperparameters`` that all algorithms share.

    An algorithm with a buffer adds ``buffer_size``, which limits how far actors may get ahead of learning.

    Attributes:
        batch_size: number of steps in each gradient step. Typically 256 to 5,120 with continuous actions (64 to 1,024
            for algorithms with a replay buffer, such as ``sac``), and 32 to 512 with discrete actions. Increase it if
            rewards are noisy, and keep it several times smaller than ``buffer_size``.
        learning_rate: learning rate of the optimizer, typically 1e-5 to 1e-3. Lower it if training is unstable: the
            reward rises and falls again, or losses diverge.
    """

    critic_may_see_more: ClassVar[bool] = False
    """True if the algorithm supports ``network_settings.critic_only``. Otherwise, that setting is an error."""

    batch_size: int = field(default=1024, validator=count)
    learning_rate: float = field(default=3e-4, validator=not_negative)

    def faults(self, network: NetworkSettings) -> Iterator[Fault]:  # noqa: ARG002
        """Yield faults if the algorithm does not support these networks. Paths are relative to the behavior."""
        yield from ()

    def faults_of_rewards(self, names: Collection[str]) -> Iterator[Fault]:  # noqa: ARG002
        """Yield a fault for each reward signal that the algorithm cannot use. Paths are relative to the behavior."""
        yield from ()


@dataclass(frozen=True, slots=True)
class AlgorithmRow:
    """An algorithm.

    Attributes:
        settings: the attrs class of its ``hyperparameters``.
        algorithm: the subclass of ``Algorithm``. None if it is not implemented yet.
        offline: True if it learns from the behavior's ``dataset`` instead of an environment. Its steps are then
            gradient steps.
        replays: True if it learns from single steps in a replay buffer, which does not keep the order of steps within
            episodes.
        clones: True if its ``update`` calls ``clone``. Otherwise, ``behavioral_cloning`` is an error.
        expert: creates the ``Policy`` to imitate. Called with the settings of the run, the behavior's name and
            settings, and the ``BehaviorSpec`` of its agents (None before the run starts, to check only the settings).
            Returns the policy (None if it is not available) and a list of problems.
        presets: name of a preset -> its behavior settings for this algorithm.
        first_settings: suggests settings for a slow environment to ``trajtrainer init``. Called with the ``Seen`` data
            of a behavior; returns its ``hyperparameters`` and ``network_settings``, or None if ``sac`` is a better
            choice.
    """

    settings: type[Hyperparameters]
    algorithm: Reference | None
    offline: bool = False
    replays: bool = False
    clones: bool = False
    expert: Reference | None = None
    presets: Mapping[str, Mapping[str, Any]] = dataclass_field(default_factory=dict)
    first_settings: Reference | None = None

    def __post_init__(self) -> None:
        check_settings_class(self.settings, Hyperparameters)


ALGORITHMS: Registry[AlgorithmRow] = Registry(
    "algorithm",
    "trajtrainer.algorithms",
    AlgorithmRow,
    {
        "ppo": "trajtrainer.learning.algos.ppo.settings:ROW",
        "sac": "trajtrainer.learning.algos.sac.settings:ROW",
        "xqc": "trajtrainer.learning.algos.xqc.settings:ROW",
        "poca": "trajtrainer.learning.algos.poca.settings:ROW",
        "bc": "trajtrainer.plugins.imitation.settings:BC",
        "dagger": "trajtrainer.plugins.imitation.settings:DAGGER",
        "iql": "trajtrainer.plugins.imitation.settings:IQL",
    },
)
"""``trainer_type`` -> algorithm."""


def algorithm_named(trainer_type: object) -> AlgorithmRow | None:
    """Return the algorithm with this name; None if ``trainer_type`` is unknown or not a string."""
    return ALGORITHMS.get(trainer_type) if isinstance(trainer_type, str) else None


@frozen
class RewardSignalSettings:
    """Settings that all reward signals share. ``extrinsic`` has no others and does not use ``network_settings``.

    Attributes:
        gamma: discount factor for future rewards, typically 0.8 to 0.995. Use values closer to 1 if actions pay off
            late, and lower values if they pay off immediately.
        strength: factor by which the reward is multiplied. Use 1 for the environment's own reward, and scale other
            signals relative to it, depending on how large their returns are.
        network_settings: architecture of the signal's own network, for gail, curiosity and rnd.
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
        settings: the attrs class of the section under the signal's name.
        create: called with the ``BehaviorSpec``, these settings and the ``torch.device``; returns a ``RewardSignal``
            with the same name.
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
