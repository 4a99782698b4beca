"""``scripts/messages``: prints all messages that users may see, for proofreading."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parents[1] / "trajtrainer"
_LOGGING = {"debug", "info", "warning", "error", "exception", "critical", "log"}
_PRINTING = {"print", "say", "write"}
_HELP = {"add_argument", "add_count", "add_results_dir", "add_parser", "add_argument_group", "ArgumentParser"}
_HELP |= {"Flag", "Command"}
# Text in the page's sources is inside quotes, backquotes or tags.
_PAGE_TEXT = re.compile(r"\"([^\"\n]+)\"|'([^'\n]+)'|`([^`]+)`|>([^<>{}\n]+)<")


class Message(NamedTuple):
    """A message. Interpolated code is in braces.

    Attributes:
        kind: ``error``, ``log``, ``output``, ``help``, ``page``, or ``text`` if the kind is unknown.
    """

    file: Path
    line: int
    kind: str
    text: str


def messages(package: Path = PACKAGE) -> Iterator[Message]:
    """Yield the messages of a package, file by file, in the order in which they appear."""
    for file in sorted(package.rglob("*")):
        if not {"uplot", "preact"}.isdisjoint(file.parts) or file.name.endswith("_pb2.py"):
            continue
        if file.suffix == ".py":
            yield from _of_python(file)
        elif file.suffix in {".js", ".html", ".jinja"}:
            yield from _of_page(file)


def _of_python(file: Path) -> Iterator[Message]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    open_nodes: list[tuple[ast.AST, str]] = [(tree, "text")]
    while open_nodes:
        node, kind = open_nodes.pop()
        if id(node) in docstrings:
            continue
        text = _text_of(node)
        if text is not None:
            if _is_prose(text):
                yield Message(file, getattr(node, "lineno", 0), kind, text)
            continue
        kind = _kind_inside(node) or kind
        open_nodes += [(child, kind) for child in reversed(list(ast.iter_child_nodes(node)))]


def _text_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [
            str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
            for part in node.values
            if isinstance(part, ast.Constant | ast.FormattedValue)
        ]
        return "".join(parts)
    return None


def _kind_inside(node: ast.AST) -> str | None:
    if isinstance(node, ast.Raise):
        return "error"
    if not isinstance(node, ast.Call):
        return None
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name in _LOGGING:
        return "log"
    if name in _PRINTING:
        return "output"
    if name in _HELP:
        return "help"
    return "error" if name == "Problem" or name.endswith("Error") else None


def _of_page(file: Path) -> Iterator[Message]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith(("//", "*", "/*", "{#")):
            continue
        for match in _PAGE_TEXT.finditer(line):
            text = next(group for group in match.groups() if group is not None)
            if _is_prose(text):
                yield Message(file, number, "page", text)


def _is_prose(text: str) -> bool:
    """Return whether a text has three words in a row, unlike names, paths, patterns and code."""
    words = re.sub(r"\{[^{}]*\}", "X", text)
    return re.search(r"\b[A-Za-z][a-z']* [a-zX][a-z']*,? [a-zX][a-z']*", words) is not None


def main() -> None:
    """Print the messages of files whose path contains one of the arguments, or of all files."""
    last = None
    for file, line, kind, text in messages():
        name = file.relative_to(PACKAGE).as_posix()
        if sys.argv[1:] and not any(part in name for part in sys.argv[1:]):
            continue
        if name != last:
            print(f"\n{name}")
            last = name
        print(f"{line:5} {kind:6} {' '.join(text.split())}")


if __name__ == "__main__":
    main()
