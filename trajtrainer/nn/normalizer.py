"""Running mean and variance of a vector observation (docs/mlagents-behavior.md#normalizer)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from trajtrainer.nn.graph import Graph, to_array
from trajtrainer.nn.mlagents import Names

_CLIP = 5.0  # of ML-Agents


class Normalizer(nn.Module):
    """``clamp((x - mean) / sqrt(variance / steps), -clip, clip)``.

    Started with one imaginary row of mean 0 and variance 1.

    ``variance`` is the running sum of squared differences, as in ML-Agents' checkpoints, not their mean.

    Args:
        size: of the observation.
        clip: the limit, 5 in ML-Agents.
    """

    mlagents_names: ClassVar[Names] = {
        "steps": "normalizer.normalization_steps",
        "mean": "normalizer.running_mean",
        "variance": "normalizer.running_variance",
    }

    steps: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, size: int, clip: float = _CLIP) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("steps", torch.tensor(1, dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` [..., size] normalized and clipped."""
        return ((x - self.mean) / self.standard_deviation()).clamp(-self.clip, self.clip)

    def standard_deviation(self) -> Tensor:
        """Return the standard deviation, by which differences from the mean are divided: [size]."""
        return torch.sqrt(self.variance / self.steps)

    def to_onnx(self, graph: Graph, x: str) -> str:
        centred = graph.node("Sub", x, graph.parameter(self.mean))
        deviation = graph.parameter(
            self.variance,
            lambda name: name.replace("variance", "deviation"),
            lambda _: to_array(self.standard_deviation()),
        )
        return graph.clip(graph.node("Div", centred, deviation), -self.clip, self.clip)

    @torch.no_grad()
    def update(self, x: Tensor, repeats: int = 1) -> None:
        """Take in rows [m, size]: one trajectory or many, it makes no difference.

        ML-Agents' rule, ``mean' = mean + sum(x - mean) / steps'`` and ``variance' = variance + sum((x - mean') *
        (x - mean))`` for each trajectory after the other, gives the mean and the sum of squared differences of all rows
        seen, however they are cut into batches (Chan et al. 1979). Computed in float64 relative to the mean before,
        because totals of far-off values would cancel.

        Args:
            x: f32.
            repeats: how often the rows are taken in. With a shared critic ML-Agents does so twice, once for the actor
                and once for the critic.
        """
        if len(x) == 0:
            return
        # In numpy, whose operations on so few numbers cost a third of torch's.
        before = self.mean.cpu().numpy()
        rows = np.subtract(x.cpu().numpy(), before, dtype=np.float64)
        total = repeats * rows.sum(0)
        steps = int(self.steps) + repeats * len(x)
        shift = total / steps
        squares = repeats * np.square(rows, out=rows).sum(0)
        self.variance.copy_(torch.from_numpy(self.variance.cpu().numpy() + squares - shift * total))
        self.mean.copy_(torch.from_numpy(before + shift))
        self.steps.fill_(steps)

    @torch.no_grad()
    def copy_from(self, other: Normalizer) -> None:
        self.steps.copy_(other.steps)
        self.mean.copy_(other.mean)
        self.variance.copy_(other.variance)
