"""Exported policies act as the actor does, fit Unity's contract, and exporting disturbs nothing."""

from __future__ import annotations

import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.learning.nn.golden import PPO_CASES, SAC_CASES, Case, load_actor, policy_case
from tests.learning.nn.specs import behavior, camera, entities, network, vector
from trajtrainer.core.errors import ExportError
from trajtrainer.core.spec import BehaviorSpec, ObservationKind, observation_kind
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.policies.onnx import contract
from trajtrainer.policies.onnx.evaluate import GraphEvaluator
from trajtrainer.policies.onnx.export import GraphBuilder, build_model, export_policy
from trajtrainer.policies.onnx.inspect import inspect_model
from trajtrainer.policies.onnx.unity_names import Support
from trajtrainer.settings.network import Activation, ConditioningType, Initialization

Arrays = dict[str, NDArray[Any]]
TOLERANCE = 1e-5
POCA_CASES = ("poca_discrete", "poca_hybrid_two_obs", "poca_lstm")


def random_actor(spec: BehaviorSpec, *, sac: bool = False, seed: int = 5, **settings: Any) -> Actor:
    """An actor that uses every weight: also biases, sigmas and normalizers are not what they start as."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        actor = Actor(spec, network(**settings), conditional_sigma=sac, tanh_squash=sac)
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0.0, 0.1, generator=generator))
    actor.update_normalization(
        [torch.empty(20, *o.shape).normal_(2.0, 3.0, generator=generator) for o in spec.observation_specs]
    )
    return actor


SPECS: dict[str, tuple[BehaviorSpec, dict[str, Any]]] = {
    "continuous": (behavior([vector(7)], 3), {}),
    "one layer": (behavior([vector(7)], 1), {"layers": 1}),
    "three layers": (behavior([vector(7)], 1), {"layers": 3}),
    "discrete, one branch": (behavior([vector(7)], 0, (4,)), {}),
    "discrete, branches": (behavior([vector(7)], 0, (3, 2, 4)), {}),
    "hybrid, normalized, two sensors": (behavior([vector(4, "a"), vector(3, "b")], 2, (3, 2)), {"normalize": True}),
    "simple": (behavior([camera(3, 20, 24)]), {}),
    "nature_cnn": (behavior([camera(3, 36, 40)]), {"encoder": "nature_cnn"}),
    "match3": (behavior([camera(6, 8, 9)], 0, (5, 3)), {"encoder": "match3"}),
    "resnet": (behavior([camera(3, 15, 20)]), {"encoder": "resnet"}),
    "fully_connected": (behavior([camera(3, 4, 5)]), {"encoder": "fully_connected"}),
    "two cameras and vectors": (
        behavior([camera(1, 20, 20, "a"), vector(4), camera(3, 21, 22, "b"), vector(2, "c")], 1, (3,)),
        {"normalize": True},
    ),
    "memory": (behavior([vector(6)], 2, (3,)), {"memory": 12}),
    "tanh, own limits": (
        behavior([vector(7)], 3, (2,)),
        {
            "activation": Activation.TANH,
            "normalize": True,
            "clip_obs": 0.5,
            "clip_actions": 1.0,
            "initialization": Initialization.ORTHOGONAL,
        },
    ),
    "relu, goal": (behavior([vector(5), vector(3, "goal", goal=True)]), {"activation": Activation.RELU}),
    "noise by the state": (behavior([vector(6)], 2, (3,)), {"use_sde": True, "memory": 12}),
    "sac, noise by the state": (behavior([vector(6)], 2), {"use_sde": True, "sac": True}),
    "entities": (behavior([entities(5, 3)]), {}),
    "entities and vector": (behavior([entities(5, 3), vector(4)], 0, (3, 3)), {"normalize": True}),
    "two lists and a camera": (
        behavior([entities(5, 3, "a"), camera(3, 20, 20), entities(2, 6, "b"), vector(4)], 2),
        {},
    ),
    "goal": (behavior([vector(5), vector(3, "goal", goal=True)]), {}),
    "goal, one layer": (behavior([vector(3, "goal", goal=True), vector(5)], 0, (3,)), {"layers": 1}),
    "goal, not conditioned": (
        behavior([vector(5), vector(3, "goal", goal=True)]),
        {"conditioning": ConditioningType.NONE},
    ),
    "two goals, one a camera": (
        behavior([camera(3, 20, 20, goal=True), vector(5), vector(2, "goal", goal=True)], 1, (2,)),
        {"normalize": True},
    ),
    "goal, entities and memory": (
        behavior([entities(4, 3), vector(5), vector(2, "goal", goal=True)], 2, (3, 2)),
        {"memory": 8, "normalize": True},
    ),
    "camera and memory": (behavior([camera(3, 20, 20)], 0, (3,)), {"memory": 8}),
    "sac": (behavior([vector(7)], 3), {"sac": True}),
    "sac, hybrid, memory": (behavior([vector(7)], 2, (3, 2)), {"sac": True, "memory": 12}),
    "sac, discrete": (behavior([vector(7)], 0, (3, 2)), {"sac": True}),
}


def random_inputs(actor: Actor, rows: int, seed: int = 3) -> Arrays:
    """Inputs as Unity gives them, by name; some entities are padding, some actions forbidden."""
    generator = np.random.default_rng(seed)
    inputs: Arrays = {}
    for i, observation in enumerate(actor.spec.observation_specs):
        values = generator.normal(1.0, 2.0, (rows, *observation.shape)).astype(np.float32)
        if observation_kind(observation) is ObservationKind.VARIABLE_LENGTH:
            values[generator.random(values.shape[:2]) < 0.4] = 0.0
        inputs[f"obs_{i}"] = values
    if actor.head.branches:
        masks = [(generator.random((rows, size)) < 0.7) for size in actor.head.branches]
        for mask in masks:
            mask[:, 1] = True
        inputs["action_masks"] = np.concatenate(masks, axis=1).astype(np.float32)
    if actor.memory_size:
        inputs["recurrent_in"] = generator.normal(0.0, 1.0, (rows, 1, actor.memory_size)).astype(np.float32)
    return inputs


def run_actor(actor: Actor, inputs: Arrays) -> Arrays:
    """The outputs that do not depend on chance, by the names of the contract."""
    count = len(actor.spec.observation_specs)
    obs = [torch.from_numpy(inputs[f"obs_{i}"]) for i in range(count)]
    rows = len(obs[0])
    mask = torch.from_numpy(inputs.get("action_masks", np.zeros((rows, 0)))) == 0
    memory = torch.from_numpy(inputs["recurrent_in"]).squeeze(1) if actor.memory_size else None
    with torch.no_grad():
        distribution, memory_out = actor.distribution(obs, mask, memory)
        actions = distribution.deterministic()
        outputs = {"version_number": torch.tensor([3.0]), "memory_size": torch.tensor([float(actor.memory_size)])}
        if actor.head.continuous_size:
            outputs["continuous_action_output_shape"] = torch.tensor([float(actor.head.continuous_size)])
            outputs["deterministic_continuous_actions"] = distribution.to_env(actions.continuous)
        if actor.head.branches:
            outputs["discrete_action_output_shape"] = torch.tensor([actor.head.branches], dtype=torch.float32)
            outputs["deterministic_discrete_actions"] = actions.discrete
        if actor.memory_size:
            outputs["recurrent_out"] = memory_out.unsqueeze(1)
    return {name: value.numpy() for name, value in outputs.items()}


def session(path: Path, *, seed: int = 0) -> onnxruntime.InferenceSession:
    onnxruntime.set_seed(seed)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options)


def run_onnx(session: onnxruntime.InferenceSession, inputs: Arrays) -> Arrays:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def check_same(found: Arrays, expected: Arrays) -> None:
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        assert found[name].dtype == value.dtype, name
        np.testing.assert_allclose(found[name], value, rtol=0, atol=TOLERANCE, err_msg=name)


@pytest.fixture(params=SPECS)
def actor(request: pytest.FixtureRequest) -> Actor:
    spec, options = SPECS[request.param]
    return random_actor(spec, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "Behavior.onnx"


@pytest.mark.parametrize("opset", [9, 12, 15])
def test_a_policy_acts_as_its_actor(actor: Actor, path: Path, opset: int) -> None:
    export_policy(actor, actor.spec, path, opset=opset)

    exported = session(path)
    for rows in (1, 7):
        inputs = random_inputs(actor, rows)
        check_same(run_onnx(exported, inputs), run_actor(actor, inputs))


SENSORS = {
    "vector": vector(4, "numbers"),
    "camera": camera(3, 20, 20),
    "list": entities(5, 3),
    "second list": entities(1, 6, "second"),
    "goal": vector(2, "goal", goal=True),
}
COMBINATIONS = [
    names
    for size in range(1, len(SENSORS) + 1)
    for names in itertools.combinations(SENSORS, size)
    if names != ("goal",)
]


@pytest.mark.parametrize("opset", [9, 15])
@pytest.mark.parametrize("names", COMBINATIONS, ids=" + ".join)
def test_barracuda_takes_nothing_for_a_change_of_layout(names: tuple[str, ...], opset: int) -> None:
    """Once a convolution is in the model, it leaves out what turns channels-first into channels-last or back."""
    spec = behavior([SENSORS[name] for name in names], 2, (3,))

    model = build_model(random_actor(spec, memory=8), spec, opset=opset)

    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    shapes = {
        v.name: [dim.dim_value for dim in v.type.tensor_type.shape.dim] for v in (*inferred.value_info, *inferred.input)
    }
    turned = [node.name for node in inferred.node if changes_layout(node, shapes)]
    assert turned == []
    assert ("list" in names or "second list" in names) == any(len(permutation(node)) == 4 for node in inferred.node)


def permutation(node: onnx.NodeProto) -> list[int]:
    return list(node.attribute[0].ints) if node.op_type == "Transpose" else []


def changes_layout(node: onnx.NodeProto, shapes: dict[str, list[int]]) -> bool:
    """The rule of Barracuda 2 and 3: by the order of a Transpose, or by the sizes on both sides of a Reshape."""
    if node.op_type == "Reshape" and len(shapes[node.output[0]]) == 4:
        _, a, b, c = (*shapes[node.input[0]], 1, 1)[:4]
        return shapes[node.output[0]][1:] in ([b, c, a], [c, a, b])
    return permutation(node) in ([0, 2, 3, 1], [0, 3, 1, 2])


def test_a_policy_runs_on_zeros(actor: Actor, path: Path) -> None:
    export_policy(actor, actor.spec, path)
    inputs = {name: np.zeros_like(value) for name, value in random_inputs(actor, 2).items()}

    outputs = run_onnx(session(path), inputs)

    assert all(np.isfinite(value).all() for value in outputs.values())


@pytest.mark.parametrize("opset", [9, 15])
def test_unity_loads_what_is_exported(actor: Actor, path: Path, opset: int) -> None:
    export_policy(actor, actor.spec, path, opset=opset)

    report = inspect_model(path)

    assert (report.errors, report.warnings) == ([], [])
    assert (report.opset, report.model_version) == (opset, 3)
    assert (report.continuous_size, report.discrete_branches) == (actor.head.continuous_size, actor.head.branches)
    assert report.memory_size == actor.memory_size
    assert report.packages[0].support is (Support.YES if opset == 9 else Support.MAYBE)
    assert all(package.support is Support.YES for package in report.packages[1:])
    assert set(report.operators) <= contract.BARRACUDA_OPERATORS


def test_names_order_types_and_shapes_are_those_of_the_contract(path: Path) -> None:
    spec = behavior([vector(4), camera(3, 20, 24), entities(5, 2)], 2, (3, 2))
    export_policy(random_actor(spec, memory=8), spec, path)

    report = inspect_model(path)

    assert [(info.name, info.dtype, info.shape) for info in report.inputs] == [
        ("obs_0", "float32", ("batch", 4)),
        ("obs_1", "float32", ("batch", 3, 20, 24)),
        ("obs_2", "float32", ("batch", 5, 2)),
        ("action_masks", "float32", ("batch", 5)),
        ("recurrent_in", "float32", ("batch", 1, 8)),
    ]
    assert [(info.name, info.dtype, info.shape) for info in report.outputs] == [
        ("version_number", "float32", (1,)),
        ("memory_size", "float32", (1,)),
        ("continuous_actions", "float32", ("batch", 2)),
        ("continuous_action_output_shape", "float32", (1,)),
        ("deterministic_continuous_actions", "float32", ("batch", 2)),
        ("discrete_actions", "int64", ("batch", 2)),
        ("discrete_action_output_shape", "float32", (1, 2)),
        ("deterministic_discrete_actions", "int64", ("batch", 2)),
        ("recurrent_out", "float32", ("batch", 1, 8)),
    ]


@pytest.mark.parametrize("use_sde", [False, True])
def test_sampled_continuous_actions_have_the_distribution_of_the_actor(path: Path, use_sde: bool) -> None:
    spec = behavior([vector(3)], 2)
    actor = random_actor(spec, use_sde=use_sde)
    with torch.no_grad():
        actor.head.log_sigma.copy_(torch.tensor([[-0.5, 0.3]]))  # type: ignore[union-attr]
    export_policy(actor, spec, path)
    rows = 40_000
    inputs = {"obs_0": np.tile(np.array([[0.5, -1.0, 2.0]], np.float32), (rows, 1))}

    sampled = run_onnx(session(path, seed=1), inputs)["continuous_actions"]

    distribution = actor.distribution([torch.from_numpy(inputs["obs_0"])], torch.zeros(rows, 0, dtype=torch.bool))[0]
    with torch.no_grad():
        expected = distribution.to_env(distribution.sample(torch.Generator().manual_seed(2)).continuous).numpy()
    assert np.abs(sampled).max() <= 1.0
    error = 4 * expected.std(axis=0) / np.sqrt(rows) * np.sqrt(2)
    assert (np.abs(sampled.mean(axis=0) - expected.mean(axis=0)) < error).all()
    np.testing.assert_allclose(sampled.std(axis=0), expected.std(axis=0), rtol=0.02)
    shares = np.linspace(0.02, 0.98, 25)
    np.testing.assert_allclose(np.quantile(sampled, shares, axis=0), np.quantile(expected, shares, axis=0), atol=0.03)


def test_sampled_squashed_actions_have_the_distribution_of_the_actor(path: Path) -> None:
    spec = behavior([vector(3)], 2)
    actor = random_actor(spec, sac=True)
    export_policy(actor, spec, path)
    rows = 40_000
    inputs = {"obs_0": np.tile(np.array([[0.5, -1.0, 2.0]], np.float32), (rows, 1))}

    sampled = run_onnx(session(path, seed=1), inputs)["continuous_actions"]

    distribution = actor.distribution([torch.from_numpy(inputs["obs_0"])], torch.zeros(rows, 0, dtype=torch.bool))[0]
    with torch.no_grad():
        expected = distribution.sample(torch.Generator().manual_seed(2)).continuous.numpy()
    shares = np.linspace(0.02, 0.98, 25)
    np.testing.assert_allclose(np.quantile(sampled, shares, axis=0), np.quantile(expected, shares, axis=0), atol=0.03)


def test_deterministic_squashed_actions_stay_within_one(path: Path) -> None:
    spec = behavior([vector(3)], 2)
    actor = random_actor(spec, sac=True)
    with torch.no_grad():
        actor.head.mu.bias.copy_(torch.tensor([5.0, -5.0]))  # type: ignore[union-attr]
    export_policy(actor, spec, path)

    outputs = run_onnx(session(path), random_inputs(actor, 20))

    assert np.abs(outputs["deterministic_continuous_actions"]).max() <= 1.0


def test_sampled_discrete_actions_have_the_probabilities_of_the_actor(path: Path) -> None:
    spec = behavior([vector(3)], 0, (4, 2))
    actor = random_actor(spec)
    export_policy(actor, spec, path)
    rows = 20_000
    obs = np.tile(np.array([[0.5, -1.0, 2.0]], np.float32), (rows, 1))
    masks = np.tile(np.array([[1, 0, 1, 1, 1, 1]], np.float32), (rows, 1))

    sampled = run_onnx(session(path, seed=1), {"obs_0": obs, "action_masks": masks})["discrete_actions"]

    with torch.no_grad():
        distribution = actor.distribution([torch.from_numpy(obs[:1])], torch.from_numpy(masks[:1]) == 0)[0]
    for branch, logits in enumerate(distribution.logits):
        probabilities = logits.softmax(1)[0].double().numpy()
        counts = np.bincount(sampled[:, branch], minlength=len(probabilities))
        assert counts[probabilities == 0].sum() == 0, "a forbidden action was chosen"
        possible = probabilities > 0
        expected = rows * probabilities[possible] / probabilities.sum()
        chi_square = ((counts[possible] - expected) ** 2 / expected).sum()
        assert chi_square < 20.0  # with 2 degrees of freedom, 1 in 22,000 is above


def test_an_action_that_alone_is_allowed_is_always_chosen(path: Path) -> None:
    spec = behavior([vector(3)], 0, (3, 2))
    actor = random_actor(spec)
    export_policy(actor, spec, path)
    exported = session(path)

    for first, second in itertools.product(range(3), range(2)):
        masks = np.zeros((50, 5), np.float32)
        masks[:, [first, 3 + second]] = 1.0
        outputs = run_onnx(exported, {"obs_0": random_inputs(actor, 50)["obs_0"], "action_masks": masks})
        assert (outputs["discrete_actions"] == [first, second]).all()
        assert (outputs["deterministic_discrete_actions"] == [first, second]).all()


def test_samples_differ_from_call_to_call(path: Path) -> None:
    spec = behavior([vector(3)], 2)
    actor = random_actor(spec)
    export_policy(actor, spec, path)
    exported, inputs = session(path), random_inputs(actor, 4)

    first, second = (run_onnx(exported, inputs)["continuous_actions"] for _ in range(2))

    assert not np.array_equal(first, second)


def test_an_episode_with_memory_goes_the_same_way_step_by_step(path: Path) -> None:
    spec = behavior([vector(5), entities(4, 3)], 2, (3,))
    actor = random_actor(spec, memory=16, normalize=True)
    export_policy(actor, spec, path)
    exported = session(path)
    memory = torch_memory = np.zeros((3, 1, 16), np.float32)

    for step in range(60):
        inputs = random_inputs(actor, 3, seed=step)
        found = run_onnx(exported, inputs | {"recurrent_in": memory})
        expected = run_actor(actor, inputs | {"recurrent_in": torch_memory})
        check_same(found, expected)
        memory, torch_memory = found["recurrent_out"], expected["recurrent_out"]
    assert np.abs(memory).max() > 0.1, "the memory should have been used"


def test_memory_continues_a_sequence_of_training(path: Path) -> None:
    """Step by step in Unity is what whole sequences are in training."""
    spec = behavior([vector(5)], 2)
    actor = random_actor(spec, memory=16)
    export_policy(actor, spec, path)
    exported = session(path)
    obs = random_inputs(actor, 10)["obs_0"]
    with torch.no_grad():
        mask = torch.zeros(10, 0, dtype=torch.bool)
        distribution = actor.distribution([torch.from_numpy(obs)], mask, None, sequence_length=10)[0]
        expected = distribution.to_env(distribution.deterministic().continuous).numpy()

    memory = np.zeros((1, 1, 16), np.float32)
    for step in range(10):
        outputs = run_onnx(exported, {"obs_0": obs[step : step + 1], "recurrent_in": memory})
        memory = outputs["recurrent_out"]
        np.testing.assert_allclose(outputs["deterministic_continuous_actions"][0], expected[step], atol=TOLERANCE)


def test_exporting_disturbs_neither_random_numbers_nor_the_actor(
    actor: Actor, path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    actor.train()
    states = torch.random.get_rng_state(), np.random.get_state()
    weights = {name: value.clone() for name, value in actor.state_dict().items()}

    export_policy(actor, actor.spec, path)

    assert torch.equal(torch.random.get_rng_state(), states[0])
    for now, before in zip(np.random.get_state(), states[1], strict=True):
        assert np.array_equal(now, before)
    assert all(torch.equal(value, weights[name]) for name, value in actor.state_dict().items())
    assert actor.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in actor.parameters())
    assert capfd.readouterr() == ("", "")


def test_the_same_weights_give_the_same_bytes(actor: Actor, tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        export_policy(actor, actor.spec, tmp_path / name)

    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_both_runtimes_agree(actor: Actor, path: Path) -> None:
    """The evaluator that inspection uses gives what onnxruntime gives, its own replacements included."""
    export_policy(actor, actor.spec, path)
    inputs = random_inputs(actor, 3)
    expected = run_onnx(session(path), inputs)

    found = GraphEvaluator(onnx.load(path)).run(inputs)

    assert [(name, value.shape, value.dtype) for name, value in found.items()] == [
        (name, value.shape, value.dtype) for name, value in expected.items()
    ]
    chance = {"continuous_actions", "discrete_actions"}
    check_same(found, {name: value for name, value in expected.items() if name not in chance})


@pytest.mark.parametrize("name", PPO_CASES + SAC_CASES + POCA_CASES)
def test_golden_policies_act_as_ml_agents_exports_do(shared_data: Path, path: Path, name: str) -> None:
    case = policy_case(shared_data, name)
    actor = case.actor()
    export_policy(actor, case.spec, path)
    exported = session(path)
    inputs = {value.name: case.arrays[value.name] for value in exported.get_inputs()}

    outputs = run_onnx(exported, inputs)

    assert list(outputs) == case.described["onnx_outputs"]
    expected = {key.removeprefix("ort_"): value for key, value in case.arrays.items() if key.startswith("ort_")}
    if case.is_sac and "deterministic_continuous_actions" in expected:
        # ML-Agents forgets to squash them (docs/explanation/mlagents-behavior.md#actions).
        expected["deterministic_continuous_actions"] = np.tanh(expected["deterministic_continuous_actions"])
    check_same(outputs, expected)
    check_interface(case, path, shared_data)


def check_interface(case: Case, path: Path, shared_data: Path) -> None:
    ours, theirs = inspect_model(path), inspect_model(shared_data / "golden" / "policies" / f"{case.name}.onnx")
    assert ours.inputs == theirs.inputs
    for own, other in zip(ours.outputs, theirs.outputs, strict=True):
        assert (own.name, own.dtype, own.shape[1:]) == (other.name, other.dtype, other.shape[1:])
    assert (ours.opset, ours.ir_version, ours.model_version) == (theirs.opset, theirs.ir_version, theirs.model_version)


def test_a_real_checkpoint_gives_the_policy_that_ml_agents_exported_from_it(shared_data: Path, path: Path) -> None:
    spec = behavior([vector(4)], 0, (3, 3, 2))
    checkpoint = torch.load(shared_data / "models" / "PushButton-499970.pt", weights_only=True)
    actor = load_actor(Actor(spec, network(hidden=128)), checkpoint["Policy"])
    export_policy(actor, spec, path)
    inputs = random_inputs(actor, 500)

    ours, theirs = (
        run_onnx(session(file), inputs)["deterministic_discrete_actions"]
        for file in (path, shared_data / "models" / "PushButton-499970.onnx")
    )

    assert np.array_equal(ours, theirs)
    assert len(np.unique(ours, axis=0)) > 1, "the inputs should lead to different actions"


def test_trainers_in_several_threads_can_export_at_once(tmp_path: Path) -> None:
    actors = [random_actor(behavior([vector(3 + i)], 2, (3,)), seed=i, memory=8) for i in range(4)]

    def export(number: int, folder: Path) -> bytes:
        file = folder / f"{number}.onnx"
        export_policy(actors[number], actors[number].spec, file)
        return file.read_bytes()

    alone = [export(number, tmp_path) for number in range(len(actors))]
    with ThreadPoolExecutor(len(actors)) as pool:
        together = list(pool.map(export, range(len(actors)), [tmp_path] * len(actors)))

    assert together == alone


# -- failures


@pytest.mark.parametrize("opset", [8, 16, 18])
def test_an_opset_that_unity_cannot_import_is_refused(path: Path, opset: int) -> None:
    spec = behavior([vector(3)], 2)
    with pytest.raises(ExportError, match=f"Opset {opset}"):
        export_policy(random_actor(spec), spec, path, opset=opset)
    assert list(path.parent.iterdir()) == []


def test_a_behaviour_without_actions_is_refused(path: Path) -> None:
    spec = behavior([vector(3)], 0, ())
    with pytest.raises(ExportError, match="no actions"):
        export_policy(Actor(spec, network()), spec, path)


def test_damaged_weights_are_refused_and_leave_the_old_file(path: Path) -> None:
    spec = behavior([vector(3)], 2)
    actor = random_actor(spec)
    path.write_text("the last good one")
    with torch.no_grad():
        actor.head.mu.weight[0, 0] = torch.nan  # type: ignore[union-attr]

    with pytest.raises(ExportError, match="NaN"):
        export_policy(actor, spec, path)

    assert path.read_text() == "the last good one"
    assert list(path.parent.iterdir()) == [path]


def test_an_unknown_network_is_refused(path: Path) -> None:
    class Mine(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    spec = behavior([vector(3)], 2)
    actor = random_actor(spec)
    actor.body.encoder.sensors[0] = Mine()

    with pytest.raises(ExportError, match="contains a Mine"):
        export_policy(actor, spec, path)


def test_a_model_that_acts_differently_is_never_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = behavior([vector(3)], 2)
    monkeypatch.setattr(GraphBuilder, "silu", lambda graph, x: graph.node("Sigmoid", x))

    with pytest.raises(ExportError, match="does not act like the policy"):
        export_policy(random_actor(spec), spec, path)

    assert list(path.parent.iterdir()) == []


def test_a_model_that_chooses_differently_is_never_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = behavior([vector(3)], 0, (3, 3))
    original = GraphBuilder.linear
    monkeypatch.setattr(GraphBuilder, "linear", lambda graph, layer, x: graph.node("Neg", original(graph, layer, x)))

    with pytest.raises(ExportError, match="does not act like the policy"):
        export_policy(random_actor(spec), spec, path)


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    spec = behavior([vector(3)], 2)
    with pytest.raises(ExportError, match=r"could not be written to .*No such file"):
        export_policy(random_actor(spec), spec, tmp_path / "none" / "a.onnx")


def test_a_full_disk_leaves_no_partial_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = behavior([vector(3)], 2)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)

    with pytest.raises(ExportError, match="No space left"):
        export_policy(random_actor(spec), spec, path)

    assert list(path.parent.iterdir()) == []


def test_an_older_file_is_replaced(path: Path) -> None:
    spec = behavior([vector(3)], 2)
    path.write_text("old")

    export_policy(random_actor(spec), spec, path)

    assert inspect_model(path).loads
    assert list(path.parent.iterdir()) == [path]


def test_torch_exporter_is_not_used(actor: Actor, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.onnx", None)

    export_policy(actor, actor.spec, path)


def test_only_inputs_that_are_used_are_there() -> None:
    graph = GraphBuilder(9)
    graph.input("unused", [3])
    used = graph.input("used", [3])
    graph.node("Identity", used, output="out")
    graph.output("out", [3])

    assert [value.name for value in graph.build("g").graph.input] == ["used"]


def test_the_model_names_its_maker_and_is_standard_conform() -> None:
    spec = behavior([vector(3)], 2)

    model = build_model(random_actor(spec), spec)

    onnx.checker.check_model(model, full_check=True)
    assert model.producer_name == "trajtrainer"
    assert "body.layers.layers.0.weight" in [weight.name for weight in model.graph.initializer]
