"""What the reward signals that learn have in common.

Shape legend: B packed steps, S trajectories, b rows, E encoding, O an observation's own shape.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve
from numpy.typing import NDArray
from torch import Tensor, nn

from trajtrainer.core.columns import Columns
from trajtrainer.core.steps import FloatArray
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.nn.fast.adam import Adam, adam_state, load_adam_state, whole
from trajtrainer.nn.minibatch import Minibatch
from trajtrainer.rewards.novelty import Novelty
from trajtrainer.rewards.settings import CuriositySettings, GailSettings, RndSettings
from trajtrainer.rewards.signal import RewardSignal
from trajtrainer.settings.network import NetworkSettings

# How many numbers of observations may go through a network at once (16 MB of float32), which bounds the memory that its
# layers take.
_MAX_NUMBERS = 1 << 22


TrainedSettings = CuriositySettings | GailSettings | RndSettings


def encoder_settings(settings: TrainedSettings) -> NetworkSettings:
    """Return the encoder's settings. ``encoding_size``, the older key, is the width."""
    network = settings.network_settings
    return network if settings.encoding_size is None else evolve(network, hidden_units=settings.encoding_size)


class TrainedReward(RewardSignal):
    """A signal with networks that an Adam of its own trains."""

    def __init__(
        self,
        name: str,
        settings: TrainedSettings,
        modules: Mapping[str, nn.Module],
        device: torch.device,
        novelty: Novelty | None = None,
    ) -> None:
        """Take the networks.

        Args:
            name: of the signal.
            settings: of the signal.
            modules: by their names in the checkpoint; what needs a gradient is trained.
            device: where they go.
            novelty: scales and limits the reward, if it is for novelty.
        """
        super().__init__(name, gamma=settings.gamma, strength=settings.strength)
        self._modules = {key: module.to(device) for key, module in modules.items()}
        self._device = device
        self._novelty = novelty
        parameters = [one for module in self._modules.values() for one in module.parameters()]
        self._parameters = [one for one in parameters if one.requires_grad]
        self._optimizer = Adam(self._parameters, settings.learning_rate)

    @property
    def has_updated(self) -> bool:
        """Whether it has learned anything, which its optimizer remembers."""
        return bool(self._optimizer.state)

    @abstractmethod
    def _reward(self, packed: PackedSteps) -> FloatArray:
        """Return the reward of each step by the networks, f32 [B]."""

    def evaluate(self, packed: PackedSteps) -> FloatArray:
        reward = self._reward(packed)
        return reward if self._novelty is None else self._novelty.evaluated(reward)

    def collect(self, packed: PackedSteps) -> FloatArray:
        reward = self._reward(packed)
        return reward if self._novelty is None else self._novelty.collected(packed, reward)

    def reset_worker(self, worker: int | None) -> None:
        if self._novelty is not None:
            self._novelty.reset_worker(worker)

    def modules(self) -> dict[str, nn.Module]:
        return self._modules

    def optimizer_state(self) -> dict[str, Any] | None:
        adam = adam_state(self._optimizer, [whole(parameter) for parameter in self._parameters])
        return adam | ({} if self._novelty is None else self._novelty.state())

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        load_adam_state(self._optimizer, [whole(parameter) for parameter in self._parameters], state)
        if self._novelty is not None:
            self._novelty.load_state(state)

    def _descend(self, loss: Tensor) -> None:
        # What zero_grad does, without its profiling hooks.
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def _tensors(self, columns: Sequence[NDArray[Any]]) -> list[Tensor]:
        return [torch.from_numpy(column).to(self._device) for column in columns]


def real_rows(minibatch: Minibatch) -> Columns[Tensor]:
    """Return the rows of a minibatch without padding."""
    mask = minibatch.loss_mask
    return minibatch.rows if mask is None else minibatch.rows.take(mask.nonzero().squeeze(1))


def in_parts(function: Callable[[Sequence[Tensor]], Tensor], columns: Sequence[Tensor]) -> Tensor:
    """Apply ``function`` to columns [b, ...] in pieces of bounded size."""
    rows = max(1, _MAX_NUMBERS // max(1, sum(column[0].numel() for column in columns)))
    if rows >= len(columns[0]):
        return function(columns)
    starts = range(0, len(columns[0]), rows)
    return torch.cat([function([column[start : start + rows] for column in columns]) for start in starts])
