"""Fixtures that every test may use."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import packages
from tests.packages import Install

# No test is judged by time. In CI the examples are the same every time, so that a run can be repeated.
settings.register_profile(
    "project",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.load_profile("project")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a shell put into the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the programs that tests start and interrupt inherit it


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-exports", action="store_true", help="compare the source code of all shipped configurations")


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


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Make packages visible to this process, and to those it starts: name, entry points, and their only module."""
    site = tmp_path / "site"
    site.mkdir()
    for folder in (packages.SAMPLE, site):
        monkeypatch.syspath_prepend(str(folder))
    path = [str(site), str(packages.SAMPLE), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))

    def add(package: str = "", entry_points: dict[str, dict[str, str]] | None = None, **modules: str) -> None:
        if entry_points is None:
            packages.declare_sample(site)
        else:
            packages.declare(site, package, entry_points)
        for name, source in modules.items():
            (site / f"{name}.py").write_text(source, encoding="utf-8")
        packages.forget_all()

    known = set(sys.modules)
    packages.forget_all()
    yield add
    packages.forget_all()
    for name in set(sys.modules) - known:
        if name.startswith(("odd_", "trajtrainer_sample")):
            del sys.modules[name]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster of Ray with two nodes, simulated on this machine, on loopback, with a token.

    Ray looks at its variables when it is imported, so nothing may do that before.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("RAY_AUTH_MODE", "token"),
            ("RAY_AUTH_TOKEN", "0" * 64),
            ("RAY_USAGE_STATS_ENABLED", "0"),
            ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"),
            ("RAY_health_check_period_ms", "500"),
            ("RAY_health_check_failure_threshold", "3"),
        ):
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        options = {"num_cpus": 2, "object_store_memory": 80 << 20}
        cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
        cluster.add_node(**options)
        try:
            yield cluster
        finally:
            cluster.shutdown()
