"""The discriminator of GAIL: tells demonstrated steps from the policy's.

Shape legend: b rows, h encoding, z code, A flat actions, O an observation's own shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.nn.body import NetworkBody
from trajtrainer.nn.init import kaiming_linear, xavier_linear
from trajtrainer.nn.mlagents import Names
from trajtrainer.settings.network import NetworkSettings

EPSILON = 1e-7
PENALTY_WEIGHT = 10.0
INFORMATION = 0.5  # that the code may hold of a row
_CODE_SIZE = 128
_CODE_GAIN, _ESTIMATOR_GAIN = 0.1, 0.2


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
        return codes.square().sum(1).mean() - constant - INFORMATION


class Discrimination(NamedTuple):
    """What telling b rows of the policy from as many demonstrated ones gives.

    Attributes:
        loss: 0-d.
        of_policy: probabilities [b].
        of_demonstrations: probabilities [b].
        codes: means [2 b, z], with a bottleneck.
    """

    loss: Tensor
    of_policy: Tensor
    of_demonstrations: Tensor
    codes: Tensor | None = None


def discriminate(
    discriminator: Discriminator, policy: Inputs, demonstrated: Inputs, normal: Callable[[Tensor], Tensor]
) -> Discrimination:
    """Return ``-mean(ln(D(demonstrated) + 1e-7) + ln(1 - D(policy) + 1e-7))``, and what it comes from."""
    probability, codes = discriminator(pairwise(joined, policy, demonstrated), normal)
    of_policy, of_demonstrations = probability.chunk(2)
    loss = -((of_demonstrations + EPSILON).log() + (1.0 - of_policy + EPSILON).log()).mean()
    return Discrimination(loss, of_policy, of_demonstrations, codes)


def gradient_penalty(
    discriminator: Discriminator,
    between: Inputs,
    normal: Callable[[Tensor], Tensor],
    penalized: Callable[[Inputs], list[Tensor]] = lambda inputs: inputs.everything,
) -> Tensor:
    """Return ten times the mean squared deviation from 1 of the norm of the gradient by the inputs."""
    for each in between.everything:
        each.requires_grad_()
    # Attention's fused operation cannot be differentiated twice.
    with sdpa_kernel(SDPBackend.MATH):
        probability = discriminator(between, normal).probability
    gradients = torch.autograd.grad(probability.sum(), penalized(between), create_graph=True)
    squares = torch.stack([gradient.square().flatten(1).sum(1) for gradient in gradients]).sum(0)
    # The root has no gradient at 0.
    return PENALTY_WEIGHT * ((squares + EPSILON).sqrt() - 1.0).square().mean()


def pairwise(function: Callable[[Tensor, Tensor], Tensor], one: Inputs, other: Inputs) -> Inputs:
    """Return what ``function`` makes of each pair of tensors."""
    obs = [function(*pair) for pair in zip(one.obs, other.obs, strict=True)]
    if one.actions is None or other.actions is None:
        return Inputs(obs, None)
    return Inputs(obs, function(one.actions, other.actions))


def joined(one: Tensor, other: Tensor) -> Tensor:
    """Return the rows of both, as floats where only one of them is bytes."""
    return torch.cat((one, other) if one.dtype == other.dtype else (as_float(one), as_float(other)))


def as_float(obs: Tensor) -> Tensor:
    """Return pictures that are bytes as their encoders see them."""
    return obs.to(torch.float32).div_(255.0) if obs.dtype == torch.uint8 else obs
