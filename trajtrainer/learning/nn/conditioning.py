"""Layers of network bodies: a plain MLP, and an MLP whose last layer is generated from the goal by a hypernetwork."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trajtrainer.learning.nn.graph import Graph
from trajtrainer.learning.nn.init import kaiming_linear, uniform_linear
from trajtrainer.learning.nn.mlagents import Names
from trajtrainer.settings.network import Activation

_FEW_GOALS = 8
_FEW_ROWS = 3  # up to this many rows, outer products are faster


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.SWISH: F.silu,
    Activation.TANH: torch.tanh,
    Activation.RELU: torch.relu,
}
Layer = tuple[Tensor, Tensor]  # weight [in, out] and bias [out] of a linear layer; see ``affine``


def affine(x: Tensor, layer: Layer) -> Tensor:
    """Apply a layer to rows [b, in], or n layers with weights [n, in, out] and biases [n, 1, out] to [n, b, in]."""
    weight, bias = layer
    return torch.addmm(bias, x, weight) if x.dim() == 2 else torch.baddbmm(bias, x, weight)


def activated_layers(
    x: Tensor,
    layers: Iterable[Layer],
    tape: list[tuple[Tensor, Tensor]] | None = None,
    activation: Activation = Activation.SWISH,
) -> Tensor:
    """Apply linear layers, each followed by an activation, to rows in the format of ``affine``.

    Args:
        x: [b, in] or [n, b, in].
        layers: the layers from first to last.
        tape: list to which the input of each layer and its output before the activation are appended.
        activation: the activation; ML-Agents uses Swish (Ramachandran et al. 2017).
    """
    activate = ACTIVATIONS[activation]
    # Calling ``affine`` for each layer would slow down acting.
    product = torch.addmm if x.dim() == 2 else torch.baddbmm
    for weight, bias in layers:
        total = product(bias, x, weight)
        if tape is not None:
            tape.append((x, total))
        x = activate(total)
    return x


def weights(linear: nn.Linear) -> Layer:
    """Return the weight and bias of a linear layer as views."""
    return linear.weight.t(), linear.bias


def linears(modules: Iterable[nn.Module]) -> list[nn.Linear]:
    """Return the linear layers among the modules."""
    return [module for module in modules if isinstance(module, nn.Linear)]


class Regularization:
    """Dropout followed by layer normalization, as in the critics of DroQ (Hiraoka et al. 2022).

    The normalization has no weights, so checkpoints have the same entries with and without it.

    Args:
        layer_norm: whether to normalize.
        dropout_rate: fraction of the units to drop.

    Attributes:
        generator: random generator for the dropout, seeded from torch's global generator.
    """

    def __init__(self, *, layer_norm: bool, dropout_rate: float) -> None:
        self._layer_norm = layer_norm
        self._kept = 1.0 - dropout_rate
        self.generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))

    def apply(self, x: Tensor) -> Tensor:
        if self._kept < 1.0:
            kept = torch.empty(x.shape).bernoulli_(self._kept, generator=self.generator)
            x = x * kept.div_(self._kept).to(x.device)
        return F.layer_norm(x, x.shape[-1:]) if self._layer_norm else x


class Mlp(nn.Module):
    """An MLP: [linear, activation] repeated ``layers`` times. It has at least one layer, as in ML-Agents.

    Args:
        size: size of the input.
        hidden: number of units of each layer.
        layers: number of layers.
        gain: gain of the initial weights.
        activation: the activation; ML-Agents uses Swish.
        regularization: regularization of each layer's output before the activation; ML-Agents has none.
    """

    def __init__(
        self,
        size: int,
        hidden: int,
        layers: int,
        gain: float = 1.0,
        activation: Activation = Activation.SWISH,
        regularization: Regularization | None = None,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.regularization = regularization
        sizes = [size] + [hidden] * max(1, layers)
        self.layers = nn.ModuleList(kaiming_linear(a, b, gain) for a, b in pairwise(sizes))

    @property
    def linears(self) -> list[nn.Linear]:
        return linears(self.layers)

    def forward(self, x: Tensor) -> Tensor:
        if self.regularization is None:
            return activated_layers(x, map(weights, self.linears), activation=self.activation)
        for layer in map(weights, self.linears):
            x = ACTIVATIONS[self.activation](self.regularization.apply(affine(x, layer)))
        return x

    @property
    def mlagents_names(self) -> Names:
        """ML-Agents also numbers the activations between the layers."""
        return {f"layers.{i}": f"seq_layers.{2 * i}" for i in range(len(self.layers))}

    def to_onnx(self, graph: Graph, x: str) -> str:
        return graph.activated_layers(self.layers, x, self.activation)


class FewRows(torch.autograd.Function):
    """A linear layer for few rows and many outputs.

    Up to rounding, it computes the same as ``torch.nn.functional.linear`` and its ``backward``. However, the gradient
    of the large weight is a sum of outer products, which takes a third of the time of a matrix product.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Compute ``rows @ weight.T + bias``."""
        ctx.save_for_backward(rows, weight)
        # With so few rows, rows @ weight.T takes three times as long as weight @ rows.T.
        return torch.addmm(bias[:, None], weight, rows.t()).t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, weight = ctx.saved_tensors
        if len(rows) > _FEW_ROWS:
            return grad @ weight, grad.t() @ rows, grad.sum(0)
        product = torch.outer(grad[0], rows[0])
        for each, row in zip(grad[1:], rows[1:], strict=True):
            product.addr_(each, row)
        return grad @ weight, product, grad.sum(0)


class HyperLayer(nn.Module):
    """A linear layer whose weight matrix is computed from the goal of each sample.

    goal -> 2 x [linear, Swish] -> LayerNorm -> linear -> weights [in, out]; the bias is learned.

    Computing one matrix takes as much time and memory as passing a batch through an ordinary layer. If the samples
    share a few goals, the matrix is therefore computed once per goal.
    """

    def __init__(self, size: int, goal_size: int, hidden: int) -> None:
        super().__init__()
        self.size, self.hidden = size, hidden
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.layers = Mlp(goal_size, hidden, 2)
        self.weights = uniform_linear(hidden, size * hidden, math.sqrt(1.0 / (hidden * size)))

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        """Map ``x`` [B, in] to [B, out], given goals [B, goal_size]."""
        # This excludes goals that need a gradient (images), because unique() is not differentiable, and other devices,
        # because they would have to synchronize to get the number of goals.
        if goal.device.type == "cpu" and not goal.requires_grad and len(goal) > 1:
            goals, which = torch.unique(goal, dim=0, return_inverse=True)
            if len(goals) <= min(_FEW_GOALS, len(goal) - 1):
                under_each_goal = torch.matmul(x, self._matrices(goals, FewRows.apply))
                return under_each_goal[which, torch.arange(len(x))] + self.bias
        return torch.matmul(x.unsqueeze(1), self._matrices(goal)).squeeze(1) + self.bias

    def _matrices(self, goal: Tensor, linear: Callable[..., Tensor] = F.linear) -> Tensor:
        """Map goals [B, goal_size] to weights [B, in, out]."""
        features = F.layer_norm(self.layers(goal), (self.hidden,))
        return linear(features, self.weights.weight, self.weights.bias).reshape(-1, self.size, self.hidden)

    @property
    def mlagents_names(self) -> Names:
        """ML-Agents also numbers the activations and the normalization."""
        layers = {f"layers.layers.{i}": f"hypernet.{2 * i}" for i in range(len(self.layers.layers))}
        return {"bias": "bias", **layers, "weights": f"hypernet.{2 * len(layers) + 1}"}

    def to_onnx(self, graph: Graph, x: str, goal: str) -> str:
        features = graph.layer_norm(self.layers.to_onnx(graph, goal))
        weights = graph.reshape(graph.linear(self.weights, features), [-1, self.size, self.hidden])
        product = graph.squeeze(graph.node("MatMul", graph.unsqueeze(x, axis=1), weights), axis=1)
        return graph.node("Add", product, graph.parameter(self.bias))


class HyperBody(nn.Module):
    """[linear, activation] repeated ``layers`` times, with a :class:`HyperLayer` as the last linear layer."""

    def __init__(
        self, size: int, goal_size: int, hidden: int, layers: int, activation: Activation = Activation.SWISH
    ) -> None:
        super().__init__()
        self.activation = activation
        self.plain = nn.ModuleList(
            kaiming_linear(size if index == 0 else hidden, hidden) for index in range(max(1, layers) - 1)
        )
        self.hyper = HyperLayer(hidden if len(self.plain) else size, goal_size, hidden)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        """Encode ``x`` [B, in], given goals [B, goal_size]."""
        features = activated_layers(x, map(weights, linears(self.plain)), activation=self.activation)
        return ACTIVATIONS[self.activation](self.hyper(features, goal))

    @property
    def mlagents_names(self) -> Names:
        """ML-Agents also numbers the activations between the layers."""
        plain = {f"plain.{i}": f"layers.{2 * i}" for i in range(len(self.plain))}
        return {**plain, "hyper": f"layers.{2 * len(plain)}"}

    def to_onnx(self, graph: Graph, x: str, goal: str) -> str:
        features = graph.activated_layers(self.plain, x, self.activation)
        return graph.activated(self.hyper.to_onnx(graph, features, goal), self.activation)
