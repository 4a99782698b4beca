"""Any number of MLPs on vectors evaluated together and differentiated without autograd: the offline trainers' networks.

Unlike ``stacked_networks`` the networks may take different inputs and give different outputs: narrower ones are filled
up with zeros, which stay zeros, as nothing flows through them. One batched matrix product per layer does for all.

Shapes: n networks, b rows, W outputs of the widest head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from trajtrainer.nn.conditioning import Mlp, affine
from trajtrainer.nn.fast import stacked_bodies
from trajtrainer.nn.fast.adam import Piece
from trajtrainer.nn.fast.stacked_bodies import BodyParts, BodyRun, Linear, affine_gradient
from trajtrainer.nn.heads import ActionHead, ValueHeads


@dataclass(frozen=True, slots=True)
class Run:
    """Outputs of some networks, and what their gradient needs.

    Attributes:
        outputs: [n, b, W].
        body: of these networks.
    """

    outputs: Tensor
    body: BodyRun


@dataclass(frozen=True, slots=True)
class _Part:
    """Some of the networks, one after the other."""

    bodies: BodyParts
    heads: Linear


class StackedMlps:
    """Evaluate MLPs at once. Their modules go on working: their parameters become parts of common tensors.

    They are an ``Actor`` and ``ValueNetwork``s of one depth and width; the closed forms
    of ``bc`` and ``iql`` are made of this, and their parity tests cover it.

    Attributes:
        groups: the leaves that are trained of each group of networks; their ``grad`` is overwritten by ``backward``.
    """

    def __init__(self, networks: Sequence[nn.Module], groups: Sequence[int]) -> None:
        """Move the parameters of the networks' layers into common tensors.

        Args:
            networks: actors and critics, each with a body that is an ``Mlp`` and a linear head.
            groups: how many of them, from the first one on, are trained together. Those that are left are not trained.
        """
        self._trained = sum(groups)
        bounds = [(sum(groups[:i]), sum(groups[: i + 1])) for i in range(len(groups))]
        self.groups: list[list[Tensor]] = [[] for _ in groups]
        self._weights: list[Linear] = []
        self._gradients: list[Linear] = []
        self._views: dict[Tensor, Piece] = {}
        for layer in zip(*(_layers(network) for network in networks), strict=True):
            self._place(layer, bounds)
        self._parts: dict[tuple[int, int], _Part] = {}
        self._activation = _mlp(networks[0]).activation
        self._gradient = _Part(BodyParts(self._gradients[:-1], None, self._activation), self._gradients[-1])

    def _place(self, layer: Sequence[Sequence[nn.Linear]], bounds: Sequence[tuple[int, int]]) -> None:
        """Add one layer: for each network the linears that stand side by side in it."""
        inputs = max(side[0].in_features for side in layer)
        width = max(sum(linear.out_features for linear in side) for side in layer)
        sample = layer[0][0].weight
        weight, bias = sample.new_zeros(len(layer), width, inputs), sample.new_zeros(len(layer), 1, width)
        weight, bias = weight.detach(), bias.detach()
        gradients = torch.zeros_like(weight[: self._trained]), torch.zeros_like(bias[: self._trained])
        self._weights.append(Linear.of(weight, bias))
        self._gradients.append(Linear.of(*gradients))
        for (start, stop), leaves in zip(bounds, self.groups, strict=True):
            for tensor, gradient in zip((weight, bias), gradients, strict=True):
                leaf = tensor[start:stop]
                leaf.grad = gradient[start:stop]
                leaves.append(leaf)
        for number, side in enumerate(layer):
            group = next((i for i, (start, stop) in enumerate(bounds) if start <= number < stop), None)
            begin = 0
            for linear in side:
                rows = slice(begin, begin := begin + linear.out_features)
                views = (partial(_weight, rows=rows, inputs=linear.in_features), partial(_bias, rows=rows))
                for index, (tensor, parameter) in enumerate(zip((weight, bias), linear.parameters(), strict=True)):
                    place = views[index](tensor, number)
                    place.copy_(parameter.detach())
                    parameter.data = place
                    if group is not None:
                        leaf = self.groups[group][index - 2]
                        self._views[parameter] = Piece(leaf, _of(views[index], number - bounds[group][0]))

    def pieces(self, parameters: Sequence[Tensor]) -> list[Piece]:
        """Return parameters of the networks that are trained as parts of the leaves; others as they are."""
        return [self._views.get(each) or Piece(each, _itself) for each in parameters]

    @torch.no_grad()
    def __call__(self, x: Tensor, start: int, stop: int) -> Run:
        """Evaluate the networks from ``start`` to ``stop`` on encoded observations [n, b, widest input]."""
        part = self._part(start, stop)
        body = stacked_bodies.forward(part.bodies, x, None)
        return Run(affine(body.encoding, part.heads.layer), body)

    @torch.no_grad()
    def backward(self, run: Run, grad: Tensor) -> None:
        """Write the gradient of a loss, given that of the outputs [n, b, W], of all networks that are trained."""
        part = self._part(0, self._trained)
        affine_gradient(grad, run.body.encoding, self._gradient.heads)
        stacked_bodies.backward(part.bodies, self._gradient.bodies, run.body, torch.bmm(grad, part.heads.weight))

    @torch.no_grad()
    def follow(self, followers: slice, followed: slice, tau: float) -> None:
        """Move some networks by the fraction ``tau`` towards others."""
        tensors = [tensor for linear in self._weights for tensor in linear[:2]]
        torch._foreach_lerp_([one[followers] for one in tensors], [one[followed] for one in tensors], tau)

    def _part(self, start: int, stop: int) -> _Part:
        part = self._parts.get((start, stop))
        if part is None:
            some = [Linear.of(weight[start:stop], bias[start:stop]) for weight, bias, _ in self._weights]
            part = self._parts[start, stop] = _Part(BodyParts(some[:-1], None, self._activation), some[-1])
        return part


def _layers(network: nn.Module) -> list[list[nn.Linear]]:
    """Return the linears of each layer that stand side by side; those of the head last."""
    return [*([linear] for linear in _mlp(network).linears), head_linears(network)]


def _mlp(network: nn.Module) -> Mlp:
    mlp = network.body.layers  # type: ignore[union-attr]
    assert isinstance(mlp, Mlp)
    return mlp


def head_linears(network: nn.Module) -> list[nn.Linear]:
    """Return the linears of an actor's or a critic's head in the order of their outputs."""
    if isinstance(heads := getattr(network, "heads", None), ValueHeads):
        return [linear for linear in heads.linears.values() if isinstance(linear, nn.Linear)]
    head = network.head
    assert isinstance(head, ActionHead)
    return [linear for linear in (head.mu, head.discrete) if linear is not None]


def _weight(tensor: Tensor, network: int, rows: slice, inputs: int) -> Tensor:
    return tensor[network, rows, :inputs]


def _bias(tensor: Tensor, network: int, rows: slice) -> Tensor:
    return tensor[network, 0, rows]


def _of(view: Callable[[Tensor, int], Tensor], network: int) -> Callable[[Tensor], Tensor]:
    return lambda tensor: view(tensor, network)


def _itself(tensor: Tensor) -> Tensor:
    return tensor
