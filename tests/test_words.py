"""Every file and section that a comment or a page cites exists, and messages spell "behavior" as Unity does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from trajtrainer.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "trajtrainer"
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
SOURCES = [path for path in PACKAGE.rglob("*.py") if not path.name.endswith("_pb2.py")]

PATH = re.compile(r"(?<![\w./<-])([a-z]\w*/[\w./-]*\.(?:py|md|toml))\b(?:#([\w-]+))?")
LINK = re.compile(r"\]\(([\w./-]*)(?:#([\w-]+))?\)")
# Notes and names that nobody else can look up.
PRIVATE = re.compile(r"\breferences? \d|\bDESIGN\b|\bquirk \d|\bthe peer\b|\bLetters: ", re.IGNORECASE)


def relative(paths: list[Path]) -> dict[str, str]:
    """Name below the repository -> text."""
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page, and those that the page sets itself."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    of_headings = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return of_headings | set(re.findall(r"\{ #([\w-]+) \}", text))


def is_there(path: Path, anchor: str | None) -> bool:
    return path.exists() and (not anchor or anchor in anchors(path))


def test_cited_files_and_sections_are_there() -> None:
    missing = [
        f"{name}: {found[0]}"
        for name, text in relative([*SOURCES, *PAGES]).items()
        for found in PATH.finditer(LINK.sub("", text))  # links have a test of their own
        if f'title="{found[1]}"' not in text  # a file that the page lets its reader write
        if not any(is_there(folder / found[1], found[2]) for folder in (ROOT, PACKAGE))
    ]
    assert missing == []


def test_links_of_pages_lead_somewhere() -> None:
    missing = [
        f"{page.name}: {found[0]}"
        for page in PAGES
        for found in LINK.finditer(page.read_text(encoding="utf-8"))
        if not is_there(page.parent / found[1] if found[1] else page, found[2])
    ]
    assert missing == []


def test_nothing_is_cited_that_others_cannot_read() -> None:
    found = [f"{name}: {match[0]}" for name, text in relative(SOURCES).items() for match in PRIVATE.finditer(text)]
    assert found == []


def test_what_users_read_spells_behavior_as_unity_does() -> None:
    """Everywhere but in docstrings and comments."""
    found = []
    for name, text in relative(SOURCES).items():
        if "behaviour" not in text.lower():
            continue
        tree = ast.parse(text)
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found += [
            f"{name}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if "behaviour" in node.value.replace("MonoBehaviour", "").lower()  # a class of Unity
            if id(node) not in docstrings
        ]
    assert found == []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/explanation/architecture.md"])
def test_names_and_commands_that_pages_about_the_code_cite_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    files = [*SOURCES, *ROOT.glob("tests/**/*.py"), *ROOT.glob("scripts/*"), ROOT / "pyproject.toml"]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in files if path.is_file() and path != Path(__file__))
    words = {*re.findall(r"\w+", sources), *(path.stem for path in files)}
    cited = {word for name in re.findall(r"`([A-Za-z_][\w.]*)`", text) for word in name.split(".")}
    assert sorted(cited - words) == []
    folders = re.findall(r"`((?:[a-z_]+/)+)`", text)
    inside = {each.relative_to(PACKAGE).as_posix() for each in PACKAGE.rglob("*") if each.is_dir()}
    rooms = [f"/{folder}" for folder in inside]
    missing = [
        folder
        for folder in folders
        if not (ROOT / folder).is_dir() and not any(room.endswith(f"/{folder.rstrip('/')}") for room in rooms)
    ]
    assert missing == []
    scripts = re.findall(r"\bscripts/[a-z]+\b(?!\.)", text)
    assert [script for script in scripts if not (ROOT / script).exists()] == []
    commands = set(re.findall(r"`trajtrainer ([a-z]+)", text))
    assert commands <= set(COMMANDS)
