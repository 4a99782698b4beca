"""Policies that act in a program of one's own: the numbers of training, in whatever form observations come."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from mlagents_envs.base_env import ActionTuple

from tests.cli.test_export import checkpoint_of, saved
from tests.learning.nn.specs import behavior, camera, entities, network, vector
from tests.policies.onnx.test_onnx import random_actor
from trajtrainer.core.errors import CheckpointError, InvalidDataError, SettingsError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.envs.python.gymnasium_agents import AgentSpaces
from trajtrainer.learning.algos.acting import ActorPolicy
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.policies.onnx.export import export_policy
from trajtrainer.policies.play.loaded_policy import load_policy

SPECS: dict[str, tuple[BehaviorSpec, dict[str, Any]]] = {
    "a vector": (behavior([vector(7)], 3), {}),
    "sensors, hybrid actions": (behavior([vector(4, "a"), entities(5, 3)], 2, (3, 2)), {"normalize": True}),
    "a camera, memory": (behavior([camera(3, 20, 24)], 0, (4,)), {"memory": 8}),
}


def files(actor: Actor, settings: dict[str, Any], folder: Path) -> list[Path]:
    """A checkpoint and an exported model of the same policy."""
    exported = folder / "Crawler.onnx"
    export_policy(actor, actor.spec, exported)
    return [saved(folder / "Crawler" / "Crawler-7.pt", checkpoint_of(actor, network(**settings))), exported]


def observed(spec: BehaviorSpec, number: int) -> list[Any]:
    random = np.random.default_rng(number)
    return [
        random.integers(0, 256, (number, *sensor.shape), np.uint8)
        if len(sensor.shape) == 3
        else random.normal(size=(number, *sensor.shape)).astype(np.float32)
        for sensor in spec.observation_specs
    ]


def numbers(action: ActionTuple) -> list[list[float]]:
    return np.concatenate([action.continuous, action.discrete], axis=1).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", SPECS)
def test_the_numbers_of_training(name: str, tmp_path: Path) -> None:
    spec, settings = SPECS[name]
    actor = random_actor(spec, **settings)
    obs, choices = observed(spec, 6), sum(spec.action_spec.discrete_branches)
    mask = np.zeros((6, choices), np.bool_)
    mask[::2, :2] = choices > 0
    memory = np.random.default_rng(0).normal(size=(6, actor.memory_size)).astype(np.float32)
    wanted = ActorPolicy(actor, seed=0, deterministic=True).act(obs, mask, memory)

    for file in files(actor, settings, tmp_path):
        policy = load_policy(file)
        acted = policy.act(obs, deterministic=True, memory=memory, mask=mask)
        assert acted.action.continuous == pytest.approx(wanted.env_continuous, abs=1e-5)
        assert acted.action.discrete.tolist() == wanted.discrete.tolist()
        assert acted.memory == pytest.approx(wanted.memory, abs=1e-5)
        assert policy.memory_size == actor.memory_size
        assert [tuple(sensor.shape) for sensor in policy.spec.observation_specs] == [
            tuple(sensor.shape) for sensor in spec.observation_specs
        ]
        assert policy.spec.action_spec == spec.action_spec
        for row in range(6):  # each agent by itself
            single = policy.act([o[row] for o in obs], deterministic=True, memory=memory[row], mask=mask[row])
            assert numbers(single.action) == [pytest.approx(numbers(acted.action)[row], abs=1e-5)]
            assert single.memory == pytest.approx(wanted.memory[row], abs=1e-5)


def test_a_single_sensor_may_stand_by_itself(tmp_path: Path) -> None:
    spec, settings = SPECS["a vector"]
    policy = load_policy(files(random_actor(spec), settings, tmp_path)[0])
    (obs,) = observed(spec, 3)

    assert numbers(policy.act(obs, deterministic=True).action) == numbers(policy.act([obs], deterministic=True).action)
    assert len(numbers(policy.act(obs[0].astype(np.float64)).action)) == 1


def test_a_seed_repeats_what_is_drawn(tmp_path: Path) -> None:
    spec, settings = SPECS["a vector"]
    for file in files(random_actor(spec), settings, tmp_path):
        obs = observed(spec, 3)[0]
        first, again, other = (load_policy(file, seed=seed).act(obs) for seed in (1, 1, 2))
        assert numbers(first.action) == numbers(again.action) != numbers(other.action)


SPACES = spaces.Dict({"eyes": spaces.Box(0, 255, (24, 30, 3), np.uint8), "body": spaces.Box(-9, 9, (4,), np.float32)})
DEEDS = spaces.Dict({"go": spaces.Box(0, 10, (2,), np.float32), "tool": spaces.Discrete(3, start=5)})


@pytest.mark.parametrize("kind", [0, 1])
def test_spaces_in_and_out_as_the_environment_has_them(kind: int, tmp_path: Path) -> None:
    agents = AgentSpaces(SPACES, DEEDS, "Crawler")
    actor = random_actor(agents.spec)
    policy = load_policy(files(actor, {}, tmp_path)[kind]).for_spaces(SPACES, DEEDS)
    SPACES.seed(3)
    seen = [SPACES.sample() for _ in range(4)]
    trained = ActorPolicy(actor, seed=0, deterministic=True)
    wanted = agents.actions(trained.act(agents.columns(seen), np.zeros((4, 3), np.bool_), np.zeros((4, 0), np.float32)))

    for each, as_trained in zip(seen, wanted, strict=True):
        action, _ = policy.act(each, deterministic=True)
        assert action in DEEDS
        assert action["tool"] == as_trained["tool"]
        assert action["go"] == pytest.approx(as_trained["go"], abs=1e-4)
    batch = {key: np.stack([each[key] for each in seen]) for key in SPACES}
    action, memory = policy.act(batch, deterministic=True)
    assert action["tool"].tolist() == [each["tool"] for each in wanted]
    assert action["go"] == pytest.approx(np.stack([each["go"] for each in wanted]), abs=1e-4)
    assert memory.shape == (4, 0)


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_masks_of_an_environment(allowed: int, tmp_path: Path) -> None:
    """1 = allowed, within the observation as PettingZoo has it or by themselves."""
    seen, choices = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)
    with_mask = spaces.Dict({"observation": seen, "action_mask": spaces.Box(0, 1, (3,), np.int8)})
    file = files(random_actor(behavior([vector(4)], 0, (3,))), {}, tmp_path)[0]
    only = np.eye(3, dtype=np.int8)[allowed]
    o = np.zeros(4, np.float32)

    inside = load_policy(file).for_spaces(with_mask, choices)
    assert inside.act({"observation": o, "action_mask": only}).action == allowed
    beside = load_policy(file).for_spaces(seen, choices)
    assert beside.act(o, mask=only).action == allowed
    assert beside.act(np.stack([o, o]), mask=[only, np.roll(only, 1)]).action.tolist() == [allowed, (allowed + 1) % 3]


def test_whose_episodes_begin_have_an_empty_memory(tmp_path: Path) -> None:
    file = files(random_actor(behavior([vector(4)], 0, (3,)), memory=8), {"memory": 8}, tmp_path)[0]
    policy = load_policy(file).for_spaces(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3))
    o, state = np.ones((2, 4), np.float32), np.ones((2, 8), np.float32)

    _, left = policy.predict(o, state, np.array([True, False]), deterministic=True)
    assert left[0] == pytest.approx(policy.predict(o[0], deterministic=True)[1], abs=1e-6)
    assert left[1] == pytest.approx(policy.act(o[1], memory=state[1]).memory, abs=1e-6)
    assert left[0] != pytest.approx(left[1])


def test_a_board_is_the_picture_that_it_was_in_training(tmp_path: Path) -> None:
    board, moves = spaces.Box(0, 255, (8, 9, 6), np.uint8), spaces.Discrete(5)
    spec = behavior([camera(6, 8, 9)], 0, (5,))
    actor = random_actor(spec, encoder="match3")
    seen = np.random.default_rng(0).integers(0, 256, (3, 8, 9, 6), np.uint8)
    trained = ActorPolicy(actor, seed=0, deterministic=True)
    columns = [np.ascontiguousarray(seen.transpose(0, 3, 1, 2))]
    wanted = trained.act(columns, np.zeros((3, 5), np.bool_), np.zeros((3, 0), np.float32))

    for file in files(actor, {"encoder": "match3"}, tmp_path):
        policy = load_policy(file).for_spaces(board, moves)
        assert policy.act(seen, deterministic=True).action.tolist() == wanted.discrete[:, 0].tolist()


def test_a_checkpoint_that_does_not_tell_what_it_sees_takes_the_spaces_word_for_it(tmp_path: Path) -> None:
    actor = random_actor(behavior([camera(3, 24, 30)], 0, (4,)))
    file = saved(tmp_path / "Crawler" / "a.pt", checkpoint_of(actor, network(), described=False))
    with pytest.raises(CheckpointError, match="does not say what its agents observe"):
        load_policy(file)

    eyes = spaces.Box(0, 255, (24, 30, 3), np.uint8)
    env = gymnasium.Env[Any, Any]()
    env.observation_space, env.action_space = eyes, spaces.Discrete(4)
    assert load_policy(file, env=env).act(eyes.sample()).action in env.action_space


def test_a_run_of_several_behaviors(tmp_path: Path) -> None:
    for name, size in (("Striker", 3), ("Goalie", 4)):
        actor = random_actor(behavior([vector(size)], 0, (3,)))
        saved(tmp_path / "run" / name / "checkpoint.pt", checkpoint_of(actor, network()))

    policy = load_policy("run", behavior="Goalie", results_dir=tmp_path)
    assert (policy.behavior, tuple(policy.spec.observation_specs[0].shape)) == ("Goalie", (4,))
    assert policy.path == tmp_path / "run" / "Goalie" / "checkpoint.pt"
    with pytest.raises(SettingsError, match=r"has several behaviors\. Pass behavior= with one of 'Goalie', 'Striker'"):
        load_policy("run", results_dir=tmp_path)
    with pytest.raises(SettingsError, match=r"has no behavior 'Striken'\. .*'Striker'; did you mean Striker\?$"):
        load_policy("run", behavior="Striken", results_dir=tmp_path)


def test_what_cannot_be(tmp_path: Path) -> None:
    checkpoint, exported = files(random_actor(behavior([vector(7)], 3)), {}, tmp_path)
    with pytest.raises(SettingsError, match=r"no run with this name.*or a run id .with results_dir"):
        load_policy("nowhere", results_dir=tmp_path)
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(exported.read_bytes()[:500])
    with pytest.raises(SettingsError, match=r"damaged\.onnx cannot be used"):
        load_policy(damaged)
    for file in (checkpoint, exported):
        with pytest.raises(CheckpointError, match=r"\(7,\).*\(4,\)"):
            load_policy(file, env=gymnasium.make("CartPole-v1"))
    with pytest.raises(SettingsError, match="env is a object without spaces"):
        load_policy(checkpoint, env=object())
    policy = load_policy(checkpoint)
    with pytest.raises(InvalidDataError, match=r"sensor 'vector' has the shape \(6,\), expected \(7,\), or \('N', 7\)"):
        policy.act(np.zeros(6))
    with pytest.raises(InvalidDataError, match="There are 2 observations, expected one for each of the sensors vector"):
        policy.act([np.zeros(7), np.zeros(7)])
    with pytest.raises(InvalidDataError, match=r"The memory has the shape \(5,\), expected \(1, 0\)"):
        policy.act(np.zeros(7), memory=np.zeros(5, np.float32))


def test_masks_of_all_branches_or_of_each(tmp_path: Path) -> None:
    """True = forbidden, as Unity's have it."""
    policy = load_policy(files(random_actor(behavior([vector(4)], 0, (3, 2))), {}, tmp_path)[0])
    obs = np.zeros((2, 4), np.float32)
    first, second = np.array([[1, 1, 0], [0, 1, 1]], np.bool_), np.array([[1, 0], [0, 1]], np.bool_)
    assert policy.act(obs, mask=[first, second]).action.discrete.tolist() == [[2, 1], [0, 0]]
    assert policy.act(obs, mask=np.concatenate([first, second], axis=1)).action.discrete.tolist() == [[2, 1], [0, 0]]
    with pytest.raises(InvalidDataError, match="The mask has 5 entries, expected 2 x 5"):
        policy.act(obs, mask=np.zeros(5, np.bool_))


def test_all_checkpoints_of_a_run_are_no_single_policy(tmp_path: Path) -> None:
    content = checkpoint_of(random_actor(behavior([vector(4)], 0, (3,))), network())
    for step in (10, 20):
        saved(tmp_path / "run" / "Ball" / f"Ball-{step}.pt", content)
    with pytest.raises(SettingsError, match=r"run/\* matches 2 checkpoints\. Pass one of them, or a run"):
        load_policy("run/*", results_dir=tmp_path)


def test_a_vectorised_environment(tmp_path: Path) -> None:
    file = files(random_actor(behavior([vector(4)], 0, (2,))), {}, tmp_path)[0]
    envs = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
    policy = load_policy(file, env=envs)
    observations, _ = envs.reset(seed=0)
    action, _ = policy.act(observations)

    assert action in envs.action_space
    envs.step(action)
    envs.close()


def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "measure" / "evaluation.md").read_text(encoding="utf-8")
    (code,) = (block.partition("```")[0] for block in page.split("```python\n")[1:])
    actor = random_actor(behavior([vector(4)], 0, (2,)))
    saved(tmp_path / "results" / "pole" / "CartPole-v1" / "checkpoint.pt", checkpoint_of(actor, network()))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)

    assert isinstance(names, Mapping)
    assert names["total"] >= 1.0


def test_it_needs_no_gymnasium() -> None:
    program = "import sys; sys.modules['gymnasium'] = None; import trajtrainer.policies.play.loaded_policy"
    subprocess.run([sys.executable, "-c", program], check=True)
