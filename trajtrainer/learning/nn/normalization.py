"""Normalization of vector observations with running statistics, and batch normalization of layers.

Observations are normalized as in ML-Agents (docs/explanation/mlagents-behavior.md#normalizer). Batch normalization is
combined with weights of length 1 (Palenicek et al. 2026).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from trajtrainer.core.steps import FloatArray
from trajtrainer.learning.nn.conditioning import Layer, activated_layers, linears
from trajtrainer.learning.nn.graph import Graph, to_array
from trajtrainer.learning.nn.init import unit_linear
from trajtrainer.learning.nn.mlagents import Names
from trajtrainer.settings.network import Activation

logger = logging.getLogger(__name__)

_CLIP = 5.0  # ML-Agents' value
# The largest sum of squares that float32 can represent. A single observation of 1e20 exceeds it.
MAX_VARIANCE = float(np.finfo(np.float32).max)
# Values that are too large to be squared are clipped to this, which leaves room for the sum of 10^8 squares.
MAX_INPUT = 1e15

EPSILON = 1e-3  # added to variances
MOMENTUM = 0.99  # momentum of running statistics


class Normalizer(nn.Module):
    """A running normalizer: ``clamp((x - mean) / sqrt(variance / steps), -clip, clip)``.

    The statistics start with one imaginary row with mean 0 and variance 1. ``variance`` is the running sum of squared
    differences, not their mean, as in ML-Agents' checkpoints. Where ML-Agents' variance would become infinite, values
    are clipped to ``MAX_INPUT``.

    Args:
        size: size of the observation.
        clip: limit of the normalized values, 5 in ML-Agents.
        prior: weight of the imaginary row in the first update, in rows.
        name: name of the sensor, for the warning about values that are too large.
    """

    mlagents_names: ClassVar[Names] = {
        "steps": "normalizer.normalization_steps",
        "mean": "normalizer.running_mean",
        "variance": "normalizer.running_variance",
    }

    steps: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, size: int, clip: float = _CLIP, *, prior: float = 1.0, name: str = "") -> None:
        super().__init__()
        self.clip = clip
        self.prior = prior
        self.name = name
        self._has_warned = False
        self.register_buffer("steps", torch.tensor(1, dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize and clip values [..., size]."""
        return ((x - self.mean) / self.standard_deviation()).clamp(-self.clip, self.clip)

    def standard_deviation(self) -> Tensor:
        return torch.sqrt(self.variance / self.steps)

    def to_onnx(self, graph: Graph, x: str) -> str:
        centered = graph.node("Sub", x, graph.parameter(self.mean))
        deviation = graph.parameter(
            self.variance,
            lambda name: name.replace("variance", "deviation"),
            lambda _: to_array(self.standard_deviation()),
        )
        return graph.clip(graph.node("Div", centered, deviation), -self.clip, self.clip)

    @torch.no_grad()
    def update(self, x: Tensor, repeats: int = 1) -> None:
        """Add rows f32 [m, size] from one or more trajectories.

        ML-Agents updates one trajectory at a time: ``mean' = mean + sum(x - mean) / steps'`` and ``variance' = variance
        + sum((x - mean') * (x - mean))``. This yields the mean and the sum of squared differences of all rows seen,
        regardless of how they are split into batches (Chan et al. 1979). The computation uses float64 and differences
        from the previous mean, because sums of values far from 0 would suffer from cancellation.

        Args:
            x: the rows.
            repeats: number of times that each row counts. With a shared critic, ML-Agents counts each row twice, once
                for the actor and once for the critic.
        """
        if len(x) == 0:
            return
        values, steps = x.cpu().numpy(), int(self.steps)
        weight = self.prior if steps == 1 else 1.0  # weight of the rows so far, initially only the imaginary row
        mean, variance = self._with_rows(values, repeats, steps, weight)
        if variance.max() > MAX_VARIANCE:
            self._warn_of(values)
            mean, variance = self._with_rows(np.clip(values, -MAX_INPUT, MAX_INPUT), repeats, steps, weight)
            np.minimum(variance, MAX_VARIANCE, out=variance)
        self.variance.copy_(torch.from_numpy(variance))
        self.mean.copy_(torch.from_numpy(mean))
        self.steps.fill_(int(weight * steps) + repeats * len(x))

    def _with_rows(
        self, values: FloatArray, repeats: int, steps: int, weight: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and variance [size] after adding ``values`` [m, size] to ``steps`` rows of weight ``weight``."""
        # For so few numbers, numpy operations take a third of the time of torch operations.
        before = self.mean.cpu().numpy()
        rows = np.subtract(values, before, dtype=np.float64)
        total = repeats * rows.sum(0)
        shift = total / (weight * steps + repeats * len(values))
        squares = repeats * np.square(rows, out=rows).sum(0)
        return before + shift, weight * self.variance.cpu().numpy() + squares - shift * total

    def _warn_of(self, values: FloatArray) -> None:
        """Warn about the largest value. Only the first call logs the warning."""
        if self._has_warned:
            return
        self._has_warned = True
        row, place = np.unravel_index(np.abs(values).argmax(), values.shape)
        logger.warning(
            "Sensor %r sent %.3g (index %d of its observation), which is too large for the normalizer to square in "
            "float32. The normalizer's mean and variance are computed as if such values were %g. If the value means "
            "that nothing is there, send 0 instead, and add an observation that indicates whether something is there.",
            self.name,
            values[row, place],
            place,
            MAX_INPUT,
        )

    @torch.no_grad()
    def copy_from(self, other: Normalizer) -> None:
        self.steps.copy_(other.steps)
        self.mean.copy_(other.mean)
        self.variance.copy_(other.variance)


class _Batch(NamedTuple):
    """Makes ``BatchNorm`` use the statistics of the batch.

    ``mask`` is f32 [b], 0 for rows to leave out of the statistics. ``remembered`` is True to update the running ones.
    """

    mask: Tensor | None
    remembered: bool


class BatchNorm(nn.Module):
    """Batch normalization (Ioffe & Szegedy 2015) with running statistics or, in ``batch_statistics``, batch statistics.

    All variances are biased. In torch, the running variances are unbiased.
    """

    mean: Tensor
    var: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))
        self.shift = nn.Parameter(torch.zeros(size))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("var", torch.ones(size))
        self.batch: _Batch | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Normalize rows [b, size]."""
        if self.batch is None:
            factor, summand = self.affine()
            return torch.addcmul(summand, x, factor)
        if self.batch.mask is None:
            out, mean, inverse = torch.native_batch_norm(x, self.scale, self.shift, None, None, True, 0.0, EPSILON)
            var = (inverse.detach().pow(-2.0) - EPSILON).clamp(min=0.0)
        else:
            weight = self.batch.mask / self.batch.mask.sum().clamp(min=1.0)
            mean = weight @ x
            var = weight @ (x - mean).square()
            out = torch.addcmul(self.shift, x - mean, self.scale * (var + EPSILON).rsqrt())
        if self.batch.remembered:
            with torch.no_grad():
                self.mean.lerp_(mean, 1.0 - MOMENTUM)
                self.var.lerp_(var, 1.0 - MOMENTUM)
        return out

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return the factor and the offset [size] that are equivalent to normalizing with the running statistics."""
        factor = self.scale * (self.var + EPSILON).rsqrt()
        return factor, self.shift - self.mean * factor


@contextmanager
def batch_statistics(*networks: nn.Module, mask: Tensor | None = None, remember: bool = True) -> Iterator[None]:
    """Make every ``BatchNorm`` in ``networks`` use the statistics of the current batch.

    Args:
        networks: the networks to affect.
        mask: f32 [b], 0 for rows to leave out of the statistics. These rows are still normalized.
        remember: move the running statistics toward those of the batch.
    """
    norms = [module for network in networks for module in network.modules() if isinstance(module, BatchNorm)]
    for norm in norms:
        norm.batch = _Batch(mask, remember)
    try:
        yield
    finally:
        for norm in norms:
            norm.batch = None


class NormalizedMlp(nn.Module):
    """Normalizes the input, then applies [linear without bias, normalization, ReLU] ``layers`` times, at least once.

    Args:
        size: size of the input.
        hidden: number of units of each layer.
        layers: number of layers.
    """

    def __init__(self, size: int, hidden: int, layers: int) -> None:
        super().__init__()
        sizes = [size] + [hidden] * max(1, layers)
        norms = list(map(BatchNorm, sizes))
        # The next normalization removes any shift of its input, so the gradient of the shift would be nothing but
        # rounding errors, which Adam would amplify.
        norms[0].shift.requires_grad_(False)
        self.norms = nn.ModuleList(norms)
        self.layers = nn.ModuleList(unit_linear(a, b, bias=False) for a, b in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        x = x.clamp(-MAX_INPUT, MAX_INPUT)
        first, *norms = self._norms()
        if first.batch is None:
            return activated_layers(x, self.folded(), activation=Activation.RELU)
        x = first(x)
        for layer, norm in zip(self.layers, norms, strict=True):
            x = torch.relu(norm(layer(x)))
        return x

    def _norms(self) -> list[BatchNorm]:
        return [norm for norm in self.norms if isinstance(norm, BatchNorm)]

    def folded(self) -> list[Layer]:
        """Return linear layers, to be followed by ReLU each, with the running normalization folded into them."""
        first, *norms = self._norms()
        before, summand = first.affine()
        found: list[Layer] = []
        for layer, norm in zip(linears(self.layers), norms, strict=True):
            weight, (factor, shift) = layer.weight, norm.affine()
            if not found:
                shift = torch.addcmul(shift, factor, F.linear(summand, weight))
                weight = weight * before
            found.append(((weight * factor[:, None]).t(), shift))
        return found

    def to_onnx(self, graph: Graph, x: str) -> str:
        """Add the layers with the normalization folded into them."""
        for layer, (weight, bias) in zip(linears(self.layers), self.folded(), strict=True):
            name = graph.name_of(layer.weight)
            folded = graph.weight(name, to_array(weight.t())), graph.weight(f"{name}.bias", to_array(bias))
            x = graph.node("Relu", graph.node("Gemm", x, *folded, transB=1))
        return x


def projected_weights(*parts: nn.Module) -> list[Tensor]:
    """Return the linear weights of normalized layers and heads, whose rows must keep length 1."""
    return [layer.weight for part in parts for layer in linears(part.modules())]


@torch.no_grad()
def project(weights: Sequence[Tensor]) -> None:
    """Scale the incoming weights of every unit to length 1, in place: [..., units, in]."""
    for weight in weights:
        weight.div_(torch.linalg.vector_norm(weight, dim=-1, keepdim=True).clamp(min=1e-12))
