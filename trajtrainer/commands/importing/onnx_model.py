"""Gives an ``.onnx`` of any origin, with one input and one output, the inputs and outputs that Unity knows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnx
from onnx import helper, numpy_helper

from trajtrainer.commands.importing.policy import HeadKind, Sensors, Told, best_to_onnx
from trajtrainer.core.errors import CheckpointError, ExportError, first_line
from trajtrainer.core.printable import shortened
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.nn.graph import Graph
from trajtrainer.nn.heads import choices_to_onnx
from trajtrainer.onnx import contract
from trajtrainer.onnx.evaluate import graph_inputs
from trajtrainer.onnx.export import GraphBuilder, draw_into
from trajtrainer.onnx.inspect import check_model, read_model
from trajtrainer.onnx.unity_names import Report

_STANDARD_DOMAINS = ("", "ai.onnx")
_NAMESPACE: Final = "network/"
PICTURE_RANK: Final = 4
"""Dimensions of an input that is a batch of pictures."""


@dataclass(frozen=True, slots=True)
class ForeignModel:
    """A model, and the user's answers to questions that it leaves open.

    ``shape`` is that of its input without the batch; None where it leaves sizes open.
    """

    model: onnx.ModelProto
    told: Told
    input_rank: int
    shape: tuple[int, ...] | None


def read_onnx_model(path: Path, told: Told) -> ForeignModel:
    """A model that could be a policy.

    Raises:
        CheckpointError: it is missing, damaged, or has other inputs and outputs.
    """
    report = Report(path)
    model = read_model(report)
    problems = report.errors or ([] if model is None else list(_obstacles(model)))
    if problems or model is None:
        raise CheckpointError(f"{path} cannot be imported: {shortened('; '.join(problems))}.")
    (entry,) = graph_inputs(model)
    dims = [dim.dim_value for dim in entry.type.tensor_type.shape.dim]
    return ForeignModel(model, told, len(dims), tuple(dims[1:]) if all(dims[1:]) else None)


def _obstacles(model: onnx.ModelProto) -> Iterator[str]:
    inputs = graph_inputs(model)
    for what, values in (("input", inputs), ("output", model.graph.output)):
        if len(values) != 1:
            yield f"it has {len(values)} {what}s ({', '.join(each.name for each in values)}), expected one"
        elif values[0].type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
            more = ". Export what the actions are chosen from, before ArgMax" if what == "output" else ""
            yield f"its {what} {values[0].name!r} is not of type float32{more}"
    if len(inputs) == 1 and len(inputs[0].type.tensor_type.shape.dim) < 2:
        yield f"its input {inputs[0].name!r} has no batch of observations as its first dimension"
    opset = _opset(model)
    if not contract.MIN_OPSET <= opset <= contract.MAX_OPSET:
        yield f"its opset is {opset}, but Unity imports {contract.MIN_OPSET} to {contract.MAX_OPSET}"
    foreign = {f"{node.domain}.{node.op_type}" for node in model.graph.node if node.domain not in _STANDARD_DOMAINS}
    if foreign:
        yield f"it has operators that are not part of the ONNX standard: {', '.join(sorted(foreign))}"
    if len(model.graph.sparse_initializer):
        yield "it has sparse weights, which Unity does not support"
    tensors = [*model.graph.initializer]
    tensors += [each.t for node in model.graph.node for each in node.attribute if each.HasField("t")]
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors):
        yield "its weights are in a second file. Export them with the model"


def _opset(model: onnx.ModelProto) -> int:
    return max((entry.version for entry in model.opset_import if entry.domain in _STANDARD_DOMAINS), default=0)


@dataclass(frozen=True, slots=True)
class _Network:
    """The model between sensors and actions."""

    model: onnx.ModelProto
    sensors: Sensors

    def to_onnx(
        self,
        graph: Graph,
        obs: Sequence[str],
        shapes: Sequence[Sequence[int]],  # noqa: ARG002
        memory: str | None,  # noqa: ARG002
        memory_out: str,  # noqa: ARG002
    ) -> str:
        """Draw its operators, under names that no other value has."""
        (entry,), (result,) = graph_inputs(self.model), self.model.graph.output
        names = {entry.name: self.sensors.to_onnx(graph, obs), "": ""}

        def named(name: str) -> str:
            return names.get(name, _NAMESPACE + name)

        for tensor in self.model.graph.initializer:
            graph.weight(named(tensor.name), numpy_helper.to_array(tensor))
        for node in self.model.graph.node:
            attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
            graph.nodes(node.op_type, list(map(named, node.input)), list(map(named, node.output)), **attributes)
        return named(result.name)


@dataclass(frozen=True, slots=True)
class _Actions:
    """From the model's output to actions."""

    told: Told
    continuous_size: int
    branches: tuple[int, ...]

    def continuous_to_onnx(self, graph: Graph, encoding: str, sampled: str, mode: str) -> None:
        """Draw actions with the bounds at -1 and 1. Nothing says how the model would draw any, so it draws none."""
        assert self.told.bounds is not None
        low, high = self.told.bounds
        scaled = graph.node("Mul", encoding, graph.constant(2.0 / (high - low)))
        centered = graph.node("Sub", scaled, graph.constant((low + high) / (high - low)))
        limited = graph.clip(centered, -1.0, 1.0)
        graph.node("Identity", limited, output=mode)
        graph.node("Identity", limited, output=sampled)

    def discrete_to_onnx(self, graph: Graph, encoding: str, allowed: str, sampled: str, mode: str) -> None:
        """Draw choices by logits, or the best by values."""
        if self.told.scores is HeadKind.VALUES:
            best_to_onnx(graph, encoding, allowed, sampled, mode)
        else:
            choices_to_onnx(graph, encoding, allowed, self.branches, sampled, mode)


@dataclass(frozen=True, slots=True)
class _Policy:
    body: _Network
    head: _Actions
    memory_size: int = 0


def for_unity(found: ForeignModel, sensors: Sensors, spec: BehaviorSpec) -> onnx.ModelProto:
    """The model as Unity loads it.

    Raises:
        ExportError: Unity would not run it, or it is damaged.
    """
    actions = spec.action_spec
    head = _Actions(found.told, int(actions.continuous_size), tuple(map(int, actions.discrete_branches)))
    graph = GraphBuilder(_opset(found.model), sensors)
    try:
        draw_into(graph, _Policy(_Network(found.model, sensors), head), spec)
        model = graph.build("policy")
    except Exception as error:  # damaged weights and attributes make the package for ONNX raise anything
        raise ExportError(f"The model is damaged: {first_line(error)}.") from error
    check_model(model)
    return model
