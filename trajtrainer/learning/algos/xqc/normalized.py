"""XQC's networks evaluated and differentiated without autograd.

Where a batch's statistics normalize, a column of a matrix is a row of the batch: the numbers of a unit are next to each
other, and all matrix products of the gradient find their factors as they lie in memory.

Shapes: n networks, b rows of a batch, I inputs, H hidden units, W outputs of the heads side by side, S trained
parameters of a network, R numbers that it normalizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trajtrainer.learning.algos.xqc.products import product
from trajtrainer.learning.nn.conditioning import linears
from trajtrainer.learning.nn.fast.adam import ParameterView, whole
from trajtrainer.learning.nn.normalization import EPSILON, MOMENTUM, BatchNorm, NormalizedMlp, project

_normalize = torch.ops.aten.native_group_norm
_normalize_backward = torch.ops.aten.native_group_norm_backward
_relu_backward = torch.ops.aten.threshold_backward


class Layer(NamedTuple):
    """A linear layer and the normalization of its outputs: [H, in], [H], [H]."""

    weight: Tensor
    scale: Tensor
    shift: Tensor


class Parameters(NamedTuple):
    """Parameters of a network, or their gradients.

    Attributes:
        input_scale: [I].
        layers: from the first to the last.
        head: weights of all heads side by side [W, H].
        bias: of the heads [W].
        scales: of all normalizations [R], of the input's first.
        shifts: of the layers' normalizations [R - I].
    """

    input_scale: Tensor
    layers: list[Layer]
    head: Tensor
    bias: Tensor
    scales: Tensor
    shifts: Tensor


class NormalizationStatistics(NamedTuple):
    """Numbers of a network that no gradient trains.

    Attributes:
        input_shift: [I].
        means: running ones of everything that is normalized [R].
        variances: as ``means``.
    """

    input_shift: Tensor
    means: Tensor
    variances: Tensor


class Normalized(NamedTuple):
    """Numbers [units, b], normalized by their means and standard deviations over b.

    Attributes:
        x: the result.
        mean: [units].
        inverse: of the deviations [units].
    """

    x: Tensor
    mean: Tensor
    inverse: Tensor


def normalize(x: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Normalized:
    """Normalize [units, b], then scale and shift by [units].

    Twin of ``trajtrainer.learning.nn.normalization.BatchNorm``.
    """
    units, rows = x.shape
    # The normalization of groups is that of batches if there is one row, and each group is one unit of it.
    out, mean, inverse = _normalize(x, scale, shift, 1, units, rows, units, EPSILON)
    return Normalized(out, mean.view(-1), inverse.view(-1))


class BatchPass:
    """The last pass of a batch through one of several networks, normalized by its own statistics.

    A pass overwrites the one before, number by number. Without that, most of its memory would go back to the operating
    system and be fetched again at each update, which takes as long as a third of the matrix products.

    Args:
        layers: of the networks.

    Attributes:
        entered: the inputs, normalized but neither scaled nor shifted.
        totals: outputs of each linear layer [H, b].
        outputs: of each layer, after normalization and ReLU; ``x`` [H, b].
    """

    def __init__(self, layers: int) -> None:
        nothing = torch.empty(0, 0)
        self.entered = Normalized(nothing, nothing, nothing)
        self.totals = [nothing] * layers
        self.outputs = [self.entered] * layers
        self._padded = nothing

    @property
    def encoding(self) -> Tensor:
        """The last layer's output [H, b]."""
        return self.outputs[-1].x

    def padded(self, by_first: Tensor) -> Tensor:
        """The gradient with respect to the encoding [H, b] that is 0 after the first rows, given for these."""
        shape = self.encoding.shape
        if by_first.shape == shape:
            return by_first
        if self._padded.shape != shape:
            self._padded = torch.zeros(shape)
        self._padded[:, : by_first.shape[1]] = by_first
        return self._padded


class NormalizedNetwork:
    """A ``NormalizedMlp`` and its linear heads.

    Attributes:
        parameters: views of a row of ``NormalizedNetworks``.
        statistics: as ``parameters``.
        gradients: of ``parameters``; None if it is not trained.
        last: the last pass of any of the networks.
    """

    def __init__(
        self, parameters: Parameters, statistics: NormalizationStatistics, gradients: Parameters | None, last: BatchPass
    ) -> None:
        self.parameters, self.statistics, self.gradients, self.last = parameters, statistics, gradients, last
        self._input_scale, self._input_shift = (
            one.unsqueeze(1) for one in (parameters.input_scale, statistics.input_shift)
        )
        self._transposed = [layer.weight.t() for layer in parameters.layers]
        self._head_bias, self._transposed_head = parameters.bias.unsqueeze(1), parameters.head.t()

    def by_batch(self, entered: Normalized, *, remember: bool = False) -> Tensor:
        """Run the layers with the statistics of the batch: [I, b] to the encoding [H, b].

        Args:
            entered: the normalized inputs.
            remember: whether running statistics move toward those of the batch.
        """
        last = self.last
        last.entered = entered
        x = torch.addcmul(self._input_shift, entered.x, self._input_scale)
        for number, layer in enumerate(self.parameters.layers):
            last.totals[number] = total = product(layer.weight, x.t())
            last.outputs[number] = output = normalize(total, layer.scale, layer.shift)
            x = output.x.relu_()
        if remember:
            seen = (entered, *last.outputs)
            self.statistics.means.lerp_(torch.cat([one.mean for one in seen]), 1.0 - MOMENTUM)
            variances = torch.cat([one.inverse for one in seen]).pow_(-2.0).sub_(EPSILON).clamp_(min=0.0)
            self.statistics.variances.lerp_(variances, 1.0 - MOMENTUM)
        return x

    def heads(self, encoding: Tensor) -> Tensor:
        """Outputs [b, W] for encodings [H, b]."""
        return product(self.parameters.head, encoding.t()).add_(self._head_bias).t().contiguous()

    def backward(self, encoding: Tensor, grad: Tensor) -> None:
        """Write the gradients of the parameters, after ``by_batch``.

        Args:
            encoding: the first rows, of which ``heads`` were evaluated. The rest matter through the statistics.
            grad: with respect to the outputs [first rows, W].
        """
        gradients, last = self.gradients, self.last
        assert gradients is not None
        gradients.head.copy_(product(grad.t(), encoding))
        torch.sum(grad, 0, out=gradients.bias)
        by_out = last.padded(product(self._transposed_head, grad))
        by_scales, by_shifts = [], []
        for number in reversed(range(len(self.parameters.layers))):
            layer, out = self.parameters.layers[number], last.outputs[number]
            units, rows = out.x.shape
            by_total, by_scale, by_shift = _normalize_backward(
                _relu_backward(by_out, out.x, 0),
                last.totals[number],
                out.mean,
                out.inverse,
                layer.scale,
                1,
                units,
                rows,
                units,
                [True, True, True],
            )
            by_scales.append(by_scale)
            by_shifts.append(by_shift)
            if number:
                gradients.layers[number].weight.copy_(product(by_total, last.outputs[number - 1].x))
                by_out = product(self._transposed[number], by_total.t())
            else:
                # The shift of the input adds nothing, because the rows of ``by_total`` have the sum 0.
                by_input = product(by_total, last.entered.x)
                torch.mul(by_input, self.parameters.input_scale, out=gradients.layers[0].weight)
                by_scales.append(by_input.mul_(layer.weight).sum(0))
        torch.cat(by_scales[::-1], out=gradients.scales)
        torch.cat(by_shifts[::-1], out=gradients.shifts)

    def folded(self) -> FoldedNetwork:
        """The network that normalizes by the running statistics as they are now."""
        parameters, statistics = self.parameters, self.statistics
        sizes = [len(statistics.input_shift), *(len(layer.weight) for layer in parameters.layers)]
        factors = torch.rsqrt(statistics.variances + EPSILON).mul_(parameters.scales)
        summands = torch.mul(statistics.means, factors).neg_()
        summands[sizes[0] :].add_(parameters.shifts)
        (input_factor, *of_layers), (input_summand, *biases) = torch.split(factors, sizes), torch.split(summands, sizes)
        input_summand += statistics.input_shift
        first = parameters.layers[0].weight
        biases[0].addcmul_(of_layers[0], torch.mv(first, input_summand))
        weights = [first * input_factor, *(layer.weight for layer in parameters.layers[1:])]
        folded = [weight * factor.unsqueeze(1) for weight, factor in zip(weights, of_layers, strict=True)]
        return FoldedNetwork([*zip(folded, biases, strict=True)], parameters.head, parameters.bias)


class FoldedNetwork:
    """A network into whose layers running normalizations are folded.

    Args:
        layers: weight [H, in] and bias [H] of each.
        head: as in ``Parameters``.
        bias: as in ``Parameters``.
    """

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]], head: Tensor, bias: Tensor) -> None:
        self._layers, self._head, self._bias = layers, head, bias
        self._outputs: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs of the heads [b, W] for inputs [b, I]."""
        self._outputs = []
        for weight, bias in self._layers:
            x = product(x, weight, bias, relu=True)
            self._outputs.append(x)
        return product(x, self._head, self._bias)

    def by_input(self, grad: Tensor) -> Tensor:
        """The gradient [b, I], given that with respect to the outputs [b, W] of the last call."""
        grad = product(grad, self._head.t())
        for (weight, _), out in zip(reversed(self._layers), reversed(self._outputs), strict=True):
            grad = product(_relu_backward(grad, out, 0), weight.t())
        return grad


class NormalizedNetworks:
    """Networks of one shape, whose parameters are the rows of a matrix.

    So one operation steps, projects or copies those of all networks. Twin of
    ``trajtrainer.learning.nn.normalization.NormalizedMlp`` and the linear heads after it. The modules remain usable:
    their parameters and running statistics become views.

    Args:
        networks: an ``Actor`` or ``ValueNetwork``s with ``batch_norm``; those to be trained first.
        heads: of each network, in the order in which their outputs are side by side.
        trained: how many of the networks are trained.

    Attributes:
        leaf: the parameters that an optimizer trains [trained, S]. ``backward`` overwrites its ``grad``.
        pieces: the parameters of the trained networks' modules, one network after the other.
        networks: in the order of the modules.
    """

    def __init__(self, networks: Sequence[nn.Module], heads: Sequence[Sequence[nn.Linear]], trained: int) -> None:
        mlps = [mlp for network in networks for mlp in network.modules() if isinstance(mlp, NormalizedMlp)]
        trainable, rest = [], []
        for mlp, side in zip(mlps, heads, strict=True):
            norms = [norm for norm in mlp.norms if isinstance(norm, BatchNorm)]
            layers = linears(mlp.layers)
            trainable.append(
                [
                    *(linear.weight for linear in (*layers, *side)),
                    *(norm.scale for norm in norms),
                    *(norm.shift for norm in norms[1:]),
                    *(linear.bias for linear in side),
                ]
            )
            rest.append([norms[0].shift, *(norm.mean for norm in norms), *(norm.var for norm in norms)])
        matrix, bounds = _as_rows(trainable)
        self._matrix, self._rest = matrix, _as_rows(rest)[0]
        self._trained = trained
        self.leaf = matrix[:trained].requires_grad_()
        self.leaf.grad = torch.zeros_like(matrix[:trained])

        # Where the modules' parameters are.
        places = {
            id(parameter): ParameterView(self.leaf, partial(_part, row=row, bounds=bound, shape=parameter.shape))
            for row, of_network in enumerate(trainable[:trained])
            for parameter, bound in zip(of_network, bounds, strict=True)
        }
        parameters = [parameter for network in networks[:trained] for parameter in network.parameters()]
        self.pieces = [places.get(id(parameter), whole(parameter)) for parameter in parameters]

        # The same by their roles.
        weights = linears(mlps[0].layers)
        hidden, inputs = weights[0].weight.shape
        outputs = sum(linear.out_features for linear in heads[0])
        sizes = [*(one.weight.numel() for one in weights), outputs * hidden]
        sizes += [inputs + len(weights) * hidden, len(weights) * hidden, outputs]

        def parameters_of(row: Tensor) -> Parameters:
            *of_layers, head, scales, shifts, bias = torch.split(row, sizes)
            input_scale, *scale = torch.split(scales, [inputs] + [hidden] * len(weights))
            matrices = [part.view(hidden, -1) for part in of_layers]
            layers = list(map(Layer, matrices, scale, torch.split(shifts, hidden)))
            return Parameters(input_scale, layers, head.view(outputs, hidden), bias, scales, shifts)

        numbers = inputs + len(weights) * hidden
        last = BatchPass(len(weights))
        self.networks = [
            NormalizedNetwork(
                parameters_of(row),
                NormalizationStatistics(*torch.split(rest_row, [inputs, numbers, numbers])),
                parameters_of(self.leaf.grad[number]) if number < trained else None,
                last,
            )
            for number, (row, rest_row) in enumerate(zip(matrix, self._rest, strict=True))
        ]
        # The incoming weights of all units with I inputs, and of those with H.
        end = sum(sizes[: len(weights) + 1])
        self._units = [
            torch.unflatten(matrix[:trained, : sizes[0]], 1, (hidden, inputs)),
            torch.unflatten(matrix[:trained, sizes[0] : end], 1, (-1, hidden)),
        ]

    def project(self) -> None:
        """Bring the incoming weights of every unit of the trained networks to the length 1."""
        project(self._units)

    @torch.no_grad()
    def follow(self, tau: float) -> None:
        """Move the networks that are not trained by the fraction ``tau`` toward the trained ones, with statistics."""
        for rows in (self._matrix, self._rest):
            rows[self._trained :].lerp_(rows[: self._trained], tau)


def _as_rows(tensors: Sequence[Sequence[Tensor]]) -> tuple[Tensor, list[tuple[int, int]]]:
    """Move tensors into the rows of a matrix, one row for each sequence of them, and find their places in a row."""
    matrix = torch.stack([torch.cat([tensor.detach().flatten() for tensor in row]) for row in tensors])
    bounds = list(pairwise(accumulate((tensor.numel() for tensor in tensors[0]), initial=0)))
    for number, row in enumerate(tensors):
        for tensor, bound in zip(row, bounds, strict=True):
            tensor.data = _part(matrix, number, bound, tensor.shape)
    return matrix, bounds


def _part(matrix: Tensor, row: int, bounds: tuple[int, int], shape: torch.Size) -> Tensor:
    return matrix[row, slice(*bounds)].view(shape)
