"""Fixtures that every test may use."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No test is judged by time. In CI the examples are the same every time, so that a run can be repeated.
settings.register_profile(
    "project",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.load_profile("project")


@pytest.fixture(autouse=True)
def _same_weights() -> None:
    """Networks that a test makes begin with the same weights, whatever tests ran before it in this process."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of recorded and golden data that lies beside the project but is not part of it."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the recorded and golden data (../shared/data) are not here")
    return folder
