"""A report in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fcntl", reason="drives the browser by POSIX pipes")

from tests import browser as browser_module
from tests.policies.folder.runs import write
from tests.tools.report.test_report import make_run, report

pytestmark = pytest.mark.skipif(browser_module.find() is None, reason="there is no Chromium here")

# The opaque colors in a chart.
INK = """(() => {
  const canvas = document.querySelectorAll('.chart canvas')[%d];
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const found = new Set();
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200) found.add(`${data[i]},${data[i + 1]},${data[i + 2]}`);
  return [...found];
})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[browser_module.Browser]:
    with browser_module.browser() as found:
        yield found


def test_charts_are_drawn_and_show_their_numbers(browser: browser_module.Browser, tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        make_run(tmp_path, f"slow-{seed}", seed, best=80.0 + seed)
    make_run(tmp_path, "quick", 1, rate=1e-3)
    report(tmp_path, tmp_path, "slow-1", "slow-2", "slow-3", "quick")
    browser.look(1200, 800)
    browser.open((tmp_path / "page.html").as_uri())
    browser.wait_for("document.querySelectorAll('.chart canvas').length === 2")
    assert {"0,114,178", "213,94,0"} <= set(browser.run(INK % 0)), "a line of each group, in its color"
    x, y = browser.run(
        "(() => { const box = document.querySelector('.u-over').getBoundingClientRect(); "
        "return [box.right - 1, box.y + box.height / 2]; })()"
    )
    browser.mouse("mouseMoved", x, y)
    browser.wait_for("!document.getElementById('tip').hidden")
    shown = browser.run("document.getElementById('tip').innerText")
    assert all(text in shown for text in ("step 10,000", "slow", "82", "95%: 81 to 83", "quick", "100"))
    browser.look(1200, 800, dark=True)
    browser.wait_for(f"{INK % 0}.includes('78,168,222')")
    browser.look(390, 800)
    browser.wait_for("document.querySelector('.chart canvas').clientWidth < 390")
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.problems == []


@pytest.mark.parametrize("values", [[5.0, 5.0], [0.0], [3e38, -3e38], [1e-30, 2e-30], [-7.0, 1e9]])
def test_any_numbers_can_be_drawn(browser: browser_module.Browser, tmp_path: Path, values: list[float]) -> None:
    write(tmp_path / "run" / "Ball", list(enumerate(values)))
    report(tmp_path, tmp_path, "run")
    browser.look(1200, 800)
    browser.open((tmp_path / "page.html").as_uri())
    browser.wait_for("document.querySelectorAll('.chart canvas').length === 1")
    browser.wait_for(f"{INK % 0}.includes('0,114,178')")
    assert browser.problems == []
