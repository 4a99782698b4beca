"""The gradient of GAIL's discriminator, penalty included, without autograd.

The penalty's gradient is that of a directional derivative: with v the penalty's gradient by the gradient g of D by the
inputs, d(penalty) / d(weights) = d(v . dD/dx) / d(weights), v held. So it takes one pass back for g, one pass forward
along v and one pass back, the last together with that of the loss (forward-over-reverse, Griewank & Walther 2008).

Shapes: b rows of the policy, as many demonstrated and as many in between; E units of a layer, n inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trajtrainer.nn.conditioning import Mlp, activated_layers, weights
from trajtrainer.rewards.discriminator import EPSILON, PENALTY_WEIGHT, Discrimination, Discriminator, Inputs

_swish_gradient = torch.ops.aten.silu_backward


def can_differentiate(discriminator: Discriminator) -> bool:
    """Return whether a discriminator is an MLP on vectors, without a bottleneck."""
    body = discriminator.encoder
    return body.is_mlp and body.is_swish and not discriminator.use_vail


@torch.no_grad()
def differentiate(
    discriminator: Discriminator, policy: Inputs, demonstrated: Inputs, between: Inputs
) -> tuple[Discrimination, Tensor]:
    """Write the gradient of loss plus penalty into the parameters' ``grad``. Return both.

    Twin of ``trajtrainer.rewards.discriminator.discriminate`` and ``gradient_penalty`` and their ``backward``: the
    same to rounding, several times faster where the layers are small.

    Args:
        discriminator: see ``can_differentiate``.
        policy: of b rows.
        demonstrated: of b rows.
        between: of b rows, where the penalty is.
    """
    body = discriminator.encoder
    assert isinstance(body.layers, Mlp)
    x, slopes = _encoded(discriminator, [policy, demonstrated, between])
    layers, tape = body.layers.linears, list[tuple[Tensor, Tensor]]()
    features = activated_layers(x, map(weights, layers), tape)
    estimator = discriminator.estimator
    probability = torch.addmm(estimator.bias, features, estimator.weight.t()).squeeze(1).sigmoid_()
    count = len(x) // 3
    first = 2 * count  # of the rows in between
    of_policy, of_demonstrations, inside = probability.chunk(3)
    slope = probability * (1.0 - probability)
    loss = -((of_demonstrations + EPSILON).log() + (1.0 - of_policy + EPSILON).log()).mean()
    # With respect to what the estimator says ahead of the sigmoid.
    grad = torch.empty_like(probability)
    torch.div(slope[:count], count * (1.0 - of_policy + EPSILON), out=grad[:count])
    torch.div(slope[count:first], -count * (of_demonstrations + EPSILON), out=grad[count:first])
    # Back to the inputs, for D in between.
    totals = [total[first:] for _, total in tape]
    backward = slope[first:, None] * estimator.weight
    arriving, leaving = [], []
    for layer, total in zip(reversed(layers), reversed(totals), strict=True):
        arriving.append(backward)
        leaving.append(_swish_gradient(backward, total))
        backward = leaving[-1] @ layer.weight
    arriving.reverse()
    leaving.reverse()
    gradient = backward if slopes is None else backward * slopes
    norm = (gradient.square().sum(1) + EPSILON).sqrt()
    penalty = PENALTY_WEIGHT * (norm - 1.0).square().mean()
    # Forward along the penalty's gradient by it.
    direction = gradient * ((2.0 * PENALTY_WEIGHT / count) * (norm - 1.0) / norm)[:, None]
    if slopes is not None:
        direction *= slopes
    along, moves = [direction], []
    for layer, total in zip(layers, totals, strict=True):
        moves.append(along[-1] @ layer.weight.t())
        along.append(_swish_gradient(moves[-1], total))
    moved = (along[-1] @ estimator.weight.t()).squeeze(1)
    torch.mul(slope[first:] * (1.0 - 2.0 * inside), moved, out=grad[first:])
    # Back to all weights, of both.
    estimator.weight.grad = torch.addmm(slope[None, first:] @ along[-1], grad[None], features)
    estimator.bias.grad = grad.sum(0, keepdim=True)
    backward = grad[:, None] * estimator.weight
    for index in range(len(layers) - 1, -1, -1):
        layer, (entered, total) = layers[index], tape[index]
        backward = _swish_gradient(backward, total)
        backward[first:] += _swish_curvature(totals[index]) * moves[index] * arriving[index]
        layer.weight.grad = torch.addmm(leaving[index].t() @ along[index], backward.t(), entered)
        layer.bias.grad = backward.sum(0)
        if index:
            backward = backward @ layer.weight
    return Discrimination(loss, of_policy, of_demonstrations), penalty


def _encoded(discriminator: Discriminator, parts: list[Inputs]) -> tuple[Tensor, Tensor | None]:
    """Return what the layers take [3 b, n], and how it follows the inputs of the last part [b, n]; None for 1."""
    encoder = discriminator.encoder.encoder
    obs = [torch.cat(sensors) for sensors in zip(*(part.obs for part in parts), strict=True)]
    x: Tensor = encoder(obs)[0]
    normalizers = encoder.normalizers()
    count = len(parts[0].obs[0])
    slopes = None
    if normalizers:
        # Nothing follows beyond the limits.
        steps = [1.0 / normalizers[i].standard_deviation() for i in range(len(obs))]
        slopes = torch.cat(steps) * (x[2 * count :].abs() < normalizers[0].clip)
    actions = [part.actions for part in parts if part.actions is not None]
    if actions:
        x = torch.cat((x, torch.cat(actions)), 1)
        if slopes is not None:
            slopes = torch.cat((slopes, torch.ones_like(actions[0])), 1)
    return x, slopes


def _swish_curvature(x: Tensor) -> Tensor:
    """Return the second derivative of ``x * sigmoid(x)``."""
    s = torch.sigmoid(x)
    return s * (1.0 - s) * (2.0 + x * (1.0 - 2.0 * s))
