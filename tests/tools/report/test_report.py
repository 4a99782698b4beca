"""``trajtrainer report`` and ``trajtrainer plot``: what is read, how seeds are put together, what is shown."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from tests.policies.folder.runs import REWARD, write
from trajtrainer.cli.main import main
from trajtrainer.policies.folder.series import Series
from trajtrainer.tools.groups import group_runs, load_runs
from trajtrainer.tools.report.html import number
from trajtrainer.tools.spread import aggregate, difference_interval, interquartile_mean, interval

LOSS = "Losses/Policy Loss"


def make_run(results: Path, run_id: str, seed: int, *, rate: float = 3e-4, best: float = 100.0) -> None:
    """A run whose reward goes from 0 to ``best`` in ten summaries."""
    folder = results / run_id
    write(folder / "Ball", [(1000 * i, best * i / 10) for i in range(1, 11)])
    write(folder / "Ball", [(1000 * i, 1.0 / i) for i in range(1, 11)], tag=LOSS)
    content = {
        "behaviors": {"Ball": {"trainer_type": "ppo", "hyperparameters": {"learning_rate": rate}}},
        "env_settings": {"seed": seed, "base_port": 5000 + seed},
        "checkpoint_settings": {"run_id": run_id, "results_dir": str(results)},
    }
    (folder / "configuration.yaml").write_text(yaml.safe_dump(content))
    logs = folder / "run_logs"
    logs.mkdir()
    (logs / "training_status.json").write_text(json.dumps({"Ball": {"final_checkpoint": {"steps": 10_000}}}))
    step = {"total": 6.0, "count": 5, "self": 1.0, "children": {"env_wait": {"total": 5.0, "count": 5, "self": 5.0}}}
    advance = {"total": 10.0, "count": 5, "self": 1.0, "children": {"env_step": step}}
    advance["children"]["_update_policy"] = {"total": 3.0, "count": 2, "self": 3.0}  # type: ignore[index]
    (logs / "timers.json").write_text(json.dumps({"total": 10.0, "self": 0.0, "children": {"advance": advance}}))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for seed in (1, 2, 3):
        make_run(folder, f"slow-{seed}", seed, best=80.0 + seed)
        make_run(folder, f"quick-seed{seed}", seed, rate=1e-3, best=90.0 + 2 * seed)
    return folder


def test_all_sessions_of_a_resumed_run_are_counted(tmp_path: Path) -> None:
    make_run(tmp_path, "ball", 1)
    path = tmp_path / "ball" / "run_logs" / "timers.json"
    timers = json.loads(path.read_text())
    block = {"total": 100.0, "count": 2, "self": 100.0}
    earlier = {
        "sessions": 3,
        "total": 190.0,
        "count": 3,
        "self": 0.0,
        "children": {"advance": block, "env_close": block},
    }
    path.write_text(json.dumps(timers | {"earlier_sessions": earlier}))
    text = report_of(tmp_path, "ball")
    assert "3 min 20 s in 4 sessions" in text
    assert "start and end: 100 s" in text or "start and end: 1 min 40 s" in text
    assert "env_close" in text
    wrong: list[Any] = [5, [], {"total": "x", "sessions": None, "children": {"a": 3}}, {"total": 1e999, "children": []}]
    for rubbish in wrong:
        path.write_text(json.dumps(timers | {"earlier_sessions": rubbish}))
        assert "10 s" in report_of(tmp_path, "ball")


def report_of(results: Path, *runs: str) -> str:
    assert main(["report", *runs, "--results-dir", str(results), "-o", str(results / "report.html")]) == 0
    return (results / "report.html").read_text()


class TestSpread:
    @given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30))
    @settings(deadline=None)
    def test_the_interquartile_mean(self, values: list[float]) -> None:
        cut = int(0.25 * len(values))
        middle = sorted(values)[cut : len(values) - cut]
        assert float(interquartile_mean(np.array(values))) == pytest.approx(sum(middle) / len(middle), abs=1e-9)

    def test_the_interval_holds_the_truth_as_often_as_it_says(self) -> None:
        """A percentile bootstrap of ten seeds is somewhat too narrow."""
        samples = np.random.default_rng(5).normal(3.0, 2.0, (10, 400))
        low, high = interval(samples)
        inside = float(((low <= 3.0) & (high >= 3.0)).mean())
        assert 0.86 < inside < 0.97
        again, _ = interval(samples)
        assert (low == again).all(), "a report is the same each time"

    def test_the_interval_is_that_of_resampled_seeds(self) -> None:
        values = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
        rng = np.random.default_rng(1)
        means = [float(interquartile_mean(rng.choice(values, 5))) for _ in range(4000)]
        low, high = interval(values[:, None])
        assert float(low[0]) == pytest.approx(np.quantile(means, 0.025), abs=0.5)
        assert float(high[0]) == pytest.approx(np.quantile(means, 0.975), abs=0.8)

    def test_runs_of_different_steps_and_lengths(self) -> None:
        first = Series.of_points(np.array([0, 100, 200]), np.array([0.0, 10.0, 20.0]))
        second = Series.of_points(np.array([50, 150]), np.array([5.0, 35.0]))
        found = aggregate([first, second], 100)
        assert found.steps.tolist() == [0, 50, 100, 150, 200]
        assert found.num_seeds.tolist() == [1, 2, 2, 2, 1]
        assert found.middle.tolist() == [0.0, 5.0, 15.0, 25.0, 20.0]
        assert (found.low[[0, 4]] == found.middle[[0, 4]]).all()
        assert (found.low[2], found.high[2]) == (10.0, 20.0)

    def test_steps_that_are_hardly_apart_are_one_point(self) -> None:
        """As those of evaluations, which come with each seed a little later than they are due."""
        first = Series.of_points(np.array([100, 205, 301]), np.array([1.0, 2.0, 3.0]))
        second = Series.of_points(np.array([109, 200]), np.array([3.0, 6.0]))
        third = Series.of_points(np.array([104, 209, 300]), np.array([5.0, 7.0, 6.0]))
        found = aggregate([first, second, third], 100)
        assert found.steps.tolist() == [109, 209, 301]
        assert found.num_seeds.tolist() == [3, 3, 2]
        assert found.middle == pytest.approx([(1 + 9 / 105 + 3 + 5 + 2 * 5 / 105) / 3, (2 + 4 / 96 + 6 + 7) / 3, 4.5])

    def test_a_gap_between_runs_is_no_course(self) -> None:
        first, second = (Series.of_points(np.array(steps), np.array([1.0, 2.0])) for steps in ([0, 10], [20, 30]))
        assert aggregate([first, second], 100).num_seeds.tolist() == [1, 1, 1, 1]
        long = Series.of_points(np.arange(10_000), np.arange(10_000, dtype=np.float64))
        thin = aggregate([long], 50)
        assert len(thin.steps) == 50
        assert (thin.steps[0], thin.steps[-1]) == (0, 9999)


class TestGroups:
    def test_runs_that_differ_in_their_seed_only_are_one_group(self, results: Path) -> None:
        words = [
            "slow-1",
            "quick-seed1",
            "slow-2",
            str(results / "quick-seed2"),
            str(results / "slow-3" / "Ball"),
            "slow-1",
        ]
        groups = group_runs(load_runs(words, results))
        assert [group.name for group in groups] == ["slow", "quick"]
        assert [[run.name for run in group.runs] for group in groups] == [
            ["slow-1", "slow-2", "slow-3"],
            ["quick-seed1", "quick-seed2"],
        ]
        assert [run.seed for run in groups[0].runs] == [1, 2, 3]
        assert groups[0].settings["behaviors.Ball.hyperparameters.learning_rate"] == 3e-4

    def test_runs_without_settings_stay_apart(self, tmp_path: Path) -> None:
        for name in ("a1", "a2"):
            write(tmp_path / name / "Ball", [(1, 1.0)])
        (tmp_path / "a2" / "configuration.yaml").write_text("a: [")
        assert [group.name for group in group_runs(load_runs(["a1", "a2"], tmp_path))] == ["a1", "a2"]


class Page(HTMLParser):
    """Elements of a page, and the texts in cells of tables."""

    VOID = ("meta",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.external: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.external += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def report(tmp_path: Path, results: Path, *runs: str) -> str:
    output = tmp_path / "page.html"
    assert main(["report", *runs, "--results-dir", str(results), "-o", str(output)]) == 0
    return output.read_text(encoding="utf-8")


def lines_of(text: str) -> list[Any]:
    """The lines of each chart."""
    return [json.loads(data) for data in re.findall(r'<script type="application/json">(.*?)</script>', text)]


def test_the_interval_of_a_difference_resamples_each_side() -> None:
    random = np.random.default_rng(1)
    values, first = random.normal(12.0, 1.0, 10), random.normal(10.0, 1.0, 8)
    low, high = difference_interval(values, first)
    middle = interquartile_mean(values) - interquartile_mean(first)
    assert low < middle < high
    assert 0 < low < high < 4
    assert difference_interval(np.full(3, 5.0), np.full(4, 2.0)) == (3.0, 3.0)


class TestPage:
    def test_it_shows_what_the_runs_have(self, tmp_path: Path, results: Path) -> None:
        text = report(tmp_path, results, "slow-1", "slow-2", "slow-3", "quick-seed1", "quick-seed2", "quick-seed3")
        page = Page(text)
        assert page.open == []
        assert page.external == [], "nothing is fetched"
        assert "http" not in text.replace("http-equiv", "").replace("/*! https://github.com/leeoniya/uPlot", "")
        assert "Leon Sorokin" in text, "the license of uPlot asks for its notice"
        assert ["Ball", "Cumulative Reward", "slow", "3", "10k", "82", "81 to 83", "82", "81 to 83"] in page.rows
        assert ["behaviors.Ball.hyperparameters.learning_rate", "0.0003", "0.001"] in page.rows
        assert ["behaviors.Ball.trainer_type", "ppo"] in page.rows
        assert ["slow-2", "slow", "2", "yes", str(results / "slow-2")] in page.rows
        assert ["_update_policy", "3 s", "30.0%", "2 times"] in page.rows
        assert "environment: 5 s, 50.0%" in text
        assert "learn: 3 s, 30.0%" in text
        assert re.findall("<figcaption>(.*?)</figcaption>", text) == [REWARD, LOSS]
        lines = lines_of(text)[0]
        drawn = [(line["name"], line["color"], len(line["seeds"])) for line in lines]
        assert drawn == [("slow", 0, 3), ("quick", 1, 3)]
        assert (lines[0]["low"][-1], lines[0]["mean"][-1], lines[0]["high"][-1]) == (81, 82, 83)

    def test_the_difference_between_groups_has_an_interval(self, tmp_path: Path, results: Path) -> None:
        names = ["slow-1", "slow-2", "slow-3", "quick-seed1", "quick-seed2", "quick-seed3"]
        rows = Page(report(tmp_path, results, *names)).rows
        assert ["behavior", "", "runs", "last tenth, difference from slow", "95%"] in rows
        assert ["Ball", "Cumulative Reward", "quick", "+12", "+10 to +14"] in rows
        rows = Page(report(tmp_path, results, "slow-1", *names[3:])).rows
        assert ["Ball", "Cumulative Reward", "quick", "+13", ""] in rows, "one seed has no spread"
        assert "difference from" not in report(tmp_path, results, *names[:3])

    def test_evaluations_are_a_row_each(self, tmp_path: Path) -> None:
        folder = tmp_path / "run" / "Ball"
        for which, values in {
            "Cumulative Reward": (2.0, 9.5, 7.5),
            "Cumulative Reward Std": (0.5, 0.25, 1.5),
            "Cumulative Reward Min": (1.0, 9.0, 5.0),
            "Cumulative Reward Max": (3.0, 10.0, 8.0),
            "Episode Length": (20.0, 95.0, 75.0),
            "Team 1 Cumulative Reward": (1.0, 2.0, 3.0),
        }.items():
            write(folder, list(zip((1000, 2010, 3000), values, strict=True)), tag=f"Evaluation/{which}")
        rows = Page(report(tmp_path, tmp_path, "run")).rows
        titles = next(row for row in rows if "evaluations" in row)
        found = [dict(zip(titles[3:], row[3:], strict=True)) for row in rows if row[:2] == ["Ball", "run"]]
        all_of_them = {"evaluations": "3", "last": "7.5", "std": "1.5", "min to max": "5 to 8", "length": "75"}
        assert found[0] == all_of_them | {"at step": "2.01k", "best": "9.5"}, "of two titles that are alike the second"
        assert (found[1]["last"], found[1]["std"], found[1]["length"]) == ("3", "", "")
        assert len(found) == 2

    def test_a_chart_has_the_numbers_of_its_run(self, tmp_path: Path, results: Path) -> None:
        ((line,), _) = lines_of(report(tmp_path, results, "slow-1"))
        assert line["x"] == [1000 * i for i in range(1, 11)]
        assert line["mean"] == pytest.approx([8.1 * i for i in range(1, 11)])
        assert line["seeds"] == []

    def test_names_from_files_are_text(self, tmp_path: Path) -> None:
        evil = "<script>alert(1)</script>&\"'"
        folder = tmp_path / "run" / "B<i>"
        write(folder, [(1, 1.0), (2, 2.0)], tag=evil)
        (tmp_path / "run" / "configuration.yaml").write_text(yaml.safe_dump({"behaviors": {evil: {"x": evil}}}))
        (tmp_path / "run" / "run_logs").mkdir()
        timers = {"total": 1.0, "children": {evil: {"total": 1.0, "self": 1.0, "count": "many"}}}
        (tmp_path / "run" / "run_logs" / "timers.json").write_text(json.dumps(timers))
        text = report(tmp_path, tmp_path, "run")
        assert Page(text).open == []
        assert "<script>alert" not in text
        assert "<i>" not in text
        assert "Content-Security-Policy" in text

    @pytest.mark.parametrize("name", ["configuration.yaml", "run_logs/timers.json", "run_logs/training_status.json"])
    @pytest.mark.parametrize("content", ["", "[", "[1, 2]", '{"total": "x", "children": [1], "Ball": 3}'])
    def test_damaged_files_are_left_out(self, tmp_path: Path, name: str, content: str) -> None:
        make_run(tmp_path, "run", 1)
        (tmp_path / "run" / name).write_text(content)
        assert REWARD in report(tmp_path, tmp_path, "run")


def test_numbers_are_short() -> None:
    assert [number(value) for value in (0, 12_500, 1.5e6, 0.031, 1.2e-7, -3, 2e15)] == [
        *("0", "12.5k", "1.5M", "0.031", "1.2e-07", "-3", "2e+15")
    ]


class TestPicture:
    def plot(self, results: Path, output: Path, *options: str) -> int:
        return main(
            ["plot", "slow-1", "slow-2", "quick-seed1", "--results-dir", str(results), "-o", str(output), *options]
        )

    def test_it_is_drawn(self, tmp_path: Path, results: Path) -> None:
        assert self.plot(results, tmp_path / "one.png") == 0
        assert self.plot(results, tmp_path / "two.svg", "--tag", LOSS, "--tag", REWARD, "--behavior", "Ball") == 0
        with Image.open(tmp_path / "one.png") as picture:
            colors = {color for _, color in picture.convert("RGB").getcolors(1 << 20) or []}
        assert {(0, 114, 178), (213, 94, 0)} <= colors, "a line of each group"
        text = (tmp_path / "two.svg").read_text()
        assert ElementTree.fromstring(text).tag.endswith("svg")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--tag", "Environment/Cumulative Rewrd"], f"no such tag.*{REWARD}.*They have:\n  {REWARD}\n  {LOSS}"),
            (["--behavior", "Bal"], "--behavior Bal: these runs have Ball"),
            (["-o", "picture.docx"], "must end in .*png"),
            (["-o", "/proc/nowhere.png"], "/proc/nowhere.png: the file cannot be written"),
        ],
    )
    def test_mistakes(
        self, tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
    ) -> None:
        assert self.plot(results, tmp_path / "x.png", *options) == 1
        assert re.search(message, capsys.readouterr().err, re.DOTALL)
        assert not (tmp_path / "x.png").exists()

    def test_without_matplotlib(
        self, tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
        assert self.plot(results, tmp_path / "x.png") == 1
        assert "pip install 'trajtrainer[plot]'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["report", "plot"])
def test_a_run_that_cannot_be_read_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "ball" / "Ball", [(1, 1.0), (2, 2.0)])
    output = tmp_path / "x.svg"
    arguments = [command, "ball", "empty", "--results-dir", str(tmp_path), "-o", str(output)]
    assert main(arguments) == 0
    assert output.exists()
    told = capsys.readouterr()
    assert "empty has no event files" in told.out + told.err
    assert "Skipping this run." in told.out + told.err


@pytest.mark.parametrize("command", ["report", "plot"])
def test_runs_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    (tmp_path / "empty").mkdir()
    arguments = [command, "missing", "empty", "--results-dir", str(tmp_path), "-o", str(tmp_path / "x.png")]
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert "There is no run 'missing'" in error
    assert "empty has no event files" in error


def test_a_run_of_ml_agents(tmp_path: Path, shared_data: Path) -> None:
    """Its files as they were recorded, and its scalars as its writer writes them."""
    golden = shared_data / "golden" / "runs" / "ppo_continuous"
    run = tmp_path / "theirs"
    (run / "run_logs").mkdir(parents=True)
    for name in ("configuration.yaml", "run_logs/timers.json", "run_logs/training_status.json"):
        (run / name).write_bytes((golden / name).read_bytes())
    recorded: dict[str, Any] = json.loads((golden / "tensorboard.json").read_text())
    for behavior in recorded:
        with SummaryWriter(str(run / behavior)) as writer:
            writer.add_scalar(REWARD, 7.5, 1000)
    text = report(tmp_path, tmp_path, "theirs")
    page = Page(text)
    assert [next(iter(recorded)), "Cumulative Reward", "theirs", "1", "1k", "7.5", "", "7.5", ""] in page.rows
    assert any(row[0].endswith("learning_rate") for row in page.rows)
    assert "env_step" in {row[0] for row in page.rows}
