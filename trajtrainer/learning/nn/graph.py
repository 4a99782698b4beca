"""An ONNX graph as plain data. Each module adds its part of the graph in its ``to_onnx`` method.

Values in the graph are represented by tensor names: each method takes names, adds nodes and returns the name of the
result. The operators are those that ML-Agents itself exports, which are known to work with all of Unity's inference
packages. The graph hides the differences between opsets 9 to 15. ``trajtrainer.policies.onnx`` writes the graph to a
file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trajtrainer.core.errors import ExportError
from trajtrainer.settings.network import Activation

BATCH = "batch"
FLOAT, INT64 = 1, 7  # ONNX element types
_END = np.iinfo(np.int64).max  # end of a slice without an upper bound
_LEAKY_SLOPE = 0.01  # torch's default
_LAYER_NORM_EPSILON = 1e-5  # torch's default

# The opset from which an operator takes an input instead of an attribute.
_SLICE_BY_INPUTS = 10
_CLIP_BY_INPUTS = 11
_AXES_BY_INPUTS = 13


class Node(NamedTuple):
    """An operator. Attributes that are arrays are stored as tensors."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]


class ValueInfo(NamedTuple):
    """An input or output of the graph."""

    name: str
    dtype: int
    shape: tuple[int | str, ...]


def to_array(tensor: Tensor) -> NDArray[np.float32]:
    """Convert a tensor of any float type on any device to a numpy array."""
    return tensor.detach().to("cpu", torch.float32).numpy()


class HasTensors(Protocol):
    """The part of ``nn.Module`` that a graph needs."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def named_buffers(self) -> Iterator[tuple[str, Tensor]]: ...


class Graph:
    """An ONNX graph under construction.

    Args:
        opset: version of the standard operator set, 9 to 15.
        module: the module to export. Its tensors are stored under their ``state_dict`` keys.
    """

    def __init__(self, opset: int, module: HasTensors | None = None) -> None:
        self.opset = opset
        self.operators: list[Node] = []
        self.inputs: list[ValueInfo] = []
        self.outputs: list[ValueInfo] = []
        self.weights: dict[str, NDArray[Any]] = {}
        self._counts: dict[str, int] = {}
        tensors = () if module is None else (*module.named_parameters(), *module.named_buffers())
        self._names = {id(tensor): name for name, tensor in tensors}

    # -- inputs and outputs of the graph

    def input(self, name: str, shape: Sequence[int]) -> str:
        """Add an input with one row per agent: float32 [batch, *shape]."""
        self.inputs.append(ValueInfo(name, FLOAT, (BATCH, *shape)))
        return name

    def output(self, name: str, shape: Sequence[int], dtype: int = FLOAT) -> None:
        """Declare a value as an output with one row per agent: [batch, *shape]. The value may be added later."""
        self.outputs.append(ValueInfo(name, dtype, (BATCH, *shape)))

    def constant_output(self, name: str, value: NDArray[np.float32]) -> None:
        """Add a constant output.

        The weight itself is the output, without a node in between, because Unity's packages look up the constant by
        name.
        """
        self.weight(name, value)
        self.outputs.append(ValueInfo(name, FLOAT, value.shape))

    # -- values

    def weight(self, name: str, value: NDArray[Any]) -> str:
        """Store a tensor under a name, unless the name is already used."""
        self.weights.setdefault(name, value)
        return name

    def parameter(
        self,
        tensor: Tensor,
        rename: Callable[[str], str] = str,
        change: Callable[[NDArray[np.float32]], NDArray[np.float32]] = np.asarray,
    ) -> str:
        """Store one of the module's tensors, optionally under another name and with changed values."""
        return self.weight(rename(self.name_of(tensor)), change(to_array(tensor)))

    def name_of(self, tensor: Tensor) -> str:
        """Return the ``state_dict`` key of one of the module's tensors."""
        return self._names[id(tensor)]

    def constant(self, value: float | Sequence[int]) -> str:
        """Add a constant: a float32 scalar or a list of int64 integers."""
        return self.node("Constant", value=np.array(value, np.float32 if isinstance(value, float) else np.int64))

    def node(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add an operator with one result. By default, the result is named after the operator."""
        if output is None:
            count = self._counts.get(operator, 0)
            self._counts[operator] = count + 1
            output = f"{operator}_{count}"
        return self.nodes(operator, inputs, (output,), **attributes)[0]

    def nodes(self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> tuple[str, ...]:
        """Add an operator with several results. Empty names stand for omitted optional inputs."""
        self.operators.append(Node(operator, tuple(inputs), tuple(outputs), attributes))
        return tuple(outputs)

    # -- modules

    def module(self, module: nn.Module, *inputs: Any) -> Any:
        """Add a module by calling its ``to_onnx(graph, *inputs)``, and return the result.

        Raises:
            ExportError: the module has no ``to_onnx`` method.
        """
        if isinstance(module, nn.Identity):
            return inputs[0]
        build = getattr(module, "to_onnx", None)
        if build is None:
            raise ExportError(
                f"The network contains a {type(module).__name__}, which cannot be exported to ONNX. Give it a method "
                "to_onnx(graph, x), like the modules in trajtrainer.learning.nn."
            )
        return build(self, *inputs)

    def linear(self, layer: nn.Module, x: str) -> str:
        """Apply a linear layer to one row per agent [batch, in]."""
        assert isinstance(layer, nn.Linear)
        return self.node("Gemm", x, self.parameter(layer.weight), self.parameter(layer.bias), transB=1)

    def linear_of_rows(self, layer: nn.Linear, x: str) -> str:
        """Apply a linear layer to several rows per agent [batch, n, in]."""
        weight = self.parameter(layer.weight, "{}.transposed".format, np.transpose)
        return self.node("Add", self.node("MatMul", x, weight), self.parameter(layer.bias))

    def linear_of_picture(self, layer: nn.Linear, x: str) -> str:
        """Flatten images [batch, channels, height, width] and apply a linear layer to them."""
        return self.linear(layer, self.reshape(x, [-1, layer.in_features]))

    def activated_layers(self, layers: nn.ModuleList, x: str, activation: Activation) -> str:
        """Apply linear layers, each followed by an activation, to one row per agent."""
        for layer in layers:
            x = self.activated(self.linear(layer, x), activation)
        return x

    def activated(self, x: str, activation: Activation) -> str:
        if activation is Activation.SWISH:
            return self.silu(x)
        return self.node("Tanh" if activation is Activation.TANH else "Relu", x)

    def convolution(self, layer: nn.Module, x: str) -> str:
        """Apply a convolution to images [batch, channels, height, width]."""
        assert isinstance(layer, nn.Conv2d)
        assert layer.bias is not None
        vertical, horizontal = (int(side) for side in layer.padding)
        return self.node(
            "Conv",
            x,
            self.parameter(layer.weight),
            self.parameter(layer.bias),
            dilations=list(layer.dilation),
            group=layer.groups,
            kernel_shape=list(layer.kernel_size),
            pads=[vertical, horizontal] * 2,
            strides=list(layer.stride),
        )

    # -- operators that differ between opsets

    def slice(self, x: str, axis: int, start: int, end: int | None = None) -> str:
        """Slice ``x`` from ``start`` to ``end`` along an axis; to the end of the axis if ``end`` is None."""
        stop = _END if end is None else end
        if self.opset < _SLICE_BY_INPUTS:
            return self.node("Slice", x, axes=[axis], starts=[start], ends=[stop])
        return self.node("Slice", x, self.constant([start]), self.constant([stop]), self.constant([axis]))

    def clip(self, x: str, low: float, high: float) -> str:
        if self.opset < _CLIP_BY_INPUTS:
            return self.node("Clip", x, min=low, max=high)
        return self.node("Clip", x, self.constant(low), self.constant(high))

    def squeeze(self, x: str, axis: int) -> str:
        return self._by_axis("Squeeze", x, axis)

    def unsqueeze(self, x: str, axis: int) -> str:
        return self._by_axis("Unsqueeze", x, axis)

    def sum(self, x: str, axis: int, *, keep: bool) -> str:
        """Sum over one axis, which is kept with size 1 if ``keep`` is True."""
        return self._by_axis("ReduceSum", x, axis, keepdims=int(keep))

    def _by_axis(self, operator: str, x: str, axis: int, **attributes: Any) -> str:
        if self.opset < _AXES_BY_INPUTS:
            return self.node(operator, x, axes=[axis], **attributes)
        return self.node(operator, x, self.constant([axis]), **attributes)

    # -- compositions of operators

    def concat(self, values: Sequence[str], axis: int) -> str:
        """Concatenate along an axis. A single value is returned unchanged."""
        return values[0] if len(values) == 1 else self.node("Concat", *values, axis=axis)

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """Reshape. Callers use -1 for the batch size."""
        return self.node("Reshape", x, self.constant(list(shape)))

    def leaky_relu(self, x: str) -> str:
        """Apply LeakyReLU with torch's slope."""
        return self.node("LeakyRelu", x, alpha=_LEAKY_SLOPE)

    def silu(self, x: str) -> str:
        return self.node("Mul", x, self.node("Sigmoid", x))

    def layer_norm(self, x: str) -> str:
        """Normalize to mean 0 and variance 1 along the last axis. ONNX's LayerNormalization needs opset 17."""
        centered = self.node("Sub", x, self._mean(x))
        variance = self._mean(self.node("Mul", centered, centered))
        deviation = self.node("Sqrt", self.node("Add", variance, self.constant(_LAYER_NORM_EPSILON)))
        return self.node("Div", centered, deviation)

    def _mean(self, x: str) -> str:
        return self.node("ReduceMean", x, axes=[-1], keepdims=1)
