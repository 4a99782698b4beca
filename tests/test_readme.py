"""What the README and the package's metadata promise."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.imports import imports

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def imported(module: str) -> list[str]:
    """The files of the package that import a module."""
    found = {path: {name.split(".")[0] for name in imports(path)} for path in ROOT.glob("trajtrainer/**/*.py")}
    return [path.relative_to(ROOT).as_posix() for path, names in found.items() if module in names]


def test_the_readme_is_a_front_page() -> None:
    assert len(README.splitlines()) <= 100


def test_every_table_has_its_heading() -> None:
    """A blank line within a table would make text of the rows behind it."""
    blocks = [block.splitlines() for block in re.split(r"\n\s*\n", README)]
    tables = [block for block in blocks if block[0].startswith("|")]

    assert [table[0] for table in tables if len(table) < 2 or not re.fullmatch(r"[|: -]+", table[1])] == []


# Gymnasium imports those of Atari: its environments by their names, its preprocessing OpenCV.
@pytest.mark.parametrize("extra", sorted(set(PROJECT["optional-dependencies"]) - {"dev", "docs", "release", "atari"}))
def test_an_extra_installs_what_the_package_uses(extra: str) -> None:
    for requirement in PROJECT["optional-dependencies"][extra]:
        module = re.split(r"[^\w-]", requirement)[0].replace("-", "_")
        assert imported(module) != [], requirement


def test_the_page_about_installing_has_every_extra() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    told = {
        name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`([a-z0-9]+)`", row)
    }
    assert set(PROJECT["optional-dependencies"]) <= told


def test_only_the_simulated_player_needs_grpc() -> None:
    own = [name for name in imported("grpc") if not name.startswith("trajtrainer/plugins/")]
    assert own == ["trajtrainer/envs/sim/__main__.py"]
