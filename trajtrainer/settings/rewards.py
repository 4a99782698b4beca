"""``reward_signals``."""

from __future__ import annotations

import enum

from attrs import field, frozen

from trajtrainer.settings.network import NetworkSettings


class RewardSignalType(enum.Enum):
    EXTRINSIC = "extrinsic"
    CURIOSITY = "curiosity"
    GAIL = "gail"
    RND = "rnd"


@frozen
class RewardSignalSettings:
    gamma: float = 0.99
    strength: float = 1.0
    network_settings: NetworkSettings = field(factory=NetworkSettings)


@frozen
class CuriositySettings(RewardSignalSettings):
    learning_rate: float = 3e-4
    encoding_size: int | None = None


@frozen(kw_only=True)
class GailSettings(RewardSignalSettings):
    learning_rate: float = 3e-4
    encoding_size: int | None = None
    use_actions: bool = False
    use_vail: bool = False
    demo_path: str


@frozen
class RndSettings(RewardSignalSettings):
    learning_rate: float = 1e-4
    encoding_size: int | None = None
