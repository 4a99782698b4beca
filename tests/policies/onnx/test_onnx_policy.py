"""An exported model acts as the policy that it was made from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.learning.nn.specs import behavior, camera, entities, vector
from tests.policies.onnx import ml_agents_1
from tests.policies.onnx.test_onnx import SPECS, random_actor, random_inputs
from trajtrainer.core.errors import CheckpointError, SettingsError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import ActionBatch
from trajtrainer.learning.algos.acting import ActorPolicy, PolicyDivergedError
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.policies.onnx.export import export_policy
from trajtrainer.policies.onnx.policy import OnnxPolicy

ROWS = 6


def exported(folder: Path, actor: Actor) -> Path:
    export_policy(actor, actor.spec, folder / "a.onnx")
    return folder / "a.onnx"


def inputs(actor: Actor, rows: int = ROWS) -> tuple[list[Any], Any, Any]:
    """Observations, forbidden actions and memories, as ``act`` takes them."""
    named = random_inputs(actor, rows)
    obs = [named[f"obs_{i}"] for i in range(len(actor.spec.observation_specs))]
    mask = named.get("action_masks", np.ones((rows, 0), np.float32)) == 0
    memory = named.get("recurrent_in", np.zeros((rows, 1, 0), np.float32))[:, 0]
    return obs, mask, memory


@pytest.mark.parametrize("name", SPECS)
def test_deterministic_actions_are_the_policys(tmp_path: Path, name: str) -> None:
    spec, options = SPECS[name]
    actor = random_actor(spec, **options)
    found = OnnxPolicy(exported(tmp_path, actor), seed=1, deterministic=True).act(*inputs(actor))
    wanted = ActorPolicy(actor, seed=1, deterministic=True).act(*inputs(actor))

    np.testing.assert_allclose(found.env_continuous, wanted.env_continuous, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(found.discrete, wanted.discrete)
    np.testing.assert_allclose(found.memory, wanted.memory, rtol=1e-3, atol=1e-4)
    for column in ("discrete", "env_continuous", "continuous", "log_prob", "entropy", "memory"):
        mine, its = getattr(found, column), getattr(wanted, column)
        assert (mine.shape, mine.dtype) == (its.shape, its.dtype), column
    assert list(OnnxPolicy(tmp_path / "a.onnx", seed=1).mismatches(spec)) == []


@pytest.mark.parametrize("sac", [False, True])
def test_sampled_actions_have_the_policys_distribution(tmp_path: Path, sac: bool) -> None:
    actor = random_actor(behavior([vector(3)], 2, (3, 2)), sac=sac)
    rows = 20_000
    obs, mask, memory = inputs(actor, 1)
    repeated = ([np.repeat(obs[0], rows, 0)], np.repeat(mask, rows, 0), np.repeat(memory, rows, 0))
    found = OnnxPolicy(exported(tmp_path, actor), seed=1).act(*repeated)
    wanted = ActorPolicy(actor, seed=1).act(*repeated)

    for statistic in (np.mean, np.std):
        np.testing.assert_allclose(statistic(found.env_continuous, 0), statistic(wanted.env_continuous, 0), atol=0.02)
        np.testing.assert_allclose(statistic(found.discrete, 0), statistic(wanted.discrete, 0), atol=0.02)
    forbidden = np.split(mask[0], [3])
    assert not any(forbidden[branch][found.discrete[:, branch]].any() for branch in range(2))


def test_a_seed_repeats_what_is_drawn(tmp_path: Path) -> None:
    actor = random_actor(behavior([vector(3)], 2, (9, 9)))
    path = exported(tmp_path, actor)

    def drawn(seed: int) -> list[ActionBatch]:
        policy = OnnxPolicy(path, seed=seed)
        return [policy.act(*inputs(actor)) for _ in range(3)]

    first, again, other = drawn(1), drawn(1), drawn(2)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.env_continuous, two.env_continuous)
        np.testing.assert_array_equal(one.discrete, two.discrete)
    assert not np.array_equal(first[0].env_continuous, first[1].env_continuous), "each step draws anew"
    assert not np.array_equal(first[0].env_continuous, other[0].env_continuous)
    assert not np.array_equal(first[0].discrete, other[0].discrete)


def test_bytes_of_pictures_are_their_share_of_255(tmp_path: Path) -> None:
    actor = random_actor(behavior([camera(3, 20, 20)]))
    policy = OnnxPolicy(exported(tmp_path, actor), seed=1, deterministic=True)
    _, mask, memory = inputs(actor)
    pixels = np.random.default_rng(1).integers(0, 256, (ROWS, 3, 20, 20), np.uint8)

    found = policy.act([pixels], mask, memory)
    wanted = policy.act([pixels.astype(np.float32) / np.float32(255)], mask, memory)
    np.testing.assert_array_equal(found.env_continuous, wanted.env_continuous)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (behavior([vector(4)], 2, (3,)), [r"expects obs_0 of shape (3,), not (4,)"]),
        (behavior([vector(3)], 1, (3,)), ["has 2 continuous actions and the branches (3,), not 1 and (3,)"]),
        (behavior([camera(3, 20, 20)], 2, (2,)), ["branches (3,), not 2 and (2,)", "not (3, 20, 20)"]),
    ],
)
def test_what_does_not_fit_is_told(tmp_path: Path, other: BehaviorSpec, told: list[str]) -> None:
    policy = OnnxPolicy(exported(tmp_path, random_actor(behavior([vector(3)], 2, (3,)))), seed=1)

    found = list(policy.mismatches(other))
    assert len(found) == len(told)
    assert all(part in text for part, text in zip(told, found, strict=True))


def test_nan_is_an_error(tmp_path: Path) -> None:
    actor = random_actor(behavior([vector(3)]))
    policy = OnnxPolicy(exported(tmp_path, actor), seed=1)
    obs, mask, memory = inputs(actor)
    obs[0][2] = np.nan

    with pytest.raises(PolicyDivergedError, match=r"a\.onnx returned NaN"):
        policy.act(obs, mask, memory)


def test_files_that_cannot_act(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.onnx cannot be used: the file does not exist"):
        OnnxPolicy(tmp_path / "none.onnx", seed=1)
    (tmp_path / "broken.onnx").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="not an ONNX model"):
        OnnxPolicy(tmp_path / "broken.onnx", seed=1)

    path = exported(tmp_path, random_actor(behavior([vector(3)])))
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, path)
    with pytest.raises(CheckpointError, match="obs_0: the number of agents is fixed"):
        OnnxPolicy(path, seed=1)


def test_without_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = exported(tmp_path, random_actor(behavior([vector(3)])))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)

    with pytest.raises(SettingsError, match=r"pip install 'trajtrainer\[onnx\]'"):
        OnnxPolicy(path, seed=1)


REAL = {
    "AimBotv1": behavior([vector(2)], 2, (2,)),
    "SoccerTwos_poca": behavior([vector(264), vector(72)], 0, (3, 3, 3)),
    "Pong": behavior([vector(5)], 1),
    "ppo_hybrid_lstm": behavior([vector(8)], 2, (2, 3)),
    "sac_cont": behavior([vector(8)], 2),
}


@pytest.mark.parametrize("name", REAL)
def test_models_of_ml_agents(shared_data: Path, name: str) -> None:
    spec = REAL[name]
    policy = OnnxPolicy(shared_data / "models" / f"{name}.onnx", seed=1)
    assert list(policy.mismatches(spec)) == []
    branches = spec.action_spec.discrete_branches
    mask = np.zeros((ROWS, sum(branches)), np.bool_)
    memory = np.zeros((ROWS, policy.memory_size), np.float32)
    obs = [np.random.default_rng(2).normal(0, 1, (ROWS, *o.shape)).astype(np.float32) for o in spec.observation_specs]

    actions = policy.act(obs, mask, memory)
    assert actions.env_continuous.shape == (ROWS, spec.action_spec.continuous_size)
    assert np.abs(actions.env_continuous).max(initial=0) <= 1
    assert (actions.discrete < np.array(branches)).all()
    if policy.memory_size:
        assert not np.array_equal(actions.memory, memory)


def test_old_models_have_no_deterministic_actions(shared_data: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lacks deterministic_continuous_actions.*omit --deterministic"):
        OnnxPolicy(shared_data / "models" / "Pong.onnx", seed=1, deterministic=True)


def legacy_inputs(rows: int) -> tuple[list[Any], Any, Any]:
    """Sensors in an order of their own: vector of 3, list, picture, vector of 2. The logits are 0, 1, 2, 3, 4."""
    vectors = np.tile(np.arange(5, dtype=np.float32), (rows, 1))
    entities = np.full((rows, 4, 3), 0.75, np.float32)
    picture = np.full((rows, 3, 4, 4), 0.25, np.float32)
    obs = [vectors[:, :3], entities, picture, vectors[:, 3:]]
    return obs, np.zeros((rows, 5), np.bool_), np.zeros((rows, 0), np.float32)


LEGACY_SPEC = behavior([vector(3), entities(4, 3), camera(3, 4, 4), vector(2)], 0, (3, 2))


@pytest.mark.parametrize("text", [ml_agents_1.DISCRETE, ml_agents_1.OLDER_DISCRETE], ids=["1.9", "1.5"])
def test_log_probabilities_of_ml_agents_1_are_drawn_from(tmp_path: Path, text: str) -> None:
    path = ml_agents_1.written(tmp_path / "old.onnx", text)
    policy = OnnxPolicy(path, seed=1)
    assert list(policy.mismatches(LEGACY_SPEC)) == []

    obs, mask, memory = legacy_inputs(20_000)
    mask[:, 0] = True
    drawn = policy.act(obs, mask, memory).discrete
    shares = [np.bincount(drawn[:, branch], minlength=3) / len(drawn) for branch in range(2)]
    np.testing.assert_allclose(shares[0], [0, 1 / (1 + np.e), np.e / (1 + np.e)], atol=0.02)
    np.testing.assert_allclose(shares[1], [1 / (1 + np.e), np.e / (1 + np.e), 0], atol=0.02)
    np.testing.assert_array_equal(OnnxPolicy(path, seed=1).act(obs, mask, memory).discrete, drawn)
    assert not np.array_equal(OnnxPolicy(path, seed=2).act(obs, mask, memory).discrete, drawn)

    mask[:, 2] = True
    mode = OnnxPolicy(path, seed=1, deterministic=True).act(obs, mask, memory).discrete
    np.testing.assert_array_equal(np.unique(mode, axis=0), [[1, 1]])


def test_continuous_actions_of_ml_agents_1(tmp_path: Path) -> None:
    path = ml_agents_1.written(tmp_path / "old.onnx", ml_agents_1.CONTINUOUS)
    spec = behavior([camera(3, 4, 4), vector(5)], 5)
    policy = OnnxPolicy(path, seed=1)
    assert list(policy.mismatches(spec)) == []

    seen: list[Any] = [np.full((2, 3, 4, 4), 51, np.uint8), np.array([[0, 0.1, 0.2, 0.3, -9]] * 2, np.float32)]
    acted = policy.act(seen, np.zeros((2, 0), np.bool_), np.zeros((2, 0), np.float32))
    np.testing.assert_allclose(acted.env_continuous, [[0.2, 0.3, 0.4, 0.5, -1]] * 2, rtol=1e-5)
    with pytest.raises(CheckpointError, match=r"lacks deterministic_continuous_actions"):
        OnnxPolicy(path, seed=1, deterministic=True)


def test_what_does_not_fit_a_model_of_ml_agents_1(tmp_path: Path) -> None:
    policy = OnnxPolicy(ml_agents_1.written(tmp_path / "old.onnx", ml_agents_1.DISCRETE), seed=1)
    other = behavior([vector(4), camera(3, 4, 5), vector(2)], 0, (2, 3))

    assert [text.split(" of shape ")[-1] for text in policy.mismatches(other)] == [
        "it has 0 continuous actions and the branches (3, 2), not 0 and (2, 3)",
        "(5,), not (6,)",
        "(3, 4, 4), not (3, 4, 5)",
        "(4, 3), not none",
    ]
    told = policy.spec()
    assert [tuple(sensor.shape) for sensor in told.observation_specs] == [(5,), (3, 4, 4), (4, 3)]
    assert list(policy.mismatches(told)) == []


def test_a_memory_of_ml_agents_1_is_named_so(tmp_path: Path) -> None:
    text = ml_agents_1.CONTINUOUS.replace("float[1] {0.0}", "float[1] {8.0}")
    with pytest.raises(CheckpointError, match=r"ML-Agents 1\.x with memory"):
        OnnxPolicy(ml_agents_1.written(tmp_path / "old.onnx", text), seed=1)
