"""``python scripts/pages.py`` generates documentation from the code.

It writes pages in docs/reference, their entries in .zensical.toml, and the code blocks of docs/explanation/ppo.md.
"""

from __future__ import annotations

import re
from pathlib import Path

from scripts.reference.api import api_pages
from scripts.reference.commands import command_pages
from scripts.reference.ppo import with_current_code
from scripts.reference.settings import settings_pages

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SITE = ROOT / ".zensical.toml"
PPO = "explanation/ppo.md"


def pages() -> dict[str, str]:
    """Return path in docs -> content, for all generated pages."""
    made = {
        **{f"reference/{name}": page for name, page in command_pages().items()},
        **{f"reference/settings/{name}": page for name, page in settings_pages().items()},
        **{f"reference/api/{name}": page for name, page in api_pages().items()},
    }
    return {**made, PPO: with_current_code((DOCS / PPO).read_text(encoding="utf-8"))}


def navigation(site: str, made: dict[str, str]) -> str:
    """Return the site's configuration, with the pages of each generated folder listed after the folder's comment."""
    for folder in ("cli", "settings", "api"):
        listed = [name for name in made if re.match(rf"reference/{folder}/(?!index)", name)]
        titles = {name: re.findall(r"^# (?:trajtrainer )?(.+)$", made[name], re.MULTILINE)[0] for name in listed}
        lines = "".join(f'      {{ "{title}" = "{name}" }},\n' for name, title in titles.items())
        site = re.sub(rf"(# pages.py: {folder}\n)(?:.*\"reference/.*\n)*", rf"\g<1>{lines}", site)
    return site


if __name__ == "__main__":
    current = pages()
    for old in (path for folder in ("api", "cli", "settings") for path in DOCS.glob(f"reference/{folder}/*.md")):
        if old.relative_to(DOCS).as_posix() not in current:
            old.unlink()
    for name, page in current.items():
        (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / name).write_text(page, encoding="utf-8")
    SITE.write_text(navigation(SITE.read_text(encoding="utf-8"), current), encoding="utf-8")
