"""Removes everything about a deleted feature from the documentation, without leaving gaps or broken links."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

_LINK = re.compile(r"\]\(([\w./-]*)(?:#([\w-]+))?\)")
_HEADING = re.compile(r"(#+) ")
_TABLE_WITHOUT_ROWS = re.compile(r"^\|[^\n]*\|\n\|[ |-]+\|\n(?!\|)\n?", re.MULTILINE)
_ITEM = re.compile(r" *(?:[-*]|\d+\.) ")
_SHELL = re.compile(
    r"^(?:\$ |!)?(?:\w+=\S+ )*(?:trajtrainer|pip|python3?|docker|git|ray|curl|scripts/\w+)\b", re.MULTILINE
)


def prune(pages: Sequence[Path], gone: re.Pattern[str]) -> None:
    """Remove all mentions of deleted features, then repeatedly remove text with broken links until there is none."""
    _rewrite(pages, lambda _, text: bool(gone.search(text)))
    while _rewrite(pages, lambda page, text: any(not _leads_somewhere(page, *found) for found in _LINK.findall(text))):
        pass


def _rewrite(pages: Iterable[Path], is_gone: Callable[[Path, str], bool]) -> bool:
    """Remove text from pages, and return whether any page changed."""
    changed = False
    for page in pages:
        text = page.read_text(encoding="utf-8")
        rest = without(text, partial(is_gone, page))
        if rest != text:
            page.write_text(rest, encoding="utf-8")
            changed = True
    return changed


def without(text: str, is_gone: Callable[[str], bool]) -> str:
    """Return a page without the paragraphs, list items, rows, commands, code blocks and sections to remove."""
    kept: list[str] = []
    lost = 0  # the heading level of the section that is being removed; 0 for none
    has_gap = False  # whether text was just removed, so that two empty lines may follow each other
    for part in _parts(text.splitlines(keepends=True)):
        whole = "".join(part)
        heading = _HEADING.match(whole)
        if heading and (not lost or len(heading[1]) <= lost):
            lost = len(heading[1]) if is_gone(whole) else 0
        if whole.lstrip().startswith("```") and _SHELL.search(whole):
            part = _commands(part, is_gone)
        if lost or not part or is_gone("".join(part)):
            has_gap = True
            if kept and kept[-1].startswith("<!-- "):
                kept.pop()  # the comment that says how the removed block is tested
        elif whole.strip() or not has_gap or (kept and kept[-1].strip()):
            kept += part
            has_gap = has_gap and not whole.strip()
    return _TABLE_WITHOUT_ROWS.sub("", "".join(kept))


def _commands(block: list[str], is_gone: Callable[[str], bool]) -> list[str]:
    """Return a code block without the removed commands, or [] if no command remains."""
    commands = re.findall(r"(?:[^\n]*\\\n)*[^\n]*\n", "".join(block[1:-1]))
    kept = [command for command in commands if not is_gone(command)]
    return [block[0], *kept, block[-1]] if any(each.strip() for each in kept) else []


def _parts(lines: list[str]) -> Iterator[list[str]]:
    """Split a page into the parts that are kept or removed as a whole, such as headings, rows and paragraphs."""
    at = 0
    while at < len(lines):
        end, first = at + 1, lines[at]
        if first.lstrip().startswith("```"):
            while lines[end].strip() != "```":
                end += 1
            end += 1
        elif first.strip() and not first.startswith(("|", "<!-- ")) and not _HEADING.match(first):
            while end < len(lines) and lines[end].strip() and not _begins(lines[end]):
                end += 1
        yield lines[at:end]
        at = end


def _begins(line: str) -> bool:
    return bool(_ITEM.match(line) or _HEADING.match(line) or line.startswith("|") or line.lstrip().startswith("```"))


def _leads_somewhere(page: Path, target: str, anchor: str) -> bool:
    path = page.parent / target if target else page
    return path.exists() and (not anchor or path.suffix != ".md" or anchor in _anchors(path))


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, both automatic and explicit."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    own = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return own | set(re.findall(r"\{ #([\w-]+) \}", text))
