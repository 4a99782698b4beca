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

# Maximum absolute value of rewards, chosen so that their discounted sums and squared errors fit into float32.
MAX_REWARD = 1e14


class RewardSignal(ABC):
    """A source of rewards with its own discount factor and value head. Users may subclass this.

    Attributes:
        name: name in the YAML file, such as ``extrinsic``.
        gamma: discount factor.
        strength: factor by which the trainer multiplies the rewards.
        ignore_done: True if returns extend beyond the end of an episode, as for signals that reward novelty.
        needs: minibatch columns that ``update`` uses in addition to observations and actions: ``next_obs``, ``done``.
    """

    ignore_done = False
    needs: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, name: str, *, gamma: float, strength: float) -> None:
        self.name = name
        self.gamma = gamma
        self.strength = strength

    @property
    def title(self) -> str:
        """The name in the tags of statistics, such as ``Extrinsic``."""
        return self.name.capitalize()

    @property
    def learns(self) -> bool:
        """True if the signal is trained, that is, overrides ``update``."""
        return type(self).update is not RewardSignal.update

    def prepare(self, actor: Actor) -> None:  # noqa: B027
        """Prepare for training with this policy. Called once, before all other methods, but not in inference.

        Raises:
            TrajtrainerError: a file named in the settings is missing or does not match the agents.
        """

    @abstractmethod
    def evaluate(self, packed: PackedSteps) -> FloatArray:
        """Return the reward of each step without ``strength``, f32 [B]. The array may be a column of ``packed``."""

    def collect(self, packed: PackedSteps) -> FloatArray:
        """Evaluate new steps, and update running statistics with them. The trainer passes each step once, in order."""
        return self.evaluate(packed)

    def evaluate_recorded(self, packed: PackedSteps) -> FloatArray:
        """Evaluate demonstrated steps without changing running statistics."""
        return self.evaluate(packed)

    def reset_worker(self, worker: int | None) -> None:  # noqa: B027
        """Drop the state of unfinished episodes of one worker's agents, or of all agents (None)."""

    def update(self, minibatch: Minibatch) -> dict[str, Tensor]:  # noqa: ARG002
        """Make one gradient step on a minibatch of the policy's experience.

        Returns:
            Statistics by tag, 0-d tensors without gradient.
        """
        return {}

    def modules(self) -> dict[str, nn.Module]:
        """Return networks by name, saved as ``Module:<name>`` (docs/explanation/mlagents-behavior.md#checkpoint)."""
        return {}

    def optimizer_state(self) -> dict[str, Any] | None:
        """Return the state of the signal's optimizer; None if it has no optimizer."""
        return None

    def load_optimizer_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Restore the state returned by ``optimizer_state``."""


def create_reward_signals(spec: BehaviorSpec, settings: TrainerSettings, device: torch.device) -> list[RewardSignal]:
    """Create the behavior's reward signals in the order of its settings, which is the order of the value heads.

    Raises:
        UnsupportedError: no encoder fits a sensor.
        PluginError: a plugin's reward signal fails.
    """
    signals = []
    for name, one in settings.reward_signals.items():
        # A signal's networks observe the same sensors as the policy.
        network = evolve(one.network_settings, critic_only=settings.network_settings.critic_only)
        with REWARD_SIGNALS.blaming(name):
            signal = resolve(REWARD_SIGNALS[name].create)(spec, evolve(one, network_settings=network), device)
            if not isinstance(signal, RewardSignal) or signal.name != name:
                raise TypeError(f"it returned {signal!r}, expected a RewardSignal with this name")
        signals.append(signal)
    return signals


class ExtrinsicReward(RewardSignal):
    """The environment's reward: the agent's and its group's, plus its groupmates' if the algorithm needs groups.

    All of ML-Agents' trainers count group rewards (docs/explanation/mlagents-behavior.md#reward-signals).
    """

    def __init__(self, spec: BehaviorSpec, settings: RewardSignalSettings, device: torch.device) -> None:  # noqa: ARG002
        super().__init__("extrinsic", gamma=settings.gamma, strength=settings.strength)

    def evaluate(self, packed: PackedSteps) -> FloatArray:
        own = packed["reward"]
        if "groupmate_reward" in packed.steps:
            own = own + packed["groupmate_reward"]
        rewards: FloatArray = own + packed["group_reward"]
        return rewards
