"""Actor and critic of plain layers evaluated together, and differentiated without autograd.

Both bodies have the same shapes, so one batched matrix product per layer does for both. All parameters are parts of
one tensor and so are their gradients, which makes Adam one operation. Most of the time that autograd takes for networks
of the usual sizes is not arithmetic: an update of two 128x2 networks on 64 rows takes a third of the time this way.

Letters: b rows, E hidden units, C continuous actions, D sum of branch sizes, V reward signals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trajtrainer.algos.adam_moments import Piece
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.conditioning import Mlp
from trajtrainer.nn.critic import AnyCritic, Critic
from trajtrainer.nn.distribution import ActionDistribution, GaussianScale
from trajtrainer.nn.heads import masked


def can_stack(actor: Actor, critic: AnyCritic) -> bool:
    """Whether these are two networks of plain layers on vectors: their bodies have the same shapes then."""
    return isinstance(critic, Critic) and actor.body.is_plain and critic.body.is_plain


@dataclass(frozen=True, slots=True)
class Outputs:
    """What the networks say of b rows, and what their gradient needs.

    Attributes:
        policy: [b, C + D], means of the continuous actions and logits of the branches.
        values: [b, V].
        inputs: of each layer [2, b, in], those of the heads as the last.
        sums: what each layer gives ahead of Swish [2, b, E].
    """

    policy: Tensor
    values: Tensor
    inputs: list[Tensor]
    sums: list[Tensor]


@dataclass(frozen=True, slots=True)
class _Parts:
    """All parameters, or all gradients, as parts of one tensor.

    Attributes:
        layers: weight [2, E, in] and bias [2, 1, E] of each layer, the actor's first.
        policy: weight [C + D, E] and bias [C + D].
        values: weight [V, E] and bias [V].
        log_sigma: [1, C]; C may be 0.
    """

    layers: list[tuple[Tensor, Tensor]]
    policy: tuple[Tensor, Tensor]
    values: tuple[Tensor, Tensor]
    log_sigma: Tensor


class StackedNetworks:
    """See ``can_stack``. The modules go on working: their parameters become parts of ``flat``.

    Attributes:
        flat: every parameter. Its ``grad`` is always there and is overwritten by ``backward``.
        pieces: of it, in the order of the actor's and then the critic's ``parameters()``.
    """

    def __init__(self, actor: Actor, critic: Critic) -> None:
        """Moves the parameters into one tensor, those side by side that are used together."""
        self._actor = actor
        parameters = [*actor.parameters(), *critic.parameters()]
        self.flat = parameters[0].detach().new_zeros(sum(parameter.numel() for parameter in parameters))
        self.flat.grad = torch.zeros_like(self.flat)
        self._weights = _parts(self.flat, actor, critic)
        self._gradients = _parts(self.flat.grad, actor, critic)
        for parameter, part in _homes(self._weights, actor, critic):
            part.copy_(parameter.detach())
            parameter.data = part
        self.pieces = [Piece(self.flat, _Range(int(one.storage_offset()), one.shape)) for one in parameters]

    @torch.no_grad()
    def __call__(self, obs: Sequence[Tensor]) -> Outputs:
        """Both networks for observations, per sensor [b, *O]. The normalisers of both hold the same."""
        x = self._actor.body.encoder(obs)[0].expand(2, -1, -1)
        inputs, sums = [x], []
        for weight, bias in self._weights.layers:
            sums.append(torch.baddbmm(bias, inputs[-1], weight.transpose(1, 2)))
            inputs.append(F.silu(sums[-1]))
        (policy_weight, policy_bias), (value_weight, value_bias) = self._weights.policy, self._weights.values
        return Outputs(
            policy=torch.addmm(policy_bias, inputs[-1][0], policy_weight.t()),
            values=torch.addmm(value_bias, inputs[-1][1], value_weight.t()),
            inputs=inputs,
            sums=sums,
        )

    def distribution(self, outputs: Outputs, mask: Tensor) -> ActionDistribution:
        """What the policy may do under masks, bool [b, D]."""
        head = self._actor.head
        mu, logits = outputs.policy, outputs.policy[:, head.continuous_size :]
        if head.branches:
            mu, logits = mu[:, : head.continuous_size], masked(logits, mask)
        return head.distribution(mu, GaussianScale(self._weights.log_sigma), logits)

    @torch.no_grad()
    def backward(self, outputs: Outputs, policy: Tensor, values: Tensor, log_sigma: Tensor) -> None:
        """Writes the gradient of a loss into ``flat.grad``, given its gradient with respect to what the networks say:
        policy [b, C + D], values [b, V], log_sigma [1, C]."""
        weights, gradients = self._weights, self._gradients
        gradients.log_sigma.copy_(log_sigma)
        _linear_gradient(policy, outputs.inputs[-1][0], gradients.policy)
        _linear_gradient(values, outputs.inputs[-1][1], gradients.values)
        through = torch.empty_like(outputs.sums[-1])
        torch.mm(policy, weights.policy[0], out=through[0])
        torch.mm(values, weights.values[0], out=through[1])
        for index in range(len(weights.layers) - 1, -1, -1):
            weight, bias = gradients.layers[index]
            through = torch.ops.aten.silu_backward(through, outputs.sums[index])
            torch.bmm(through.transpose(1, 2), outputs.inputs[index], out=weight)
            torch.sum(through, 1, keepdim=True, out=bias)
            if index:
                through = torch.bmm(through, weights.layers[index][0])


class _Range:
    """The part of a flat tensor that is a parameter of this shape."""

    def __init__(self, start: int, shape: torch.Size) -> None:
        self._part = slice(start, start + shape.numel())
        self._shape = shape

    def __call__(self, flat: Tensor) -> Tensor:
        return flat[self._part].view(self._shape)


def _linear_gradient(gradient: Tensor, inputs: Tensor, out: tuple[Tensor, Tensor]) -> None:
    """Of weight and bias of a linear layer, from that of its outputs."""
    torch.mm(gradient.t(), inputs, out=out[0])
    torch.sum(gradient, 0, out=out[1])


def _parts(flat: Tensor, actor: Actor, critic: Critic) -> _Parts:
    head, signals = actor.head, len(critic.signals)
    units, decisions = actor.body.encoding_size, head.continuous_size + sum(head.branches)
    shapes: list[tuple[int, ...]] = []
    for linear in _linears(actor):
        shapes += [(2, linear.out_features, linear.in_features), (2, 1, linear.out_features)]
    shapes += [(decisions, units), (decisions,), (signals, units), (signals,), (1, head.continuous_size)]
    parts = flat.split_with_sizes([math.prod(shape) for shape in shapes])
    *layers, policy, policy_bias, values, value_bias, log_sigma = (
        part.view(shape) for part, shape in zip(parts, shapes, strict=True)
    )
    pairs = list(zip(layers[::2], layers[1::2], strict=True))
    return _Parts(pairs, (policy, policy_bias), (values, value_bias), log_sigma)


def _homes(parts: _Parts, actor: Actor, critic: Critic) -> list[tuple[Tensor, Tensor]]:
    """Each parameter and its part, which is contiguous."""
    places: list[tuple[nn.Linear, Tensor, Tensor]] = []
    for (weight, bias), pair in zip(parts.layers, zip(_linears(actor), _linears(critic), strict=True), strict=True):
        places += [(linear, weight[number], bias[number, 0]) for number, linear in enumerate(pair)]
    head = actor.head
    for (weight, bias), linears in (
        (parts.policy, [linear for linear in (head.mu, head.discrete) if linear is not None]),
        (parts.values, [linear for linear in critic.heads.linears.values() if isinstance(linear, nn.Linear)]),
    ):
        sizes = [linear.out_features for linear in linears]
        places += zip(linears, weight.split_with_sizes(sizes), bias.split_with_sizes(sizes), strict=True)
    homes: list[tuple[Tensor, Tensor]] = [(linear.weight, weight) for linear, weight, _ in places]
    homes += [(linear.bias, bias) for linear, _, bias in places]
    return homes + ([] if head.log_sigma is None else [(head.log_sigma, parts.log_sigma)])


def _linears(network: Actor | Critic) -> list[nn.Linear]:
    layers = network.body.layers
    assert isinstance(layers, Mlp)
    return [layer for layer in layers.layers if isinstance(layer, nn.Linear)]
