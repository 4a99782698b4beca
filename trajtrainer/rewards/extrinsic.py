"""The environment's own reward."""

from __future__ import annotations

import torch

from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import FloatArray
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.rewards.signal import RewardSignal
from trajtrainer.settings.components import RewardSignalSettings


class ExtrinsicReward(RewardSignal):
    """The agent's reward plus its group's, which every trainer counts (docs/mlagents-behavior.md#reward-signals).

    Where the algorithm needs groups, plus what its groupmates received.
    """

    def __init__(self, spec: BehaviorSpec, settings: RewardSignalSettings, device: torch.device) -> None:  # noqa: ARG002
        super().__init__("extrinsic", gamma=settings.gamma, strength=settings.strength)

    def evaluate(self, packed: PackedSteps) -> FloatArray:
        own = packed["reward"]
        if "groupmate_reward" in packed.steps:
            own = own + packed["groupmate_reward"]
        rewards: FloatArray = own + packed["group_reward"]
        return rewards
