"""What Godot's plugin recorded is converted and learned from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.plugins.godot.test_runs import GAME, POLICY, settings
from tests.run.runs import learn
from trajtrainer.cli.main import main


def recorded(path: Path, episodes: int) -> Path:
    """What the plugin writes of somebody who walks straight to the targets."""
    random, found = np.random.default_rng(1), []
    for _ in range(episodes):
        place, target = random.uniform(-1, 1, (2, 2))
        observed = [[*place, *target]]
        done: list[list[float]] = []
        while not done or np.linalg.norm(target - place) > 0.1:
            done.append(np.clip(10 * (target - place), -1, 1).tolist())
            place = place + 0.1 * np.array(done[-1])
            observed.append([*place, *target])
        found.append([observed, done])
    path.write_text(json.dumps(found))
    return path


@pytest.mark.slow
def test_what_the_plugin_recorded_is_imitated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = recorded(tmp_path / "expert_demos.json", 60)
    converted = tmp_path / "expert.demo"
    assert main(["demo", "convert", str(recording), "--actions=continuous:2", "-o", str(converted)]) == 0
    assert "60 episodes" in capsys.readouterr().out
    refused, done = (
        learn(
            tmp_path, settings(behavioral_cloning={"demo_path": str(path), "strength": 1.0}), GAME, run_id=path.suffix
        )
        for path in (recording, converted)
    )
    assert refused.exit_code == 1
    assert f"trajtrainer demo convert {recording}" in refused.output
    assert done.exit_code == 0, done.output
    assert done.rewards(POLICY)[-1] > 0.5  # about 0 without
