"""Generative adversarial imitation learning (GAIL; Ho & Ermon 2016): rewards steps that look like demonstrations.

The discriminator D distinguishes demonstrated steps from the policy's steps. Its loss includes a gradient penalty
(Gulrajani et al. 2017). With ``use_vail``, the discriminator only observes a stochastic code with limited information
(variational discriminator bottleneck, Peng et al. 2019).

Shape legend: b rows, z code size, A size of flat actions, C continuous actions, K discrete branches, n inputs of the
layers.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from trajtrainer.core.columns import Columns
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import FloatArray
from trajtrainer.experience.recordings.demonstrations import load_demonstrations
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.body import NetworkBody
from trajtrainer.learning.nn.conditioning import Mlp, activated_layers, weights
from trajtrainer.learning.nn.distribution import ENV_CLIP
from trajtrainer.learning.nn.encoders import to_float
from trajtrainer.learning.nn.init import kaiming_linear, xavier_linear
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.nn.mlagents import Names
from trajtrainer.learning.nn.multi_agent import flat_actions
from trajtrainer.learning.rewards.demonstrations import DemonstrationRows
from trajtrainer.learning.rewards.settings import GailSettings
from trajtrainer.learning.rewards.trained import TrainedReward, encoder_settings, in_parts, real_rows
from trajtrainer.settings.network import NetworkSettings

EPSILON = 1e-7
PENALTY_WEIGHT = 10.0
_INFORMATION = 0.5  # limit of the information in a code, in nats
_BETA_STEP = 0.0005
_CODE_SIZE = 128
_CODE_GAIN, _ESTIMATOR_GAIN = 0.1, 0.2

# The discriminator's inputs for b rows: observations of each sensor [b, *O] and, with ``use_actions``, flat actions
# followed by 1 if the episode ended with the step, else 0 [b, A + 1].
Inputs = Sequence[Tensor]


class Discriminator(nn.Module):
    """Estimates the probability that a step comes from a demonstration rather than from the policy.

    Args:
        spec: the agents' observations and actions.
        settings: the encoder's settings.
        use_actions: also use actions as inputs.
        use_vail: add a variational bottleneck, weighted by an adaptive ``beta``.
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
        self.use_actions, self.use_vail = use_actions, use_vail
        self.sigma: Tensor | None = nn.Parameter(torch.ones(_CODE_SIZE)) if use_vail else None
        self.register_buffer("beta", torch.zeros(()) if use_vail else None)
        self.encoder = NetworkBody(spec.observation_specs, settings, action_size=flat_size + 1 if use_actions else 0)
        size = self.encoder.encoding_size
        self.code = kaiming_linear(size, _CODE_SIZE, _CODE_GAIN) if use_vail else None
        self.estimator = xavier_linear(_CODE_SIZE if use_vail else size, 1)
        with torch.no_grad():
            self.estimator.weight *= _ESTIMATOR_GAIN

    @property
    def is_mlp(self) -> bool:
        """True if this is an MLP on vectors with ML-Agents' activation, as ``differentiate`` assumes."""
        return self.encoder.is_mlp and self.encoder.is_swish and not self.use_vail

    def split(self, inputs: Inputs) -> tuple[Inputs, Tensor | None]:
        return (inputs[:-1], inputs[-1]) if self.use_actions else (inputs, None)

    def forward(self, inputs: Inputs, normal: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the probability that each row is demonstrated [b] and, with a bottleneck, the codes' means [b, z].

        Args:
            inputs: inputs for b rows.
            normal: returns standard normal noise in the shape of its argument, to sample codes; None to use the means.
        """
        hidden, _ = self.encoder(*self.split(inputs))
        code = None
        if self.code is not None and self.sigma is not None:
            hidden = code = self.code(hidden)
            if normal is not None:
                hidden = torch.addcmul(code, normal(code), self.sigma)
        return torch.sigmoid(self.estimator(hidden)).squeeze(1), code

    def excess_information(self, codes: Tensor) -> Tensor:
        """Return the mean information in codes [2 b, z] beyond the limit: KL to a standard normal minus 1/2, 0-d."""
        assert self.sigma is not None
        variance = self.sigma.square()
        constant = (1.0 + variance.log() - variance).sum()
        return codes.square().sum(1).mean() - constant - _INFORMATION


class Discrimination(NamedTuple):
    """The discriminator's results for b rows of the policy and b demonstrated rows.

    Attributes:
        loss: the loss, 0-d.
        of_policy: estimated probabilities for the policy's rows, [b].
        of_demonstrations: estimated probabilities for the demonstrated rows, [b].
        codes: means of the codes for all rows, [2 b, z]; None without a bottleneck.
    """

    loss: Tensor
    of_policy: Tensor
    of_demonstrations: Tensor
    codes: Tensor | None = None


def discriminate(
    discriminator: Discriminator, policy: Inputs, demonstrated: Inputs, normal: Callable[[Tensor], Tensor]
) -> Discrimination:
    """Evaluate D on all rows and compute the loss ``-mean(ln(D(demonstrated) + 1e-7) + ln(1 - D(policy) + 1e-7))``."""
    joined = [
        # Images become floats if only one of the two has bytes.
        torch.cat(pair if pair[0].dtype == pair[1].dtype else [to_float(one) for one in pair])
        for pair in zip(policy, demonstrated, strict=True)
    ]
    probability, codes = discriminator(joined, normal)
    of_policy, of_demonstrations = probability.chunk(2)
    loss = -((of_demonstrations + EPSILON).log() + (1.0 - of_policy + EPSILON).log()).mean()
    return Discrimination(loss, of_policy, of_demonstrations, codes)


def gradient_penalty(
    discriminator: Discriminator,
    between: Inputs,
    normal: Callable[[Tensor], Tensor],
    penalized: Callable[[Inputs], Inputs] = lambda inputs: inputs,
) -> Tensor:
    """Return the gradient penalty ``10 * mean((norm(dD/dx) - 1)^2)``, where x are D's inputs."""
    for each in between:
        each.requires_grad_()
    # The fused attention operation cannot be differentiated twice.
    with sdpa_kernel(SDPBackend.MATH):
        probability, _ = discriminator(between, normal)
    # The gradient is 0 for sensors that D does not observe.
    gradients = torch.autograd.grad(probability.sum(), penalized(between), create_graph=True, materialize_grads=True)
    squares = torch.stack([gradient.square().flatten(1).sum(1) for gradient in gradients]).sum(0)
    # EPSILON is needed because the square root has no finite gradient at 0.
    return PENALTY_WEIGHT * ((squares + EPSILON).sqrt() - 1.0).square().mean()


@torch.no_grad()
def differentiate(
    discriminator: Discriminator, policy: Inputs, demonstrated: Inputs, between: Inputs
) -> tuple[Discrimination, Tensor]:
    """Write the gradient of loss plus penalty into the parameters' ``grad`` without autograd, and return both.

    Twin of ``trajtrainer.learning.rewards.gail.discriminate`` and ``gradient_penalty`` and their ``backward``, for a
    discriminator that ``is_mlp``. The results are equal up to rounding, and computed several times faster for small
    layers.

    Let g = dD/dx and v = d(penalty)/dg. Then d(penalty)/d(weights) is the gradient of the directional derivative v . g
    with v held constant. This requires a backward pass for g, a forward pass along v, and another backward pass, which
    is shared with the loss (forward-over-reverse; Griewank & Walther 2008).
    """
    body, estimator = discriminator.encoder, discriminator.estimator
    assert isinstance(body.layers, Mlp)
    layers, swish_gradient = body.layers.linears, torch.ops.aten.silu_backward
    count = len(between[0])
    first = 2 * count  # the first row of ``between``

    # Compute the inputs of the layers [3 b, n], and their derivatives with respect to the rows of ``between`` [b, n],
    # which are None if they are all 1.
    obs, actions = discriminator.split([torch.cat(each) for each in zip(policy, demonstrated, between, strict=True)])
    x: Tensor = body.encoder(obs)[0]
    normalizers, slopes = body.encoder.normalizers(), None
    if normalizers:
        steps = [1.0 / each.standard_deviation() for each in normalizers.values()]
        inside_limits = x[first:].abs() < next(iter(normalizers.values())).clip
        slopes = torch.cat(steps) * inside_limits
    if actions is not None:
        x = torch.cat((x, actions), 1)
        if slopes is not None:
            slopes = torch.cat((slopes, torch.ones_like(actions[first:])), 1)

    # Compute D for all rows, the loss, and its gradient with respect to the sigmoid's inputs.
    tape = list[tuple[Tensor, Tensor]]()
    features = activated_layers(x, map(weights, layers), tape)
    probability = torch.addmm(estimator.bias, features, estimator.weight.t()).squeeze(1).sigmoid_()
    of_policy, of_demonstrations, inside = probability.chunk(3)
    slope = probability * (1.0 - probability)
    loss = -((of_demonstrations + EPSILON).log() + (1.0 - of_policy + EPSILON).log()).mean()
    grad = torch.empty_like(probability)
    torch.div(slope[:count], count * (1.0 - of_policy + EPSILON), out=grad[:count])
    torch.div(slope[count:first], -count * (of_demonstrations + EPSILON), out=grad[count:first])

    # Backward pass to the inputs, for g of the rows in ``between`` and the penalty.
    totals = [total[first:] for _, total in tape]
    backward = slope[first:, None] * estimator.weight
    arriving, leaving = [], []
    for layer, total in zip(reversed(layers), reversed(totals), strict=True):
        arriving.append(backward)
        leaving.append(swish_gradient(backward, total))
        backward = leaving[-1] @ layer.weight
    arriving.reverse()
    leaving.reverse()
    gradient = backward if slopes is None else backward * slopes
    norm = (gradient.square().sum(1) + EPSILON).sqrt()
    penalty = PENALTY_WEIGHT * (norm - 1.0).square().mean()

    # Forward pass along v.
    direction = gradient * ((2.0 * PENALTY_WEIGHT / count) * (norm - 1.0) / norm)[:, None]
    if slopes is not None:
        direction *= slopes
    along, moves = [direction], []
    for layer, total in zip(layers, totals, strict=True):
        moves.append(along[-1] @ layer.weight.t())
        along.append(swish_gradient(moves[-1], total))
    moved = (along[-1] @ estimator.weight.t()).squeeze(1)
    torch.mul(slope[first:] * (1.0 - 2.0 * inside), moved, out=grad[first:])

    # Backward pass to all weights, for the loss and the penalty together.
    estimator.weight.grad = torch.addmm(slope[None, first:] @ along[-1], grad[None], features)
    estimator.bias.grad = grad.sum(0, keepdim=True)
    backward = grad[:, None] * estimator.weight
    for index in range(len(layers) - 1, -1, -1):
        layer, (entered, total) = layers[index], tape[index]
        backward = swish_gradient(backward, total)
        # Second derivative of x * sigmoid(x).
        s = torch.sigmoid(totals[index])
        curvature = s * (1.0 - s) * (2.0 + totals[index] * (1.0 - 2.0 * s))
        backward[first:] += curvature * moves[index] * arriving[index]
        layer.weight.grad = torch.addmm(leaving[index].t() @ along[index], backward.t(), entered)
        layer.bias.grad = backward.sum(0)
        if index:
            backward = backward @ layer.weight
    return Discrimination(loss, of_policy, of_demonstrations), penalty


class GailReward(TrainedReward):
    """The GAIL reward ``-ln(1 - D)``, where D is the discriminator's probability that a step was demonstrated.

    Demonstrations contain actions as the environment received them, which are converted to the policy's raw actions.
    The gradient penalty applies to all inputs of the discriminator. In ML-Agents, it only applies to the first sensor
    (docs/explanation/mlagents-behavior.md#reward-signals).

    Attributes:
        discriminator: the discriminator.
        by_hand: True if the discriminator's gradient is computed without autograd.
    """

    needs = frozenset({"done"})

    def __init__(self, spec: BehaviorSpec, settings: GailSettings, device: torch.device) -> None:
        network = encoder_settings(settings)
        self.discriminator = Discriminator(spec, network, use_actions=settings.use_actions, use_vail=settings.use_vail)
        self.by_hand = self.discriminator.is_mlp
        self._spec = spec
        self._demo_path = settings.demo_path
        self._use_actions = settings.use_actions
        self._normalize = network.normalize
        self._limit = ENV_CLIP
        self._demonstrated: Columns[Tensor] = Columns({})
        # Derive the seed from the weights, which depend on the run's seed.
        seed = zlib.crc32(self.discriminator.estimator.weight.detach().numpy().tobytes())
        self._draws = torch.Generator().manual_seed(seed)
        self._noise = torch.Generator(device).manual_seed(seed ^ 1)
        super().__init__("gail", settings, {"GAIL": self.discriminator}, device)

    def prepare(self, actor: Actor) -> None:
        self.imitate(load_demonstrations([self._demo_path], spec=self._spec).packed, actor)

    def imitate(self, packed: PackedSteps, actor: Actor) -> None:
        """Use recorded steps as the demonstrations."""
        self._limit = 1.0 if actor.head.tanh_squash else actor.head.clip_actions
        rows = DemonstrationRows(packed, actor.head, 1, self._device).rows
        self._demonstrated = rows.with_columns({"done": torch.from_numpy(packed["done"]).to(self._device)})

    def _reward(self, packed: PackedSteps) -> FloatArray:
        inputs = self._tensors(packed.obs)
        if self._use_actions:
            inputs.append(self._actions(*self._tensors([packed["continuous"], packed["discrete"], packed["done"]])))
        with torch.no_grad():
            probability = in_parts(lambda part: self.discriminator(part)[0], inputs)
        reward: FloatArray = (-(1.0 - probability * (1.0 - EPSILON)).log()).cpu().numpy()
        return reward

    def update(self, minibatch: Minibatch) -> dict[str, Tensor]:
        """Make a gradient step on these rows and the same number of demonstrated rows, sampled with replacement."""
        rows = real_rows(minibatch)
        drawn = self._demonstrated.take(self._numbers(len(rows)).to(self._device))
        if self._normalize:
            self.discriminator.encoder.update_normalization(drawn.obs)
        policy, demonstrated = self._inputs(rows), self._inputs(drawn)
        more: dict[str, Tensor] = {}
        if self.by_hand:
            found, penalty = differentiate(
                self.discriminator, policy, demonstrated, self._between(policy, demonstrated)
            )
            self._optimizer.step()
        else:
            found = discriminate(self.discriminator, policy, demonstrated, self._normal)
            loss = found.loss
            if found.codes is not None:
                # As in ML-Agents, adapt the weight of the bottleneck before the gradient step.
                beta, excess = self.discriminator.beta, self.discriminator.excess_information(found.codes)
                assert beta is not None
                beta.add_(_BETA_STEP * excess.detach()).clamp_(min=0.0)
                loss = loss + beta * excess
                more = {
                    "Policy/GAIL Beta": beta.clone(),
                    "Losses/GAIL KL Loss": excess.detach() + _INFORMATION,
                }
            between = self._between(policy, demonstrated)
            penalty = gradient_penalty(self.discriminator, between, self._normal, self._penalized)
            self._optimizer.descend(loss + penalty)
        return {
            "Policy/GAIL Policy Estimate": found.of_policy.detach().mean(),
            "Policy/GAIL Expert Estimate": found.of_demonstrations.detach().mean(),
            "Losses/GAIL Loss": found.loss.detach(),
            **more,
            "Policy/GAIL Grad Mag Loss": penalty.detach(),
        }

    def _numbers(self, count: int) -> Tensor:
        return torch.randint(len(self._demonstrated), (count,), generator=self._draws)

    def _inputs(self, rows: Columns[Tensor]) -> Inputs:
        if not self._use_actions:
            return rows.obs
        return [*rows.obs, self._actions(rows["continuous"], rows["discrete"], rows["done"])]

    def _actions(self, continuous: Tensor, discrete: Tensor, done: Tensor) -> Tensor:
        # The environment clips actions to this range, so demonstrations never exceed it.
        continuous = continuous.clamp(-self._limit, self._limit)
        flat = flat_actions(continuous, discrete, self._spec.action_spec)
        return torch.cat((flat, done.to(flat.dtype)[:, None]), 1)

    def _between(self, policy: Inputs, demonstrated: Inputs) -> Inputs:
        """Return random interpolations between the policy's and the demonstrated inputs."""
        floats = [(to_float(one), to_float(other)) for one, other in zip(policy, demonstrated, strict=True)]
        return [torch.lerp(other, one, self._uniform(one)) for one, other in floats]

    def _penalized(self, inputs: Inputs) -> Inputs:
        return inputs

    def _normal(self, like: Tensor) -> Tensor:
        return torch.empty_like(like).normal_(generator=self._noise)

    def _uniform(self, like: Tensor) -> Tensor:
        return torch.empty_like(like).uniform_(generator=self._noise)

    def optimizer_state(self) -> dict[str, Any] | None:
        generators = {"draws": self._draws.get_state(), "noise": self._noise.get_state()}
        return {**(super().optimizer_state() or {}), **generators}

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        super().load_optimizer_state(state)
        for name, generator in (("draws", self._draws), ("noise", self._noise)):
            if name in state and state[name].shape == generator.get_state().shape:
                generator.set_state(state[name])
