"""The documentation's site: pages made of code are current, and it builds without a link that leads nowhere."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import attrs
import pytest

from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml import commented

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SITE = ".zensical.toml"


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    """``scripts/pages.py``."""
    spec = importlib.util.spec_from_file_location("pages", ROOT / "scripts" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["reference/settings/index.md", "reference/api/index.md", "explanation/ppo.md"])
def test_pages_made_of_code_are_current(pages: ModuleType, name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == pages.PAGES[name](), "run: python scripts/pages.py"


def test_a_block_of_code_that_is_no_longer_there_is_told(pages: ModuleType) -> None:
    lost = "<!-- code ppo.ppo:PPO.update | # no such line | -->\n```python\n```\n"
    with pytest.raises(LookupError, match="no such line"):
        pages._BLOCK.sub(pages._current, lost)


def test_docstrings_tell_of_no_setting_that_is_not_there(pages: ModuleType) -> None:
    for _, cls in pages._sections(RunSettings, (), set()):
        assert set(commented.attributes(cls)) <= set(attrs.fields_dict(cls)), cls


def test_a_setting_without_a_meaning_is_told(pages: ModuleType) -> None:
    @attrs.frozen
    class Silent:
        """Nothing is told here."""

        key: int = 0

    with pytest.raises(LookupError, match="Silent has no entry for key"):
        pages._table((), Silent, {})


def test_the_navigation_has_every_page_once() -> None:
    groups = tomllib.loads((ROOT / SITE).read_text(encoding="utf-8"))["project"]["nav"]
    listed = [name for group in groups for names in group.values() for name in names]
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.glob("**/*.md"))


def test_the_site_builds_and_no_link_leads_nowhere(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / SITE, tmp_path)

    def build() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", SITE]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    done = build()
    assert done.returncode == 0, done.stdout + done.stderr
    html = (tmp_path / "build" / "docs" / "reference" / "settings" / "index.html").read_text(encoding="utf-8")
    assert 'id="behaviorsname"' in html
    assert "fonts.googleapis" not in html
    redirects = tomllib.loads((ROOT / SITE).read_text(encoding="utf-8"))["project"]["plugins"]["redirects"][
        "redirect_maps"
    ]
    for old, new in redirects.items():
        page = (tmp_path / "build" / "docs" / old).with_suffix(".html").read_text(encoding="utf-8")
        assert f'http-equiv="refresh" content="0; url={new.removesuffix(".md")}.html"' in page, old
        assert (tmp_path / "build" / "docs" / new).with_suffix(".html").exists()
    (tmp_path / "docs" / "index.md").write_text("[lost](install.md#no-such-section)", encoding="utf-8")
    assert build().returncode != 0
