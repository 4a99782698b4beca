"""The interface of reward signals, and the environment's own reward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from attrs import evolve
from torch import Tensor, nn

from trajtrainer.core.plugins import resolve
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import FloatArray
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.settings.components import REWARD_SIGNALS, RewardSignalSettings
from trajtrainer.settings.trainer import TrainerSettings

# The largest reward that is learned from. Its discounted sums and their squared errors fit float32.
MAX_REWARD = 1e14


class RewardSignal(ABC):
    """One source of reward with its own discount and value head. Users may subclass this.

    Attributes:
        name: as in the YAML file, such as ``extrinsic``.
        gamma: discount.
        strength: factor by which the trainer multiplies the reward.
        ignore_done: whether the future counts beyond the end of an episode. True for signals that reward novelty.
        needs: minibatch columns that ``update`` uses besides observations and actions: ``next_obs``, ``done``.
    """

    ignore_done = False
    needs: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, name: str, *, gamma: float, strength: float) -> None:
        self.name = name
        self.gamma = gamma
        self.strength = strength

    @property
    def title(self) -> str:
        """The name in statistics tags, such as ``Extrinsic``."""
        return self.name.capitalize()

    @property
    def learns(self) -> bool:
        """Whether it has an ``update`` of its own."""
        return type(self).update is not RewardSignal.update

    def prepare(self, actor: Actor) -> None:  # noqa: B027
        """Prepare for training with this policy. Called once, before all other methods; not without training.

        Raises:
            TrajtrainerError: something that the settings name is missing or does not fit.
        """

    @abstractmethod
    def evaluate(self, packed: PackedSteps) -> FloatArray:
        """The reward of each step without ``strength``, f32 [B]. The array may be a column of ``packed``."""

    def collect(self, packed: PackedSteps) -> FloatArray:
        """Evaluate new steps, and update running statistics with them.

        Called once for each step, in order, but not without training.
        """
        return self.evaluate(packed)

    def evaluate_recorded(self, packed: PackedSteps) -> FloatArray:
        """Evaluate demonstrated steps, which must not change running statistics."""
        return self.evaluate(packed)

    def reset_worker(self, worker: int | None) -> None:  # noqa: B027
        """Drop the memory of unfinished episodes of one worker's agents, or of all (None)."""

    def update(self, minibatch: Minibatch) -> dict[str, Tensor]:  # noqa: ARG002
        """Make one gradient step on rows with which the policy was just updated.

        Returns:
            Tag -> 0-d tensor without gradient.
        """
        return {}

    def modules(self) -> dict[str, nn.Module]:
        """The checkpoint's entries: ``Module:<name>`` -> network (docs/explanation/mlagents-behavior.md#checkpoint)."""
        return {}

    def optimizer_state(self) -> dict[str, Any] | None:
        """The state of the signal's optimizer, if it has one."""
        return None

    def load_optimizer_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Restore what ``optimizer_state`` returned."""


def create_reward_signals(spec: BehaviorSpec, settings: TrainerSettings, device: torch.device) -> list[RewardSignal]:
    """The behavior's reward signals in the order of its settings, which is the order of the value heads.

    Raises:
        UnsupportedError: no encoder fits a sensor.
        PluginError: a signal is a plugin's, and fails.
    """
    signals = []
    for name, one in settings.reward_signals.items():
        # A signal's networks see what the policy sees.
        network = evolve(one.network_settings, critic_only=settings.network_settings.critic_only)
        with REWARD_SIGNALS.blaming(name):
            signal = resolve(REWARD_SIGNALS[name].create)(spec, evolve(one, network_settings=network), device)
            if not isinstance(signal, RewardSignal) or signal.name != name:
                raise TypeError(f"it made {signal!r}, expected a RewardSignal of this name")
        signals.append(signal)
    return signals


class ExtrinsicReward(RewardSignal):
    """The agent's reward plus its group's, and if the algorithm needs groups, plus those of its groupmates.

    ML-Agents' trainers all count group rewards (docs/explanation/mlagents-behavior.md#reward-signals).
    """

    def __init__(self, spec: BehaviorSpec, settings: RewardSignalSettings, device: torch.device) -> None:  # noqa: ARG002
        super().__init__("extrinsic", gamma=settings.gamma, strength=settings.strength)

    def evaluate(self, packed: PackedSteps) -> FloatArray:
        own = packed["reward"]
        if "groupmate_reward" in packed.steps:
            own = own + packed["groupmate_reward"]
        rewards: FloatArray = own + packed["group_reward"]
        return rewards
