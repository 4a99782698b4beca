"""``python -m scripts.llms FOLDER`` adds files for language models to a built site.

It writes each page as Markdown next to its HTML, a list of the pages to ``llms.txt`` (https://llmstxt.org), and all
pages to ``llms-full.txt``.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
_HEAD = """# trajtrainer

> Trains agents in Unity ML-Agents, Gymnasium, PettingZoo and Godot environments. It replaces mlagents-learn.

Every page is also available as Markdown. `llms-full.txt` contains all pages.
"""


def pages(navigation: list[Any], group: str = "") -> Iterator[tuple[str, str]]:
    """Yield the top-level navigation group and the file name of each page."""
    for entry in navigation:
        if isinstance(entry, str):
            yield group, entry
            continue
        for title, inside in entry.items():
            yield from pages(inside if isinstance(inside, list) else [inside], group or title)


def markdown(name: str) -> str:
    """Return a page's Markdown without comments and heading anchors."""
    text = (DOCS / name).read_text(encoding="utf-8")
    text = re.sub(r"^<!--.*?-->\n+", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\{ #[\w-]+ \}", "", text)


def title(text: str) -> str:
    return str(re.findall(r"^# (.+)$", text, re.MULTILINE)[0])


def summary(text: str) -> str:
    """Return the first sentence of a page, without links."""
    paragraphs = re.split(r"\n\s*\n", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    prose = next((each for each in paragraphs if re.match(r"[A-Za-z`*\[\"]", each)), "")
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(prose.split()))
    return re.split(r"(?<!\.\.)(?<=\.)\s(?=[A-Z`*])", plain)[0].rstrip(":")


def write(site: Path) -> None:
    """Write the files to the folder of a built site."""
    navigation = tomllib.loads((ROOT / ".zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    listed, whole, last = [_HEAD], [_HEAD], ""
    for group, name in pages(navigation):
        text = markdown(name)
        if group != last:
            listed.append(f"\n## {group}\n\n")
            last = group
        about = summary(text)
        listed.append(f"- [{title(text)}]({name}){f': {about}' if about else ''}\n")
        whole.append(f"\n<!-- {name} -->\n\n{text}")
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text, encoding="utf-8")
    (site / "llms.txt").write_text("".join(listed), encoding="utf-8")
    (site / "llms-full.txt").write_text("".join(whole), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
