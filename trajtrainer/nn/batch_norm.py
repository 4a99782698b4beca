"""Layers that are batch-normalized and whose weights keep the length 1, as in XQC (Palenicek et al. 2026)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trajtrainer.nn.conditioning import Layer, linears
from trajtrainer.nn.graph import Graph, to_array
from trajtrainer.nn.init import unit_linear

EPSILON = 1e-3  # of variances
MOMENTUM = 0.99  # of running statistics


class _Batch(NamedTuple):
    """Statistics are those of a batch. ``mask`` is f32 [b], 0 for rows that do not count."""

    mask: Tensor | None
    remembered: bool


class BatchNorm(nn.Module):
    """Batch normalization (Ioffe & Szegedy 2015) by running statistics or, within ``batch_statistics``, by the batch's.

    Variances are biased, the running ones too, unlike those of torch.
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
            mean, var = _moments(x, self.batch.mask)
            out = torch.addcmul(self.shift, x - mean, self.scale * (var + EPSILON).rsqrt())
        if self.batch.remembered:
            with torch.no_grad():
                self.mean.lerp_(mean, 1.0 - MOMENTUM)
                self.var.lerp_(var, 1.0 - MOMENTUM)
        return out

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return the factor and the summand [size] that normalizing by running statistics comes down to."""
        factor = self.scale * (self.var + EPSILON).rsqrt()
        return factor, self.shift - self.mean * factor


def _moments(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    weight = mask / mask.sum().clamp(min=1.0)
    mean = weight @ x
    return mean, weight @ (x - mean).square()


@contextmanager
def batch_statistics(*networks: nn.Module, mask: Tensor | None = None, remember: bool = True) -> Iterator[None]:
    """Normalize by the statistics of the rows that go through ``networks``.

    Args:
        networks: whose normalizations are meant.
        mask: f32 [b], 0 for rows that stay out of the statistics; they are normalized as well.
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
    """Normalization of the input, then ``layers`` times [linear without bias, normalization, ReLU].

    Args:
        size: of the input.
        hidden: units of each layer.
        layers: how many, at least one.
    """

    def __init__(self, size: int, hidden: int, layers: int) -> None:
        super().__init__()
        sizes = [size] + [hidden] * max(1, layers)
        norms = list(map(BatchNorm, sizes))
        # The next normalization takes any shift of its input away. The gradient is 0, but Adam would follow the
        # rounding errors in its place.
        norms[0].shift.requires_grad_(False)
        self.norms = nn.ModuleList(norms)
        self.layers = nn.ModuleList(unit_linear(a, b, bias=False) for a, b in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](x)
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            x = torch.relu(norm(layer(x)))
        return x

    def folded(self) -> list[Layer]:
        """Return linear layers that, each followed by ReLU, do the same by running statistics."""
        norms = [norm for norm in self.norms if isinstance(norm, BatchNorm)]
        before, summand = norms[0].affine()
        found: list[Layer] = []
        for layer, norm in zip(linears(self.layers), norms[1:], strict=True):
            weight, (factor, shift) = layer.weight, norm.affine()
            if not found:
                shift = torch.addcmul(shift, factor, F.linear(summand, weight))
                weight = weight * before
            found.append(((weight * factor[:, None]).t(), shift))
        return found

    def to_onnx(self, graph: Graph, x: str) -> str:
        """Draw it without normalizations, which the linear layers take in."""
        for layer, (weight, bias) in zip(linears(self.layers), self.folded(), strict=True):
            name = graph.name_of(layer.weight)
            folded = graph.weight(name, to_array(weight.t())), graph.weight(f"{name}.bias", to_array(bias))
            x = graph.node("Relu", graph.node("Gemm", x, *folded, transB=1))
        return x


def projected_weights(*parts: nn.Module) -> list[Tensor]:
    """Return the weights of linear layers within normalized layers and heads, whose rows keep the length 1."""
    return [layer.weight for part in parts for layer in linears(part.modules())]


@torch.no_grad()
def project(weights: Sequence[Tensor]) -> None:
    """Bring the incoming weights of every unit to the length 1, in place: [..., units, in]."""
    for weight in weights:
        weight.div_(torch.linalg.vector_norm(weight, dim=-1, keepdim=True).clamp(min=1e-12))
