"""Reward signals from settings."""

from __future__ import annotations

import torch

from trajtrainer.errors import UnsupportedError
from trajtrainer.plugins import resolve
from trajtrainer.rewards.signal import RewardSignal
from trajtrainer.settings.rewards import REWARD_SIGNALS, RewardSignalSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.spec import BehaviorSpec


def create_reward_signals(
    behavior: str, spec: BehaviorSpec, settings: TrainerSettings, device: torch.device
) -> list[RewardSignal]:
    """Return the behaviour's reward signals in the order of its settings, which is the order of the value heads.

    Raises:
        UnsupportedError: one of them is not built yet.
        PluginError: one of them is of a package, and fails.
    """
    return [_create(behavior, name, spec, one, device) for name, one in settings.reward_signals.items()]


def _create(
    behavior: str, name: str, spec: BehaviorSpec, settings: RewardSignalSettings, device: torch.device
) -> RewardSignal:
    create = REWARD_SIGNALS[name].create
    if create is None:
        raise UnsupportedError(f"Behavior {behavior!r}: the reward signal {name!r} is not built yet.")
    with REWARD_SIGNALS.blaming(name):
        signal = resolve(create)(spec, settings, device)
        if not isinstance(signal, RewardSignal) or signal.name != name:
            raise TypeError(f"it made {signal!r}, expected a RewardSignal of this name")
    return signal
