"""Builds an ONNX graph node by node, hiding how operators differ between opsets 9 and 15.

A value in the graph is the name of a tensor: each method takes names, adds nodes and returns the name of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from trajtrainer.version import __version__

PRODUCER = "trajtrainer"
BATCH = "batch"
_END = np.iinfo(np.int64).max  # a slice up to the end

# From these opsets on, what was an attribute is an input.
_SLICE_BY_INPUTS = 10
_CLIP_BY_INPUTS = 11
_AXES_BY_INPUTS = 13


class GraphBuilder:
    """An ONNX graph in the making.

    Args:
        opset: of the standard operators, 9 to 15.
    """

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._weights: dict[str, onnx.TensorProto] = {}
        self._counts: dict[str, int] = {}

    # -- ends of the graph

    def input(self, name: str, shape: Sequence[int]) -> str:
        """An input with one row per agent: float32 [batch, *shape]."""
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [BATCH, *shape]))
        return name

    def output(self, name: str, shape: Sequence[int], dtype: int = TensorProto.FLOAT) -> None:
        """Declare a value that exists or will exist as an output with one row per agent: [batch, *shape]."""
        self._outputs.append(helper.make_tensor_value_info(name, dtype, [BATCH, *shape]))

    def constant_output(self, name: str, value: NDArray[np.float32]) -> None:
        """An output that is always the same.

        The weight itself is the output, without a node between: packages that look for constants by name find it.
        """
        self.weight(name, value)
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape))

    def build(self, name: str) -> onnx.ModelProto:
        """The model so far. Inputs that no node reads are left out."""
        used = {value for node in self._nodes for value in node.input}
        inputs = [value for value in self._inputs if value.name in used]
        graph = helper.make_graph(self._nodes, name, inputs, self._outputs, list(self._weights.values()))
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(
            graph,
            opset_imports=[opset],
            ir_version=helper.find_min_ir_version_for([opset]),
            producer_name=PRODUCER,
            producer_version=__version__,
        )

    # -- values

    def weight(self, name: str, value: NDArray[Any]) -> str:
        """A stored tensor under a name of its own; the same name gives the same tensor."""
        if name not in self._weights:
            self._weights[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def constant(self, value: float | Sequence[int]) -> str:
        """A float32 scalar, or a list of whole numbers (int64)."""
        array = np.array(value, np.float32 if isinstance(value, float) else np.int64)
        return self.node("Constant", value=numpy_helper.from_array(array))

    def node(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """One operator with one result, named ``output`` or else after the operator."""
        return self.nodes(operator, inputs, (output or self._new_name(operator),), **attributes)[0]

    def nodes(self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> tuple[str, ...]:
        """One operator with several results. Missing optional inputs are empty names."""
        self._nodes.append(helper.make_node(operator, inputs, outputs, name=f"/{outputs[0]}", **attributes))
        return tuple(outputs)

    def _new_name(self, operator: str) -> str:
        count = self._counts.get(operator, 0)
        self._counts[operator] = count + 1
        return f"{operator}_{count}"

    # -- operators that differ between opsets

    def slice(self, x: str, axis: int, start: int, end: int | None = None) -> str:
        """``x[..., start:end, ...]``; to the end without ``end``."""
        stop = _END if end is None else end
        if self.opset < _SLICE_BY_INPUTS:
            return self.node("Slice", x, axes=[axis], starts=[start], ends=[stop])
        return self.node("Slice", x, self.constant([start]), self.constant([stop]), self.constant([axis]))

    def clip(self, x: str, low: float, high: float) -> str:
        """Limit to a range."""
        if self.opset < _CLIP_BY_INPUTS:
            return self.node("Clip", x, min=low, max=high)
        return self.node("Clip", x, self.constant(low), self.constant(high))

    def squeeze(self, x: str, axis: int) -> str:
        """Drop an axis of size 1."""
        return self._by_axis("Squeeze", x, axis)

    def unsqueeze(self, x: str, axis: int) -> str:
        """Insert an axis of size 1."""
        return self._by_axis("Unsqueeze", x, axis)

    def sum(self, x: str, axis: int, *, keep: bool) -> str:
        """Sum over one axis, which stays with size 1 if ``keep``."""
        return self._by_axis("ReduceSum", x, axis, keepdims=int(keep))

    def _by_axis(self, operator: str, x: str, axis: int, **attributes: Any) -> str:
        if self.opset < _AXES_BY_INPUTS:
            return self.node(operator, x, axes=[axis], **attributes)
        return self.node(operator, x, self.constant([axis]), **attributes)

    # -- small compositions

    def concat(self, values: Sequence[str], axis: int) -> str:
        """Side by side along an axis; a single value stays as it is."""
        return values[0] if len(values) == 1 else self.node("Concat", *values, axis=axis)

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """Another shape; -1 for what is left, which is the batch everywhere here."""
        return self.node("Reshape", x, self.constant(list(shape)))

    def silu(self, x: str) -> str:
        """Swish: x * sigmoid(x)."""
        return self.node("Mul", x, self.node("Sigmoid", x))

    def layer_norm(self, x: str, epsilon: float) -> str:
        """Mean 0 and variance 1 along the last axis. The operator of this name needs opset 17."""
        centred = self.node("Sub", x, self._mean(x))
        variance = self._mean(self.node("Mul", centred, centred))
        deviation = self.node("Sqrt", self.node("Add", variance, self.constant(epsilon)))
        return self.node("Div", centred, deviation)

    def _mean(self, x: str) -> str:
        return self.node("ReduceMean", x, axes=[-1], keepdims=1)
