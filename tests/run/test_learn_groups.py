"""An algorithm that needs groups is given them by a run, and the others are given what they always were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.run.api.test_learn_api import Lamp, learn, settings
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.ppo.ppo import PPO


def _learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, needs_groups: bool) -> tuple[Any, list[PackedSteps]]:
    """The weights after a short run, and what the algorithm took."""
    taken: list[PackedSteps] = []
    add = PPO.add

    def recording(self: PPO, packed: PackedSteps, *arguments: Any) -> Any:
        taken.append(packed)
        return add(self, packed, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PPO, "add", recording)
        patch.setattr(PPO, "needs_groups", needs_groups)
        run = learn(tmp_path, settings(max_steps=600), Lamp, run_id=f"groups-{needs_groups}", num_envs=3)
    checkpoint = torch.load(run.run_folder / "Lamp" / "checkpoint.pt", weights_only=True)
    return checkpoint["Policy"], taken


def test_groups_are_given_to_who_needs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, without = _learned(tmp_path, monkeypatch, needs_groups=False)
    same_weights, taken = _learned(tmp_path, monkeypatch, needs_groups=True)
    assert sum(map(len, taken)) == sum(map(len, without)) == 600
    assert all(packed.groups is None and "groupmate_reward" not in packed.steps for packed in without)
    for packed in taken:
        assert packed.groups is not None
        assert packed.groups.mates.shape == (len(packed), 0)
        assert packed.groups.all_done.tolist() == packed.ended.tolist()
        assert not packed["groupmate_reward"].any()
    assert all(torch.equal(weights[name], same_weights[name]) for name in weights)
