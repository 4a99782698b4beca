"""Reward signals from settings."""

from __future__ import annotations

import torch

from trajtrainer.errors import UnsupportedError
from trajtrainer.rewards.extrinsic import ExtrinsicReward
from trajtrainer.rewards.rnd import RndReward
from trajtrainer.rewards.signal import RewardSignal
from trajtrainer.settings.rewards import RewardSignalSettings, RewardSignalType, RndSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.spec import BehaviorSpec


def create_reward_signals(
    behavior: str, spec: BehaviorSpec, settings: TrainerSettings, device: torch.device
) -> list[RewardSignal]:
    """The behaviour's reward signals in the order of its settings, which is the order of the value heads.

    Raises:
        UnsupportedError: one of them is not built yet.
    """
    return [_create(behavior, kind, spec, one, device) for kind, one in settings.reward_signals.items()]


def _create(
    behavior: str, kind: RewardSignalType, spec: BehaviorSpec, settings: RewardSignalSettings, device: torch.device
) -> RewardSignal:
    if kind is RewardSignalType.EXTRINSIC:
        return ExtrinsicReward(settings)
    if kind is RewardSignalType.RND:
        assert isinstance(settings, RndSettings)
        return RndReward(spec, settings, device)
    raise UnsupportedError(f"Behavior {behavior!r}: the reward signal {kind.value!r} is not built yet.")
