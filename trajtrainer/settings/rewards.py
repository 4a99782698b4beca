"""``reward_signals``."""

from __future__ import annotations

import enum

from attrs import field, frozen
from attrs.validators import optional

from trajtrainer.settings.checks import count, fraction, not_negative, satisfies
from trajtrainer.settings.network import NetworkSettings


class RewardSignalType(enum.Enum):
    """The keys under ``reward_signals``."""

    EXTRINSIC = "extrinsic"
    CURIOSITY = "curiosity"
    GAIL = "gail"
    RND = "rnd"


@frozen
class RewardSignalSettings:
    """What all reward signals have, and the extrinsic one has alone (it has no use for its network)."""

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


REWARD_SIGNALS: dict[RewardSignalType, type[RewardSignalSettings]] = {
    RewardSignalType.EXTRINSIC: RewardSignalSettings,
    RewardSignalType.CURIOSITY: CuriositySettings,
    RewardSignalType.GAIL: GailSettings,
    RewardSignalType.RND: RndSettings,
}
"""Key under ``reward_signals`` -> the class of its settings."""
