"""Real recordings, against what ML-Agents makes of them and against what must hold of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trajtrainer.core.columns import concatenate
from trajtrainer.experience.recordings.demo_file import open_demo
from trajtrainer.experience.recordings.demonstrations import Demonstrations, load_demonstrations

# Written by Unity: the action after an observation stands in the next record.
BY_UNITY = ["3DBallDemo", "BasicDemo", "CoopDemo", "ExpertFood", "ExpertGrid", "HybridDemo"]
# Written by Python, with the action beside its observation.
BY_PYTHON = [
    "Expert3DBall",
    "ExpertBasic",
    "ExpertReacher",
    "ExpertTennis",
    "synthetic_continuous",
    "synthetic_discrete",
    "synthetic_hybrid",
    "synthetic_hybrid_vector",
    "synthetic_old_fields",
    "synthetic_visual",
]
ALL_REAL = [*BY_UNITY, *BY_PYTHON[:4], "Expert3DBallHard", "ExpertPyramid", "GridWorldDemo", "Pkg2VisDemo"]
ALL_REAL += ["Pkg3BallDemo", "Pkg3VisDemo", "Pkg3WalkDemo"]


def path_of(shared_data: Path, name: str) -> Path:
    folder = shared_data / "golden" / "demos" if name.startswith("synthetic") else shared_data / "demos"
    return folder / f"{name}.demo"


def golden(shared_data: Path, name: str) -> dict[str, NDArray[Any]]:
    """The rows that ML-Agents makes: one per record but the last, ends of episodes included."""
    with np.load(shared_data / "golden" / "demos" / f"{name}_seq1.npz", allow_pickle=False) as file:
        return dict(file)


def actions_of(rows: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    kinds = [rows[name] for name in ("continuous_action", "discrete_action") if name in rows]
    return np.concatenate(kinds, axis=1).astype(np.float32)


def own_actions(demonstrations: Demonstrations) -> NDArray[np.float32]:
    packed = demonstrations.packed
    return np.concatenate([packed["continuous"], packed["discrete"].astype(np.float32)], axis=1)


def as_floats(observations: NDArray[Any]) -> NDArray[np.float32]:
    floats: NDArray[np.float32] = observations.astype(np.float32)
    return floats / np.float32(255) if observations.dtype == np.uint8 else floats


def check_spec(found: Demonstrations, shared_data: Path, name: str) -> None:
    index = json.loads((shared_data / "golden" / "demos" / "index.json").read_text())
    (expected,) = (entry["behavior_spec"] for entry in index if entry["file"] == f"{name}.demo")
    if name != "ExpertGrid":
        shapes = [list(each.shape) for each in found.spec.observation_specs]
        assert shapes == [each["shape"] for each in expected["observation_specs"]]
    assert found.spec.action_spec.continuous_size == expected["action_spec"]["continuous_size"]
    assert list(found.spec.action_spec.discrete_branches) == expected["action_spec"]["discrete_branches"]


@pytest.mark.parametrize("name", [*BY_UNITY, *BY_PYTHON])
def test_observations_rewards_and_ends_are_those_of_ml_agents(shared_data: Path, name: str) -> None:
    rows = golden(shared_data, name)
    demonstrations = load_demonstrations([path_of(shared_data, name)])
    check_spec(demonstrations, shared_data, name)
    packed = demonstrations.packed
    done = rows["done"].astype(bool)
    decides = np.concatenate([[True], ~done[:-1]])  # the rows after ``done`` are ends of episodes
    assert len(packed) == decides.sum()
    np.testing.assert_array_equal(packed["reward"], rows["environment_rewards"][decides])
    np.testing.assert_array_equal(packed["done"], done[decides])
    for number, column in enumerate(packed.obs):
        expected = rows[f"obs__{number}"]
        if name == "ExpertGrid":  # ML-Agents takes the 64 rows of pixels for channels
            expected = np.moveaxis(expected.reshape(-1, 64, 84, 3), -1, 1)
        expected = expected[decides[: len(expected)]]
        np.testing.assert_allclose(as_floats(column[: len(expected)]), expected, rtol=0, atol=1e-7)
    # What is observed at the end of an episode is a row of its own there, and the bootstrap here.
    ends = np.flatnonzero(~decides)
    ends = ends[ends < len(rows["obs__0"])]
    if name != "ExpertGrid":
        after = as_floats(packed.bootstrap.obs[0])[: len(ends)]
        np.testing.assert_allclose(after, rows["obs__0"][ends], rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", BY_PYTHON)
def test_actions_beside_their_observations(shared_data: Path, name: str) -> None:
    rows = golden(shared_data, name)
    decides = np.concatenate([[True], ~rows["done"].astype(bool)[:-1]])
    demonstrations = load_demonstrations([path_of(shared_data, name)])
    np.testing.assert_array_equal(own_actions(demonstrations), actions_of(rows)[decides])


@pytest.mark.parametrize("name", BY_UNITY)
def test_actions_of_unity_are_taken_from_the_next_record(shared_data: Path, name: str) -> None:
    rows = golden(shared_data, name)
    decides = np.concatenate([[True], ~rows["done"].astype(bool)[:-1]])
    own = own_actions(load_demonstrations([path_of(shared_data, name)]))
    following = np.flatnonzero(decides) + 1
    following = following[following < len(decides)]  # ML-Agents drops the last record
    np.testing.assert_array_equal(own[: len(following)], actions_of(rows)[following])


@pytest.mark.parametrize("name", ["GridWorldDemo", "HybridDemo", "Pkg3WalkDemo"])
def test_no_recorded_action_was_forbidden(shared_data: Path, name: str) -> None:
    """It is what tells whose action a record holds: with the action of the same record, many were."""
    file = open_demo(path_of(shared_data, name))
    assert file.action_delay == 1
    records = concatenate(list(file.records()))
    branches = file.behavior.spec.action_spec.discrete_branches

    def forbidden(delay: int) -> int:
        rows = np.flatnonzero(~records["done"][:-1])
        begins = np.cumsum([0, *branches[:-1]])
        return int(records["mask"][rows[:, None], begins + records["discrete"][rows + delay]].sum())

    assert forbidden(delay=0) > 10
    assert forbidden(delay=1) == 0


def test_basic_moves_as_its_actions_say(shared_data: Path) -> None:
    packed = load_demonstrations([path_of(shared_data, "BasicDemo")]).packed
    place, action = packed.obs[0].argmax(axis=1), packed["discrete"][:, 0]
    goes_on = ~packed["done"][:-1]
    moved = place[1:] - place[:-1]
    np.testing.assert_array_equal(moved[goes_on], np.array([0, -1, 1])[action[:-1][goes_on]])


@pytest.mark.parametrize("name", ["3DBallDemo", "Pkg3BallDemo", "Expert3DBall"])
def test_platforms_turn_as_their_actions_say(shared_data: Path, name: str) -> None:
    """Packages 2.3 and 3.0, and a converted recording from before 1.0: the turn is the action but for a factor."""
    packed = load_demonstrations([path_of(shared_data, name)]).packed
    tilt, action = packed.obs[0][:, :2], packed["continuous"]
    goes_on = ~packed["done"][:-1]
    for axis in range(2):
        turned = (tilt[1:, axis] - tilt[:-1, axis])[goes_on]
        assert abs(np.corrcoef(turned, action[:-1, axis][goes_on])[0, 1]) > 0.97


@pytest.mark.parametrize("name", ALL_REAL)
def test_episodes_are_those_of_the_header(shared_data: Path, name: str) -> None:
    path = path_of(shared_data, name)
    packed = load_demonstrations([path]).packed
    meta = open_demo(path).meta
    # The recorder counts an episode when it ends, and the one that was going on when it was closed.
    assert packed.ended.sum() in (meta.number_episodes - 1, meta.number_episodes)
    assert packed.num_trajectories in (meta.number_episodes - 1, meta.number_episodes)
    assert (packed.lengths > 0).all()
    assert packed.offset[-1] == len(packed)


def test_pictures_of_both_packages_are_the_same_picture(shared_data: Path) -> None:
    """The picture shows the agent in the color of its goal, which the package's version does not change."""
    by_2, by_3 = (load_demonstrations([path_of(shared_data, name)]) for name in ("Pkg2VisDemo", "Pkg3VisDemo"))
    assert by_2.spec.observation_specs[0].shape == by_3.spec.observation_specs[0].shape == (3, 20, 20)
    of_2, of_3 = ({*map(tuple, np.moveaxis(each.packed.obs[0][::20], 1, -1).reshape(-1, 3))} for each in (by_2, by_3))
    assert len(of_2) > 1
    assert of_2 == of_3


def test_a_picture_as_floats_is_that_of_the_png(shared_data: Path) -> None:
    packed = load_demonstrations([path_of(shared_data, "GridWorldDemo")]).packed
    np.testing.assert_allclose(as_floats(packed.obs[1]), packed.obs[2], atol=1e-6)
