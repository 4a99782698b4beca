"""The code in docs/explanation/ppo.md, which comes from the package."""

from __future__ import annotations

import inspect
import pkgutil
import re
import textwrap

BLOCK = re.compile(r"<!-- code (?P<name>\S+) \| (?P<first>.*?) \| (?P<end>.*?) ?-->\n```python.*?\n.*?```\n", re.DOTALL)


def with_current_code(page: str) -> str:
    """Return the page with current code in its code blocks.

    A block is specified by its function in ``trajtrainer.learning.algos``, the start of its first line, and the start
    of the line after its last one. Without the latter, it continues to the end of the function.

    Raises:
        LookupError: the function has no such line.
    """
    return BLOCK.sub(_current, page)


def _current(block: re.Match[str]) -> str:
    lines = inspect.getsource(pkgutil.resolve_name(f"trajtrainer.learning.algos.{block['name']}")).splitlines()
    starts = [number for number, line in enumerate(lines) if line.strip().startswith(block["first"])]
    if len(starts) != 1:
        raise LookupError(f"{block['name']} has {len(starts)} lines that begin with {block['first']!r}")
    rest = lines[starts[0] :]
    ends = [number for number, line in enumerate(rest) if line.strip().startswith(block["end"])] if block["end"] else []
    if block["end"] and not ends:
        raise LookupError(f"no line of {block['name']} after {block['first']!r} begins with {block['end']!r}")
    code = textwrap.dedent("\n".join(rest[: ends[0]] if ends else rest)).strip("\n")
    marker = block[0].split("\n", 1)[0]
    module, name = block["name"].split(":")
    return f'{marker}\n```python title="learning/algos/{module.replace(".", "/")}.py, {name}"\n{code}\n```\n'
