"""``trajtrainer export``: the .onnx of any checkpoint, ours or of ML-Agents."""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from tests.learning.nn.golden import PPO_CASES, SAC_CASES, policy_case
from tests.learning.nn.specs import behavior, entities, network, vector
from tests.policies.onnx.test_onnx import POCA_CASES, SPECS, Arrays, check_same, random_actor, run_onnx, session
from trajtrainer.cli.main import main
from trajtrainer.learning.algos.ppo.ppo import LAYOUT
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import ValueNetwork
from trajtrainer.learning.nn.mlagents import mlagents_keys
from trajtrainer.policies.checkpoints.mlagents.convert import EXTRA, to_mlagents
from trajtrainer.policies.checkpoints.policy_record import RECORD, PolicyRecord, read_record
from trajtrainer.policies.onnx.export import export_policy
from trajtrainer.settings.network import NetworkSettings


def export(*arguments: str | Path) -> int:
    return main(["export", *map(str, arguments)])


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The message of an export that fails as it should."""
    assert export(*arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    return error


def checkpoint_of(actor: Actor, settings: NetworkSettings, *, described: bool = True) -> dict[str, Any]:
    """A PPO trainer's checkpoint as this package writes it, or without what ML-Agents does not write."""
    modules = {"actor": actor, "critic": ValueNetwork(actor.spec, settings, ["extrinsic"])}
    adam = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    record = PolicyRecord("Crawler", "ppo", actor.spec, settings)
    extra = {RECORD: record.to_plain()} if described else {}
    return to_mlagents(
        {
            "step": 7,
            "modules": {name: module.state_dict() for name, module in modules.items()},
            "keys": {name: mlagents_keys(module) for name, module in modules.items()},
            "layout": LAYOUT,
            "optimizers": {"adam": adam.state_dict()},
            "extra": extra,
        }
    )


def saved(path: Path, content: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)
    return path


def exported_directly(actor: Actor, folder: Path) -> bytes:
    path = folder / "direct.onnx"
    export_policy(actor, actor.spec, path)
    return path.read_bytes()


# ours


@pytest.mark.parametrize("name", [name for name, (_, options) in SPECS.items() if "sac" not in options])
def test_a_checkpoint_of_ours_is_enough(tmp_path: Path, name: str) -> None:
    spec, options = SPECS[name]
    actor = random_actor(spec, **options)
    path = saved(tmp_path / "Crawler-7.pt", checkpoint_of(actor, network(**options)))
    assert export(path) == 0
    assert (tmp_path / "Crawler-7.onnx").read_bytes() == exported_directly(actor, tmp_path)


def test_exporting_leaves_random_numbers_alone(tmp_path: Path) -> None:
    actor = random_actor(behavior([vector(3)]))
    path = saved(tmp_path / "a.pt", checkpoint_of(actor, network()))
    before = torch.get_rng_state()
    export(path)
    assert torch.equal(torch.get_rng_state(), before)


def run_folder(folder: Path, *behaviors: str) -> Path:
    """A run with a checkpoint of each behavior."""
    for size, name in enumerate(behaviors, start=2):
        actor = random_actor(behavior([vector(size)]))
        saved(folder / name / "checkpoint.pt", checkpoint_of(actor, network()))
    (folder / "run_logs").mkdir()
    return folder


def size_of(path: Path) -> int:
    return int(onnx.load(path).graph.input[0].type.tensor_type.shape.dim[1].dim_value)


def test_a_run_exports_all_its_behaviors(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "results" / "first", "A", "B")
    assert export(run) == 0
    assert (size_of(run / "A.onnx"), size_of(run / "B.onnx")) == (2, 3)


def test_a_run_is_found_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_folder(tmp_path / "results" / "first", "A")
    run_folder(tmp_path / "other" / "second", "B")
    monkeypatch.chdir(tmp_path)
    assert export("first") == 0
    assert (run / "A.onnx").is_file()
    assert export("second", "--results-dir", "other") == 0
    assert (tmp_path / "other" / "second" / "B.onnx").is_file()


def test_one_behavior_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path, "A", "B")
    assert export(run, "--behavior", "B") == 0
    assert not (run / "A.onnx").exists()
    assert size_of(run / "B.onnx") == 3
    assert "did you mean B?" in refused(capsys, run, "--behavior", "b")


def test_where_the_output_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path / "run", "A", "B")
    assert export(run, "--output", tmp_path / "new" / "folder") == 0
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == ["A.onnx", "B.onnx"]
    assert export(run / "A", "--output", tmp_path / "there" / "x.onnx") == 0
    assert size_of(tmp_path / "there" / "x.onnx") == 2
    assert export(run / "B" / "checkpoint.pt", "--output", tmp_path / "there") == 0
    assert size_of(tmp_path / "there" / "checkpoint.onnx") == 3
    assert "cannot all be written" in refused(capsys, run, "--output", tmp_path / "x.onnx")
    (tmp_path / "file").touch()
    assert "cannot be created" in refused(capsys, run, "--output", tmp_path / "file" / "x")


def test_the_newest_numbered_checkpoint_stands_in(tmp_path: Path) -> None:
    for step, size in ((9, 3), (10, 4)):
        actor = random_actor(behavior([vector(size)]))
        saved(tmp_path / "A" / f"A-{step}.pt", checkpoint_of(actor, network()))
    assert export(tmp_path) == 0
    assert size_of(tmp_path / "A.onnx") == 4


def test_the_opset_is_the_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path, "A")
    for opset in (9, 15):
        assert export(run, "--opset", str(opset)) == 0
        assert onnx.load(run / "A.onnx").opset_import[0].version == opset
    assert "Opset 17 cannot be exported" in refused(capsys, run, "--opset", "17")


def test_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "There is no file or folder" in refused(capsys, tmp_path / "x.pt")
    assert "There is no checkpoint in" in refused(capsys, tmp_path)
    assert export() == 2


# source code


# of ML-Agents


@pytest.mark.parametrize("name", PPO_CASES + SAC_CASES + POCA_CASES)
def test_golden_checkpoints_give_their_golden_outputs(shared_data: Path, tmp_path: Path, name: str) -> None:
    for suffix in (".pt", ".onnx"):
        shutil.copy(shared_data / "golden" / "policies" / f"{name}{suffix}", tmp_path)
    assert export(tmp_path / f"{name}.pt", "--output", tmp_path / "ours.onnx") == 0
    case = policy_case(shared_data, name)
    exported = session(tmp_path / "ours.onnx")
    inputs = {value.name: case.arrays[value.name] for value in exported.get_inputs()}
    expected = {key[4:]: value for key, value in case.arrays.items() if key.startswith("ort_")}
    if case.is_sac and "deterministic_continuous_actions" in expected:
        # ML-Agents' deterministic actions of SAC leave [-1, 1] (docs/explanation/mlagents-behavior.md#actions).
        expected["deterministic_continuous_actions"] = np.tanh(expected["deterministic_continuous_actions"])
    check_same(run_onnx(exported, inputs), expected)


@pytest.mark.parametrize("name", ["PushButton-499970", "PushButton_checkpoint"])
def test_a_real_checkpoint_acts_as_its_export(shared_data: Path, tmp_path: Path, name: str) -> None:
    assert export(shared_data / "models" / f"{name}.pt", "--output", tmp_path) == 0
    generator = np.random.default_rng(3)
    allowed = generator.random((500, 8)) < 0.8
    allowed[:, [0, 3, 6]] = True
    inputs: Arrays = {
        "obs_0": generator.standard_normal((500, 4), np.float32),
        "action_masks": allowed.astype(np.float32),
    }
    ours = run_onnx(session(tmp_path / f"{name}.onnx"), inputs)
    theirs = run_onnx(onnxruntime.InferenceSession(shared_data / "models" / "PushButton-499970.onnx"), inputs)
    assert np.array_equal(ours["deterministic_discrete_actions"], theirs["deterministic_discrete_actions"])


def test_a_run_of_ml_agents(shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "results"
    shutil.copytree(shared_data / "golden" / "runs" / "ppo_discrete_two_behaviors", run)
    os.chmod(run, 0o755)
    theirs = {name: (run / f"{name}.onnx").read_bytes() for name in ("Basic", "Recall")}
    assert export(run) == 0
    assert f"(observations as in {run / 'Recall.onnx'})" in capsys.readouterr().out
    inputs: Arrays = {
        "obs_0": np.eye(3, dtype=np.float32),
        "action_masks": np.ones((3, 2), np.float32),
        "recurrent_in": np.full((3, 1, 16), 0.1, np.float32),
    }
    ours = run_onnx(session(run / "Recall.onnx"), inputs)
    del ours["discrete_actions"]  # left to chance
    found = run_onnx(onnxruntime.InferenceSession(theirs["Recall"]), inputs)
    check_same({name: found[name] for name in ours}, ours)


@pytest.mark.parametrize(
    ("name", "missing", "observations"),
    [
        ("ppo_buffer_vector", "the maximum number of entities (of size 3) that sensor 0 sends", ["6x3", "5"]),
        (
            "ppo_visual_two_vector",
            "the height and width of the images from sensor 0; nor the height and width of the images from sensor 2",
            ["1x20x24", "4", "3x24x20"],
        ),
        ("ppo_goal_hyper", "which of the observations 8 are goal signals", ["5", "3:goal"]),
    ],
)
def test_what_a_checkpoint_alone_does_not_tell(
    shared_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    missing: str,
    observations: list[str],
) -> None:
    golden = shared_data / "golden" / "policies"
    path = tmp_path / f"{name}.pt"
    shutil.copy(golden / f"{name}.pt", path)
    message = refused(capsys, path)
    assert missing in message
    assert "--observation" in message
    assert not path.with_suffix(".onnx").exists()
    given = [part for shape in observations for part in ("--observation", shape)]
    assert export(path, *given, "--output", tmp_path / "given.onnx") == 0
    shutil.copy(golden / f"{name}.onnx", tmp_path)
    assert export(path, "--output", tmp_path / "found.onnx") == 0
    assert (tmp_path / "given.onnx").read_bytes() == (tmp_path / "found.onnx").read_bytes()


def test_the_weights_alone_may_be_enough(shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, shapes in (("ppo_normalize", "6, 3"), ("ppo_lstm", "6"), ("sac_hybrid", "6")):
        path = tmp_path / f"{name}.pt"
        shutil.copy(shared_data / "golden" / "policies" / path.name, path)
        assert export(path) == 0
        assert f"(observations {shapes}, inferred from the weights)" in capsys.readouterr().out


@pytest.mark.parametrize("goal", [0, 1, 2])
def test_the_model_tells_which_sensor_is_the_goal(tmp_path: Path, goal: int) -> None:
    """Three sensors of one size: their shapes do not tell, but what the model does."""
    actor = random_actor(behavior([vector(3, f"s{i}", goal=i == goal) for i in range(3)], 2))
    path = saved(tmp_path / "A-5.pt", checkpoint_of(actor, network(), described=False))
    export_policy(actor, actor.spec, path.with_suffix(".onnx"))
    assert export(path, "--output", tmp_path / "again.onnx") == 0
    assert (tmp_path / "again.onnx").read_bytes() == path.with_suffix(".onnx").read_bytes()


def test_a_model_of_other_agents_is_not_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    actor = random_actor(behavior([entities(5, 3), vector(4)], 0, (3,)))
    path = saved(tmp_path / "A" / "A-5.pt", checkpoint_of(actor, network(), described=False))
    for other in (
        behavior([entities(5, 2), vector(4)], 0, (3,)),  # other entities
        behavior([entities(5, 3), vector(4)], 0, (4,)),  # other actions
    ):
        export_policy(random_actor(other), other, path.with_suffix(".onnx"))
        assert "the maximum number of entities" in refused(capsys, path)
    path.with_suffix(".onnx").write_bytes(b"rubbish")
    assert "the maximum number of entities" in refused(capsys, path)


@pytest.mark.parametrize("text", ["", "0", "3x", "3x4x5x6", "-3", "3:target", "three"])
def test_observations_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    run = run_folder(tmp_path, "A")
    assert f"{text!r} is not a valid --observation; expected" in refused(capsys, run, f"--observation={text}")


def test_observations_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path, "A")
    assert "is a policy for agents with different observations" in refused(capsys, run, "--observation", "3")
    assert "too small for vis_encode_type" in refused(capsys, run, "--observation", "3x4x5")


# hostile files


class Malicious:
    """Unpickled without care, it makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_checkpoint_with_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = checkpoint_of(random_actor(behavior([vector(3)])), network())
    content["Optimizer:critic"] = {"weights": Malicious(tmp_path / "ran")}
    path = saved(tmp_path / "A" / "checkpoint.pt", content)
    message = refused(capsys, path.parent.parent)
    assert f"{path} was rejected" in message
    assert "mkdir" in message
    assert "weights_only" not in message
    assert sorted(found.name for found in tmp_path.iterdir()) == ["A"]


def test_a_truncated_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "a.pt", checkpoint_of(random_actor(behavior([vector(3)])), network()))
    path.write_bytes(path.read_bytes()[:-500])
    assert "truncated" in refused(capsys, path)


def test_a_wrong_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], shared_data: Path) -> None:
    model = shared_data / "models" / "Pong.onnx"
    assert f"{model} is an exported model. Pass the run or checkpoint (.pt) that it comes from." in refused(
        capsys, model
    )
    assert "is not a usable checkpoint" in refused(capsys, saved(tmp_path / "a.pt", {"weights": torch.zeros(3)}))


def damaged(record: dict[str, Any], *path: Any, value: Any) -> dict[str, Any]:
    record = copy.deepcopy(record)
    inner: Any = record
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return record


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("observation_specs",), 5),
        (("observation_specs", 0, "shape"), [2**62]),
        (("observation_specs", 0, "shape"), [-1]),
        (("observation_specs", 0, "shape"), ["3"]),
        (("observation_specs", 0, "dimension_property"), ["x"]),
        (("action_spec", "discrete_branches"), [10**18]),
        (("action_spec",), None),
        (("network_settings", "hidden_units"), -4),
        (("network_settings", "no_such_option"), 1),
    ],
)
def test_a_damaged_description(tmp_path: Path, capsys: pytest.CaptureFixture[str], path: Any, value: Any) -> None:
    content = checkpoint_of(random_actor(behavior([vector(3)])), network())
    content[EXTRA][RECORD] = damaged(content[EXTRA][RECORD], *path, value=value)
    assert "the description of its policy is damaged" in refused(capsys, saved(tmp_path / "a.pt", content))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("observation_specs", 0, "shape"), [2_000_000_000]),
        (("network_settings", "hidden_units"), 2_000_000),
        (("network_settings", "num_layers"), 3),
        (("network_settings", "memory"), {"memory_size": 2_000_000, "sequence_length": 4}),
    ],
)
def test_a_description_of_another_network_takes_no_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: Any, value: Any
) -> None:
    """Some of these would need terabytes if they were built."""
    content = checkpoint_of(random_actor(behavior([vector(3)])), network())
    content[EXTRA][RECORD] = damaged(content[EXTRA][RECORD], *path, value=value)
    assert "is a policy for agents with different observations" in refused(capsys, saved(tmp_path / "a.pt", content))


@pytest.mark.parametrize("name", ["memory_size_vector", "discrete_act_size_vector", "continuous_act_size_vector"])
@pytest.mark.parametrize("value", [-1.0, 1e12, float("inf"), float("nan")])
def test_sizes_that_do_not_belong_to_the_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: float
) -> None:
    content = checkpoint_of(random_actor(behavior([vector(3)], 2, (3,))), network(), described=False)
    content["Policy"][name] = torch.full_like(content["Policy"][name], value)
    refused(capsys, saved(tmp_path / "a.pt", content))


def test_a_record_survives_plain_data() -> None:
    for spec, options in SPECS.values():
        settings = network(**{name: value for name, value in options.items() if name != "sac"})
        record = PolicyRecord("A", "ppo", spec, settings)
        again = read_record({EXTRA: {RECORD: record.to_plain()}}, "a.pt")
        assert again is not None
        assert again.network == record.network
        assert again.spec.action_spec == spec.action_spec
        assert [tuple(o) for o in again.spec.observation_specs] == [tuple(o) for o in spec.observation_specs]
