"""Generative adversarial imitation learning (Ho & Ermon 2016): reward for what looks like demonstrations.

Shape legend: b rows, h encoding, z code, A flat actions, O an observation's own shape.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trajtrainer.core.columns import Columns
from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.core.steps import FloatArray
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.demos.demonstrations import load_demonstrations
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.distribution import ENV_CLIP
from trajtrainer.nn.minibatch import Minibatch
from trajtrainer.nn.multi_agent import flat_actions
from trajtrainer.rewards.demonstrations import DemonstrationRows
from trajtrainer.rewards.discriminator import (
    EPSILON,
    INFORMATION,
    Discrimination,
    Discriminator,
    Inputs,
    as_float,
    discriminate,
    gradient_penalty,
    pairwise,
)
from trajtrainer.rewards.discriminator_gradient import can_differentiate, differentiate
from trajtrainer.rewards.settings import GailSettings
from trajtrainer.rewards.trained import TrainedReward, encoder_settings, in_parts, real_rows

_BETA_STEP = 0.0005


class GailReward(TrainedReward):
    """``-ln(1 - D)``, where D is the probability that the discriminator gives a step of being demonstrated.

    Actions of demonstrations are what the environment received; they are compared with the policy's by what the
    policy would have to give for them. The gradient penalty (Gulrajani et al. 2017) is on all that the discriminator
    sees; ML-Agents' is on the first sensor alone (docs/mlagents-behavior.md#reward-signals).

    Attributes:
        discriminator: the one that is trained.
        by_hand: whether its gradient is computed without autograd.
    """

    needs = frozenset({"done"})

    def __init__(self, spec: BehaviorSpec, settings: GailSettings, device: torch.device) -> None:
        network = encoder_settings(settings)
        self.discriminator = Discriminator(spec, network, use_actions=settings.use_actions, use_vail=settings.use_vail)
        self.by_hand = can_differentiate(self.discriminator)
        self._spec = spec
        self._action_spec: ActionSpec = spec.action_spec
        self._demo_path = settings.demo_path
        self._use_actions = settings.use_actions
        self._normalize = network.normalize
        self._limit = ENV_CLIP
        self._demonstrated: Columns[Tensor] = Columns({})
        # The weights are the seed's, so this is, too.
        seed = zlib.crc32(self.discriminator.estimator.weight.detach().numpy().tobytes())
        self._draws = torch.Generator().manual_seed(seed)
        self._noise = torch.Generator(device).manual_seed(seed ^ 1)
        super().__init__("gail", settings, {"GAIL": self.discriminator}, device)

    def prepare(self, actor: Actor) -> None:
        """See ``RewardSignal``: read the demonstrations."""
        packed = load_demonstrations([self._demo_path], spec=self._spec).packed
        self.imitate(packed, actor)

    def imitate(self, packed: PackedSteps, actor: Actor) -> None:
        """Take recorded steps as what the policy is to be like."""
        self._limit = 1.0 if actor.head.tanh_squash else actor.head.clip_actions
        rows = DemonstrationRows(packed, actor.head, 1, self._device).rows
        self._demonstrated = rows.with_columns({"done": torch.from_numpy(packed["done"]).to(self._device)})

    def _reward(self, packed: PackedSteps) -> FloatArray:
        """See ``TrainedReward``."""
        obs = self._tensors(packed.obs)
        actions = None
        if self._use_actions:
            actions = self._actions(*self._tensors([packed["continuous"], packed["discrete"], packed["done"]]))
        with torch.no_grad():
            probability = in_parts(self._probability, Inputs(obs, actions).everything)
        reward: FloatArray = (-(1.0 - probability * (1.0 - EPSILON)).log()).cpu().numpy()
        return reward

    def _probability(self, everything: Sequence[Tensor]) -> Tensor:
        obs = list(everything[:-1]) if self._use_actions else list(everything)
        probability: Tensor = self.discriminator(Inputs(obs, everything[-1] if self._use_actions else None)).probability
        return probability

    def update(self, minibatch: Minibatch) -> dict[str, Tensor]:
        """See ``RewardSignal``: against as many rows of demonstrations, drawn with replacement."""
        rows = real_rows(minibatch)
        drawn = self._drawn(len(rows))
        if self._normalize:
            self.discriminator.encoder.update_normalization(drawn.obs)
        policy, demonstrated = self._inputs(rows), self._inputs(drawn)
        if self.by_hand:
            between = pairwise(self._interpolated, policy, demonstrated)
            found, penalty = differentiate(self.discriminator, policy, demonstrated, between)
            self._optimizer.step()
            return {**self._statistics(found), "Policy/GAIL Grad Mag Loss": penalty}
        found = discriminate(self.discriminator, policy, demonstrated, self._normal)
        loss, statistics = found.loss, self._statistics(found)
        if found.codes is not None:
            of_code, more = self._bottleneck(found.codes)
            loss, statistics = loss + of_code, {**statistics, **more}
        between = pairwise(self._interpolated, policy, demonstrated)
        penalty = gradient_penalty(self.discriminator, between, self._normal, self._penalized)
        self._descend(loss + penalty)
        return {**statistics, "Policy/GAIL Grad Mag Loss": penalty.detach()}

    def _drawn(self, count: int) -> Columns[Tensor]:
        """Return ``count`` demonstrated rows."""
        return self._demonstrated.take(self._numbers(count).to(self._device))

    def _numbers(self, count: int) -> Tensor:
        return torch.randint(len(self._demonstrated), (count,), generator=self._draws)

    def _inputs(self, rows: Columns[Tensor]) -> Inputs:
        actions = None
        if self._use_actions:
            actions = self._actions(rows["continuous"], rows["discrete"], rows["done"])
        return Inputs(list(rows.obs), actions)

    def _actions(self, continuous: Tensor, discrete: Tensor, done: Tensor) -> Tensor:
        # Beyond that range a policy's actions are all the same to the environment, and none is demonstrated.
        continuous = continuous.clamp(-self._limit, self._limit)
        flat = flat_actions(continuous, discrete, self._action_spec)
        return torch.cat((flat, done.to(flat.dtype)[:, None]), 1)

    def _statistics(self, found: Discrimination) -> dict[str, Tensor]:
        return {
            "Policy/GAIL Policy Estimate": found.of_policy.detach().mean(),
            "Policy/GAIL Expert Estimate": found.of_demonstrations.detach().mean(),
            "Losses/GAIL Loss": found.loss.detach(),
        }

    def _bottleneck(self, codes: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the code, whose weight is adapted first, as ML-Agents' gradient has it."""
        beta = self.discriminator.beta
        assert beta is not None
        excess = self.discriminator.excess_information(codes)
        beta.add_(_BETA_STEP * excess.detach()).clamp_(min=0.0)
        information = excess.detach() + INFORMATION
        return beta * excess, {"Policy/GAIL Beta": beta.clone(), "Losses/GAIL KL Loss": information}

    def _interpolated(self, policy: Tensor, demonstrated: Tensor) -> Tensor:
        policy, demonstrated = as_float(policy), as_float(demonstrated)
        return torch.lerp(demonstrated, policy, self._uniform(policy))

    def _penalized(self, inputs: Inputs) -> list[Tensor]:
        return inputs.everything

    def _normal(self, like: Tensor) -> Tensor:
        return torch.empty_like(like).normal_(generator=self._noise)

    def _uniform(self, like: Tensor) -> Tensor:
        return torch.empty_like(like).uniform_(generator=self._noise)

    def optimizer_state(self) -> dict[str, Any] | None:
        """See ``RewardSignal``; with the random numbers to go on with."""
        generators = {"draws": self._draws.get_state(), "noise": self._noise.get_state()}
        return {**(super().optimizer_state() or {}), **generators}

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """See ``RewardSignal``."""
        super().load_optimizer_state(state)
        for name, generator in (("draws", self._draws), ("noise", self._noise)):
            if name in state and state[name].shape == generator.get_state().shape:
                generator.set_state(state[name])
