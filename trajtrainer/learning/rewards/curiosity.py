"""Curiosity (Pathak et al. 2017, arXiv:1705.05363): rewards actions whose effects a model fails to predict.

Shape legend: B packed steps, S trajectories, b rows, h encoding size, A size of flat actions, C continuous actions, D
sum of branch sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trajtrainer.core.columns import NEXT_OBSERVATIONS, Columns
from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.core.steps import FloatArray
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.nn.body import NetworkBody
from trajtrainer.learning.nn.conditioning import Mlp
from trajtrainer.learning.nn.init import xavier_linear
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.nn.mlagents import Names
from trajtrainer.learning.nn.multi_agent import flat_actions
from trajtrainer.learning.rewards.settings import CuriositySettings
from trajtrainer.learning.rewards.trained import Novelty, TrainedReward, encoder_settings, in_parts, real_rows
from trajtrainer.settings.network import NetworkSettings

_HIDDEN = 256  # hidden units of the forward and inverse models
_FORWARD_WEIGHT, _INVERSE_WEIGHT = 0.2, 0.8
_LOSS_FACTOR = 10.0
_EPSILON = 1e-10  # added to the inverse model's probabilities before taking logarithms


class ModelLosses(NamedTuple):
    """The losses of the forward and inverse models, averaged over rows."""

    forward: Tensor
    inverse: Tensor


class CuriosityNetwork(nn.Module):
    """An intrinsic curiosity module (ICM): an encoder and two models of the effects of actions.

    The inverse model predicts the action from the encodings before and after it, which makes the encoding represent
    what the agent can influence. The forward model predicts the encoding after an action from the encoding before it
    and the action.

    Args:
        spec: the agents' observations and actions.
        settings: the encoder's settings.
    """

    mlagents_names: ClassVar[Names] = {
        "encoder": "_state_encoder",
        "inverse": "inverse_model_action_encoding.0",
        "continuous": "continuous_action_prediction",
        "discrete": "discrete_action_prediction",
        "ahead": "forward_model_next_state_prediction.0",
        "next_encoding": "forward_model_next_state_prediction.1",
    }

    def __init__(self, spec: BehaviorSpec, settings: NetworkSettings) -> None:
        super().__init__()
        self.action_spec: ActionSpec = spec.action_spec
        continuous, branches = int(spec.action_spec.continuous_size), spec.action_spec.discrete_branches
        self.encoder = NetworkBody(spec.observation_specs, settings)
        size = self.encoder.encoding_size
        self.inverse = Mlp(2 * size, _HIDDEN, 1)
        self.continuous = xavier_linear(_HIDDEN, continuous) if continuous else None
        self.discrete = xavier_linear(_HIDDEN, sum(branches)) if branches else None
        self.ahead = Mlp(size + continuous + sum(branches), _HIDDEN, 1)
        self.next_encoding = xavier_linear(_HIDDEN, size)

    def encode(self, obs: Sequence[Tensor]) -> Tensor:
        """Encode the observations of b rows, [b, h]."""
        encoding: Tensor = self.encoder(obs)[0]
        return encoding

    def surprise(self, encoding: Tensor, actions: Tensor, following: Tensor) -> Tensor:
        """Return half the squared error of the forward model, [b].

        Args:
            encoding: [b, h], encodings before the actions.
            actions: [b, A], flat actions.
            following: [b, h], encodings after the actions.
        """
        predicted: Tensor = self.next_encoding(self.ahead(torch.cat((encoding, actions), 1)))
        return 0.5 * (following - predicted).square().sum(1)

    def losses(self, rows: Columns[Tensor]) -> ModelLosses:
        """Compute the losses for rows with the columns ``obs``, ``next_obs``, ``continuous`` and ``discrete``."""
        pairs = zip(rows.obs, rows.sensors(NEXT_OBSERVATIONS), strict=True)
        before, after = self.encode([torch.cat(pair) for pair in pairs]).chunk(2)
        continuous = rows["continuous"]
        actions = flat_actions(continuous, rows["discrete"], self.action_spec)
        # Loss of the inverse model [b]: squared errors of continuous actions plus cross-entropies of the branches.
        hidden = self.inverse(torch.cat((before, after), 1))
        errors: Tensor = hidden.new_zeros(len(hidden))
        if self.continuous is not None:
            errors = errors + (self.continuous(hidden) - continuous).square().sum(1)
        if self.discrete is not None:
            logits = self.discrete(hidden).split_with_sizes(list(self.action_spec.discrete_branches), 1)
            probs = torch.cat([F.softmax(branch, 1) for branch in logits], 1)
            errors = errors - ((probs + _EPSILON).log() * actions[:, continuous.shape[1] :]).sum(1)
        return ModelLosses(forward=self.surprise(before, actions, after).mean(), inverse=errors.mean())


class CuriosityReward(TrainedReward):
    """The curiosity reward: the forward model's error, limited to ``1 / strength``. It is 0 before the first update.

    Gradient steps also update the encoder's normalizer, which ML-Agents never does
    (docs/explanation/mlagents-behavior.md#reward-signals).
    """

    ignore_done = True
    needs = frozenset({NEXT_OBSERVATIONS})

    def __init__(self, spec: BehaviorSpec, settings: CuriositySettings, device: torch.device) -> None:
        network = encoder_settings(settings)
        self.network = CuriosityNetwork(spec, network)
        self._normalize = network.normalize
        novelty = Novelty(settings, most=1.0 / settings.strength if settings.strength > 0 else math.inf)
        super().__init__("curiosity", settings, {"Curiosity": self.network}, device, novelty)

    def _reward(self, packed: PackedSteps) -> FloatArray:
        if not self.has_updated:
            return np.zeros(len(packed), np.float32)
        # Encode each observation once: those of the steps, and those after the trajectories.
        sensors = zip(self._tensors(packed.obs), self._tensors(packed.bootstrap.obs), strict=True)
        following = torch.from_numpy(packed.following()).to(self._device)
        continuous, discrete = self._tensors([packed["continuous"], packed["discrete"]])
        actions = flat_actions(continuous, discrete, self.network.action_spec)
        with torch.no_grad():
            encoding = in_parts(self.network.encode, [torch.cat(pair) for pair in sensors])
            surprise = self.network.surprise(encoding[: len(packed)], actions, encoding[following])
        reward: FloatArray = surprise.cpu().numpy()
        return reward

    def update(self, minibatch: Minibatch) -> dict[str, Tensor]:
        rows = real_rows(minibatch)
        if self._normalize:
            self.network.encoder.update_normalization(rows.obs)
        forward, inverse = self.network.losses(rows)
        self._optimizer.descend(_LOSS_FACTOR * (_FORWARD_WEIGHT * forward + _INVERSE_WEIGHT * inverse))
        return {
            "Losses/Curiosity Forward Loss": forward.detach(),
            "Losses/Curiosity Inverse Loss": inverse.detach(),
        }
