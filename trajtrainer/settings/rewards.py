"""``reward_signals``."""

from __future__ import annotations

from dataclasses import dataclass

from attrs import field, frozen
from attrs.validators import optional

from trajtrainer.plugins import Reference, Registry
from trajtrainer.settings.checks import check_settings_class, count, fraction, not_negative, positive, satisfies
from trajtrainer.settings.network import NetworkSettings


@frozen
class RewardSignalSettings:
    """Settings that all reward signals have, and the extrinsic one has alone (it has no use for its network)."""

    gamma: float = field(default=0.99, validator=fraction)
    strength: float = 1.0
    network_settings: NetworkSettings = field(
        factory=NetworkSettings,
        validator=satisfies(lambda network: network.memory is None, "no memory (reward networks have none)"),
    )


@frozen
class CuriositySettings(RewardSignalSettings):
    """Reward for what the agent did not foresee. ``encoding_size`` is deprecated."""

    learning_rate: float = field(default=3e-4, validator=not_negative)
    encoding_size: int | None = field(default=None, validator=optional(count))
    # Not in ML-Agents (docs/imitation.md). Not dumped while they are off.
    normalize: bool = False
    episodic_bonus: float | None = field(default=None, validator=optional(positive))


@frozen(kw_only=True)
class GailSettings(RewardSignalSettings):
    """Reward for what looks like the demonstrations. ``encoding_size`` is deprecated."""

    learning_rate: float = field(default=3e-4, validator=not_negative)
    encoding_size: int | None = field(default=None, validator=optional(count))
    use_actions: bool = False
    use_vail: bool = False
    demo_path: str


@frozen
class RndSettings(RewardSignalSettings):
    """Reward for what was seldom seen (random network distillation). ``encoding_size`` is deprecated."""

    learning_rate: float = field(default=1e-4, validator=not_negative)
    encoding_size: int | None = field(default=None, validator=optional(count))
    # As curiosity's.
    normalize: bool = False
    episodic_bonus: float | None = field(default=None, validator=optional(positive))


OWN_NOVELTY = ("normalize", "episodic_bonus")
"""Those of ``CuriositySettings`` and ``RndSettings`` that ML-Agents does not know."""


@dataclass(frozen=True, slots=True)
class RewardSignalRow:
    """A source of reward.

    Attributes:
        settings: the class of what stands below its name, made by ``attrs``.
        create: called with the ``BehaviorSpec``, these settings and the ``torch.device``; returns a ``RewardSignal``
            of this name.
    """

    settings: type[RewardSignalSettings]
    create: Reference

    def __post_init__(self) -> None:
        check_settings_class(self.settings, RewardSignalSettings)


REWARD_SIGNALS = Registry(
    "reward signal",
    "trajtrainer.reward_signals",
    RewardSignalRow,
    {
        "extrinsic": RewardSignalRow(RewardSignalSettings, "trajtrainer.rewards.extrinsic:ExtrinsicReward"),
        "curiosity": RewardSignalRow(CuriositySettings, "trajtrainer.rewards.curiosity:CuriosityReward"),
        "gail": RewardSignalRow(GailSettings, "trajtrainer.rewards.gail:GailReward"),
        "rnd": RewardSignalRow(RndSettings, "trajtrainer.rewards.rnd:RndReward"),
    },
)
"""Key under ``reward_signals`` -> its settings and how it is made."""
