"""An algorithm: REINFORCE with a baseline (Williams 1992), one gradient step per buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray
from torch import Tensor, nn

from trajtrainer import (
    Actor,
    Algorithm,
    AlgorithmRow,
    Hyperparameters,
    LearningContext,
    PackedSteps,
    RewardSignal,
    Statistics,
    ValueNetwork,
)
from trajtrainer.validators import count, positive


@frozen
class ReinforceHyperparameters(Hyperparameters):
    """An update takes ``buffer_size`` steps; the baseline learns at ``baseline_rate``."""

    buffer_size: int = field(default=10240, validator=count)
    baseline_rate: float = field(default=1e-2, validator=positive)


class Reinforce(Algorithm):
    """Return the rewards that followed each action in its trajectory, minus the baseline."""

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        super().__init__(context, networks, signals)
        hyper = context.settings.hyperparameters
        assert isinstance(hyper, ReinforceHyperparameters)
        self._buffer_size = hyper.buffer_size
        self._taken: list[tuple[PackedSteps, Tensor]] = []
        self._optimizers = {
            "policy": torch.optim.Adam(networks["actor"].parameters(), hyper.learning_rate),
            "baseline": torch.optim.Adam(networks["baseline"].parameters(), hyper.baseline_rate),
        }

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        spec, network = context.spec, context.settings.network_settings
        return {"actor": Actor(spec, network, tanh_squash=True), "baseline": ValueNetwork(spec, network, ["return"])}

    def add(self, packed: PackedSteps, rewards: NDArray[np.float32]) -> Statistics:
        returns = np.zeros(len(packed), np.float32)
        for row, signal in zip(rewards, self.signals, strict=True):
            following = 0.0
            for step in reversed(range(len(packed))):
                last = step + 1 in packed.offset
                following = row[step] + (0.0 if last else signal.gamma * following)
                returns[step] += following
        self._taken.append((packed, torch.from_numpy(returns)))
        return {}

    def is_ready(self, step: int) -> bool:
        return sum(len(packed) for packed, _ in self._taken) >= self._buffer_size

    def update(self, step: int, show_progress: Callable[[float], None]) -> Statistics:
        steps = [packed.steps for packed, _ in self._taken]
        obs = [torch.from_numpy(np.concatenate(column)) for column in zip(*(each.obs for each in steps), strict=True)]
        mask, continuous, discrete = (
            torch.from_numpy(np.concatenate([each[name] for each in steps]))
            for name in ("mask", "continuous", "discrete")
        )
        returns = torch.cat([each for _, each in self._taken])
        self._taken.clear()
        (baseline,), _ = self.networks["baseline"](obs)
        distribution, _ = self.actor.distribution(obs, mask)
        log_prob = distribution.log_prob(continuous, discrete.long()).sum(1)
        policy_loss = -(log_prob * (returns - baseline.detach())).mean()
        baseline_loss = (baseline - returns).square().mean()
        for optimizer in self._optimizers.values():
            optimizer.zero_grad()
        (policy_loss + baseline_loss).backward()
        for optimizer in self._optimizers.values():
            optimizer.step()
        self.gradient_steps += 1
        losses = {"Losses/Policy Loss": policy_loss, "Losses/Baseline Loss": baseline_loss}
        return {tag: np.array([loss.item()]) for tag, loss in losses.items()}

    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        return {name: optimizer.state_dict() for name, optimizer in self._optimizers.items()}

    def load_optimizer_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        for name, optimizer in self._optimizers.items():
            optimizer.load_state_dict(states[name])


ROW = AlgorithmRow(ReinforceHyperparameters, Reinforce)
