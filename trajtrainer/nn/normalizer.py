"""Running mean and variance of a vector observation (reference 4.8)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLIP = 5.0


class Normalizer(nn.Module):
    """``clamp((x - mean) / sqrt(variance / steps), -5, 5)``, started with one imaginary row of mean 0 and variance 1.

    ``variance`` is the running sum of squared differences, as in the peer's checkpoints, not their mean.

    Args:
        size: of the observation.
    """

    steps: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(1, dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.mean) / torch.sqrt(self.variance / self.steps)).clamp(-CLIP, CLIP)

    @torch.no_grad()
    def update(self, x: Tensor, repeats: int = 1) -> None:
        """Take in rows [m, size]: one trajectory or many, it makes no difference.

        The peer's rule, ``mean' = mean + sum(x - mean) / steps'`` and ``variance' = variance + sum((x - mean') *
        (x - mean))`` for each trajectory after the other, gives the mean and the sum of squared differences of all rows
        seen, however they are cut into batches (Chan et al. 1979). Computed in float64 relative to the mean before,
        because totals of far-off values would cancel.

        Args:
            x: f32.
            repeats: how often the rows are taken in. With a shared critic the peer does so twice, once for the actor
                and once for the critic.
        """
        if len(x) == 0:
            return
        rows = x.double() - self.mean
        total = repeats * rows.sum(0)
        steps = self.steps + repeats * len(x)
        shift = total / steps
        self.variance.copy_(self.variance + repeats * rows.square().sum(0) - shift * total)
        self.mean.copy_(self.mean + shift)
        self.steps.copy_(steps)

    @torch.no_grad()
    def copy_from(self, other: Normalizer) -> None:
        """Take over the other's state."""
        self.steps.copy_(other.steps)
        self.mean.copy_(other.mean)
        self.variance.copy_(other.variance)
