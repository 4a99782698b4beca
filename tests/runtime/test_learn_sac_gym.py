"""``config/sac`` trains the Gymnasium tasks it is made for."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import yaml

from tests.runtime.runs import learn
from trajtrainer.settings.convert import load

CONFIG = Path(__file__).resolve().parents[2] / "config" / "sac"
FILES = [path for path in sorted(CONFIG.glob("*.yaml")) if "env_path: gym:" in path.read_text()]


@pytest.mark.slow
def test_pendulum_is_swung_up(tmp_path: Path) -> None:
    """-200 within 20,000 steps is wanted; less than half of them are enough. Doing nothing scores about -1200."""
    settings = yaml.safe_load((CONFIG / "Pendulum.yaml").read_text())
    settings["behaviors"]["Pendulum-v1"]["max_steps"] = 8000
    settings["torch_settings"] = {"device": "cpu"}
    run = learn(tmp_path, settings, "--seed=1")
    assert run.exit_code == 0, run.output
    assert np.mean(run.rewards("Pendulum-v1")[-2:]) > -200


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_configurations_are_whole(path: Path) -> None:
    given = load(path.read_text(), path.name)
    (name,) = given.behaviors
    assert given.env_settings.env_path == f"gym:{name}"
    assert name in gymnasium.registry
