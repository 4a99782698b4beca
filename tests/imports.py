"""What the files of the package import."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def imports(path: Path) -> frozenset[str]:
    """Everything a file imports, type-only imports included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.update({node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names})
    return frozenset(names)
