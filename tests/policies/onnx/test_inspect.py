"""Inspection: real models are judged rightly, and each fault is found and named."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.policies.onnx import ml_agents_1
from trajtrainer.policies.onnx import inspect
from trajtrainer.policies.onnx.evaluate import GraphEvaluator
from trajtrainer.policies.onnx.inspect import inspect_model
from trajtrainer.policies.onnx.unity_names import Report, Support

# A hybrid policy with memory: 2 continuous actions, branches (3, 2), memory of 4, sensors of 5 and (3, 4, 4).
POLICY = """
<ir_version: 4, opset_import: ["" : 9], producer_name: "tests">
policy (float[batch, 5] obs_0, float[batch, 3, 4, 4] obs_1, float[batch, 5] action_masks,
        float[batch, 1, 4] recurrent_in)
    => (float[1] version_number, float[1] memory_size,
        float[batch, 2] continuous_actions, float[1] continuous_action_output_shape,
        float[batch, 2] deterministic_continuous_actions,
        int64[batch, 2] discrete_actions, float[1, 2] discrete_action_output_shape,
        int64[batch, 2] deterministic_discrete_actions, float[batch, 1, 4] recurrent_out)
{
    version_number = Constant <value = float[1] {3.0}> ()
    memory_size = Constant <value = float[1] {4.0}> ()
    continuous_action_output_shape = Constant <value = float[1] {2.0}> ()
    discrete_action_output_shape = Constant <value = float[1, 2] {3.0, 2.0}> ()
    picture = ReduceMean <axes = [1, 2, 3], keepdims = 0> (obs_1)
    column = Unsqueeze <axes = [1]> (picture)
    mixed = Add (obs_0, column)
    logits = Mul (mixed, action_masks)
    deterministic_continuous_actions = Slice <axes = [1], starts = [0], ends = [2]> (mixed)
    noise = RandomNormalLike <dtype = 1> (deterministic_continuous_actions)
    continuous_actions = Add (deterministic_continuous_actions, noise)
    first = Slice <axes = [1], starts = [0], ends = [3]> (logits)
    second = Slice <axes = [1], starts = [3], ends = [5]> (logits)
    a = Multinomial <dtype = 7, sample_size = 1> (first)
    b = Multinomial <dtype = 7, sample_size = 1> (second)
    discrete_actions = Concat <axis = 1> (a, b)
    c = ArgMax <axis = 1, keepdims = 1> (first)
    d = ArgMax <axis = 1, keepdims = 1> (second)
    deterministic_discrete_actions = Concat <axis = 1> (c, d)
    recurrent_out = Identity (recurrent_in)
}
"""


def inspect_text(folder: Path, text: str) -> Report:
    path = folder / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return inspect_model(path)


def changed(old: str, new: str, text: str = POLICY) -> str:
    assert old in text, "the change would do nothing"
    return text.replace(old, new)


def without_line(start: str, text: str = POLICY) -> str:
    kept = [line for line in text.splitlines() if not line.strip().startswith(start)]
    assert len(kept) == len(text.splitlines()) - 1
    return "\n".join(kept)


def test_a_complete_policy_loads_and_is_described(tmp_path: Path) -> None:
    report = inspect_text(tmp_path, POLICY)

    assert report.loads
    assert report.warnings == []
    assert (report.model_version, report.memory_size, report.opset, report.ir_version) == (3, 4, 9, 4)
    assert (report.continuous_size, report.discrete_branches) == (2, (3, 2))
    assert [(info.name, info.dtype, info.shape) for info in report.inputs] == [
        ("obs_0", "float32", ("batch", 5)),
        ("obs_1", "float32", ("batch", 3, 4, 4)),
        ("action_masks", "float32", ("batch", 5)),
        ("recurrent_in", "float32", ("batch", 1, 4)),
    ]
    assert report.inputs[1].meaning == "sensor 1: image with 3 channels, 4 high, 4 wide"
    assert report.operators["ArgMax"] == 2
    assert [package.support for package in report.packages] == [Support.YES] * 3
    assert report.packages[1].back_ends == ("CPU",)  # because of Multinomial


OTHER_VERSION = changed("float[1] {3.0}", "float[1] {4.0}")
INTEGER_CONSTANT = changed(
    "float[1] version_number", "int64[1] version_number", changed("float[1] {3.0}", "int64[1] {3}")
)
WRONG_MASK_WIDTH = changed(
    "Mul (mixed, action_masks)",
    "Mul (mixed, five)",
    changed(
        "float[batch, 5] action_masks",
        "float[batch, 6] action_masks",
        changed("logits =", "five = Slice <axes = [1], starts = [0], ends = [5]> (action_masks)\n logits ="),
    ),
)
BAKED_BATCH = changed(
    "mixed = Add (obs_0, column)",
    "size = Constant <value = int64[2] {1, 5}> ()\n flat = Reshape (obs_0, size)\n mixed = Add (flat, column)",
)
FAULTS = {
    "version too new": (OTHER_VERSION, "version_number is 4"),
    "constant not float": (INTEGER_CONSTANT, "'version_number' is int64"),
    "memory size does not fit": (changed("float[1] {4.0}", "float[1] {8.0}"), "not (1, 1, 8)"),
    "continuous size does not fit": (changed("float[1] {2.0}", "float[1] {3.0}"), "says 3"),
    "branches do not fit": (
        changed("float[1, 2] {3.0, 2.0}", "float[1, 1] {5.0}", changed("float[1, 2] disc", "float[1, 1] disc")),
        "1 branches",
    ),
    "masks do not fit": (WRONG_MASK_WIDTH, "5 actions in total"),
    "unknown input": (changed("obs_1", "camera"), "cannot fill the inputs camera"),
    "opset too new": (changed('["" : 9]', '["" : 16]'), "opset 16 is outside"),
    "opset too old": (changed('["" : 9]', '["" : 6]'), "opset 6 is outside"),
    "unsupported operator": (
        changed("recurrent_out = Identity", "recurrent_out = LpNormalization"),
        "lacks the operators LpNormalization",
    ),
    "operator of another domain": (
        changed(
            "recurrent_out = Identity",
            "recurrent_out = com.microsoft.Gelu",
            changed('["" : 9]', '["" : 9, "com.microsoft" : 1]'),
        ),
        "com.microsoft.Gelu",
    ),
    "memory that cannot come in": (
        without_line(
            "recurrent_out", changed("action_masks,\n        float[batch, 1, 4] recurrent_in)", "action_masks)")
        ).replace(", float[batch, 1, 4] recurrent_out)", ")"),
        "memory_size is 4, but the input 'recurrent_in' is missing",
    ),
    "choices that are no whole numbers": (
        changed(
            "discrete_actions = Concat <axis = 1> (a, b)\n    c",
            "whole = Concat <axis = 1> (a, b)\n    discrete_actions = Cast <to = 1> (whole)\n    c",
            changed("int64[batch, 2] discrete_actions", "float[batch, 2] discrete_actions"),
        ),
        "'discrete_actions' is float32; Unity expects integers",
    ),
    "an observation of text": (
        changed("policy (float", "policy (string[batch, 2] obs_2, float"),
        "obs_2 object [batch, 2]: Unity passes observations as float32 with 2 to 4 dimensions",
    ),
    "an observation of too many dimensions": (
        changed("policy (float", "policy (float[batch, 2, 2, 2, 2] obs_2, float"),
        "Unity passes observations as float32 with 2 to 4 dimensions",
    ),
    "one row for two agents": (
        changed("recurrent_out = Identity (recurrent_in)", "recurrent_out = ReduceMean <axes = [0]> (recurrent_in)"),
        "recurrent_out: not one row per agent when there are two agents",
    ),
    "an input that is too large to try": (
        changed("policy (float", "policy (float[batch, 100000, 100000] obs_2, float"),
        "input 'obs_2' of shape [1, 100000, 100000] is too large",
    ),
    "does not run": (changed("Add (obs_0, column)", "MatMul (obs_0, column)"), "cannot run on inputs of zeros"),
    "batch is baked in": (BAKED_BATCH, "not for two"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_an_error_that_names_it(tmp_path: Path, fault: str) -> None:
    text, message = FAULTS[fault]

    report = inspect_text(tmp_path, text)

    assert not report.loads
    assert any(message in error for error in report.errors), report.errors
    assert all(package.support is Support.NO for package in report.packages)


TURNED = changed(
    "picture = ReduceMean <axes = [1, 2, 3], keepdims = 0> (obs_1)",
    "turned = Transpose <perm = [0, 2, 3, 1]> (obs_1)\n picture = ReduceMean <axes = [1, 2, 3], keepdims = 0> (turned)",
)
CONVOLVED = changed("(obs_1)\n", "(seen)\n", TURNED).replace(
    "turned =",
    "kernel = Constant <value = float[1, 3, 1, 1] {1.0, 1.0, 1.0}> ()\n seen = Conv (obs_1, kernel)\n turned =",
)


@pytest.mark.parametrize(
    ("text", "support", "note"),
    [
        (TURNED, Support.MAYBE, "early versions remove 1 Transpose"),
        (TURNED.replace("[0, 2, 3, 1]", "[0, 3, 1, 2]"), Support.MAYBE, "early versions remove 1 Transpose"),
        (CONVOLVED, Support.NO, "removes 1 Transpose"),
        (changed("[0, 2, 3, 1]", "[0, 2, 1, 3]", CONVOLVED), Support.YES, ""),
    ],
)
def test_barracuda_leaves_out_what_it_takes_for_a_change_of_layout(
    tmp_path: Path, text: str, support: Support, note: str
) -> None:
    report = inspect_text(tmp_path, text)

    assert (report.errors, report.warnings) == ([], [])
    barracuda, *others = report.packages
    assert barracuda.support is support
    assert note in "; ".join(barracuda.notes)
    assert all(package.support is Support.YES for package in others)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("version_number", "'version_number' is missing"),
        ("memory_size", "'memory_size' is missing"),
        ("continuous_action_output_shape", "'continuous_action_output_shape' is missing"),
        ("discrete_action_output_shape", "'discrete_action_output_shape' is missing"),
        ("recurrent_out", "'recurrent_out' is missing"),
        ("continuous_actions", "'continuous_actions' is missing"),
        ("discrete_actions", "'discrete_actions' is missing"),
    ],
)
def test_a_missing_output_is_an_error(tmp_path: Path, output: str, message: str) -> None:
    report = inspect_changed(tmp_path, drop_outputs={output})

    assert any(message in error for error in report.errors), report.errors


def inspect_changed(folder: Path, *, drop_outputs: set[str]) -> Report:
    model = onnx.parser.parse_model(POLICY)
    kept = [value for value in model.graph.output if value.name not in drop_outputs]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return inspect_model(path)


def test_no_actions_at_all_is_an_error(tmp_path: Path) -> None:
    actions = {"continuous_actions", "discrete_actions"}

    report = inspect_changed(tmp_path, drop_outputs=actions | {f"deterministic_{name}" for name in actions})

    assert any("there are no actions" in error for error in report.errors)


def test_missing_deterministic_outputs_are_only_a_warning(tmp_path: Path) -> None:
    names = {"deterministic_continuous_actions", "deterministic_discrete_actions"}

    report = inspect_changed(tmp_path, drop_outputs=names)

    assert report.loads
    assert len(report.warnings) == 1
    assert all(name in report.warnings[0] for name in names)


def test_a_gap_in_the_sensors_is_a_warning(tmp_path: Path) -> None:
    report = inspect_text(tmp_path, changed("obs_1", "obs_3"))

    assert report.loads
    assert any("obs_1, obs_2" in warning for warning in report.warnings)


def test_a_model_without_observations_is_a_warning(tmp_path: Path) -> None:
    text = changed("(obs_0, column)", "(some, column)", changed("float[batch, 5] obs_0, ", ""))
    text = changed("column =", "some = Identity (action_masks)\n column =", text)
    text = changed("(obs_1)", "(four)", changed("float[batch, 3, 4, 4] obs_1, ", "", text))
    text = changed("picture =", "four = Unsqueeze <axes = [2, 3]> (action_masks)\n picture =", text)

    assert "the model has no observations: the input obs_0 is missing" in inspect_text(tmp_path, text).warnings


def test_an_observation_of_an_open_size_is_a_warning(tmp_path: Path) -> None:
    report = inspect_text(tmp_path, changed("policy (float", "policy (float[batch, size] obs_2, float"))

    assert any("obs_2" in warning and "are not fixed" in warning for warning in report.warnings), report.warnings


def test_choices_without_masks_are_a_warning(tmp_path: Path) -> None:
    text = changed("float[batch, 5] action_masks,", "", changed("(mixed, action_masks)", "(mixed, mixed)"))

    report = inspect_text(tmp_path, text)

    assert report.loads
    assert any("'action_masks' is missing: forbidden actions can be chosen" in warning for warning in report.warnings)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (
            onnx.TensorProto(name="extra", data_type=onnx.TensorProto.STRING, dims=[1], string_data=[b"text"]),
            "text or complex numbers",
        ),
        (
            numpy_helper.from_array(np.zeros((1,) * 9, np.float32), "extra"),
            "a tensor has 9 dimensions; Unity supports at most 8",
        ),
    ],
)
def test_weights_that_unity_cannot_hold_are_an_error(tmp_path: Path, tensor: onnx.TensorProto, message: str) -> None:
    model = onnx.parser.parse_model(POLICY)
    model.graph.initializer.append(tensor)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())

    assert any(message in error for error in inspect_model(path).errors)


def test_a_file_that_is_too_large_for_a_policy_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "_MAX_BYTES", 1000)
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes(1001))

    assert inspect_model(path).errors == ["the file has more than 1,000 bytes, more than any policy needs"]


def test_nan_weights_are_an_error(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(changed("Add (obs_0, column)", "Add (obs_0, weight)"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([np.nan], np.float32), "weight"))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())

    assert any("NaN" in error for error in inspect_model(path).errors)


def test_weights_in_a_second_file_are_an_error_and_are_not_read(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(changed("Add (obs_0, column)", "Add (obs_0, weight)"))
    tensor = numpy_helper.from_array(np.zeros(1, np.float32), "weight")
    onnx.external_data_helper.set_external_data(tensor, location="../../secret")
    tensor.ClearField("raw_data")
    model.graph.initializer.append(tensor)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())

    assert any("second file" in error for error in inspect_model(path).errors)


def test_weights_listed_as_inputs_are_not_inputs(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(changed("Add (obs_0, column)", "Add (obs_0, weight)"))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "weight"))
    model.graph.input.append(helper.make_tensor_value_info("weight", onnx.TensorProto.FLOAT, [1]))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())

    report = inspect_model(path)

    assert report.loads
    assert "weight" not in [info.name for info in report.inputs]


def test_a_model_of_ml_agents_1_loads_with_a_warning(tmp_path: Path) -> None:
    report = inspect_text(tmp_path, ml_agents_1.CONTINUOUS)

    assert report.loads
    assert (report.model_version, report.continuous_size) == (2, 5)
    assert any("ML-Agents 1.x" in warning for warning in report.warnings)


@pytest.mark.parametrize("text", [ml_agents_1.DISCRETE, ml_agents_1.OLDER_DISCRETE], ids=["1.9", "1.5"])
def test_log_probabilities_of_ml_agents_1_load(tmp_path: Path, text: str) -> None:
    """They are NaN where a branch has no allowed action, which no game asks for."""
    report = inspect_text(tmp_path, text)

    assert report.errors == []
    assert (report.model_version, report.discrete_branches) == (2, (3, 2)), "the file only has their sum, 5"
    meanings = {info.name: info.meaning for info in report.outputs}
    assert all("log" in meanings.get(name, "log") for name in ("discrete_actions", "action"))
    assert meanings["is_continuous_control"] == "1 = continuous, 0 = discrete"


@pytest.mark.parametrize("output", ["action_output_shape", "is_continuous_control"])
def test_outputs_that_a_model_of_ml_agents_1_lacks_are_named(tmp_path: Path, output: str) -> None:
    model = onnx.parser.parse_model(ml_agents_1.CONTINUOUS)
    kept = [value for value in model.graph.output if value.name != output]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())

    assert f"the output 'action' is present, but {output!r} is missing" in inspect_model(path).errors


def test_log_probabilities_that_do_not_fit_their_number_are_an_error(tmp_path: Path) -> None:
    report = inspect_text(tmp_path, changed("{5.0}", "{6.0}", ml_agents_1.DISCRETE))

    assert any("'discrete_actions' has the shape (1, 5)" in error and "says 6" in error for error in report.errors)
    assert any("6 actions in total" in error for error in report.errors)


def test_nan_of_log_probabilities_is_an_error(tmp_path: Path) -> None:
    text = changed(
        "tiny = Constant <value = float[1] {0.0000001}>",
        "tiny = Constant <value = float[1] {-9.0}>",
        ml_agents_1.DISCRETE,
    )
    assert any("NaN" in error for error in inspect_text(tmp_path, text).errors)


def test_a_model_of_ml_agents_1_with_memory_is_refused(tmp_path: Path) -> None:
    report = inspect_text(tmp_path, changed("float[1] {0.0}", "float[1] {8.0}", ml_agents_1.CONTINUOUS))

    assert any("1.x with memory" in error for error in report.errors)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"PK\x03\x04 and so on", "zip archive"),
        (b"behaviors:\n  Ball:\n", "not an ONNX model"),
        (bytes(range(256)) * 40, "not an ONNX model"),
    ],
)
def test_a_file_that_is_no_model_is_named_so(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file.onnx"
    path.write_bytes(content)

    report = inspect_model(path)

    assert len(report.errors) == 1
    assert message in report.errors[0]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_model_is_an_error(tmp_path: Path, share: float) -> None:
    content = onnx.parser.parse_model(POLICY).SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(content[: int(len(content) * share)])

    assert not inspect_model(path).loads


@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=12), st.booleans())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_never_raises(tmp_path: Path, position: int, damage: bytes, insert: bool) -> None:
    content = bytearray(onnx.parser.parse_model(POLICY).SerializeToString())
    position %= len(content)
    content[position : position if insert else position + len(damage)] = damage
    path = tmp_path / "model.onnx"
    path.write_bytes(content)

    report = inspect_model(path)

    assert report.loads == (not report.errors)


def test_a_missing_file_and_a_folder_are_errors(tmp_path: Path) -> None:
    assert inspect_model(tmp_path / "none.onnx").errors == ["the file does not exist"]
    assert "cannot be read" in inspect_model(tmp_path).errors[0]


# What each real model is: continuous actions, branches, memory, and whether it draws a warning.
REAL_MODELS: dict[str, tuple[int, tuple[int, ...], int, str | None]] = {
    "AimBotv1": (2, (2,), 256, "deterministic_continuous_actions and deterministic_discrete_actions"),
    "MazeFinal_Level3_Model": (0, (4,), 0, None),
    "Pong": (1, (), 0, "without deterministic_continuous_actions"),
    "PushButton-499970": (0, (3, 3, 2), 0, None),
    "SoccerTwos_poca": (0, (3, 3, 3), 0, None),
    "ppo_cont": (2, (), 0, None),
    "ppo_disc": (0, (3, 2), 0, None),
    "ppo_goal": (0, (5,), 0, None),
    "ppo_hybrid_lstm": (2, (2, 3), 16, None),
    "ppo_var": (0, (3, 3, 3), 0, None),
    "ppo_vis": (2, (), 0, None),
    "ppo_vis_match3": (0, (4,), 0, None),
    "ppo_vis_resnet": (0, (4,), 0, None),
    "sac_cont": (2, (), 0, "not squashed"),
}


def test_every_real_model_is_judged_rightly(shared_data: Path) -> None:
    files = sorted((shared_data / "models").glob("*.onnx"))
    assert {file.stem for file in files} == set(REAL_MODELS)

    for file in files:
        report = inspect_model(file)
        continuous, branches, memory, warning = REAL_MODELS[file.stem]
        assert report.loads, (file.name, report.errors)
        assert (report.continuous_size, report.discrete_branches, report.memory_size) == (continuous, branches, memory)
        assert (report.model_version, report.opset) == (3, 9)
        assert [warning in text for text in report.warnings if warning] == [True] * (warning is not None), file.name
        assert [package.support for package in report.packages] == [Support.YES] * 3


def test_every_golden_policy_loads(shared_data: Path) -> None:
    files = sorted((shared_data / "golden" / "policies").glob("*.onnx"))
    assert files

    for file in files:
        report = inspect_model(file)
        unsquashed = file.stem in {"sac_continuous", "sac_hybrid", "sac_lstm"}
        assert report.loads, (file.name, report.errors)
        assert ["not squashed" in text for text in report.warnings] == [True] * unsquashed


def test_checkpoints_are_not_taken_for_models(shared_data: Path) -> None:
    for file in (shared_data / "models").glob("*.pt"):
        assert not inspect_model(file).loads


def doubling(times: int) -> str:
    """A policy with a value that ``times`` operators double, one after the other."""
    lines = "".join(f"    d{i + 1} = Concat <axis = 1> (d{i}, d{i})\n" for i in range(times))
    return changed("    noise =", f"    d0 = Identity (obs_0)\n{lines}    noise =")


@pytest.mark.parametrize("times", [23, 45])
def test_a_model_that_would_fill_the_memory_is_not_run(tmp_path: Path, times: int) -> None:
    tracemalloc.start()
    report = inspect_text(tmp_path, doubling(times))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "the limits are 50,000,000 numbers" in " ".join(report.errors)
    assert "Concat" in " ".join(report.errors)
    assert peak < 700e6


def test_doubling_a_few_times_is_fine(tmp_path: Path) -> None:
    assert inspect_text(tmp_path, doubling(10)).errors == []


def test_a_model_of_very_many_operators_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GraphEvaluator, "run", lambda *_: pytest.fail("it was run"))
    chain = ["    d0 = Identity (obs_0)", *(f"    d{i + 1} = Identity (d{i})" for i in range(20_000))]
    report = inspect_text(tmp_path, changed("    noise =", "\n".join([*chain, "    noise ="])))
    assert report.errors == ["the model has 20,021 operators; no policy needs more than 20,000, so it was not run"]


def pooled(attributes: str, operator: str = "MaxPool") -> str:
    return changed(
        "picture = ReduceMean <axes = [1, 2, 3], keepdims = 0> (obs_1)",
        f"pooled = {operator} <{attributes}> (obs_1)\n"
        "    picture = ReduceMean <axes = [1, 2, 3], keepdims = 0> (pooled)",
    )


@pytest.mark.parametrize(
    "text",
    [
        pooled("kernel_shape = [2, 2], pads = [20000, 20000, 20000, 20000]"),
        pooled("kernel_shape = [2, 2], pads = [900000, 900000, 0, 0], strides = [900000, 900000]"),
        pooled("kernel_shape = [2, 2], pads = [300, 300, 300, 300], storage_order = 1"),
        pooled("kernel_shape = [2, 2], pads = [300, 300, 300, 300]", "AveragePool"),
    ],
    ids=["wide", "in passing", "by a loop", "averages"],
)
def test_a_pooling_that_would_take_for_ever_is_not_run(tmp_path: Path, text: str) -> None:
    report = inspect_text(tmp_path, text)
    assert "the limits are" in " ".join(report.errors)


@pytest.mark.parametrize("kind", [np.float32, np.int8])
def test_a_padded_pooling_is_the_evaluators(kind: Any) -> None:
    generator = np.random.default_rng(5)
    x: NDArray[Any] = (generator.standard_normal((2, 3, 7, 9)) * 50).astype(kind)
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 2], pads=[1, 0, 2, 1], strides=[2, 1])
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    x_info, y_info = (helper.make_tensor_value_info(name, element, None) for name in "xy")
    model = helper.make_model(
        helper.make_graph([node], "g", [x_info], [y_info]), opset_imports=[helper.make_opsetid("", 12)]
    )
    expected = list(ReferenceEvaluator(model).run(None, {"x": x}))
    np.testing.assert_array_equal(GraphEvaluator(model).run({"x": x})["y"], expected[0])


DISCRETE = changed(
    "logits = Mul (mixed, action_masks)", "scaled = Mul (mixed, weight)\n    logits = Mul (scaled, action_masks)"
)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_nan_weights_are_an_error_where_only_discrete_actions_depend_on_them(tmp_path: Path, dtype: Any) -> None:
    model = onnx.parser.parse_model(DISCRETE)
    model.graph.initializer.append(numpy_helper.from_array(np.array([np.nan], dtype), "weight"))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    report = inspect_model(path)
    assert "the weights are damaged: found NaN in 'weight'" in report.errors
    assert not report.loads


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize(
    "name", ["version_number", "memory_size", "continuous_action_output_shape", "discrete_action_output_shape"]
)
def test_a_constant_output_that_is_no_number_is_an_error(tmp_path: Path, name: str, number: float) -> None:
    model = onnx.parser.parse_model(POLICY)
    (constant,) = (node for node in model.graph.node if node.output[0] == name)
    value = numpy_helper.to_array(constant.attribute[0].t)
    constant.attribute[0].t.CopyFrom(numpy_helper.from_array(np.full_like(value, number)))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert any(f"the output {name!r} is [{number}" in error for error in inspect_model(path).errors)
