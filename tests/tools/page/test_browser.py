"""The page in a real browser: what a person sees and does there."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs the extra 'page'")
pytest.importorskip("uvicorn", reason="needs the extra 'page'")
pytest.importorskip("fcntl", reason="drives the browser by POSIX pipes")

from tests import browser as browser_module
from tests.policies.folder.runs import LOG, REWARD, make_run, write_events
from tests.tools.page.serving import opened, watching
from trajtrainer.policies.folder import event_file
from trajtrainer.policies.folder.event_file import EventFile
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.settings.run import CheckpointSettings

pytestmark = pytest.mark.skipif(browser_module.find() is None, reason="there is no Chromium here")

EVIL = "<img src=x onerror=window.bad=1>"
NUM_CHARTS = "document.querySelectorAll('.chart canvas').length"


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (390, True)], ids=["desktop", "phone"])
def test_curves_and_details_fit_on_the_screen(
    browser: browser_module.Browser, tmp_path: Path, width: int, dark: bool
) -> None:
    make_run(tmp_path, "ball", log=f"{LOG}2026-01-01 10:03:00 ERROR [x.py:1] {EVIL}\n")
    make_run(tmp_path, EVIL, gain=2.0)
    browser.look(width, 900, dark=dark)
    with watching(browser, tmp_path) as served:
        opened(browser, served)
        browser.wait_for(f"{NUM_CHARTS} >= 1")
        ink = browser.run(
            "(() => { const canvas = document.querySelector('.chart canvas'); "
            "const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data; "
            "return data.filter((value, i) => i % 4 === 3 && value > 0).length; })()"
        )
        assert ink > 300, "nothing is drawn"
        legend = browser.run("[...document.querySelectorAll('.legend li')].map((each) => each.textContent).join('|')")
        assert legend == f"{EVIL}|ball"
        opened(browser, served, "view=run&run=ball")
        browser.wait_for("document.querySelectorAll('.part').length >= 4")
        text = browser.run("document.getElementById('run').innerText")
        for word in ("Heavy", "Warnings and errors", EVIL, "Ball/Ball-2000.onnx", "step 2,000 of 2,000"):
            assert word in text
        assert "1,235" in text, "the rating"
        assert "started" not in browser.run("document.querySelector('.records').innerText")
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("window.bad") is None
        assert browser.run("document.querySelectorAll('#run img, aside img').length") == 0
        assert browser.run("getComputedStyle(document.body).backgroundColor") == (
            "rgb(14, 18, 23)" if dark else "rgb(246, 247, 249)"
        )


def test_curves_grow_are_smoothed_and_zoomed(browser: browser_module.Browser, tmp_path: Path) -> None:
    make_run(tmp_path, "ball")
    make_run(tmp_path, "other", gain=2.0)
    browser.look(1400, 900)
    tip = "document.getElementById('tip')"
    with watching(browser, tmp_path) as served:
        opened(browser, served, "smoothing=0&show=ball")
        browser.wait_for(f"{NUM_CHARTS} >= 2")
        rectangle = "document.querySelector('.u-over').getBoundingClientRect()"
        box = browser.run(f"(({{x, y, width, height}}) => [x, y, width, height])({rectangle})")
        right, middle = box[0] + box[2] - 2, box[1] + box[3] / 2
        browser.mouse("mouseMoved", right, middle)
        browser.wait_for(f"!{tip}.hidden")
        assert browser.run(f"{tip}.innerText").split() == ["step", "2,000", "ball", "20"]
        write_events(tmp_path / "ball" / "Ball", [(2500, {REWARD: 77.0})])

        def seen() -> str:
            browser.mouse("mouseMoved", right - 1, middle)
            browser.mouse("mouseMoved", right, middle)
            return str(browser.run(f"{tip}.innerText"))

        for _ in range(200):
            if "77" in seen():
                break
            threading.Event().wait(0.05)
        assert "2,500" in seen()
        browser.mouse("mousePressed", box[0] + box[2] * 0.2, middle, 1)
        browser.mouse("mouseMoved", box[0] + box[2] * 0.4, middle, 1)
        browser.mouse("mouseReleased", box[0] + box[2] * 0.4, middle)
        browser.wait_for("!document.querySelector('button.plain').hidden")
        for _ in range(200):
            if "2,500" not in seen() and "step" in seen():
                break
            threading.Event().wait(0.05)
        assert 900 < int(seen().split()[1].replace(",", "")) < 1300
        browser.click("button.plain")
        browser.run(
            "(() => { const slider = document.querySelector('.slider input'); slider.value = 0.9; "
            "slider.dispatchEvent(new Event('input')); })()"
        )
        assert browser.run("document.querySelector('.slider output').textContent") == "0.90"
        browser.click(".runs li:nth-child(2) input")
        browser.wait_for("document.querySelectorAll('.legend li').length === 2")
        assert "show=other" in browser.run("location.hash")
        assert "smoothing=0.9" in browser.run("location.hash")


def test_the_values_stay_visible_under_a_smoothed_line(browser: browser_module.Browser, tmp_path: Path) -> None:
    """Also where a point stands for several values, which have a band."""
    write_events(tmp_path / "ball" / "Ball", [(step, {REWARD: float(step % 7)}) for step in range(1, 5001)])
    browser.look(1400, 900)
    with watching(browser, tmp_path) as served:
        opened(browser, served, "show=ball")
        browser.wait_for(f"{NUM_CHARTS} >= 1")
        browser.run(
            "(() => { const own = uPlot; uPlot = class extends own { constructor(options, data, place) { "
            "super(options, data, place); "
            "window.drawn = options.series.map(({ width, stroke }) => [width, stroke]); } }; "
            "const slider = document.querySelector('.slider input'); slider.value = 0.9; "
            "slider.dispatchEvent(new Event('input')); })()"
        )
        browser.wait_for("window.drawn !== undefined")
        lines = [(width, stroke[:7]) for width, stroke in browser.run("drawn.slice(1)") if width]
        assert lines == [(1, "#0072b2"), (2, "#0072b2")], "the values, and their mean in front of them"


def test_histograms_are_drawn_as_bands_of_percentiles(browser: browser_module.Browser, tmp_path: Path) -> None:
    file = EventFile(make_run(tmp_path, "ball") / "Ball")
    for number in range(1, 31):
        file.add([event_file.histogram(f"{REWARD}_hist", np.linspace(0.0, 100.0 * number, 1001))], 100 * number)
    file.close()
    browser.look(1400, 900)
    tip = "document.getElementById('tip')"
    chart = "[...document.querySelectorAll('.chart')].find((each) => each.innerText.includes('_hist'))"
    with watching(browser, tmp_path) as served:
        opened(browser, served, "show=ball")
        browser.wait_for(f"!!{chart}?.querySelector('canvas')")
        assert "percentiles" in browser.run(f"{chart}.innerText")
        box = f"{chart}.querySelector('.u-over').getBoundingClientRect()"
        x, y, width, height = browser.run(f"(({{x, y, width, height}}) => [x, y, width, height])({box})")
        browser.mouse("mouseMoved", x + width - 2, y + height / 2)
        browser.wait_for(f"!{tip}.hidden")
        shown = browser.run(f"{tip}.innerText").replace("\n", " ")
        assert shown.startswith("step 3,000 ball median 1")
        assert "all: 0 to 3k" in shown


def test_an_empty_folder_tells_what_to_do_and_a_run_that_appears_is_shown(
    browser: browser_module.Browser, tmp_path: Path
) -> None:
    browser.look(1400, 900)
    with watching(browser, tmp_path / "results") as served:  # which does not exist either
        opened(browser, served)
        browser.wait_for("document.body.innerText.includes('trajtrainer learn')")
        assert "No runs yet\nWaiting for the first run in" in browser.run("document.body.innerText").replace(
            "\n\n", "\n"
        )
        make_run(tmp_path / "results", "ball")
        browser.wait_for(f"{NUM_CHARTS} >= 1")
        assert "No runs yet" not in browser.run("document.body.innerText")


def test_every_file_on_the_list_can_be_downloaded(browser: browser_module.Browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / "results", "ball #1 & co")
    large = bytes(range(256)) * 5000
    for name in ("Ball/checkpoint.pt", "Ball/best.pt", "Ball/best.onnx", "Ball/best-1900.pt", "Ball/replay.hdf5"):
        (run / name).write_bytes(name.encode() + large)
    (run / "run_logs" / "Player-0.log").write_bytes(b"line\r\n\0\xff")
    (run / "recorded 100% +ä.demo").write_bytes(b"demo")
    (run / "empty.txt").touch()
    expected = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    browser.look(1400, 900)
    browser.save_downloads(downloads)
    links = "[...document.querySelectorAll('#run td a')]"
    with watching(browser, tmp_path / "results") as served:
        opened(browser, served, "view=run&run=ball+%231+%26+co")
        browser.wait_for(f"{links}.length === {len(expected)}")
        browser.press(
            "[...document.querySelectorAll('#run summary')].find((each) => /other files/.test(each.innerText))"
        )
        browser.wait_for(f"{links}.every((each) => each.offsetHeight > 0)")
        assert set(browser.run(f"{links}.map((each) => each.innerText)")) == expected.keys()
        for path, content in expected.items():
            browser.press(f"{links}.find((each) => each.innerText === {json.dumps(path)})")
            assert browser.downloaded() == (Path(path).name, content)
            time.sleep(0.12)  # Chromium ignores links after ten downloads within a second


def test_what_is_selected_stays_selected_while_the_run_goes_on(browser: browser_module.Browser, tmp_path: Path) -> None:
    run = make_run(tmp_path, "ball")
    browser.look(1400, 900)
    steps = "document.querySelector('#run .far span').innerText"
    with watching(browser, tmp_path) as served:
        opened(browser, served, "view=run&run=ball")
        for title in ("Settings", "other files"):
            browser.press(
                "[...document.querySelectorAll('#run summary')]"
                f".find((each) => each.innerText.includes({json.dumps(title)}))"
            )
        cell = "[...document.querySelectorAll('#run code')].find((each) => each.textContent === 'env_settings.seed')"
        link = "[...document.querySelectorAll('#run td a')].find((each) => each.innerText === 'configuration.yaml')"
        browser.wait_for(f"{link}?.offsetHeight > 0 && {cell}.offsetHeight > 0")
        browser.run(f"window.first = [{cell}, {link}]; getSelection().selectAllChildren(first[0])")
        for step in (2500, 2600, 2700):
            write_events(run / "Ball", [(step, {REWARD: 1.0})])
            browser.wait_for(f"{steps} === 'step {step:,} of 2,000'")
            assert browser.run("getSelection().toString()") == "env_settings.seed"
            assert browser.run(f"first[0] === {cell} && first[1] === {link} && first[1].offsetHeight > 0")
        settings = (run / "configuration.yaml").read_text()
        (run / "configuration.yaml").write_text(settings.replace("seed: 7", "seed: 8"))
        write_events(run / "Ball", [(2800, {REWARD: 1.0})])
        browser.wait_for(f"{cell}.parentNode.nextSibling.innerText === '8'")


def test_how_long_ago_it_was_goes_on_though_nothing_is_written(browser: browser_module.Browser, tmp_path: Path) -> None:
    run = make_run(tmp_path, "ball")
    for path in run.rglob("*"):
        os.utime(path, (time.time() - 3600, time.time() - 3600))
    browser.look(1400, 900)
    with watching(browser, tmp_path) as served:
        opened(browser, served, "view=run&run=ball")
        browser.wait_for("document.querySelector('.runs li')?.innerText.includes('updated 1 h 0 min ago')")
        # As if an hour had gone by.
        browser.run("document.querySelectorAll('time[data-kind]').forEach((each) => each.dataset.moment -= 3600)")
        browser.wait_for("document.querySelector('.runs li').innerText.includes('updated 2 h 0 min ago')")


def test_a_run_at_work_shows_how_long_it_has_been_running(browser: browser_module.Browser, tmp_path: Path) -> None:
    """Not how long it had been running when it wrote that the last time."""
    run = make_run(tmp_path, "ball")
    timers = {
        "total": 20.0,
        "self": 20.0,
        "metadata": {"start_time_seconds": str(int(time.time()) - 300)},
        "earlier_sessions": {"sessions": 2, "start_time_seconds": "1000000000", "total": 3600.0, "self": 3600.0},
    }
    (run / "run_logs" / "timers.json").write_text(json.dumps(timers))
    folder = RunFolder(CheckpointSettings(run_id="ball", resume=True, results_dir=str(tmp_path)))
    browser.look(1400, 900)
    facts = "document.querySelector('#run .facts')?.innerText"
    with watching(browser, tmp_path) as served, folder.exclusive():
        opened(browser, served, "view=run&run=ball")
        browser.wait_for(f"/running for\\n1 h 5 min in 3 sessions/.test({facts})")
        assert "Sep 9, 2001" in browser.run(facts), "when the first session started"
        assert "took" not in browser.run(facts)


def test_the_button_stops_the_run_that_is_at_work(browser: browser_module.Browser, tmp_path: Path) -> None:
    browser.look(1400, 900)
    for name in ("ball", "cube"):
        make_run(tmp_path, name)
    folder, other = (
        RunFolder(CheckpointSettings(run_id=name, resume=True, results_dir=str(tmp_path))) for name in ("ball", "cube")
    )
    with watching(browser, tmp_path) as served:
        with folder.exclusive(), other.exclusive():
            opened(browser, served, "view=run&run=cube")
            browser.wait_for("document.querySelector('.stop')?.innerText === 'Stop'")
            browser.click(".stop")
            browser.wait_for("document.querySelector('.stop').innerText === 'Save and stop?'")
            assert not other.take_stop(), "one click is not enough"
            browser.run("location.hash = 'view=run&run=ball'")
            browser.wait_for("document.querySelector('.head h2')?.innerText === 'ball'")
            assert browser.run("document.querySelector('.stop').innerText") == "Stop", "that click was another run's"
            browser.click(".stop")
            browser.wait_for("document.querySelector('.stop').innerText === 'Save and stop?'")
            browser.click(".stop")
            browser.wait_for("document.querySelector('.head').innerText.includes('stopping')")
            assert folder.take_stop()
        browser.wait_for("document.querySelector('.head .chip').innerText === 'finished'")
        assert browser.run("document.querySelector('.stop').hidden")
