"""Bodies: plain layers, and layers whose last one is made by a network that sees the goal (reference 4.8)."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trajtrainer.nn.init import kaiming_linear, uniform_linear

_FEW_GOALS = 8


class Mlp(nn.Module):
    """``layers`` times [linear, Swish]. At least one layer, as the peer."""

    def __init__(self, size: int, hidden: int, layers: int) -> None:
        super().__init__()
        sizes = [size] + [hidden] * max(1, layers)
        self.layers = nn.ModuleList(kaiming_linear(a, b) for a, b in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.silu(layer(x))
        return x


class HyperLayer(nn.Module):
    """A linear layer whose weight matrix, one per sample, is computed from the goal.

    goal -> 2 x [linear, Swish] -> LayerNorm -> linear -> weights [in, out]; the bias is learned.

    One matrix takes as much time and memory as a batch through an ordinary layer, so where samples share a few goals,
    the matrices are made once per goal.
    """

    def __init__(self, size: int, goal_size: int, hidden: int) -> None:
        super().__init__()
        self.size, self.hidden = size, hidden
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.layers = Mlp(goal_size, hidden, 2)
        self.weights = uniform_linear(hidden, size * hidden, math.sqrt(1.0 / (hidden * size)))

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        """[B, in] under goals [B, goal_size] to [B, out]."""
        # Not for goals that are learned (pictures), which unique() would cut off from their gradient, and not on
        # other devices, which would have to wait for the number of goals.
        if goal.device.type == "cpu" and not goal.requires_grad and len(goal) > 1:
            goals, which = torch.unique(goal, dim=0, return_inverse=True)
            if len(goals) <= min(_FEW_GOALS, len(goal) - 1):
                under_each_goal = torch.matmul(x, self._matrices(goals))
                return under_each_goal[which, torch.arange(len(x))] + self.bias
        return torch.matmul(x.unsqueeze(1), self._matrices(goal)).squeeze(1) + self.bias

    def _matrices(self, goal: Tensor) -> Tensor:
        """[B, goal_size] -> [B, in, out]"""
        features = F.layer_norm(self.layers(goal), (self.hidden,))
        return self.weights(features).reshape(-1, self.size, self.hidden)  # type: ignore[no-any-return]


class HyperBody(nn.Module):
    """``layers`` times [linear, Swish], the last of the linear ones a :class:`HyperLayer`."""

    def __init__(self, size: int, goal_size: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.plain = nn.ModuleList(
            kaiming_linear(size if index == 0 else hidden, hidden) for index in range(max(1, layers) - 1)
        )
        self.hyper = HyperLayer(hidden if len(self.plain) else size, goal_size, hidden)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        for layer in self.plain:
            x = F.silu(layer(x))
        return F.silu(self.hyper(x, goal))
