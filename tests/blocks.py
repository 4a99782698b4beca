"""The blocks of code in the pages, and how each of them is tested.

A comment above a block changes that:

- ``<!-- runs -->`` above commands: they run, too, with runs of few steps. Other commands are only parsed.
- ``<!-- not run: REASON -->`` above Python: it is only parsed, because it needs something that tests do not have.
- ``<!-- names a plugin -->`` above a configuration: it is parsed, but the schema knows only built-in names.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]
NAMES = {page: page.relative_to(ROOT).as_posix() for page in PAGES}

_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]+?) -->\n\n?)?"
    r"^(?P<indent> *)```(?P<language>[\w+-]*)(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
_PROGRAMS = {
    "pip",
    "python",
    "python3",
    "docker",
    "ssh",
    "git",
    "ray",
    "export",
    "scripts/bench",
    "scripts/docs",
    "curl",
}
NAMES_PLUGIN = "names a plugin"
FILE = "a file that the reader writes: parsed, and used by tests/test_tutorials.py"
# Why blocks in a language are neither run nor parsed.
_REASONS = {
    "py": "a signature, made from the code",
    "pycon": "an example in a docstring, made from the code",
    "text": "output, a formula or a layout of files",
    "cpp": "an excerpt; tests/tools/source compiles generated C",
    "csharp": "an excerpt; tests/tools/source compiles generated C#",
    "gdscript": "an excerpt; tests/plugins/godot plays the whole game",
    "html": "an excerpt; tests/tools/source opens such a page",
    "powershell": "commands for Windows",
    "dockerfile": "needs Docker, which tests do not have",
    "ini": "settings of another program",
    "promql": "queries of another program",
    "prometheus": "output of a run",
}


@dataclass(frozen=True)
class Block:
    """A block of code in a page; ``line`` is that of its first line of code."""

    page: Path
    line: int
    language: str
    info: str
    code: str
    mark: str

    @property
    def place(self) -> str:
        return f"{NAMES[self.page]}:{self.line}"

    @property
    def is_shell(self) -> bool:
        first = (re.findall(r"^(?:\$ )?([\w/.-]+)", self.code, re.MULTILINE) or [""])[0]
        return self.language in ("bash", "sh", "console") or (
            not self.language and first in {"trajtrainer", *_PROGRAMS}
        )

    def commands(self) -> Iterator[tuple[list[str], str]]:
        """The words of each ``trajtrainer`` command, without ``trajtrainer``, and the file for its output."""
        for line in self.code.replace("\\\n", " ").splitlines():
            found = re.match(r"\s*(?:\$ )?(?:\w+=\S+ )*trajtrainer ([a-z].*)", line)
            if found:
                words = shlex.split(found[1], comments=True)
                end = min((words.index(end) for end in (">", "|", "||", "&&", "&") if end in words), default=len(words))
                yield words[:end], words[end + 1] if words[end : end + 1] == [">"] else ""


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, found.start("code")) + 1,
            found["language"],
            found["info"].strip(),
            re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE),
            found["mark"] or "",
        )
        for found in _BLOCK.finditer(text)
    ]


def runs(block: Block) -> bool:
    """Whether tests run a block."""
    if block.language == "python":
        return not block.info and not block.mark.startswith("not run: ")
    return block.is_shell and block.mark == "runs"


def treatment(block: Block) -> str:
    """How a block is tested, with the reason if it is not run.

    Raises:
        LookupError: its language has no treatment.
    """
    if runs(block):
        return "run"
    if block.language == "python":
        is_file = block.info.startswith("title=")
        return FILE if is_file else "copied from the code" if block.info else f"parsed; {block.mark}"
    if block.is_shell:
        return f"parsed; {_why_not_run(block)}"
    if block.language in ("yaml", "json", "toml"):
        if block.mark == NAMES_PLUGIN:
            return "parsed; it names a plugin, which the schema does not know"
        return "checked as data, and against the schema of the settings if it is a configuration"
    return _REASONS[block.language or "text"]


def _why_not_run(block: Block) -> str:
    """What the commands of a block need."""
    commands = [words for words, _ in block.commands()]
    if not commands:
        programs = dict.fromkeys(re.findall(r"^(?:\$ )?([\w/.-]+)", block.code, re.MULTILINE))
        return f"commands of other programs: {', '.join(programs)}"
    of = {words[0] for words in commands}
    needs = {
        "a game or build": any(re.search(r"Builds?/|Game|godot", word) for words in commands for word in words),
        "minutes of training": bool(of & {"learn", "search"}),
        "a reader, until it is stopped": "page" in of,
        "the Hugging Face Hub": bool(of & {"push", "pull"}),
    }
    return f"needs {', '.join(need for need, is_needed in needs.items() if is_needed) or 'the files of a run'}"


_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run_examples(page: Path, **names: Any) -> dict[str, Any]:
    """Runs the examples of a page, one after the other, and returns the names that they made."""
    text = page.read_text(encoding="utf-8")
    names["__name__"] = page.stem
    for found in _PYTHON.finditer(text):
        line = text[: found.start(1)].count("\n")
        exec(compile("\n" * line + found[1], str(page), "exec"), names)  # errors tell the page's line
    return names
