"""Generative adversarial imitation learning (Ho & Ermon 2016): reward for what looks like demonstrations.

Shape legend: b rows, h encoding, z code, A flat actions, O an observation's own shape.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from trajtrainer.algos.cloning.rows import DemonstrationRows
from trajtrainer.algos.minibatch import Minibatch
from trajtrainer.columns import Columns
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.demos.demonstrations import load_demonstrations
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.body import NetworkBody
from trajtrainer.nn.distribution import ENV_CLIP
from trajtrainer.nn.init import kaiming_linear, xavier_linear
from trajtrainer.nn.mlagents import Names
from trajtrainer.nn.multi_agent import flat_actions
from trajtrainer.rewards.trained import TrainedReward, encoder_settings, in_parts, real_rows
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.rewards import GailSettings
from trajtrainer.spec import ActionSpec, BehaviorSpec
from trajtrainer.steps import FloatArray

EPSILON = 1e-7
_PENALTY_WEIGHT = 10.0
_CODE_SIZE = 128
_CODE_GAIN, _ESTIMATOR_GAIN = 0.1, 0.2
_INFORMATION = 0.5  # that the code may hold of a row
_BETA_STEP = 0.0005


class Inputs(NamedTuple):
    """What the discriminator sees of b rows.

    Attributes:
        obs: per sensor [b, *O].
        actions: flat, and whether the episode ended with the step [b, A + 1]; None without ``use_actions``.
    """

    obs: list[Tensor]
    actions: Tensor | None

    @property
    def everything(self) -> list[Tensor]:
        """All of it, [b, ...] each."""
        return self.obs if self.actions is None else [*self.obs, self.actions]


class Estimate(NamedTuple):
    """The probability of being demonstrated [b], and the mean of the code [b, z] with a bottleneck."""

    probability: Tensor
    code: Tensor | None


class Discriminator(nn.Module):
    """Tell demonstrated steps from the policy's.

    With ``use_vail`` through a stochastic code that holds little (the variational discriminator bottleneck, Peng et
    al. 2019), whose weight ``beta`` is adapted.

    Args:
        spec: what the agents see and do.
        settings: of the encoder.
        use_actions: whether it sees the actions, too.
        use_vail: whether there is a bottleneck.
    """

    mlagents_names: ClassVar[Names] = {
        "sigma": "_z_sigma",
        "beta": "_beta",
        "encoder": "encoder",
        "code": "_z_mu_layer",
        "estimator": "_estimator.0",
    }

    beta: Tensor | None

    def __init__(self, spec: BehaviorSpec, settings: NetworkSettings, *, use_actions: bool, use_vail: bool) -> None:
        super().__init__()
        action = spec.action_spec
        flat_size = int(action.continuous_size) + sum(action.discrete_branches)
        self.use_vail = use_vail
        self.sigma: Tensor | None = nn.Parameter(torch.ones(_CODE_SIZE)) if use_vail else None
        self.register_buffer("beta", torch.zeros(()) if use_vail else None)
        self.encoder = NetworkBody(spec.observation_specs, settings, action_size=flat_size + 1 if use_actions else 0)
        size = self.encoder.encoding_size
        self.code = kaiming_linear(size, _CODE_SIZE, _CODE_GAIN) if use_vail else None
        self.estimator = xavier_linear(_CODE_SIZE if use_vail else size, 1)
        with torch.no_grad():
            self.estimator.weight *= _ESTIMATOR_GAIN

    def forward(self, inputs: Inputs, normal: Callable[[Tensor], Tensor] | None = None) -> Estimate:
        """Return estimates; with a bottleneck by the mean of the code, or by a draw of it.

        Args:
            inputs: of b rows.
            normal: gives standard normal numbers of another tensor's shape, for a draw.
        """
        hidden, _ = self.encoder(inputs.obs, inputs.actions)
        code = None
        if self.code is not None and self.sigma is not None:
            hidden = code = self.code(hidden)
            if normal is not None:
                hidden = torch.addcmul(code, normal(code), self.sigma)
        return Estimate(torch.sigmoid(self.estimator(hidden)).squeeze(1), code)

    def excess_information(self, codes: Tensor) -> Tensor:
        """Return by how much the code holds more than it may: KL to a standard normal, less 1/2.

        Args:
            codes: means [2 b, z], of as many rows of the policy as of demonstrations.
        """
        assert self.sigma is not None
        variance = self.sigma.square()
        constant = (1.0 + variance.log() - variance).sum()
        return codes.square().sum(1).mean() - constant - _INFORMATION


class GailReward(TrainedReward):
    """``-ln(1 - D)``, where D is the probability that the discriminator gives a step of being demonstrated.

    Actions of demonstrations are what the environment received; they are compared with the policy's by what the
    policy would have to give for them. The gradient penalty (Gulrajani et al. 2017) is on all that the discriminator
    sees; ML-Agents' is on the first sensor alone (docs/mlagents-behavior.md#reward-signals).
    """

    needs = frozenset({"done"})

    def __init__(self, spec: BehaviorSpec, settings: GailSettings, device: torch.device) -> None:
        network = encoder_settings(settings)
        self.discriminator = Discriminator(spec, network, use_actions=settings.use_actions, use_vail=settings.use_vail)
        self._spec = spec
        self._action_spec: ActionSpec = spec.action_spec
        self._demo_path = settings.demo_path
        self._use_actions = settings.use_actions
        self._normalize = network.normalize
        self._squashed = False
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
        self._squashed = actor.head.tanh_squash
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
        loss, statistics = self._discrimination(policy, demonstrated)
        penalty = _PENALTY_WEIGHT * self._gradient_penalty(policy, demonstrated)
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
        continuous = continuous if self._squashed else continuous.clamp(-ENV_CLIP, ENV_CLIP)
        flat = flat_actions(continuous, discrete, self._action_spec)
        return torch.cat((flat, done.to(flat.dtype)[:, None]), 1)

    def _discrimination(self, policy: Inputs, demonstrated: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of telling them apart, and the statistics."""
        both = Inputs(*_pairwise(_joined, policy, demonstrated))
        probability, codes = self.discriminator(both, self._normal)
        of_policy, of_demonstrations = probability.chunk(2)
        loss = -((of_demonstrations + EPSILON).log() + (1.0 - of_policy + EPSILON).log()).mean()
        statistics = {
            "Policy/GAIL Policy Estimate": of_policy.detach().mean(),
            "Policy/GAIL Expert Estimate": of_demonstrations.detach().mean(),
            "Losses/GAIL Loss": loss.detach(),
        }
        if codes is not None:
            excess = self.discriminator.excess_information(codes)
            beta = self.discriminator.beta
            assert beta is not None
            # Ahead of its use, as ML-Agents' gradient has it.
            beta.add_(_BETA_STEP * excess.detach()).clamp_(min=0.0)
            loss = loss + beta * excess
            statistics["Policy/GAIL Beta"] = beta.clone()
            statistics["Losses/GAIL KL Loss"] = excess.detach() + _INFORMATION
        return loss, statistics

    def _gradient_penalty(self, policy: Inputs, demonstrated: Inputs) -> Tensor:
        """Return the mean squared deviation from 1 of the gradient's norm, between the policy and demonstrations."""
        between = Inputs(*_pairwise(self._interpolated, policy, demonstrated))
        # Attention's fused operation cannot be differentiated twice.
        with sdpa_kernel(SDPBackend.MATH):
            probability = self.discriminator(between, self._normal).probability
        gradients = torch.autograd.grad(probability.sum(), self._penalized(between), create_graph=True)
        squares = torch.stack([gradient.square().flatten(1).sum(1) for gradient in gradients]).sum(0)
        # The root has no gradient at 0.
        return ((squares + EPSILON).sqrt() - 1.0).square().mean()

    def _penalized(self, inputs: Inputs) -> list[Tensor]:
        return inputs.everything

    def _interpolated(self, policy: Tensor, demonstrated: Tensor) -> Tensor:
        policy, demonstrated = _as_float(policy), _as_float(demonstrated)
        part = self._uniform(policy)
        return torch.lerp(demonstrated, policy, part).requires_grad_()

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


def _pairwise(function: Any, one: Inputs, other: Inputs) -> tuple[list[Tensor], Tensor | None]:
    """Return what ``function`` makes of each pair of tensors."""
    obs = [function(*pair) for pair in zip(one.obs, other.obs, strict=True)]
    both = one.actions is not None and other.actions is not None
    return obs, function(one.actions, other.actions) if both else None


def _joined(ours: Tensor, theirs: Tensor) -> Tensor:
    return torch.cat((ours, theirs) if ours.dtype == theirs.dtype else (_as_float(ours), _as_float(theirs)))


def _as_float(obs: Tensor) -> Tensor:
    """Return pictures that are bytes as their encoders see them."""
    return obs.to(torch.float32).div_(255.0) if obs.dtype == torch.uint8 else obs
