"""Settings for a Godot game are searched for."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.plugins.godot.test_runs import GAME, POLICY, settings
from tests.ports import free_ports
from trajtrainer.cli.main import main


@pytest.mark.slow
def test_settings_are_searched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "search.yaml"
    ranges = {f"behaviors.{POLICY}.hyperparameters.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
    config.write_text(yaml.safe_dump(settings({"search": {"trials": 2, "parallel": 1, "ranges": ranges}})))
    assert main(["search", str(config), GAME, "--run-id=found", f"--base-port={free_ports(8)}"]) == 0
    assert len(list(tmp_path.glob("results/found*/**/training_status.json"))) >= 2
