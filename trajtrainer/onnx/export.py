"""Writes a policy as the ``.onnx`` file that Unity loads.

The graph is built directly from the actor's weights and not traced by ``torch.onnx.export``, because

- the networks are few and known, and their operators can be exactly those that every Unity package is known to run;
- torch's tracing exporter, the only one that writes opset 9 to 15, is deprecated and will go; this code does not
  depend on the version of torch;
- tracing draws from torch's global random numbers (and so changes training), prints and warns, keeps global state that
  other threads must not touch, and bakes in the batch size where one is not careful.

The price is a second description of each network (``to_onnx`` beside its ``forward``). Therefore every export is
compared with the actor itself before it is written, on random observations, so that a difference can never reach a
game.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import numpy as np
import onnx

from trajtrainer.core.errors import ExportError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.nn.graph import INT64
from trajtrainer.onnx import contract
from trajtrainer.onnx.drawing import Acting, Drawing
from trajtrainer.onnx.graph import GraphBuilder
from trajtrainer.onnx.inspect import inspect_graph
from trajtrainer.onnx.parity import check_parity
from trajtrainer.onnx.report import Report


def export_policy(
    actor: Acting,
    spec: BehaviorSpec,
    path: str | os.PathLike[str],
    *,
    opset: int = contract.DEFAULT_OPSET,
    synced: bool = True,
) -> None:
    """Write an actor's policy for Unity.

    The file appears whole or not at all: it is written beside its place and then renamed. Neither the actor nor any
    random generator is changed. The same weights always give the same bytes.

    Args:
        actor: trained or not, on any device.
        spec: of the behaviour; decides names and shapes of the inputs.
        path: of the file; what is there is replaced.
        opset: of the ONNX operators, 9 to 15. 9 loads in every Unity package with ML-Agents models; 15 is what the
            manuals of Sentis and Inference Engine recommend.
        synced: wait until it is on the disk. False where the caller does that.

    Raises:
        ExportError: the policy cannot be exported or written.
    """
    model = build_model(actor, spec, opset=opset)
    check_model(model)
    check_parity(model, actor, spec)
    write_model(model, Path(path), synced=synced)


def build_model(actor: Acting, spec: BehaviorSpec, *, opset: int = contract.DEFAULT_OPSET) -> onnx.ModelProto:
    """Return the model of a policy, not yet checked.

    Raises:
        ExportError: there is no such opset here, no action to take, or a module without an ONNX form.
    """
    return draw_policy(actor, spec, opset=opset).build("policy")


def draw_policy(actor: Acting, spec: BehaviorSpec, *, opset: int = contract.DEFAULT_OPSET) -> GraphBuilder:
    """Return the graph of a policy.

    Raises:
        ExportError: there is no such opset here, no action to take, or a module without an ONNX form.
    """
    if not contract.MIN_EXPORT_OPSET <= opset <= contract.MAX_OPSET:
        raise ExportError(
            f"Opset {opset} cannot be exported: Unity imports up to {contract.MAX_OPSET}, and the networks need at "
            f"least {contract.MIN_EXPORT_OPSET}. Every Unity package loads {contract.DEFAULT_OPSET}, the default."
        )
    graph = GraphBuilder(opset, actor)
    draw_into(graph, actor, spec)
    return graph


def draw_into(graph: GraphBuilder, actor: Drawing, spec: BehaviorSpec) -> None:
    """Draw a policy with the inputs and outputs that Unity knows.

    Raises:
        ExportError: no action to take, or a module without an ONNX form.
    """
    head = actor.head
    if not head.continuous_size and not head.branches:
        raise ExportError("The behavior has no actions, so there is no policy to export.")
    shapes = [tuple(int(size) for size in observation.shape) for observation in spec.observation_specs]
    obs = [graph.input(contract.observation_name(i), shape) for i, shape in enumerate(shapes)]
    allowed = graph.input(contract.ACTION_MASKS, [sum(head.branches)]) if head.branches else ""
    memory_size = actor.memory_size
    memory = graph.input(contract.RECURRENT_IN, [1, memory_size]) if memory_size else None
    encoding = actor.body.to_onnx(graph, obs, shapes, memory, contract.RECURRENT_OUT)

    graph.constant_output(contract.VERSION_NUMBER, _constant(contract.MODEL_VERSION))
    graph.constant_output(contract.MEMORY_SIZE, _constant(memory_size))
    if size := head.continuous_size:
        head.continuous_to_onnx(graph, encoding, contract.CONTINUOUS_ACTIONS, contract.DETERMINISTIC_CONTINUOUS)
        graph.output(contract.CONTINUOUS_ACTIONS, [size])
        graph.constant_output(contract.CONTINUOUS_SHAPE, _constant(size))
        graph.output(contract.DETERMINISTIC_CONTINUOUS, [size])
    if count := len(head.branches):
        head.discrete_to_onnx(graph, encoding, allowed, contract.DISCRETE_ACTIONS, contract.DETERMINISTIC_DISCRETE)
        graph.output(contract.DISCRETE_ACTIONS, [count], INT64)
        graph.constant_output(contract.DISCRETE_SHAPE, _constant(*head.branches)[None])
        graph.output(contract.DETERMINISTIC_DISCRETE, [count], INT64)
    if memory_size:
        graph.output(contract.RECURRENT_OUT, [1, memory_size])


def _constant(*values: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.array(values, np.float32)


def check_model(model: onnx.ModelProto) -> None:
    """Look whether Unity would run a model.

    Raises:
        ExportError: it would not.
    """
    report = Report(path=Path())
    inspect_graph(model, report)
    if not report.loads:
        raise ExportError(f"The policy was not exported, because Unity would not run it: {'; '.join(report.errors)}.")


def write_model(model: onnx.ModelProto, path: Path, *, synced: bool = True) -> None:
    """Write a model, whole or not at all.

    Raises:
        ExportError: it cannot be written.
    """
    content = model.SerializeToString(deterministic=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ExportError(f"The policy could not be written to {path}: {error.strerror}.") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
