"""Random network distillation (RND; Burda et al. 2018, arXiv:1810.12894): rewards rarely visited states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import FloatArray
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.nn.body import NetworkBody
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.nn.mlagents import Names
from trajtrainer.learning.rewards.settings import RndSettings
from trajtrainer.learning.rewards.trained import Novelty, TrainedReward, encoder_settings, in_parts, real_rows


class RndNetwork(NetworkBody):
    """A network body whose parameters ML-Agents stores under a submodule, ``_encoder``."""

    mlagents_names: ClassVar[Names] = {part: f"_encoder.{name}" for part, name in NetworkBody.mlagents_names.items()}


class RndReward(TrainedReward):
    """The RND reward: the squared distance between the outputs of a trained encoder and a fixed random encoder.

    As in ML-Agents, the reward is not clipped and, by default, not normalized. Every forward pass updates the encoders'
    observation normalizers, even if it only evaluates rewards (docs/explanation/mlagents-behavior.md#reward-signals).
    Unlike in ML-Agents, padding does not count.
    """

    ignore_done = True

    def __init__(self, spec: BehaviorSpec, settings: RndSettings, device: torch.device) -> None:
        network = encoder_settings(settings)
        # Keep this order: it determines which random numbers initialize which weights.
        self.predictor = RndNetwork(spec.observation_specs, network)
        self.target = RndNetwork(spec.observation_specs, network)
        self.target.requires_grad_(False)
        self._normalize = network.normalize
        modules = {"RND-pred": self.predictor, "RND-target": self.target}
        super().__init__("rnd", settings, modules, device, Novelty(settings))

    def _reward(self, packed: PackedSteps) -> FloatArray:
        obs = self._tensors(packed.obs)
        reward = self._distances(obs)
        self._update_normalization(obs)
        return reward

    def evaluate_recorded(self, packed: PackedSteps) -> FloatArray:
        reward = self._distances(self._tensors(packed.obs))
        return reward if self._novelty is None else self._novelty.evaluated(reward)

    def _distances(self, obs: Sequence[Tensor]) -> FloatArray:
        with torch.no_grad():
            distance: FloatArray = in_parts(self._distance, obs).cpu().numpy()
        return distance

    def update(self, minibatch: Minibatch) -> dict[str, Tensor]:
        obs = real_rows(minibatch).obs
        loss = self._distance(obs).mean()
        self._update_normalization(obs)
        self._optimizer.descend(loss)
        return {"Losses/RND Loss": loss.detach()}

    def _distance(self, obs: Sequence[Tensor]) -> Tensor:
        with torch.no_grad():
            target: Tensor = self.target(obs)[0]
        predicted: Tensor = self.predictor(obs)[0]
        return (predicted - target).square().sum(1)

    def _update_normalization(self, obs: Sequence[Tensor]) -> None:
        if self._normalize:
            self.predictor.update_normalization(obs)
            self.target.copy_normalization(self.predictor, obs)
