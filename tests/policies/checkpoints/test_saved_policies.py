"""Checkpoints that a user points at."""

from __future__ import annotations

from pathlib import Path

import pytest

from trajtrainer.core.errors import CheckpointError
from trajtrainer.policies.folder.saved_policies import find_checkpoints, find_policies


def run_with(results: Path, **steps: list[int]) -> Path:
    """A run with (empty) checkpoints of these behaviors at these steps."""
    run = results / "soccer"
    for behavior, numbers in steps.items():
        (run / behavior).mkdir(parents=True)
        for name in ["checkpoint", *(f"{behavior}-{step}" for step in numbers)]:
            (run / behavior / f"{name}.pt").touch()
    return run


def test_a_run_is_found_by_its_id_and_by_its_folder_with_all_behaviors(tmp_path: Path) -> None:
    run = run_with(tmp_path, Goalie=[10], Striker=[20])
    (run / "run_logs").mkdir()
    found = find_policies(Path("soccer"), tmp_path, None)
    assert [(each.name, each.checkpoint) for each in found] == [
        ("Goalie", run / "Goalie" / "checkpoint.pt"),
        ("Striker", run / "Striker" / "checkpoint.pt"),
    ]
    assert find_policies(run, tmp_path / "elsewhere", None) == found
    assert find_policies(run, tmp_path, "Striker") == found[1:]
    assert [each.name for each in find_policies(run / "Goalie", tmp_path, None)] == ["Goalie"]


def test_a_behavior_without_a_checkpoint_lists_those_that_have_one(tmp_path: Path) -> None:
    run_with(tmp_path, Goalie=[10], Striker=[20])
    with pytest.raises(
        CheckpointError, match=r"'Stricker' in .*soccer, only of Goalie, Striker; did you mean Striker\?$"
    ):
        find_policies(Path("soccer"), tmp_path, "Stricker")
    with pytest.raises(CheckpointError, match=r"'Ball' in .*soccer, only of Goalie, Striker\.$"):
        find_policies(Path("soccer"), tmp_path, "Ball")


def test_a_folder_without_checkpoints_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty" / "Ball").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"There is no checkpoint in .*empty, nor in the folders of its behav"):
        find_policies(Path("empty"), tmp_path, None)
    with pytest.raises(CheckpointError, match=r"with a step in its name in .*empty, nor in its folders"):
        find_checkpoints(Path("empty"), tmp_path)


def test_each_step_has_the_nearest_checkpoints_of_the_other_behaviors(tmp_path: Path) -> None:
    run_with(tmp_path, Goalie=[100, 200, 300], Striker=[110, 310], Unsaved=[])
    found = find_checkpoints(Path("soccer"), tmp_path)
    assert [(step, [each.checkpoint.name for each in policies]) for step, policies in found] == [
        (100, ["Goalie-100.pt", "Striker-110.pt"]),
        (200, ["Goalie-200.pt", "Striker-110.pt"]),
        (300, ["Goalie-300.pt", "Striker-310.pt"]),
    ]
