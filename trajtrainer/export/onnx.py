"""Writes a policy as the ``.onnx`` file that Unity loads.

The graph is built directly from the actor's weights and not traced by ``torch.onnx.export``, because

- the networks are few and known, and their operators can be exactly those that every Unity package is known to run;
- torch's tracing exporter, the only one that writes opset 9 to 15, is deprecated and will go; this code does not
  depend on the version of torch;
- tracing draws from torch's global random numbers (and so changes training), prints and warns, keeps global state that
  other threads must not touch, and bakes in the batch size where one is not careful.

The price is a second description of each network (``export/modules.py``). Therefore every export is compared with the
actor itself before it is written, on random observations, so that a difference can never reach a game.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from trajtrainer.errors import ExportError
from trajtrainer.export import contract
from trajtrainer.export.graph import GraphBuilder
from trajtrainer.export.inspect import inspect_graph
from trajtrainer.export.modules import NetworkEmitter, to_array
from trajtrainer.export.parity import check_parity
from trajtrainer.export.report import Report
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.distribution import ENV_CLIP
from trajtrainer.nn.heads import FORBIDDEN_LOGIT, LOG_SIGMA_RANGE, ActionHead
from trajtrainer.spec import BehaviorSpec


def export_policy(
    actor: Actor, spec: BehaviorSpec, path: str | os.PathLike[str], *, opset: int = contract.DEFAULT_OPSET
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

    Raises:
        ExportError: the policy cannot be exported or written.
    """
    model = build_model(actor, spec, opset=opset)
    _verify(model, actor, spec)
    _write(Path(path), model.SerializeToString(deterministic=True))


def build_model(actor: Actor, spec: BehaviorSpec, *, opset: int = contract.DEFAULT_OPSET) -> onnx.ModelProto:
    """The model of a policy, not yet checked.

    Raises:
        ExportError: there is no such opset here, no action to take, or a module without an ONNX form.
    """
    if not contract.MIN_EXPORT_OPSET <= opset <= contract.MAX_OPSET:
        raise ExportError(
            f"Opset {opset} cannot be exported: Unity imports up to {contract.MAX_OPSET}, and the networks need at "
            f"least {contract.MIN_EXPORT_OPSET}. Every Unity package loads {contract.DEFAULT_OPSET}, the default."
        )
    head = actor.head
    if not head.continuous_size and not head.branches:
        raise ExportError("The behaviour has no actions, so there is no policy to export.")
    graph = GraphBuilder(opset)
    shapes = [tuple(int(size) for size in observation.shape) for observation in spec.observation_specs]
    obs = [graph.input(contract.observation_name(i), shape) for i, shape in enumerate(shapes)]
    masks = graph.input(contract.ACTION_MASKS, [sum(head.branches)]) if head.branches else ""
    memory_size = actor.memory_size
    memory = graph.input(contract.RECURRENT_IN, [1, memory_size]) if memory_size else None
    emitter = NetworkEmitter(graph, actor, shapes)
    encoding = emitter.body(actor.body, obs, memory, contract.RECURRENT_OUT)

    graph.constant_output(contract.VERSION_NUMBER, _constant(contract.MODEL_VERSION))
    graph.constant_output(contract.MEMORY_SIZE, _constant(memory_size))
    if head.continuous_size:
        _add_continuous(graph, emitter, head, encoding)
    if head.branches:
        _add_discrete(graph, emitter, head, encoding, masks)
    if memory_size:
        graph.output(contract.RECURRENT_OUT, [1, memory_size])
    return graph.build("policy")


def _constant(*values: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.array(values, np.float32)


def _add_continuous(graph: GraphBuilder, emitter: NetworkEmitter, head: ActionHead, encoding: str) -> None:
    size = head.continuous_size
    assert head.mu is not None
    mu = emitter.linear(head.mu, encoding)
    if head.log_sigma_layer is not None:
        log_sigma = graph.clip(emitter.linear(head.log_sigma_layer, encoding), *LOG_SIGMA_RANGE)
        sigma = graph.node("Exp", log_sigma)
    else:
        assert head.log_sigma is not None
        sigma = graph.weight("head.sigma", to_array(head.log_sigma.exp()))
    noise = graph.node("RandomNormalLike", mu, dtype=TensorProto.FLOAT)
    sampled = graph.node("Add", mu, graph.node("Mul", noise, sigma))
    for name, raw in ((contract.CONTINUOUS_ACTIONS, sampled), (contract.DETERMINISTIC_CONTINUOUS, mu)):
        if head.tanh_squash:
            graph.node("Tanh", raw, output=name)
        else:
            limited = graph.clip(raw, -ENV_CLIP, ENV_CLIP)
            graph.node("Div", limited, graph.constant(ENV_CLIP), output=name)
    graph.output(contract.CONTINUOUS_ACTIONS, [size])
    graph.constant_output(contract.CONTINUOUS_SHAPE, _constant(size))
    graph.output(contract.DETERMINISTIC_CONTINUOUS, [size])


def _add_discrete(graph: GraphBuilder, emitter: NetworkEmitter, head: ActionHead, encoding: str, masks: str) -> None:
    """Masks are 1 where an action is allowed, the reverse of what this package uses inside."""
    assert head.discrete is not None
    logits = emitter.linear(head.discrete, encoding)
    forbidden = graph.node("Sub", graph.constant(1.0), masks)
    penalty = graph.node("Mul", forbidden, graph.constant(-FORBIDDEN_LOGIT))
    masked = graph.node("Sub", graph.node("Mul", logits, masks), penalty)
    sampled, likeliest = [], []
    start = 0
    for size in head.branches:
        branch = masked if len(head.branches) == 1 else graph.slice(masked, axis=1, start=start, end=start + size)
        start += size
        probabilities = graph.node("Softmax", branch, axis=1)
        logarithms = graph.node("Log", probabilities)
        sampled.append(graph.node("Multinomial", logarithms, dtype=TensorProto.INT64, sample_size=1))
        likeliest.append(graph.node("ArgMax", probabilities, axis=1, keepdims=1))
    graph.node("Concat", *sampled, axis=1, output=contract.DISCRETE_ACTIONS)
    graph.node("Concat", *likeliest, axis=1, output=contract.DETERMINISTIC_DISCRETE)
    branches = [len(head.branches)]
    graph.output(contract.DISCRETE_ACTIONS, branches, TensorProto.INT64)
    graph.constant_output(contract.DISCRETE_SHAPE, _constant(*head.branches)[None])
    graph.output(contract.DETERMINISTIC_DISCRETE, branches, TensorProto.INT64)


def _verify(model: onnx.ModelProto, actor: Actor, spec: BehaviorSpec) -> None:
    report = Report(path=Path())
    inspect_graph(model, report)
    if not report.loads:
        raise ExportError(f"The policy was not exported, because Unity would not run it: {'; '.join(report.errors)}.")
    check_parity(model, actor, spec)


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ExportError(f"The policy could not be written to {path}: {error.strerror}.") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
