"""From a drawn graph to an ONNX model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from trajtrainer.core.version import __version__
from trajtrainer.nn.graph import Graph, Node, Value

PRODUCER = "trajtrainer"


class GraphBuilder(Graph):
    """A graph that makes a model of itself."""

    def build(self, name: str) -> onnx.ModelProto:
        """Return the model so far. Inputs that no node reads are left out."""
        used = {value for node in self.operators for value in node.inputs}
        graph = helper.make_graph(
            [_node(node) for node in self.operators],
            name,
            [_value(value) for value in self.inputs if value.name in used],
            [_value(value) for value in self.outputs],
            [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in self.weights.items()],
        )
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(
            graph,
            opset_imports=[opset],
            # From version 4 on, which opset 9 needs anyhow, weights are not listed as inputs, too.
            ir_version=max(4, helper.find_min_ir_version_for([opset])),
            producer_name=PRODUCER,
            producer_version=__version__,
        )


def _value(value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, value.dtype, value.shape)


def _node(node: Node) -> onnx.NodeProto:
    attributes: dict[str, Any] = {
        name: numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        for name, value in node.attributes.items()
    }
    return helper.make_node(node.operator, node.inputs, node.outputs, name=f"/{node.outputs[0]}", **attributes)
