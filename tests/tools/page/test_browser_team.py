"""What a team does on the page, in a real browser: tables, comparisons, seeds, axes, files, notes and news."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("starlette", reason="needs the extra 'page'")
pytest.importorskip("uvicorn", reason="needs the extra 'page'")
pytest.importorskip("fcntl", reason="drives the browser by POSIX pipes")

from tests import browser as browser_module
from tests.browser import Browser
from tests.policies.folder.runs import REWARD, make_run, write_events
from tests.tools.page.serving import opened, watching
from trajtrainer.policies.folder.notes import RunNotes, notes_file, write_notes
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.settings.run import CheckpointSettings

pytestmark = pytest.mark.skipif(browser_module.find() is None, reason="there is no Chromium here")

EVIL = "<img src=x onerror=window.bad=1>"
NAMES = "[...document.querySelectorAll('#table tbody .name')].map((each) => each.textContent)"
HEADS = "[...document.querySelectorAll('#table thead button')].map((each) => each.firstChild.data)"
COUNT = "document.querySelector('#table .tools [role=status]').textContent"
DRAWN = "document.querySelector('#curves .chart canvas') !== null"
CHART = "document.querySelector('#curves .chart')"


def type_into(browser: Browser, element: str, text: str) -> None:
    browser.run(
        f"(() => {{ const box = {element}; box.value = {json.dumps(text)}; "
        "box.dispatchEvent(new Event('input', { bubbles: true })); box.dispatchEvent(new Event('change')); })()"
    )


def button(text: str, within: str = "body") -> str:
    return f"[...document.querySelectorAll('{within} button')].find((each) => each.textContent === {json.dumps(text)})"


def open_menu(browser: Browser, within: str) -> None:
    browser.press(f"document.querySelector('{within} .menu summary')")
    browser.wait_for(f"document.querySelector('{within} .menu-body').hasChildNodes()")


def choose(browser: Browser, label: str, within: str = "body") -> None:
    """Tick or clear a box."""
    labels = f"[...document.querySelectorAll('{within} label.check')]"
    browser.press(f"{labels}.find((each) => each.textContent === {json.dumps(label)})")


def make_team(results: Path) -> None:
    """Two learning rates with three and one seeds, and another behavior."""
    for seed in (1, 2, 3):
        make_run(results, f"slow-s{seed}", gain=seed, seed=seed, more={"hyperparameters": {"learning_rate": 3e-4}})
    make_run(results, "quick", gain=10.0, seed=1, more={"hyperparameters": {"learning_rate": 1e-3}})
    make_run(results, "cube", behavior="Cube", gain=0.5)


class TestTable:
    def test_it_is_sorted_and_filtered_and_the_address_keeps_that(self, browser: Browser, tmp_path: Path) -> None:
        make_team(tmp_path)
        browser.look(1400, 900)
        with watching(browser, tmp_path) as served:
            opened(browser, served, "view=table&sort=reward")
            browser.wait_for(f"{HEADS}.includes('learning_rate') && {NAMES}.length === 5")
            assert browser.run(NAMES) == ["cube", "slow-s1", "slow-s2", "slow-s3", "quick"]
            heads = browser.run(HEADS)
            assert heads[:5] == ["Run", "Behavior", "State", "Step", "Mean reward"]
            assert {"learning_rate", "seed"} <= set(heads)
            assert "max_steps" not in heads, "all have the same"
            browser.press(button("learning_rate", "#table"))
            browser.wait_for(f"{NAMES}[0] === 'quick'")
            assert browser.run(NAMES)[-1] == "cube", "which has none"
            assert browser.run(
                "[...document.querySelectorAll('#table th')].map((each) => each.ariaSort).filter(Boolean)"
            ) == ["descending"]
            for text, expected in (
                ("reward>=40", ["quick", "slow-s2", "slow-s3"]),
                ("learning_rate=3e-4 seed<3", ["slow-s1", "slow-s2"]),
                ("slow reward!=40", ["slow-s1", "slow-s3"]),
                ("state=finished behavior=cube", ["cube"]),
                ("hyperparameters.learning_rate>0.0005", ["quick"]),
                ("nothing", []),
                ('"ow-s"', ["slow-s1", "slow-s2", "slow-s3"]),
            ):
                type_into(browser, "document.querySelector('#table .where')", text)
                assert sorted(browser.run(NAMES)) == expected, text
                assert browser.run(COUNT).startswith(f"{len(expected)} of 5")
            type_into(browser, "document.querySelector('#table .where')", "speed>3")
            assert browser.run(COUNT) == "There is no column speed."
            type_into(browser, "document.querySelector('#table .where')", "reward>=40")
            address = browser.run("location.hash")
            opened(browser, served, address[1:])
            browser.wait_for(f"{NAMES}.length === 3 && {HEADS}.includes('learning_rate')")
            assert browser.run(NAMES)[0] == "quick"
            assert browser.run("document.querySelector('#table .where').value") == "reward>=40"

    def test_columns_are_chosen_and_saved(self, browser: Browser, tmp_path: Path) -> None:
        make_team(tmp_path)
        browser.look(1400, 900)
        (tmp_path / "downloads").mkdir()
        browser.save_downloads(tmp_path / "downloads")
        with watching(browser, tmp_path) as served:
            opened(browser, served, "view=table&sort=id&columns=reward")
            browser.wait_for(f"{NAMES}.length === 5")
            assert browser.run(HEADS) == ["Run", "Mean reward"]
            browser.wait_for("document.querySelectorAll('#table tbody tr').length === 5")
            open_menu(browser, "#table")
            type_into(browser, "document.querySelector('#table .menu-body input')", "loss")
            choose(browser, "Losses/Policy Loss", "#table")
            browser.wait_for(f"{HEADS}.includes('Policy Loss')")
            type_into(browser, "document.querySelector('#table .menu-body input')", "learning")
            choose(browser, "hyperparameters.learning_rate", "#table")
            browser.wait_for(f"{HEADS}.length === 4")
            assert "columns=reward+m%3ALosses.PolicyLoss+s%3Ahyperparameters.learning_rate" in browser.run(
                "location.hash"
            )
            browser.run(
                "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }))"
            )
            assert not browser.run("document.querySelector('#table .menu').open")
            browser.press(button("Save CSV", "#table"))
            name, content = browser.downloaded()
            assert name == "runs.csv"
            assert content.decode().splitlines() == [
                "run,Mean reward,Losses/Policy Loss,hyperparameters.learning_rate",
                "cube,10,0.025,",
                "quick,200,0.5,0.001",
                "slow-s1,20,0.05,0.0003",
                "slow-s2,40,0.1,0.0003",
                "slow-s3,60,0.15000000000000002,0.0003",
            ]

    def test_a_row_selects_curves_and_leads_to_its_run(self, browser: Browser, tmp_path: Path) -> None:
        make_run(tmp_path, EVIL)
        make_run(tmp_path, "ball")
        write_notes(tmp_path / "ball", RunNotes(f"{EVIL}\nmore", (EVIL,)))
        browser.look(390, 844)
        with watching(browser, tmp_path) as served:
            opened(browser, served, "view=table&sort=id&show=ball")
            browser.wait_for(f"{NAMES}.length === 2")
            assert browser.run("document.documentElement.scrollWidth") <= 390
            browser.press("document.querySelector('#table tbody tr input')")
            browser.wait_for("location.hash.includes('onerror')")
            assert browser.run("document.querySelectorAll('#table .key.c1').length") == 1
            assert EVIL in browser.run("document.querySelector('#table').innerText")
            browser.press("document.querySelectorAll('#table .name')[1]")
            browser.wait_for("document.querySelector('#run h2')?.textContent === 'ball'")
            assert browser.run("window.bad") is None

    def test_it_shows_the_first_of_many_rows_and_what_is_new(self, browser: Browser, tmp_path: Path) -> None:
        for number in range(205):
            (tmp_path / f"run-{number:03}" / "run_logs").mkdir(parents=True)
            (tmp_path / f"run-{number:03}" / "Ball").mkdir()
            (tmp_path / f"run-{number:03}" / "Ball" / "events.out.tfevents.1").touch()
        browser.look(1400, 900)
        with watching(browser, tmp_path) as served:
            opened(browser, served, "view=table&sort=id")
            browser.wait_for(f"{NAMES}.length === 200")
            assert browser.run(COUNT) == "205 rows, the first 200 shown"
            browser.press(button("Show more rows"))
            browser.wait_for(f"{NAMES}.length === 205")
            assert browser.run(f"{button('Show more rows')}.hidden")
            write_events(tmp_path / "run-000" / "Ball", [(700, {REWARD: 5.0})])
            make_run(tmp_path, "another")
            browser.wait_for(f"{NAMES}[0] === 'another'")


def test_trials_are_folded_under_their_search(browser: Browser, tmp_path: Path) -> None:
    then = time.time() - 3600
    for number in range(3):
        run = make_run(tmp_path, f"sweep/trial-{number:04d}", gain=number + 1.0)
        for path in run.rglob("*"):
            os.utime(path, (then + number, then + number))
    (tmp_path / "sweep" / "study.journal").touch()
    for name in ("old", "new"):
        make_run(tmp_path, name)
    for path in (tmp_path / "old").rglob("*"):
        os.utime(path, (then - 60, then - 60))
    browser.look(1400, 900)
    listed = "[...document.querySelectorAll('.runs .name')].map((each) => each.textContent)"
    legend = "[...document.querySelectorAll('#curves .legend li')].map((each) => each.textContent)"
    with watching(browser, tmp_path) as served:
        opened(browser, served, "view=curves")
        browser.wait_for(f"{listed}.join() === 'new,▸ sweep,old'")
        browser.wait_for(f"{legend}.length === 3")
        assert browser.run(legend) == ["new", "old", "sweep/trial-0002"], "of a search, the newest trial"
        assert "3 runs: 3 finished" in browser.run("document.querySelector('.runs').innerText")
        browser.press("document.querySelectorAll('.runs .name')[1]")
        browser.wait_for(f"{listed}.join() === 'new,▾ sweep,trial-0002,trial-0001,trial-0000,old'")
        browser.press("document.querySelectorAll('.runs input')[1]")  # all of the search
        browser.wait_for(f"{legend}[2] === 'sweep, 3 linessweep/trial-0002sweep/trial-0001sweep/trial-0000'")
        assert browser.run("document.querySelector('.legend details').open") is False
        assert "open=sweep" in browser.run("location.hash")
        opened(browser, served, "view=table&sort=-reward")
        browser.wait_for(f"{NAMES}.join() === '▸ sweep,new,old'")
        assert browser.run(COUNT) == "5 rows"
        browser.press("document.querySelector('#table tbody .name')")
        browser.wait_for(f"{NAMES}.join() === '▾ sweep,trial-0002,trial-0001,trial-0000,new,old'")
        browser.press("document.querySelector('#table tbody .name')")
        browser.wait_for(f"{NAMES}.join() === '▸ sweep,new,old'")
        type_into(browser, "document.querySelector('#table .where')", "trial-0001")
        browser.wait_for(f"{NAMES}.join() === '▾ sweep,trial-0001'")


def test_settings_of_two_runs_side_by_side(browser: Browser, tmp_path: Path) -> None:
    make_team(tmp_path)
    browser.look(1400, 900)
    rows = (
        "[...document.querySelectorAll('#compare tbody tr')]"
        ".map((row) => [...row.children].map((each) => each.innerText))"
    )
    with watching(browser, tmp_path) as served:
        opened(browser, served, "view=compare&a=slow-s1&b=quick")
        browser.wait_for(f"{rows}.length > 4")
        found = {name: values for name, *values in browser.run(rows)}
        assert found["behaviors.Ball.hyperparameters.learning_rate"] == ["0.0003", "0.001"]
        assert found["mean reward"] == ["20", "200"]
        assert found["state"] == ["finished", "finished"]
        assert "env_settings.seed" not in found, "the same"
        browser.press("document.querySelector('#compare summary')")
        browser.wait_for(f"{rows}.some(([name, value]) => name === 'env_settings.seed' && value === '1')")
        browser.press(button("Swap"))
        browser.wait_for(f"{rows}.some(([name, a, b]) => name === 'mean reward' && a === '200' && b === '20')")
        assert "a=quick&b=slow-s1" in browser.run("location.hash")
        type_into(browser, "document.querySelector('#compare select:nth-of-type(2)')", "cube")
        browser.wait_for(f"{rows}.some(([name]) => name === 'behaviors.*.hyperparameters.learning_rate')")
        found = {name: values for name, *values in browser.run(rows)}
        assert found["behaviors.*.hyperparameters.learning_rate"] == ["0.001", "–"]
        assert "behaviors.*.max_steps" not in found or len(found["behaviors.*.max_steps"]) == 1
        type_into(browser, "document.querySelector('#compare input[type=search]')", "seed")
        browser.wait_for(f"{rows}.at(-1)[0] === 'env_settings.seed' && !{rows}.some(([name]) => name.includes('rate'))")
        browser.look(390, 844)
        assert browser.run("document.documentElement.scrollWidth") <= 390


class TestCurves:
    def tip_at_the_end(self, browser: Browser, chart: str = CHART) -> str:
        x, y = browser.run(
            f"(() => {{ {chart}.scrollIntoView({{ block: 'center' }}); "
            f"const box = {chart}.querySelector('.u-over').getBoundingClientRect(); "
            "return [box.right - 2, box.y + box.height / 2]; })()"
        )
        browser.mouse("mouseMoved", x - 3, y)
        browser.mouse("mouseMoved", x, y)
        browser.wait_for("!document.getElementById('tip').hidden")
        return str(browser.run("document.getElementById('tip').innerText")).replace("\n", " ")

    def test_seeds_are_one_line_with_a_band(self, browser: Browser, tmp_path: Path) -> None:
        make_team(tmp_path)
        browser.look(1400, 900)
        legend = "[...document.querySelectorAll('#curves .legend li')].map((each) => each.textContent)"
        ids = "&".join(f"show={run}" for run in ("slow-s1", "slow-s2", "slow-s3", "quick"))
        with watching(browser, tmp_path) as served:
            opened(browser, served, f"view=curves&smoothing=0&{ids}")
            browser.wait_for(f"{legend}.length === 4 && {DRAWN}")
            choose(browser, "Seeds together", "#curves")
            browser.wait_for(f"{legend}.length === 2")
            assert browser.run(legend) == ["slow 3 seeds", "quick"]
            assert "seeds=together" in browser.run("location.hash")
            browser.wait_for(f"{CHART}.querySelector('.plot').ariaLabel.includes('slow: 40 at step 2000; quick: 200')")
            assert "slow 40 95%: 20 to 60 quick 200" in self.tip_at_the_end(browser)
            keys = "[...document.querySelectorAll('.runs .key')].map((each) => each.className)"
            assert browser.run(keys) == ["key", "key c1", "key c0", "key c0", "key c0"], "a color for each line"
            choose(browser, "Seeds together", "#curves")
            browser.wait_for(f"{legend}.length === 4")
            browser.wait_for(f"{CHART}.querySelector('.plot').ariaLabel.includes('slow-s3: 60')")

    def test_axes(self, browser: Browser, tmp_path: Path) -> None:
        make_run(tmp_path, "ball")
        browser.look(1400, 900)
        caption = f"{CHART}.querySelector('figcaption').innerText"
        ticks = (
            "(() => { const found = window.texts = [], type = CanvasRenderingContext2D.prototype, own = type.fillText; "
            "type.fillText = function (text, ...more) { found.push(text); own.call(this, text, ...more); }; })()"
        )
        with watching(browser, tmp_path) as served:
            opened(browser, served, "view=curves&smoothing=0.6&show=ball&filter=cumulative")
            browser.wait_for(DRAWN)
            browser.wait_for(f"/smoothed 0.60/.test({caption})")
            browser.run(ticks)
            open_menu(browser, "#curves .chart")
            choose(browser, "Logarithmic values", "#curves")
            browser.wait_for("window.texts.includes('1') && window.texts.includes('10')")
            assert "log" in browser.run(caption)
            assert "axis=Environment%2FCumulative+Reward%7Clog%7C%7C" in browser.run("location.hash")
            assert "steps" in browser.run("window.texts"), "the title of the axis"
            box = f"{CHART}.querySelectorAll('.menu-body input[type=number]')"
            browser.run("window.texts.length = 0")
            type_into(browser, f"{box}[1]", "1000")
            browser.wait_for("window.texts.includes('1k')")
            browser.run("window.texts.length = 0")
            type_into(browser, f"{box}[2]", "500")
            type_into(browser, f"{box}[3]", "900")
            browser.wait_for("window.texts.includes('600') && !window.texts.includes('2k')")
            assert "from=500&to=900" in browser.run("location.hash")
            opened(browser, served, browser.run("location.hash")[1:])
            browser.wait_for(f"/log/.test({caption})")
            browser.run(ticks)
            choose(browser, "Log axis", "#curves")
            browser.click("#curves > .tools button.plain")  # reset the zoom
            browser.wait_for("window.texts.includes('100') && window.texts.includes('1k')")
            assert "logx=1" in browser.run("location.hash")
            choose(browser, "Log axis", "#curves")
            browser.press(f"{CHART}.querySelector('button.icon')")
            browser.wait_for("window.texts.includes('Cumulative Reward')")

    @pytest.mark.parametrize("values", [[0.0, 0.0], [-3.0, 5.0], [5.0], [1e-30, 1e30], [-1e-5, 0.0]])
    @pytest.mark.parametrize("steps", [[0, 10], [5, 50_000]])
    def test_any_numbers_have_a_logarithmic_axis(
        self, browser: Browser, tmp_path: Path, values: Sequence[float], steps: Sequence[int]
    ) -> None:
        write_events(
            tmp_path / "ball" / "Ball", [(step, {REWARD: value}) for step, value in zip(steps, values, strict=False)]
        )
        browser.look(1400, 900)
        with watching(browser, tmp_path) as served:
            opened(browser, served, f"view=curves&show=ball&logx=1&axis={REWARD.replace(' ', '+')}|log||")
            browser.wait_for(DRAWN)
            assert browser.run(f"/log/.test({CHART}.querySelector('figcaption').innerText)")

    def test_files_of_a_chart(self, browser: Browser, tmp_path: Path) -> None:
        for seed in (1, 2):
            make_run(tmp_path / "results", f"=ball {seed}", seed=seed, gain=seed)
        (tmp_path / "downloads").mkdir()
        browser.look(1400, 900)
        browser.save_downloads(tmp_path / "downloads")
        with watching(browser, tmp_path / "results") as served:
            opened(browser, served, "view=curves&filter=cumulative&seeds=together")
            browser.wait_for(DRAWN)
            open_menu(browser, "#curves .chart")
            browser.press(button("Save CSV", "#curves"))
            name, content = browser.downloaded()
            assert name == "ball-environment-cumulative-reward.csv"
            lines = content.decode().splitlines()
            assert lines[0] == "run,step,value,low,high"
            assert lines[1].startswith("'=ball,100,1.5,"), "not a formula"
            assert len(lines) == 21
            browser.press(button("Save PNG", "#curves"))
            name, content = browser.downloaded()
            assert name == "ball-environment-cumulative-reward.png"
            (tmp_path / "chart.png").write_bytes(content)
            with Image.open(tmp_path / "chart.png") as image:
                assert image.width == 1200
                colors = {color for _, color in image.convert("RGB").getcolors(1 << 24) or ()}
            assert {(255, 255, 255), (0, 114, 178)} <= colors, "background and line"
            command = shlex.split(browser.run(f"{CHART}.querySelector('.command').textContent"))
        assert command[:4] == ["trajtrainer", "plot", "=ball 1", "=ball 2"]
        pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
        subprocess.run([sys.executable, "-m", *command], check=True, cwd=tmp_path, timeout=120)
        assert "<svg" in (tmp_path / "cumulative-reward.svg").read_text()


class TestRun:
    def test_the_model_the_reward_and_the_machine(self, browser: Browser, tmp_path: Path) -> None:
        run = make_run(tmp_path / "results", "ball")
        usage = {"Perf/CPU": 3.5, "Perf/Memory": 1.25}
        write_events(run / "Ball", [(2000 + step, {**usage, REWARD: 21.0}) for step in (100, 200)])
        (tmp_path / "downloads").mkdir()
        browser.look(1400, 900)
        browser.save_downloads(tmp_path / "downloads")
        charts = "[...document.querySelectorAll('#run .plot')].map((each) => each.ariaLabel)"
        with watching(browser, tmp_path / "results") as served:
            opened(browser, served, "view=run&run=ball")
            browser.wait_for("document.querySelectorAll('#run .chart').length === 3")
            assert browser.run("[...document.querySelectorAll('#run .primary')].map((each) => each.textContent)") == [
                "Download Ball.onnx"
            ]
            browser.press("document.querySelector('#run .primary')")
            assert browser.downloaded() == ("Ball.onnx", (run / "Ball.onnx").read_bytes())
            browser.wait_for(f"{charts}[0].includes('ball: 21 at step 2200')")
            browser.run("document.querySelectorAll('#run .chart')[2].scrollIntoView()")
            browser.wait_for(f"{charts}[1] === 'CPU (cores) over steps; ball: 3.5 at step 2200'")
            browser.wait_for(f"{charts}[2] === 'Memory (GiB) over steps; ball: 1.25 at step 2200'")
            write_events(run / "Ball", [(2300, {REWARD: 33.0})])
            browser.run("scrollTo(0, 0)")
            browser.wait_for(f"{charts}[0].includes('ball: 33 at step 2300')")

    def test_the_command_that_continues_it_is_copied(self, browser: Browser, tmp_path: Path) -> None:
        make_run(tmp_path, "ball")
        browser.look(1400, 900)
        with watching(browser, tmp_path) as served:
            origin = f"http://127.0.0.1:{served.port}"
            browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite"], origin=origin)
            opened(browser, served, "view=run&run=ball")
            browser.press(button("Copy command", "#run"))
            browser.wait_for(f"!!{button('Copied', '#run')}")
            copied = shlex.split(browser.run("navigator.clipboard.readText()"))
            assert copied[:2] == ["trajtrainer", "learn"]
            assert {"--resume", "--run-id=ball", f"--results-dir={tmp_path}"} <= set(copied)
            assert "raise max_steps" in browser.run("document.querySelector('#run').innerText")
            folder = RunFolder(CheckpointSettings(run_id="ball", resume=True, results_dir=str(tmp_path)))
            with folder.exclusive():
                browser.wait_for("document.querySelector('.head .chip').innerText === 'running'")
                browser.wait_for(f"!{button('Copy command', '#run')}")

    def test_a_film_in_its_folder_is_shown(self, browser: Browser, tmp_path: Path) -> None:
        run = make_run(tmp_path, "ball")
        first, *more = [Image.new("RGB", (64, 48), (shade, 0, 0)) for shade in (50, 150, 250)]
        first.save(run / "evaluation.gif", save_all=True, append_images=more)
        browser.look(390, 844)
        with watching(browser, tmp_path) as served:
            opened(browser, served, "view=run&run=ball")
            browser.wait_for("document.querySelector('#run .film img')?.naturalWidth === 64")
            imageio = pytest.importorskip("imageio.v2", reason="needs the extra 'video'")
            pytest.importorskip("imageio_ffmpeg", reason="needs the extra 'video'")
            imageio.mimsave(run / "later.mp4", [[[[0, 200, 0]] * 64] * 48] * 10, fps=10)
            write_events(run / "Ball", [(2500, {REWARD: 1.0})])
            browser.wait_for("document.querySelector('#run .film video') !== null")
            browser.wait_for("document.querySelector('#run .film video').duration > 0.5")

    def test_notes_labels_and_the_archive(self, browser: Browser, tmp_path: Path) -> None:
        make_run(tmp_path, "ball")
        make_run(tmp_path, "cube")
        browser.look(1400, 900)
        note, labels = "document.querySelector('.notes textarea')", "document.querySelector('.notes input')"
        listed = "[...document.querySelectorAll('.runs .name')].map((each) => each.textContent)"
        with watching(browser, tmp_path) as served:
            opened(browser, served, "view=run&run=ball")
            browser.wait_for(f"{note} !== null && {listed}.length === 2")
            assert browser.run(f"{button('Save note')}.disabled")
            type_into(browser, note, f"{EVIL}\nIt works.")
            type_into(browser, labels, "paper, baseline,,")
            write_events(tmp_path / "ball" / "Ball", [(2500, {REWARD: 1.0})])
            browser.wait_for("/2,500/.test(document.querySelector('#run .far').innerText)")
            assert browser.run(f"{note}.value") == f"{EVIL}\nIt works.", "what someone is writing stays"
            browser.press(button("Save note"))
            browser.wait_for("document.querySelectorAll('.head .label').length === 2")
            assert json.loads(notes_file(tmp_path / "ball").read_text())["labels"] == ["baseline", "paper"]
            assert browser.run(f"{labels}.value") == "baseline, paper"
            write_notes(tmp_path / "ball", RunNotes("of someone else"))
            browser.wait_for(f"{note}.value === 'of someone else'")
            type_into(browser, note, "mine")
            write_notes(tmp_path / "ball", RunNotes("of a third"))
            browser.press(button("Save note"))
            browser.wait_for("/Someone else/.test(document.querySelector('.notes [role=status]').textContent)")
            assert browser.run(f"{note}.value") == "mine"
            browser.problems.clear()  # that the server refused it
            browser.press(button("Archive"))
            browser.wait_for(f"{listed}.join() === 'cube'")
            written = json.loads(notes_file(tmp_path / "ball").read_text())
            assert written.pop("about")  # which run they are about
            assert written == {"text": "of a third", "labels": [], "archived": True}
            opened(browser, served, "view=table")
            browser.wait_for(f"{NAMES}.join() === 'cube'")
            choose(browser, "Archived", "#table")
            browser.wait_for(f"{NAMES}.length === 2")
            assert "archived=1" in browser.run("location.hash")
            opened(browser, served, "view=run&run=ball")
            browser.press(button("Take out of the archive"))
            browser.wait_for(f"{listed}.length === 2")
            assert browser.run("window.bad") is None


class TestTitle:
    def test_it_says_when_runs_end_or_fail(self, browser: Browser, tmp_path: Path) -> None:
        for name in ("ball", "cube"):
            make_run(tmp_path, name)
        folders = {
            name: RunFolder(CheckpointSettings(run_id=name, resume=True, results_dir=str(tmp_path)))
            for name in ("ball", "cube")
        }
        browser.look(1400, 900)
        with watching(browser, tmp_path) as served:
            with folders["cube"].exclusive():
                with folders["ball"].exclusive():
                    opened(browser, served)
                    browser.wait_for(f"document.title === '▶ 2 running – {tmp_path.name} – trajtrainer'")
                browser.wait_for("document.title === '✓ ball finished – trajtrainer'")
                log = tmp_path / "cube" / "run_logs" / "trainer.log"
                log.write_text(log.read_text() + "2026-01-01 11:00:00 ERROR [run.py:1] The run ends: It broke.\n")
            browser.wait_for("document.title === '✗ cube failed and 1 more run – trajtrainer'")
            browser.press("document.querySelector('#news button')")
            browser.wait_for("document.querySelector('#run h2')?.textContent === 'cube'")
            browser.wait_for(f"document.title === '{tmp_path.name} – trajtrainer'")

    def test_also_while_the_page_is_not_seen(self, browser: Browser, tmp_path: Path) -> None:
        make_run(tmp_path, "ball")
        folder = RunFolder(CheckpointSettings(run_id="ball", resume=True, results_dir=str(tmp_path)))
        browser.look(1400, 900)
        with watching(browser, tmp_path) as served:
            with folder.exclusive():
                opened(browser, served)
                browser.wait_for("document.title.startsWith('▶ 1 running')")
                browser.run(
                    "Object.defineProperty(document, 'hidden', { get: () => true, configurable: true }); "
                    "document.dispatchEvent(new Event('visibilitychange'))"
                )
            browser.wait_for("document.title === '✓ ball finished – trajtrainer'")


def test_the_address_of_every_view_survives_a_reload(browser: Browser, tmp_path: Path) -> None:
    make_team(tmp_path)
    browser.look(1400, 900)
    with watching(browser, tmp_path) as served:
        for view in ("table", "curves", "run", "compare"):
            opened(browser, served)
            browser.wait_for("document.querySelectorAll('.runs li').length === 5")
            browser.press(f"document.querySelector('[data-view={view}]')")
            address = browser.run("location.hash")
            assert f"view={view}" in address
            opened(browser, served, address[1:])
            browser.wait_for(f"getComputedStyle(document.getElementById('{view}')).display !== 'none'")
            assert browser.run("document.querySelector('[aria-current=page]').dataset.view") == view


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390], ids=["desktop", "phone"])
def test_every_tab_fits_and_can_be_read(browser: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    """Nothing is wider than the screen, and texts have the contrast that WCAG 2 asks for (4.5, AA)."""
    make_team(tmp_path)
    run = make_run(tmp_path, "walker-with-a-very-long-name-of-which-no-part-can-be-broken-" + "x" * 60)
    write_events(run / "Ball", [(2100, {"Perf/CPU": 2.0})])
    write_notes(run, RunNotes("A note. " * 100, ("a long label of forty characters, or so", "paper")))
    browser.look(width, 900, dark=dark)
    contrasts = """(() => {
      const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
      const light = (colors) => {
        context.clearRect(0, 0, 1, 1);
        for (const color of colors) { context.fillStyle = color; context.fillRect(0, 0, 1, 1); }
        const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].map((each) => each / 255)
          .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const found = [];
      const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !element.checkVisibility({ opacityProperty: true })) continue;
        if (element.closest(":disabled, option, noscript, .unseen")) continue;
        const backs = [];
        for (let each = element; each; each = each.parentElement) backs.unshift(getComputedStyle(each).backgroundColor);
        const back = light(backs), front = light([...backs, getComputedStyle(element).color]);
        const contrast = (Math.max(back, front) + 0.05) / (Math.min(back, front) + 0.05);
        if (contrast < 4.5) found.push([walker.currentNode.data, contrast]);
      }
      return found;
    })()"""
    with watching(browser, tmp_path) as served:
        for view in ("table", "curves", "run", "compare", *(["runs"] if width < 800 else [])):
            opened(browser, served, f"view={view}&run={run.name}&show={run.name}&show=quick&a={run.name}&b=quick")
            ready = {
                "table": f"{HEADS}.includes('learning_rate')",
                "compare": "document.querySelector('.compare') !== null",
            }
            browser.wait_for(ready.get(view, "document.querySelector('.chart canvas, .runs li') !== null"))
            browser.wait_for(f"document.documentElement.scrollWidth <= {width}")  # once everything is drawn
            assert browser.run(contrasts) == [], view
            picture = tmp_path / f"{view}.png"
            browser.picture(picture)
            with Image.open(picture) as image:
                assert image.size == (width, 900)


def test_it_is_operated_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    make_team(tmp_path)
    browser.look(1400, 900)

    def press(key: str, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            browser.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                text=text * (kind == "keyDown"),
            )

    focused = "document.activeElement"
    with watching(browser, tmp_path) as served:
        opened(browser, served, "view=table&sort=id")
        browser.wait_for(f"{NAMES}.length === 5")
        browser.run("document.querySelector('#table .where').focus()")
        press("Tab", 9)
        assert browser.run(f"{focused}.textContent") == "Columns"
        press("Enter", 13, "\r")
        browser.wait_for("document.querySelector('#table .menu-body').hasChildNodes()")
        press("Tab", 9)
        browser.wait_for(f"{focused}.placeholder === 'Search columns'")
        press("Escape", 27)
        assert browser.run(f"{focused}.textContent") == "Columns"
        assert not browser.run("document.querySelector('#table .menu').open")
        for _ in range(20):
            press("Tab", 9)
            if browser.run(f"{focused}.textContent").startswith("Mean reward"):
                break
        press("Enter", 13, "\r")
        browser.wait_for(f"{NAMES}[0] === 'quick'")
        assert browser.run(f"{focused}.textContent").startswith("Mean reward"), "the focus stays"
        browser.run(f"{focused}.closest('table').querySelector('tbody input').focus()")
        press(" ", 32, " ")
        browser.wait_for("document.querySelectorAll('#table tbody input:checked').length !== 4")
        assert browser.run(f"{focused}.type") == "checkbox", "the focus stays"
        for _ in range(30):
            press("Tab", 9)
            if browser.run(f"{focused}.textContent") == "quick":
                break
        press("Enter", 13, "\r")
        browser.wait_for("document.querySelector('#run h2')?.textContent === 'quick'")
