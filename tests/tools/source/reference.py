"""What a policy decides according to onnxruntime and to a sampler in numpy, given the same random numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from tests.policies.onnx.test_onnx import Arrays, random_inputs
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.policies.onnx.export import build_model

Floats = NDArray[np.float32]
_BELOW_ONE = np.float32(1.0 - 2.0**-24)
RELATIVE, ABSOLUTE = 1e-4, 1e-5


class Decisions(NamedTuple):
    """Of N agents: continuous [N, C], discrete [N, K], memory [N, H]."""

    continuous: Floats
    discrete: NDArray[np.int64]
    memory: Floats


class Question(NamedTuple):
    """What is asked of a policy, and the answers. ``inputs`` bear the names of the ``.onnx``."""

    inputs: Arrays
    random: Floats
    deterministic: Decisions
    sampled: Decisions
    certain: NDArray[np.bool_]  # [N, K]: the likeliest action leads by more than the tolerance


def ask(actor: Actor, rows: int, *, seed: int = 3) -> Question:
    """Asks onnxruntime about random observations.

    The uniform numbers of discrete actions are at the edges between two actions, just above or below: a probability
    that is off by more than the tolerance changes the choice.
    """
    inputs = random_inputs(actor, rows, seed)
    model = build_model(actor, actor.spec)
    producers = {output: node for node in model.graph.node for output in node.output}
    multinomials = [node for node in model.graph.node if node.op_type == "Multinomial"]
    probabilities = [producers[node.input[0]].input[0] for node in multinomials]
    normals = [node for node in model.graph.node if node.op_type == "RandomNormalLike"]
    scales = [
        name
        for node in model.graph.node
        for name in node.input
        for normal in normals
        if normal.output[0] in node.input and name != normal.output[0]
    ]
    weights = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    wanted = [*probabilities, *(node.input[0] for node in normals), *(name for name in scales if name not in weights)]
    present = {output.name for output in model.graph.output}
    model.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in wanted if name not in present
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    used = {each.name for each in session.get_inputs()}
    found = dict(zip(names, session.run(None, {k: v for k, v in inputs.items() if k in used}), strict=True))

    generator = np.random.default_rng(seed)
    size, branches = actor.head.continuous_size, actor.head.branches
    pairs = (size + 1) // 2
    uniform = generator.random((rows, 2 * pairs), np.float32)
    columns = [uniform]
    continuous = np.zeros((rows, 0), np.float32)
    if size:
        mean, scale = found[normals[0].input[0]], {**weights, **found}[scales[0]]
        raw = mean + normal(uniform)[:, :size] * scale
        limit = np.float32(actor.head.clip_actions)
        continuous = np.tanh(raw) if actor.head.tanh_squash else np.clip(raw, -limit, limit) / limit
    chosen, certain = [], []
    for name in probabilities:
        table = found[name].astype(np.float64)
        edges = table.cumsum(1)
        edge = np.take_along_axis(edges, generator.integers(table.shape[1], size=(rows, 1)), 1)[:, 0]
        off = (RELATIVE * edge + ABSOLUTE) * generator.choice((-1.0, 1.0), rows)
        draw = np.clip(edge + off, 0.0, _BELOW_ONE).astype(np.float32)
        columns.append(draw[:, None])
        above = edges > draw[:, None].astype(np.float64) * edges[:, -1:]
        chosen.append(above.argmax(1))
        two = np.sort(table, 1)[:, -2:] if table.shape[1] > 1 else np.tile((0.0, 1.0), (rows, 1))
        certain.append(two[:, 1] - two[:, 0] > RELATIVE * two[:, 1] + ABSOLUTE)
    memory = found["recurrent_out"][:, 0] if actor.memory_size else np.zeros((rows, 0), np.float32)
    none = np.zeros((rows, 0), np.int64)
    return Question(
        inputs,
        np.concatenate(columns, 1),
        Decisions(
            found["deterministic_continuous_actions"] if size else continuous,
            found["deterministic_discrete_actions"] if branches else none,
            memory,
        ),
        Decisions(continuous, np.stack(chosen, 1) if branches else none, memory),
        np.stack(certain, 1) if branches else np.zeros((rows, 0), bool),
    )


def normal(uniform: Floats) -> Floats:
    """Box and Muller (1958): each pair of uniform numbers makes a pair of normal ones."""
    radius = np.sqrt(-2.0 * np.log(np.maximum(1.0 - uniform[:, ::2], np.float32(2.0**-24))))
    angle = np.float32(2.0 * np.pi) * uniform[:, 1::2]
    return np.stack((radius * np.cos(angle), radius * np.sin(angle)), 2).reshape(len(uniform), -1)


def differences(question: Question, mode: str, found: Decisions) -> list[str]:
    """Returns in what an answer differs by more than the tolerance."""
    wanted: Decisions = getattr(question, mode)
    wrong = [
        f"{mode} {name}: off by {np.abs(mine - theirs).max()}"
        for name, mine, theirs in (
            ("continuous", found.continuous, wanted.continuous),
            ("memory", found.memory, wanted.memory),
        )
        if not np.allclose(mine, theirs, rtol=RELATIVE, atol=ABSOLUTE)
    ]
    counted = question.certain if mode == "deterministic" else np.ones_like(question.certain)
    others = (found.discrete != wanted.discrete) & counted
    return wrong + ([f"{mode} discrete: {others.sum()} of {counted.sum()} differ"] if others.any() else [])
