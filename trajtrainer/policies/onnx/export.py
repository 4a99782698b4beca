"""Exports a policy as an ``.onnx`` file for Unity: builds the graph, compares it with the actor, and writes the file.

The graph is built directly from the actor's weights instead of being traced by ``torch.onnx.export``, because

- there are only a few known networks, so they can use exactly the operators that every Unity package is known to run;
- torch's tracing exporter, the only one that writes opsets 9 to 15, is deprecated and will be removed; this code does
  not depend on the torch version;
- tracing draws from torch's global random generator (and thus changes training), prints output and warnings, keeps
  global state that is not thread-safe, and easily hard-codes the batch size by accident.

The drawback is a second description of each network (``to_onnx`` next to ``forward``). Every export is therefore
compared with the actor on random observations before it is written, so a discrepancy never reaches a game.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor, nn

from trajtrainer.core import atomic
from trajtrainer.core.errors import ExportError
from trajtrainer.core.spec import BehaviorSpec, ObservationKind, observation_kind
from trajtrainer.core.version import __version__
from trajtrainer.learning.nn.distribution import ActionDistribution
from trajtrainer.learning.nn.graph import INT64, Graph, ValueInfo
from trajtrainer.policies.onnx import contract
from trajtrainer.policies.onnx.evaluate import GraphEvaluator
from trajtrainer.policies.onnx.faults import faults_of_operators, faults_of_weights, refuse, unsupported_operators

PRODUCER = "trajtrainer"

_ROWS = 2
# Tolerances for rounding errors: the two libraries sum in different orders. A real difference is larger.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4


def export_policy(
    actor: ComparablePolicy,
    spec: BehaviorSpec,
    path: str | os.PathLike[str],
    *,
    opset: int = contract.DEFAULT_OPSET,
    synced: bool = True,
) -> None:
    """Export an actor's policy for Unity.

    This changes neither the actor nor any random generator. The same weights always produce the same bytes.

    Args:
        actor: the actor, trained or untrained, on any device.
        spec: the behavior's spec, which determines the names and shapes of the inputs.
        path: path of the file, which is overwritten if it exists.
        opset: ONNX opset, 9 to 15. Every Unity package for ML-Agents models loads 9; the manuals of Sentis and
            Inference Engine recommend 15.
        synced: write the file atomically and flush it to disk. Use False if ``path`` is already the temporary file of
            an atomic write.

    Raises:
        ExportError: the policy cannot be exported or written.
    """
    model = build_model(actor, spec, opset=opset)
    # The comparison below cannot detect these faults: ArgMax hides NaN, and a plugin's network may use any operators.
    refuse([*faults_of_operators(unsupported_operators(model)), *faults_of_weights(model)])
    check_parity(model, actor, spec)
    write_model(model, Path(path), synced=synced)


def build_model(actor: ComparablePolicy, spec: BehaviorSpec, *, opset: int = contract.DEFAULT_OPSET) -> onnx.ModelProto:
    """Build the model of a policy without checking it. The exceptions are those of ``policy_graph``."""
    return policy_graph(actor, spec, opset=opset).build("policy")


def policy_graph(actor: ComparablePolicy, spec: BehaviorSpec, *, opset: int = contract.DEFAULT_OPSET) -> GraphBuilder:
    """Build the graph of a policy.

    Raises:
        ExportError: the opset is not supported, there are no actions, or a module cannot be exported to ONNX.
    """
    if not contract.MIN_EXPORT_OPSET <= opset <= contract.MAX_OPSET:
        raise ExportError(
            f"Opset {opset} cannot be exported: Unity imports up to {contract.MAX_OPSET}, and the networks need at "
            f"least {contract.MIN_EXPORT_OPSET}. Every Unity package loads {contract.DEFAULT_OPSET}, the default."
        )
    graph = GraphBuilder(opset, actor)
    add_policy(graph, actor, spec)
    return graph


def add_policy(graph: GraphBuilder, actor: ExportablePolicy, spec: BehaviorSpec) -> None:
    """Add a policy to a graph, with the inputs and outputs that Unity expects.

    Raises:
        ExportError: there are no actions, or a module cannot be exported to ONNX.
    """
    head = actor.head
    if not head.continuous_size and not head.branches:
        raise ExportError("The behavior has no actions, so it has no policy to export.")
    shapes = [tuple(int(size) for size in observation.shape) for observation in spec.observation_specs]
    obs = [graph.input(contract.observation_name(i), shape) for i, shape in enumerate(shapes)]
    allowed = graph.input(contract.ACTION_MASKS, [sum(head.branches)]) if head.branches else ""
    memory_size = actor.memory_size
    memory = graph.input(contract.RECURRENT_IN, [1, memory_size]) if memory_size else None
    encoding = actor.body.to_onnx(graph, obs, shapes, memory, contract.RECURRENT_OUT)

    def constant(name: str, *values: int) -> None:
        graph.constant_output(name, np.array(values, np.float32))

    constant(contract.VERSION_NUMBER, contract.MODEL_VERSION)
    constant(contract.MEMORY_SIZE, memory_size)
    if size := head.continuous_size:
        head.continuous_to_onnx(graph, encoding, contract.CONTINUOUS_ACTIONS, contract.DETERMINISTIC_CONTINUOUS)
        graph.output(contract.CONTINUOUS_ACTIONS, [size])
        constant(contract.CONTINUOUS_SHAPE, size)
        graph.output(contract.DETERMINISTIC_CONTINUOUS, [size])
    if count := len(head.branches):
        head.discrete_to_onnx(graph, encoding, allowed, contract.DISCRETE_ACTIONS, contract.DETERMINISTIC_DISCRETE)
        graph.output(contract.DISCRETE_ACTIONS, [count], INT64)
        graph.constant_output(contract.DISCRETE_SHAPE, np.array(head.branches, np.float32)[None])
        graph.output(contract.DETERMINISTIC_DISCRETE, [count], INT64)
    if memory_size:
        graph.output(contract.RECURRENT_OUT, [1, memory_size])


@torch.inference_mode()
def check_parity(model: onnx.ModelProto, actor: ComparablePolicy, spec: BehaviorSpec, *, limited: bool = False) -> None:
    """Run the model and the actor on the same random observations, and compare deterministic actions and memories.

    Args:
        model: the model to check.
        actor: the actor that it should match.
        spec: the behavior's spec.
        limited: True if the model is of unknown origin; see ``GraphEvaluator``.

    Raises:
        ExportError: the model and the actor differ.
    """
    generator = np.random.default_rng(0)  # a separate generator, so that an export does not affect training
    obs = []
    for observation in spec.observation_specs:
        values = generator.standard_normal((_ROWS, *observation.shape), np.float32)
        if observation_kind(observation) is ObservationKind.VARIABLE_LENGTH:
            values[generator.random(values.shape[:2]) < 0.5] = 0.0  # padding
        obs.append(values)
    masks = [generator.random((_ROWS, size)) < 0.5 for size in actor.head.branches]
    for mask in masks:  # Allow at least one action of each branch.
        mask[np.arange(_ROWS), generator.integers(mask.shape[1], size=_ROWS)] = True
    allowed = np.concatenate([np.zeros((_ROWS, 0), np.bool_), *masks], axis=1)
    memory = generator.standard_normal((_ROWS, actor.memory_size), np.float32)

    feed = {contract.observation_name(i): values for i, values in enumerate(obs)}
    feed[contract.ACTION_MASKS] = allowed.astype(np.float32)
    feed[contract.RECURRENT_IN] = memory[:, None, :]
    found = GraphEvaluator(model, limited=limited).run({value.name: feed[value.name] for value in model.graph.input})

    device = next(actor.parameters()).device
    distribution, memory_out = actor.distribution(
        [torch.from_numpy(values).to(device) for values in obs],
        torch.from_numpy(~allowed).to(device),
        torch.from_numpy(memory).to(device),
    )
    actions = distribution.deterministic()
    if actor.head.continuous_size:
        name = contract.DETERMINISTIC_CONTINUOUS
        _compare(name, found[name], distribution.to_env(actions.continuous))
    if actor.memory_size:
        _compare(contract.RECURRENT_OUT, found[contract.RECURRENT_OUT], memory_out.unsqueeze(1))
    if actor.head.branches:
        # Rounding errors may swap two equally likely actions, so compare their probabilities instead.
        chosen = torch.from_numpy(found[contract.DETERMINISTIC_DISCRETE]).to(device)
        probability = distribution.discrete_log_prob(chosen).exp().cpu().numpy()
        highest = distribution.discrete_log_prob(actions.discrete).exp()
        _compare(f"the probability of {contract.DETERMINISTIC_DISCRETE}", probability, highest)


def _compare(name: str, found: NDArray[Any], wanted: Tensor) -> None:
    expected = wanted.cpu().numpy()
    if np.isnan(expected).any():
        refuse(["the model returns NaN: its weights are damaged"])
    if not np.allclose(found, expected, rtol=_RELATIVE, atol=_ABSOLUTE):
        raise ExportError(
            f"The exported model does not act like the policy ({name} differs by "
            f"{np.abs(found - expected).max():.3g}), so it was not written. This is a bug in the exporter; your "
            "checkpoints are not affected."
        )


def write_model(model: onnx.ModelProto, path: Path, *, synced: bool = True) -> None:
    """Write a model to a file. For ``synced``, see ``export_policy``.

    Raises:
        ExportError: the file cannot be written.
    """
    content = model.SerializeToString(deterministic=True)
    try:
        if synced:
            path.parent.stat()  # Fail if the folder is missing, because an atomic write would create it.
            atomic.write_bytes(path, content)
        else:
            path.write_bytes(content)
    except OSError as error:
        raise ExportError(f"The policy could not be written to {path}: {error.strerror or error}.") from error


class GraphBuilder(Graph):
    """A graph that can be converted to an ONNX model."""

    def build(self, name: str) -> onnx.ModelProto:
        """Build a model from the current content of the graph. Inputs that no node uses are omitted."""
        used = {value for node in self.operators for value in node.inputs}
        nodes = []
        for node in self.operators:
            attributes: dict[str, Any] = {
                name: numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
                for name, value in node.attributes.items()
            }
            own = f"/{node.outputs[0]}"
            nodes.append(helper.make_node(node.operator, node.inputs, node.outputs, name=own, **attributes))
        inputs = [_value(value) for value in self.inputs if value.name in used]
        weights = [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in self.weights.items()]
        graph = helper.make_graph(nodes, name, inputs, [_value(value) for value in self.outputs], weights)
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(
            graph,
            opset_imports=[opset],
            # Since IR version 4, which opset 9 requires anyway, weights need not be listed as inputs.
            ir_version=max(4, helper.find_min_ir_version_for([opset])),
            producer_name=PRODUCER,
            producer_version=__version__,
        )


def _value(value: ValueInfo) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, value.dtype, value.shape)


class ExportableBody(Protocol):
    """Adds the part of a network before the action head to a graph; see ``NetworkBody.to_onnx``."""

    def to_onnx(
        self, graph: Graph, obs: Sequence[str], shapes: Sequence[Sequence[int]], memory: str | None, memory_out: str
    ) -> str: ...


class ExportableHead(Protocol):
    """Adds the action head to a graph; see ``ActionHead``."""

    @property
    def continuous_size(self) -> int: ...
    @property
    def branches(self) -> tuple[int, ...]: ...
    def continuous_to_onnx(self, graph: Graph, encoding: str, sampled: str, mode: str) -> None: ...
    def discrete_to_onnx(self, graph: Graph, encoding: str, allowed: str, sampled: str, mode: str) -> None: ...


class ExportablePolicy(Protocol):
    """A policy that can be exported to ONNX: an ``Actor``, or another trainer's policy with the same interface."""

    @property
    def body(self) -> ExportableBody: ...
    @property
    def head(self) -> ExportableHead: ...
    @property
    def memory_size(self) -> int: ...


class ComparablePolicy(ExportablePolicy, Protocol):
    """An exportable policy that can also act, so that its exported model can be compared with it."""

    def parameters(self) -> Iterator[nn.Parameter]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def named_buffers(self) -> Iterator[tuple[str, Tensor]]: ...
    def distribution(
        self, obs: Sequence[Tensor], mask: Tensor, memory: Tensor
    ) -> tuple[ActionDistribution, Tensor]: ...
