"""What an install brings: the wheel, the source archive and the editable install."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from trajtrainer.core.version import __version__

ROOT = Path(__file__).resolve().parents[1]


def build(kind: str, folder: Path, source: Path = ROOT) -> Path:
    """What pip asks of the project's build backend, in a process of its own, as pip does it."""
    program = f"import sys, hatchling.build; print(hatchling.build.build_{kind}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], cwd=source, capture_output=True, text=True, check=True
    )
    return folder / done.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build("wheel", tmp_path_factory.mktemp("wheel")))


def files(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"
    }


def test_the_wheel_has_everything_but_tests(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    wanted = {f"trajtrainer/{name}" for name in files(ROOT / "trajtrainer")}
    assert {"trajtrainer/py.typed", "trajtrainer/envs/unity/proto/communicator.proto"} <= wanted
    assert wanted | {f"trajtrainer/config/{name}" for name in files(ROOT / "config")} <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"trajtrainer"}


def test_the_wheels_configurations_are_found_by_name(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "trajtrainer", "config", "builtin:ppo/Basic"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "time_horizon: 3\n" in done.stdout


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    lines = wheel.read(name).decode().splitlines()
    assert {"Name: trajtrainer", "License-Expression: Apache-2.0", "Requires-Python: >=3.11"} <= set(lines)
    assert any(line.startswith("Author") for line in lines)
    assert "Classifier: Typing :: Typed" in lines


def test_the_changelog_begins_with_the_version() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(__version__)}(, \d{{4}}-\d\d-\d\d)?|Unreleased", headings[0])


def test_every_python_that_is_supported_is_named(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    named = re.findall(r"^Classifier: Programming Language :: Python :: (3\.\d+)$", wheel.read(name).decode(), re.M)
    assert named == ["3.11", "3.12", "3.13", "3.14"]
    assert all(version in (ROOT / "scripts" / "interpreters").read_text(encoding="utf-8") for version in named)


def test_an_editable_install_is_a_path_that_type_checkers_follow(tmp_path: Path) -> None:
    with zipfile.ZipFile(build("editable", tmp_path)) as editable:
        (path,) = (name for name in editable.namelist() if ".dist-info/" not in name)
        assert path.endswith(".pth")
        assert Path(editable.read(path).decode().strip()) == ROOT


def test_the_source_archive_makes_the_same_wheel(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "constraints.txt", "scripts/test"} <= names
    assert {f"config/{name}" for name in files(ROOT / "config")} <= names
    assert {f"trajtrainer/{name}" for name in files(ROOT / "trajtrainer")} <= names
    assert {f"tests/upgrade/{name}" for name in files(ROOT / "tests" / "upgrade")} <= names
