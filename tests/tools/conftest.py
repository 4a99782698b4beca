"""What the tests of several tools use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_export import checkpoint_of, saved
from tests.learning.nn.specs import network
from tests.policies.play.worlds import SPEC, chooser
from trajtrainer.policies.onnx.export import export_policy


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A run that has learned to choose 1, at its best 0, and beside it the model of another that chooses 1."""
    for name, action in (("checkpoint.pt", 1), ("best.pt", 0)):
        saved(tmp_path / "results" / "first" / "Walk" / name, checkpoint_of(chooser(action), network()))
    export_policy(chooser(1), SPEC, tmp_path / "Walk.onnx")
    return tmp_path / "results"
