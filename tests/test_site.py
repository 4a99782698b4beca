"""The documentation's site: pages made of code are current, and it builds without a link that leads nowhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import trajtrainer
from scripts import llms
from scripts.pages import pages
from scripts.reference.ppo import with_current_code
from scripts.reference.settings import anchor, heading, table, walk
from trajtrainer.cli.commands import COMMANDS
from trajtrainer.cli.main import parser_of
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml import commented

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SITE = ".zensical.toml"


PROJECT = tomllib.loads((ROOT / ".zensical.toml").read_text(encoding="utf-8"))["project"]


def test_pages_made_of_code_are_current() -> None:
    made = pages()
    outdated = [name for name, page in made.items() if (DOCS / name).read_text(encoding="utf-8") != page]
    assert outdated == [], "run: python scripts/pages.py"
    listed = {path.relative_to(DOCS).as_posix() for path in DOCS.glob("reference/*/*.md")}
    assert listed - set(made) == set(), "run: python scripts/pages.py"


def test_a_block_of_code_that_is_no_longer_there_is_an_error() -> None:
    lost = "<!-- code ppo.ppo:PPO.update | # no such line | -->\n```python\n```\n"
    with pytest.raises(LookupError, match="no such line"):
        with_current_code(lost)


def test_docstrings_describe_no_setting_that_is_not_there() -> None:
    for _, cls in walk(RunSettings, (), set()):
        assert set(commented.attributes(cls)) <= set(attrs.fields_dict(cls)), cls


def test_a_setting_without_a_meaning_is_an_error() -> None:
    @attrs.frozen
    class Silent:
        """No key is described here."""

        key: int = 0

    with pytest.raises(LookupError, match="Silent has no entry for key"):
        table((), Silent, {})


@pytest.mark.parametrize("command", COMMANDS.builtin)
def test_the_page_of_a_command_has_everything_that_its_help_has(command: str) -> None:
    page = (DOCS / "reference" / "cli" / f"{command}.md").read_text(encoding="utf-8")
    help_text = parser_of(command).format_help()
    for option in set(re.findall(r"^ +(--[a-z][\w-]+)", help_text, re.MULTILINE)) - {"--help"}:
        assert re.search(rf"`{option}\b", page), option


def leaves(nav: list[Any]) -> Iterator[str]:
    """The pages in a navigation and in the groups in it."""
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for inside in entry.values():
                yield from leaves(inside if isinstance(inside, list) else [inside])


def test_the_navigation_has_every_page_once() -> None:
    assert sorted(leaves(PROJECT["nav"])) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.glob("**/*.md"))


def check_markdown(site: Path) -> None:
    """Every page is there as Markdown and in both lists, and the links in these files lead somewhere."""
    names = list(leaves(PROJECT["nav"]))
    whole = (site / "llms-full.txt").read_text(encoding="utf-8")
    listed = re.findall(
        r"^- \[[^\]]+\]\(([^)]+)\)(?:: \S.*)?$", (site / "llms.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert listed == names
    for name in names:
        page = (site / name).read_text(encoding="utf-8")
        assert page in whole
        assert (site / name).with_suffix(".html").exists()
        links = re.findall(r"\]\(([\w./-]+\.md)", page)
        assert [link for link in links if not ((site / name).parent / link).exists()] == [], name


def test_the_site_builds_and_no_link_leads_nowhere(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / SITE, tmp_path)

    def build() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", SITE]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    done = build()
    assert done.returncode == 0, done.stdout + done.stderr
    html = (tmp_path / "build" / "docs" / "reference" / "settings" / "index.html").read_text(encoding="utf-8")
    for path, _ in walk(RunSettings, (), set()):  # at the anchors of the one page that they were on
        assert not path or f'id="{anchor(heading(path)).removeprefix("#")}"' in html, path
    api = (tmp_path / "build" / "docs" / "reference" / "api" / "index.html").read_text(encoding="utf-8")
    assert [name for name in trajtrainer.__all__ if name != "__version__" and f'id="{name.lower()}"' not in api] == []
    assert "fonts.googleapis" not in html
    llms.write(tmp_path / "build" / "docs")
    check_markdown(tmp_path / "build" / "docs")
    (tmp_path / "docs" / "index.md").write_text("[lost](install.md#no-such-section)", encoding="utf-8")
    assert build().returncode != 0
