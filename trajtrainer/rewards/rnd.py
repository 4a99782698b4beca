"""Random network distillation (Burda et al. 2018): novelty is what a network cannot predict of a fixed random one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from attrs import evolve
from torch import Tensor, nn

from trajtrainer.algos.minibatch import Minibatch, masked_mean
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.fast.adam import Adam, adam_state, load_adam_state, whole
from trajtrainer.nn.body import NetworkBody
from trajtrainer.nn.mlagents import Names
from trajtrainer.rewards.signal import RewardSignal
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.rewards import RndSettings
from trajtrainer.spec import BehaviorSpec
from trajtrainer.steps import FloatArray


def _encoder_settings(settings: RndSettings) -> NetworkSettings:
    """Return the encoders' settings. ``encoding_size``, the older key, is the width."""
    network = settings.network_settings
    return network if settings.encoding_size is None else evolve(network, hidden_units=settings.encoding_size)


class RndNetwork(NetworkBody):
    """An encoder, which ML-Agents keeps one level down."""

    mlagents_names: ClassVar[Names] = {part: f"_encoder.{name}" for part, name in NetworkBody.mlagents_names.items()}


class RndReward(RewardSignal):
    """The squared distance between a trained encoder's output and a fixed one's.

    As in ML-Agents the reward is neither normalised nor clipped, and every forward updates the encoders' observation
    normalisers, evaluation included (docs/mlagents-behavior.md#reward-signals); padding does not enter them here.
    """

    ignore_done = True

    def __init__(self, spec: BehaviorSpec, settings: RndSettings, device: torch.device) -> None:
        super().__init__("rnd", gamma=settings.gamma, strength=settings.strength)
        network = _encoder_settings(settings)
        # The predictor first: the order in which torch's random numbers are drawn for the weights.
        self.predictor = RndNetwork(spec.observation_specs, network).to(device)
        self.target = RndNetwork(spec.observation_specs, network).to(device)
        self.target.requires_grad_(False)
        self._device = device
        self._normalize = network.normalize
        self._parameters = list(self.predictor.parameters())
        self._optimizer = Adam(self._parameters, settings.learning_rate)

    def evaluate(self, packed: PackedSteps) -> FloatArray:
        """See ``RewardSignal``."""
        obs = tuple(torch.from_numpy(column).to(self._device) for column in packed.obs)
        with torch.no_grad():
            distance = self._distance(obs, obs)
        reward: FloatArray = distance.cpu().numpy()
        return reward

    def update(self, minibatch: Minibatch) -> dict[str, Tensor]:
        """See ``RewardSignal``."""
        real = minibatch.obs
        if minibatch.loss_mask is not None and self._normalize:
            rows = minibatch.loss_mask.nonzero().squeeze(1)
            real = tuple(column[rows] for column in minibatch.obs)
        loss = masked_mean(self._distance(minibatch.obs, real), minibatch.loss_mask)
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return {"Losses/RND Loss": loss.detach()}

    def _distance(self, obs: Sequence[Tensor], real: Sequence[Tensor]) -> Tensor:
        """Return the squared distances [b] for ``obs``, of which the rows ``real`` enter the normalisers."""
        with torch.no_grad():
            target = self._encode(self.target, obs, real)
        return (self._encode(self.predictor, obs, real) - target).square().sum(1)

    def _encode(self, encoder: NetworkBody, obs: Sequence[Tensor], real: Sequence[Tensor]) -> Tensor:
        encoding, _ = encoder(obs)
        if self._normalize:
            encoder.update_normalization(real)
        assert isinstance(encoding, Tensor)
        return encoding

    def modules(self) -> dict[str, nn.Module]:
        """See ``RewardSignal``."""
        return {"RND-pred": self.predictor, "RND-target": self.target}

    def optimizer_state(self) -> dict[str, Any] | None:
        """See ``RewardSignal``."""
        return adam_state(self._optimizer, [whole(parameter) for parameter in self._parameters])

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """See ``RewardSignal``."""
        load_adam_state(self._optimizer, [whole(parameter) for parameter in self._parameters], state)
