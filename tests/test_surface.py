"""Tools and plugins use what anyone outside could use: the package's names, and a few documented modules."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import trajtrainer

ROOT = Path(trajtrainer.__file__).parent
PAGE = ROOT.parent / "docs" / "explanation" / "architecture.md"
MOST_OTHER_NAMES = 40


def surface() -> set[str]:
    """The modules in the page's table, such as ``core.spec``."""
    _, found, section = PAGE.read_text(encoding="utf-8").partition("\n## What tools and plugins may use\n")
    assert found
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    return {path.replace("/", ".") for row in rows for path in re.findall(r"`([a-z0-9_/]+)\.py`", row.split("|")[1])}


def used_by_tools_and_plugins() -> set[tuple[str, str]]:
    """(module, name) of all that they import from the other rooms; a module imported as a whole is one name."""
    found = set()
    for file in [*ROOT.glob("tools/**/*.py"), *ROOT.glob("plugins/**/*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trajtrainer."):
                module = str(node.module).removeprefix("trajtrainer.")
                for alias in node.names:
                    is_module = ROOT.joinpath(*module.split("."), f"{alias.name}.py").is_file()
                    found.add((f"{module}.{alias.name}", "") if is_module else (module, alias.name))
    return {(module, name) for module, name in found if module.split(".")[0] not in ("tools", "plugins")}


def test_modules_of_the_surface_exist() -> None:
    assert [name for name in surface() if not ROOT.joinpath(*name.split(".")).with_suffix(".py").is_file()] == []


def test_tools_and_plugins_use_little_else() -> None:
    documented = surface()
    others = [
        f"{module}.{name}"
        for module, name in sorted(used_by_tools_and_plugins())
        if module not in documented and name not in trajtrainer.__all__
    ]
    assert len(others) <= MOST_OTHER_NAMES, "\n".join(others)
