"""Fixtures that every test may use."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture(autouse=True)
def _no_run_is_left() -> Iterator[None]:
    """A run that a failing test has started does not go on beside the other tests."""
    yield
    if "tests.run.runs" in sys.modules:
        started = sys.modules["tests.run.runs"].LearnProcess.started
        while started:
            process = started.pop().process
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of recorded and golden data that lies beside the project but is not part of it."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the recorded and golden data (../shared/data) are not here")
    return folder


_VERSIONS = Path(__file__).parent / "upgrade"


@pytest.fixture(params=sorted(path.parent.name for path in _VERSIONS.glob("*/runs")))
def corpus(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what a version wrote, as the working folder."""
    shutil.copytree(_VERSIONS / request.param, tmp_path / "corpus")
    monkeypatch.chdir(tmp_path / "corpus")
    return tmp_path / "corpus"


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


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The reader's folder. Modules that it gets are not known to later tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if (tmp_path / f"{name.partition('.')[0]}.py").exists() or (tmp_path / name.partition(".")[0]).is_dir():
            del sys.modules[name]
