"""Reward signals from settings."""

from __future__ import annotations

import torch
from attrs import evolve

from trajtrainer.core.plugins import resolve
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.rewards.signal import RewardSignal
from trajtrainer.settings.rewards import REWARD_SIGNALS, RewardSignalSettings
from trajtrainer.settings.trainer import TrainerSettings


def create_reward_signals(spec: BehaviorSpec, settings: TrainerSettings, device: torch.device) -> list[RewardSignal]:
    """Return the behavior's reward signals in the order of its settings, which is the order of the value heads.

    Raises:
        UnsupportedError: a sensor that no encoder takes.
        PluginError: one of them is of a package, and fails.
    """
    hidden = settings.network_settings.critic_only
    return [
        # Its networks see what the policy sees.
        _create(name, spec, evolve(one, network_settings=evolve(one.network_settings, critic_only=hidden)), device)
        for name, one in settings.reward_signals.items()
    ]


def _create(name: str, spec: BehaviorSpec, settings: RewardSignalSettings, device: torch.device) -> RewardSignal:
    with REWARD_SIGNALS.blaming(name):
        signal = resolve(REWARD_SIGNALS[name].create)(spec, settings, device)
        if not isinstance(signal, RewardSignal) or signal.name != name:
            raise TypeError(f"it made {signal!r}, expected a RewardSignal of this name")
    return signal
