"""Recordings of Godot's plugin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trajtrainer.core.errors import DemonstrationError
from trajtrainer.experience.recordings.formats import ReadOptions
from trajtrainer.plugins.godot.recordings import read
from trajtrainer.tools.recordings import find_sources

EPISODES = [[[[1, 2], [3, 4], [5, 6]], [[0.5, 2], [-3.0, 0]]], [[[7, 8]], []], [[[9, 8], [7, 6]], [[[1.0], [1]]]]]


def written(folder: Path, content: object) -> Path:
    path = folder / "expert_demos.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def test_episodes_with_a_step_become_trajectories(tmp_path: Path) -> None:
    (source,) = find_sources([str(written(tmp_path, EPISODES))], actions="continuous:1,discrete:3")
    first, last = source.trajectories()
    assert source.spec.observation_specs[0].name == "obs"
    assert source.spec.action_spec.continuous_size == 1
    assert source.spec.action_spec.discrete_branches == (3,)
    assert first.steps["obs.0"].tolist() == [[1, 2], [3, 4]]
    assert first.after["obs.0"].tolist() == [[5, 6]]
    assert first.steps["continuous"].tolist() == [[0.5], [-1.0]]  # as the game would have clamped it
    assert first.steps["discrete"].tolist() == [[2], [0]]
    assert first.steps["done"].tolist() == [False, True]
    assert not first.steps["reward"].any()
    assert last.steps["discrete"].tolist() == [[1]]


def test_choices_before_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, [[[[0], [0]], [[1, 0.25, 0.5, 2]]]])
    (source,) = read(path, ReadOptions(actions="discrete:2, continuous:2, discrete:3"))
    (found,) = source.trajectories()
    assert found.steps["continuous"].tolist() == [[0.25, 0.5]]
    assert found.steps["discrete"].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (None, "does not say what the 2 numbers of each action mean. Pass --actions"),
        ("continuous:3", "is for 3 numbers, but each action in .* has 2"),
        ("continuous", "has 'continuous'. Expected a kind and a number"),
        ("discrete:0,continuous:1", "has 'discrete:0'"),
        ("continuous:1,discrete:2", r"step 1 of an episode: it chose \[2\]"),
    ],
)
def test_actions_must_be_told(actions: str | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(DemonstrationError, match=message):
        read(written(tmp_path, EPISODES), ReadOptions(actions=actions))


DAMAGED: list[Any] = [
    b"",
    b"[" * 100_000,
    b"null",
    b"\xff",
    [],
    {},
    [[]],
    [1],
    [[[[1]], []]],
    [[[[1], [2]], [[1], [1]]]],
    [[[[1], [2, 3]], [[1]]]],
    [[[["x"], ["y"]], [[1]]]],
    [[[["1"], ["2"]], [[1]]]],
    [[["1", "2"], [[1]]]],
    [[[1, 2], [3]]],
    [[[[1], [None]], [[1]]]],
    [[[[10**400], [1]], [[1]]]],
    b"[[[[NaN], [1]], [[1]]]]",
    b"[[[[1], [1]], [[NaN]]]]",
    [[[[1e300], [1]], [[1]]]],
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_files(content: object, tmp_path: Path) -> None:
    with pytest.raises(DemonstrationError) as error:
        read(written(tmp_path, content), ReadOptions(actions="continuous:1"))
    assert "expert_demos.json" in str(error.value)
    assert len(str(error.value)) < 600


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(DemonstrationError, match="cannot be read: No such file"):
        read(tmp_path / "none.json", ReadOptions(actions="continuous:1"))


def test_bytes_of_a_choice_do_not_wrap_around(tmp_path: Path) -> None:
    path = written(tmp_path, [[[[0], [0]], [[np.iinfo(np.int32).max * 2.0 + 2]]]])
    with pytest.raises(DemonstrationError):
        read(path, ReadOptions(actions="discrete:2"))
