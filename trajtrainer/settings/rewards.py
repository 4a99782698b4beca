"""``reward_signals``."""

from __future__ import annotations

from dataclasses import dataclass

from attrs import field, frozen

from trajtrainer.core.plugins import Reference, Registry
from trajtrainer.settings.checks import check_settings_class, fraction, satisfies
from trajtrainer.settings.network import NetworkSettings


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
        "extrinsic": RewardSignalRow(RewardSignalSettings, "trajtrainer.rewards.extrinsic:ExtrinsicReward"),
        "curiosity": "trajtrainer.rewards.settings:CURIOSITY",
        "gail": "trajtrainer.rewards.settings:GAIL",
        "rnd": "trajtrainer.rewards.settings:RND",
    },
)
"""Key under ``reward_signals`` -> its settings and how it is made."""
