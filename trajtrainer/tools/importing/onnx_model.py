"""Converts an ``.onnx`` model from any source to the inputs and outputs that Unity expects.

The model's first input is the observation, and actions are chosen from its first output. Further inputs and outputs are
its state: each output becomes the input at the same position in the next step. Models of Godot RL Agents have a state,
which is usually unused.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnx
from onnx import helper, numpy_helper

from trajtrainer.core.errors import CheckpointError, ExportError, first_line
from trajtrainer.core.printable import shortened
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.learning.nn.graph import Graph
from trajtrainer.learning.nn.heads import choices_to_onnx
from trajtrainer.policies.onnx import contract
from trajtrainer.policies.onnx.evaluate import graph_inputs
from trajtrainer.policies.onnx.export import GraphBuilder, add_policy
from trajtrainer.policies.onnx.faults import STANDARD_DOMAINS
from trajtrainer.policies.onnx.inspect import check_model, read_model
from trajtrainer.policies.onnx.unity_names import Report
from trajtrainer.tools.importing.policy import IMAGE_RANK, HeadKind, Hints, Part, Sensors, best_to_onnx

_NAMESPACE: Final = "network/"


@dataclass(frozen=True, slots=True)
class ForeignModel:
    """A model, and options that the user gives for information that it does not contain.

    Attributes:
        model: the ONNX model, without its state if that is unused.
        hints: the user's options.
        part: the observation.
        state: shape of each part of the state, with -1 for the batch.
    """

    model: onnx.ModelProto
    hints: Hints
    part: Part
    state: tuple[tuple[int, ...], ...]

    @property
    def memory_size(self) -> int:
        """Size of one agent's state."""
        return sum(map(_size, self.state))


def _size(shape: tuple[int, ...]) -> int:
    return -math.prod(shape)  # the batch is -1


def read_onnx_model(path: Path, hints: Hints) -> ForeignModel:
    """Read a model whose inputs and outputs are those of a policy.

    Raises:
        CheckpointError: the file is missing or damaged, or the model has other inputs and outputs.
    """
    report = Report(path)
    model = read_model(report)
    if model is not None:
        _drop_unused_state(model)
    problems = report.errors or ([] if model is None else list(_obstacles(model)))
    if problems or model is None:
        raise CheckpointError(f"{path} cannot be imported: {shortened('; '.join(problems))}.")
    entry, *state = graph_inputs(model)
    shape = _sizes(entry)[1:]
    part = Part(observed=tuple(shape) if all(shape) else None, is_picture=len(shape) == IMAGE_RANK)
    return ForeignModel(model, hints, part, tuple(filter(None, map(_layout, state))))


def _sizes(value: onnx.ValueInfoProto) -> list[int]:
    """Return the size of each dimension; 0 if it is unknown."""
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def _drop_unused_state(model: onnx.ModelProto) -> None:
    """Remove the state of a model, if it has one that its first output does not depend on."""
    graph = model.graph
    state = {value.name for value in graph_inputs(model)[1:]}
    if not 0 < len(state) == len(graph.output) - 1:
        return
    needed = {graph.output[0].name}
    for node in reversed(graph.node):
        if not needed.isdisjoint(node.output):
            needed.update(filter(None, node.input))
    if needed.isdisjoint(state):
        kept = onnx.GraphProto(
            node=[node for node in graph.node if not needed.isdisjoint(node.output)],
            input=[value for value in graph.input if value.name not in state],
            output=graph.output[:1],
        )
        for name in ("node", "input", "output"):
            graph.ClearField(name)
        graph.MergeFrom(kept)


def _layout(value: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    """Return the shape of a part of a state, with -1 for the batch; None if it is not one row per agent."""
    sizes = _sizes(value)
    batch = sizes.index(0) if 0 in sizes else 0
    if not sizes or 0 in sizes[batch + 1 :] or any(size != 1 for size in sizes[:batch]):
        return None
    return (*sizes[:batch], -1, *sizes[batch + 1 :])


def _schema(operator: str, opset: int) -> object:
    """Return an operator's inputs and attributes, but not its types, because new versions often just add types."""
    if not onnx.defs.has(operator, opset):
        return None
    schema = onnx.defs.get_schema(operator, opset)
    attributes = {name: each.default_value.SerializeToString() for name, each in schema.attributes.items()}
    return [each.name for each in schema.inputs], attributes


def _obstacles(model: onnx.ModelProto) -> Iterator[str]:
    inputs = graph_inputs(model)
    has_state = 1 < len(inputs) == len(model.graph.output)
    for what, values in (("input", inputs), ("output", model.graph.output)):
        if len(values) != 1 and not has_state:
            yield f"it has {len(values)} {what}s ({', '.join(each.name for each in values)}), expected one"
            continue
        for value in values:
            if value.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
                more = (
                    ". Export the values from which the actions are chosen, before ArgMax" if what == "output" else ""
                )
                yield f"its {what} {value.name!r} is not of type float32{more}"
    if inputs and len(_sizes(inputs[0])) < 2:
        yield f"its input {inputs[0].name!r} has no batch of observations as its first dimension"
    for value in inputs[1:] if has_state else ():
        if _layout(value) is None:
            yield (
                f"its actions depend on its state {value.name!r}, which is not one row of a fixed size per agent, as "
                "Unity's memory is"
            )
    opset = _opset(model)
    newest, known = contract.MAX_OPSET, onnx.defs.onnx_opset_version()
    operators = sorted({node.op_type for node in model.graph.node}) if newest < opset <= known else []
    newer = [each for each in operators if _schema(each, opset) != _schema(each, newest)]
    if newer or not contract.MIN_OPSET <= opset <= known:
        more = f", where these operators are missing or differ: {', '.join(newer)}" if newer else ""
        yield f"its opset is {opset}, but Unity imports {contract.MIN_OPSET} to {newest}{more}"
    foreign = {f"{node.domain}.{node.op_type}" for node in model.graph.node if node.domain not in STANDARD_DOMAINS}
    if foreign:
        yield f"it has operators that are not part of the ONNX standard: {', '.join(sorted(foreign))}"
    if len(model.graph.sparse_initializer):
        yield "it has sparse weights, which Unity does not support"
    tensors = [*model.graph.initializer]
    tensors += [each.t for node in model.graph.node for each in node.attribute if each.HasField("t")]
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors):
        yield "its weights are in a second file. Export them with the model"


def _opset(model: onnx.ModelProto) -> int:
    return max((entry.version for entry in model.opset_import if entry.domain in STANDARD_DOMAINS), default=0)


@dataclass(frozen=True, slots=True)
class _Network:
    """The body of the policy: the model's graph, between sensors and actions."""

    found: ForeignModel
    sensors: Sensors

    def to_onnx(
        self,
        graph: Graph,
        obs: Sequence[str],
        shapes: Sequence[Sequence[int]],  # noqa: ARG002
        memory: str | None,
        memory_out: str,
    ) -> str:
        """Build the model's operators, with a namespace to keep their names unique."""
        own = self.found.model
        (entry, *state), (result, *state_out) = graph_inputs(own), own.graph.output
        names = {entry.name: self.sensors.to_onnx(graph, obs), "": ""}
        end = 0
        for value, shape in zip(state, self.found.state, strict=True):
            assert memory is not None
            start, end = end, end + _size(shape)
            names[value.name] = graph.reshape(graph.slice(memory, 2, start, end), shape)

        def named(name: str) -> str:
            return names.get(name, _NAMESPACE + name)

        for tensor in own.graph.initializer:
            graph.weight(named(tensor.name), numpy_helper.to_array(tensor))
        for node in own.graph.node:
            attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
            graph.nodes(node.op_type, list(map(named, node.input)), list(map(named, node.output)), **attributes)
        if memory:
            shapes_out = zip(state_out, self.found.state, strict=True)
            parts = [graph.reshape(named(value.name), [-1, 1, _size(shape)]) for value, shape in shapes_out]
            graph.node("Concat", *parts, axis=2, output=memory_out)
        return named(result.name)


@dataclass(frozen=True, slots=True)
class _Actions:
    """The head of the policy: converts the model's output to actions."""

    hints: Hints
    continuous_size: int
    branches: tuple[int, ...]

    def continuous_to_onnx(self, graph: Graph, encoding: str, sampled: str, mode: str) -> None:
        """Build actions rescaled from the bounds to -1 and 1. They are never sampled, because the noise is unknown."""
        assert self.hints.bounds is not None
        low, high = self.hints.bounds
        scaled = graph.node("Mul", encoding, graph.constant(2.0 / (high - low)))
        centered = graph.node("Sub", scaled, graph.constant((low + high) / (high - low)))
        limited = graph.clip(centered, -1.0, 1.0)
        graph.node("Identity", limited, output=mode)
        graph.node("Identity", limited, output=sampled)

    def discrete_to_onnx(self, graph: Graph, encoding: str, allowed: str, sampled: str, mode: str) -> None:
        """Build the choice of actions: sampled from logits, or the best one according to values."""
        if self.hints.scores is HeadKind.VALUES:
            best_to_onnx(graph, encoding, allowed, sampled, mode)
        else:
            choices_to_onnx(graph, encoding, allowed, self.branches, sampled, mode)


@dataclass(frozen=True, slots=True)
class _Policy:
    body: _Network
    head: _Actions
    memory_size: int


def for_unity(found: ForeignModel, sensors: Sensors, spec: BehaviorSpec) -> onnx.ModelProto:
    """Return the model in the form that Unity loads.

    Raises:
        ExportError: the model is damaged, or Unity could not run it.
    """
    actions = spec.action_spec
    head = _Actions(found.hints, int(actions.continuous_size), tuple(map(int, actions.discrete_branches)))
    graph = GraphBuilder(min(_opset(found.model), contract.MAX_OPSET), sensors)
    try:
        add_policy(graph, _Policy(_Network(found, sensors), head, found.memory_size), spec)
        model = graph.build("policy")
    except Exception as error:  # with damaged weights and attributes, the package onnx may raise any exception
        raise ExportError(f"The model is damaged: {first_line(error)}.") from error
    check_model(model)
    return model
