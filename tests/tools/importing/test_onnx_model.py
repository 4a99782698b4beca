"""An ``.onnx`` of any origin gets the inputs and outputs that Unity knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from tests.learning.nn.specs import behavior, camera, entities, vector
from tests.tools.importing.files import Acts, acts, observations
from trajtrainer.core.errors import CheckpointError, TrajtrainerError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.policies.onnx import contract
from trajtrainer.policies.onnx.export import write_model
from trajtrainer.policies.onnx.inspect import inspect_model
from trajtrainer.policies.onnx.policy import OnnxPolicy
from trajtrainer.tools.importing.fit import fitted_sensors
from trajtrainer.tools.importing.importing import read_policy
from trajtrainer.tools.importing.onnx_model import ForeignModel, for_unity
from trajtrainer.tools.importing.policy import HeadKind, Hints, ObservationStatistics

Array = np.ndarray[Any, Any]
WEIGHT = np.random.default_rng(2).standard_normal((5, 4)).astype(np.float32)
SPEC = behavior([vector(5)], 4)
CHOICES = behavior([vector(5)], 0, (4,))
LIMIT = Hints(bounds=(-2.0, 2.0))


def model(
    *,
    opset: int = 15,
    batch: int | str = "N",
    inputs: int = 1,
    output: int = TensorProto.FLOAT,
    operator: str = "MatMul",
    shape: tuple[int, ...] = (5,),
    **options: Any,
) -> onnx.ModelProto:
    """A linear policy whose names are those of Unity, but for other things."""
    nodes = [helper.make_node(operator, ["x0", "version_number"], ["obs_0"], **options)]
    if len(shape) > 1:
        nodes = [
            helper.make_node("Flatten", ["x0"], ["flat"]),
            helper.make_node("MatMul", ["flat", "version_number"], ["obs_0"]),
        ]
    if output != TensorProto.FLOAT:
        nodes.append(helper.make_node("ArgMax", ["obs_0"], ["best"], axis=1))
    size = int(np.prod(shape))
    weight = np.resize(WEIGHT, (size, 4))
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info(f"x{k}", TensorProto.FLOAT, [batch, *shape]) for k in range(inputs)],
        [helper.make_tensor_value_info(nodes[-1].output[0], output, None)],
        [numpy_helper.from_array(weight, "version_number")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def converted(found: onnx.ModelProto, folder: Path, spec: BehaviorSpec, hints: Hints) -> Path:
    path = folder / "theirs.onnx"
    path.write_bytes(found.SerializeToString())
    policy = read_policy(path, hints)
    assert isinstance(policy, ForeignModel)
    target = folder / "ours.onnx"
    write_model(for_unity(policy, fitted_sensors(policy, spec), spec), target)
    return target


@pytest.mark.parametrize("opset", range(7, 16))
def test_every_opset_that_unity_imports(opset: int, tmp_path: Path) -> None:
    (rows,) = observations(6, (5,))
    path = converted(model(opset=opset), tmp_path, SPEC, LIMIT)
    assert inspect_model(path).opset == opset
    found = acts(path)(rows)
    wanted = (rows @ WEIGHT).clip(-2, 2) / 2
    for name in (contract.CONTINUOUS_ACTIONS, contract.DETERMINISTIC_CONTINUOUS):
        np.testing.assert_allclose(found[name], wanted, atol=1e-5)
    scores = rows @ WEIGHT
    path = converted(model(opset=opset), tmp_path, CHOICES, Hints(scores=HeadKind.LOGITS))
    np.testing.assert_array_equal(acts(path)(rows)[contract.DETERMINISTIC_DISCRETE][:, 0], scores.argmax(1))


def drawn(act: Acts, row: Array) -> Array:
    choices = act(np.repeat(row, 20_000, 0))[contract.DISCRETE_ACTIONS][:, 0]
    return np.bincount(choices, minlength=4) / np.float64(len(choices))


def test_logits_are_drawn_from_and_values_are_not(tmp_path: Path) -> None:
    (row,) = observations(1, (5,))
    scores = (row @ WEIGHT)[0]
    logits = acts(converted(model(), tmp_path, CHOICES, Hints(scores=HeadKind.LOGITS)))
    np.testing.assert_allclose(drawn(logits, row), np.exp(scores) / np.exp(scores).sum(), atol=0.02)
    values = acts(converted(model(), tmp_path, CHOICES, Hints(scores=HeadKind.VALUES)))
    assert drawn(values, row)[scores.argmax()] == 1
    allowed = np.ones((1, 4))
    allowed[0, scores.argmax()] = 0
    second = np.argsort(scores)[-2]
    assert values(row, allowed=allowed)[contract.DISCRETE_ACTIONS] == second


def test_branches(tmp_path: Path) -> None:
    (rows,) = observations(6, (5,))
    scores = rows @ WEIGHT
    spec = behavior([vector(5)], 0, (3, 1))
    found = acts(converted(model(), tmp_path, spec, Hints(scores=HeadKind.LOGITS)))(rows)
    wanted = np.stack([scores[:, :3].argmax(1), np.zeros(6)], 1)
    np.testing.assert_array_equal(found[contract.DETERMINISTIC_DISCRETE], wanted)


def test_several_vectors_bounds_and_statistics(tmp_path: Path) -> None:
    first, second = observations(6, (2,), (3,))
    hints = Hints(
        bounds=(-1.0, 3.0),
        statistics=ObservationStatistics(torch.linspace(-1, 1, 5), torch.linspace(0.5, 2.0, 5), clip=1.0),
    )
    found = acts(converted(model(), tmp_path, behavior([vector(2, "a"), vector(3, "b")], 4), hints))(first, second)
    rows = np.concatenate([first, second], 1)
    normalized = ((rows - np.linspace(-1, 1, 5)) / np.sqrt(np.linspace(0.5, 2.0, 5))).clip(-1, 1)
    wanted = (normalized @ WEIGHT).clip(-1, 3) / 2 - 0.5
    np.testing.assert_allclose(found[contract.CONTINUOUS_ACTIONS], wanted, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 4), (24,)])
def test_pictures(shape: tuple[int, ...], tmp_path: Path) -> None:
    (rows,) = observations(6, (2, 3, 4))
    hints = Hints(bounds=(-500.0, 500.0), image_scale=255.0)
    found = acts(converted(model(shape=shape), tmp_path, behavior([camera(2, 3, 4)], 4), hints))(rows)
    wanted = (rows.reshape(6, -1) * 255 @ np.resize(WEIGHT, (24, 4))).clip(-500, 500) / 500
    np.testing.assert_allclose(found[contract.CONTINUOUS_ACTIONS], wanted, atol=1e-4)


def test_a_batch_of_one_becomes_any(tmp_path: Path) -> None:
    (rows,) = observations(6, (5,))
    found = acts(converted(model(batch=1), tmp_path, SPEC, LIMIT))(rows)
    assert found[contract.CONTINUOUS_ACTIONS].shape == (6, 4)


def with_state(shape: list[int | str] | None = None, *, opset: int = 15, operator: str = "Tanh") -> onnx.ModelProto:
    """A model as Godot RL Agents writes it, with a state.

    Without a shape, the state is unused. With one, it is the sum of what would be the outputs without it, and is added.
    """
    sizes: list[int | str] = ["N"] if shape is None else shape
    nodes = [
        helper.make_node("MatMul", ["obs", "weight"], ["sum"]),
        helper.make_node(operator, ["sum"], ["stateless"]),
    ]
    if shape is None:
        nodes += [
            helper.make_node("Identity", ["stateless"], ["output"]),
            helper.make_node("Identity", ["state_ins"], ["state_outs"]),
        ]
    else:
        nodes += [
            helper.make_node("Reshape", ["state_ins", "rows"], ["state"]),
            helper.make_node("Add", ["stateless", "state"], ["output"]),
            helper.make_node("Add", ["state", "stateless"], ["sum_of_states"]),
            helper.make_node("Reshape", ["sum_of_states", "shape"], ["state_outs"]),
        ]
    graph = helper.make_graph(
        nodes,
        "policy",
        [
            helper.make_tensor_value_info("obs", TensorProto.FLOAT, ["N", 5]),
            helper.make_tensor_value_info("state_ins", TensorProto.FLOAT, sizes),
        ],
        [
            helper.make_tensor_value_info("output", TensorProto.FLOAT, ["N", 4]),
            helper.make_tensor_value_info("state_outs", TensorProto.FLOAT, sizes),
        ],
        [
            numpy_helper.from_array(WEIGHT, "weight"),
            numpy_helper.from_array(np.array([-1, 4]), "rows"),
            numpy_helper.from_array(np.array([size if isinstance(size, int) else -1 for size in sizes]), "shape"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("opset", [9, 15, 17, 18, 21])
def test_a_state_that_is_unused_is_left_out(opset: int, tmp_path: Path) -> None:
    (rows,) = observations(6, (5,))
    path = converted(with_state(opset=opset), tmp_path, SPEC, LIMIT)
    report = inspect_model(path)
    assert (report.memory_size, report.opset) == (0, min(opset, 15))
    found = acts(path)(rows)[contract.DETERMINISTIC_CONTINUOUS]
    np.testing.assert_allclose(found, np.tanh(rows @ WEIGHT) / 2, atol=1e-5)


@pytest.mark.parametrize("shape", [["N", 4], [1, "N", 4], ["N", 2, 2]])
def test_a_state_that_is_used_becomes_the_memory_of_agents(shape: list[int | str], tmp_path: Path) -> None:
    policy = OnnxPolicy(converted(with_state(shape), tmp_path, SPEC, LIMIT), seed=1, deterministic=True)
    assert policy.memory_size == 4
    memory, state = np.zeros((6, 4), np.float32), np.zeros((6, 4))
    for seed in range(3):
        (rows,) = observations(6, (5,), seed=seed)
        acted = policy.act([rows], np.zeros((6, 0), np.bool_), memory)
        state, memory = state + np.tanh(rows @ WEIGHT), acted.memory
        np.testing.assert_allclose(acted.continuous, state.clip(-2, 2) / 2, atol=1e-5)
        np.testing.assert_allclose(memory, state, atol=1e-5)


def elsewhere() -> onnx.ModelProto:
    found = model()
    (weight,) = found.graph.initializer
    weight.data_location = TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", "/etc/passwd"
    return found


def fixed_batch() -> onnx.ModelProto:
    """It counts on one agent inside, too."""
    found = model(batch=1)
    found.graph.initializer.append(numpy_helper.from_array(np.array([1, 5]), "shape"))
    node = helper.make_node("Reshape", ["x0", "shape"], ["flat"])
    found.graph.node.insert(0, node)
    found.graph.node[1].input[0] = "flat"
    return found


def damaged() -> onnx.ModelProto:
    found = model()
    found.graph.initializer[0].raw_data = found.graph.initializer[0].raw_data[:-3]
    return found


SCORES = Hints(scores=HeadKind.LOGITS)


@pytest.mark.parametrize(
    ("make", "spec", "hints", "message"),
    [
        (lambda: model(inputs=2), SPEC, LIMIT, "it has 2 inputs (x0, x1), expected one"),
        (lambda: model(output=TensorProto.INT64), CHOICES, SCORES, "before ArgMax"),
        (lambda: model(opset=6), SPEC, LIMIT, "its opset is 6, but Unity imports 7 to 15."),
        (lambda: model(opset=99), SPEC, LIMIT, "its opset is 99, but Unity imports 7 to 15."),
        (
            lambda: with_state(opset=18, operator="ReduceMean"),
            SPEC,
            LIMIT,
            "Unity imports 7 to 15, where these operators are missing or differ: ReduceMean",
        ),
        (lambda: with_state(["N", "M"]), SPEC, LIMIT, "depend on its state 'state_ins', which is not one row"),
        (lambda: with_state([2, "N", 2]), SPEC, LIMIT, "depend on its state 'state_ins', which is not one row"),
        (lambda: with_state(["N", 3]), SPEC, LIMIT, "Unity would not run it"),
        (lambda: model(operator="Own", domain="com.mine"), SPEC, LIMIT, "not part of the ONNX standard: com.mine.Own"),
        (elsewhere, SPEC, LIMIT, "its weights are in a second file"),
        (damaged, SPEC, LIMIT, "The model is damaged: ValueError: "),
        (lambda: model(shape=()), SPEC, LIMIT, "has no batch of observations as its first dimension"),
        (model, SPEC, Hints(), "Pass --clip, such as 1"),
        (model, CHOICES, Hints(), "Pass --scores logits if actions were sampled"),
        (model, behavior([vector(5)], 4, (2,)), LIMIT, "it has one output, but these agents have continuous and"),
        (
            model,
            behavior([vector(5)], 0, (2, 2)),
            Hints(scores=HeadKind.VALUES),
            "--scores values supports only one branch",
        ),
        (model, behavior([vector(6)], 4), LIMIT, "it expects 5 numbers, but these agents send 'vector' (6,)"),
        (model, behavior([vector(2), entities(3, 1)], 4), LIMIT, "it expects a single vector"),
        (lambda: model(shape=(4, 6, 3)), behavior([camera(3, 4, 6)], 4), LIMIT, "Its channels come last"),
        (lambda: model(shape=(3, 4, 6)), behavior([camera(3, 4, 6)], 4), LIMIT, "Pass --image-scale 1 for 0 to 1"),
        (model, behavior([vector(5)], 3), LIMIT, "has the shape (1, 4) for one agent"),
        (fixed_batch, SPEC, LIMIT, "the model runs for one agent, but not for two"),
    ],
)
def test_what_cannot_be(
    make: Callable[[], onnx.ModelProto], spec: BehaviorSpec, hints: Hints, message: str, tmp_path: Path
) -> None:
    with pytest.raises(TrajtrainerError) as caught:
        converted(make(), tmp_path, spec, hints)
    assert message in str(caught.value)
    assert not (tmp_path / "ours.onnx").exists()


@pytest.mark.parametrize("content", [b"", b"rubbish" * 9, b"PK\x03\x04"])
def test_damaged_models(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"x\.onnx cannot be imported: "):
        read_policy(tmp_path / "x.onnx", LIMIT)
