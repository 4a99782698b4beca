"""A browser for the tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.browser import Browser


@pytest.fixture(scope="module")
def _chromium() -> Iterator[Browser]:
    from tests.browser import browser as started  # needs POSIX

    with started() as found:
        yield found


@pytest.fixture
def browser(_chromium: Browser, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    """A tab that has no problems during the test, and a server that looks for changes often."""
    monkeypatch.setattr("trajtrainer.tools.page.server._PAUSE_S", 0.05)
    monkeypatch.setattr("trajtrainer.tools.page.runs._SEARCH_S", 0.05)
    monkeypatch.setattr("trajtrainer.tools.page.viewer._LIST_S", 0.05)
    _chromium.problems.clear()
    yield _chromium
    assert _chromium.problems == []
