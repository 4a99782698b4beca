"""A reward signal: rewards actions that are smaller than a small network predicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray
from torch import Tensor, nn

from trajtrainer import BehaviorSpec, Minibatch, PackedSteps, RewardSignal, RewardSignalRow, RewardSignalSettings
from trajtrainer.validators import positive


@frozen
class EffortSettings(RewardSignalSettings):
    """``exponent`` is applied to the size of the actions; ``learning_rate`` is that of the network that predicts it."""

    exponent: float = field(default=2.0, validator=positive)
    learning_rate: float = field(default=1e-3, validator=positive)


class Effort(RewardSignal):
    """Return the size of action that the network predicts for these observations, minus the actual size."""

    def __init__(self, spec: BehaviorSpec, settings: EffortSettings, device: torch.device) -> None:
        super().__init__("effort", gamma=settings.gamma, strength=settings.strength)
        size = sum(int(np.prod(sensor.shape)) for sensor in spec.observation_specs)
        self.expected = nn.Sequential(nn.Linear(size, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
        self._exponent = settings.exponent
        self._optimizer = torch.optim.Adam(self.expected.parameters(), settings.learning_rate)
        self._device = device

    def evaluate(self, packed: PackedSteps) -> NDArray[np.float32]:
        with torch.no_grad():
            expected = self._expect([torch.from_numpy(obs).to(self._device) for obs in packed.obs])
        reward: NDArray[np.float32] = (
            expected.cpu().numpy() - self._size(torch.from_numpy(packed["continuous"])).numpy()
        )
        return reward

    def update(self, minibatch: Minibatch) -> dict[str, Tensor]:
        loss = (self._expect(minibatch.obs) - self._size(minibatch["continuous"])).square().mean()
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return {"Losses/Effort Loss": loss.detach()}

    def modules(self) -> dict[str, nn.Module]:
        return {"effort": self.expected}

    def optimizer_state(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state)

    def _expect(self, obs: Any) -> Tensor:
        flat = torch.cat([column.flatten(1).float() for column in obs], 1)
        return self.expected(flat).squeeze(1)  # type: ignore[no-any-return]

    def _size(self, continuous: Tensor) -> Tensor:
        return continuous.abs().pow(self._exponent).sum(1)


ROW = RewardSignalRow(EffortSettings, Effort)
