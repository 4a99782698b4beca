"""Where the statistics go."""

from __future__ import annotations

import errno
import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.backend_context import Context as HparamsContext
from tensorboard.plugins.hparams.list_session_groups import Handler as ListGroups

from trajtrainer.core.errors import RunFolderError
from trajtrainer.core.stats import StatsReporter, StatsSummary, StatsWriter
from trajtrainer.core.steps import Aggregation
from trajtrainer.policies.folder.event_file import EventFile
from trajtrainer.run.followers import GuardedWriter
from trajtrainer.run.writers import (
    CUMULATIVE_REWARD,
    ConsoleWriter,
    Gauge,
    GaugeWriter,
    TensorboardWriter,
    hyperparameters_text,
    summary_line,
)

RUNS = ["ppo_continuous", "ppo_discrete_two_behaviors"]


def one(value: float) -> StatsSummary:
    return StatsSummary([value], Aggregation.MOST_RECENT)


def accumulated(folder: Path) -> Any:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0}).Reload()


def tensorboard_writer(tmp_path: Path) -> TensorboardWriter:
    def folder_of(category: str) -> Path:
        (tmp_path / category).mkdir(exist_ok=True)
        return tmp_path / category

    return TensorboardWriter(folder_of)


@pytest.mark.parametrize("run", RUNS)
def test_tensorboard_shows_mlagents_tags_steps_and_kinds(shared_data: Path, tmp_path: Path, run: str) -> None:
    golden = json.loads((shared_data / "golden" / "runs" / run / "tensorboard.json").read_text())
    writer = tensorboard_writer(tmp_path)
    for behavior, series in golden.items():
        reporter = StatsReporter(behavior, [writer])
        reporter.add_hyperparameters(series["tensors"]["Hyperparameters/text_summary"][0][1][0])
        steps = [step for step, _ in series["scalars"]["Policy/Entropy"]]
        histograms = {f"{tag}": entries for tag, entries in series["histograms"].items()}
        for index, step in enumerate(steps):
            for tag, points in series["scalars"].items():
                kind = Aggregation.HISTOGRAM if f"{tag}_hist" in histograms else Aggregation.AVERAGE
                reporter.add_many(tag, [points[index][1]], kind)
            reporter.set("Step", step - 3)
            reporter.set("Is Training", 1.0)
            reporter.write(step)
    writer.close()
    for behavior, series in golden.items():
        mine = accumulated(tmp_path / behavior)
        tags = mine.Tags()
        assert sorted(tags["scalars"]) == sorted(series["scalars"])
        assert sorted(tags["histograms"]) == sorted(series["histograms"])
        assert sorted(tags["tensors"]) == sorted(series["tensors"])
        for tag, points in series["scalars"].items():
            assert [[event.step, event.value] for event in mine.Scalars(tag)] == points
        for tag, entries in series["histograms"].items():
            assert [event.step for event in mine.Histograms(tag)] == [entry["step"] for entry in entries]


def test_aggregations_in_tensorboard(tmp_path: Path) -> None:
    writer = tensorboard_writer(tmp_path)
    reporter = StatsReporter("Ball", [writer])
    for kind in Aggregation:
        reporter.add("x/" + kind.name, 1.0, kind)
        reporter.add("x/" + kind.name, 4.0, kind)
    reporter.add_many("empty", [])
    reporter.add_many("nothing finite", [float("nan"), float("inf")], Aggregation.HISTOGRAM)
    reporter.write(10)
    mine = accumulated(tmp_path / "Ball")
    values = {tag: mine.Scalars(tag)[0].value for tag in mine.Tags()["scalars"] if tag.startswith("x/")}
    assert values == {"x/AVERAGE": 2.5, "x/MOST_RECENT": 4.0, "x/SUM": 5.0, "x/HISTOGRAM": 2.5}
    assert mine.Tags()["histograms"] == ["x/HISTOGRAM_hist"]
    assert "empty" not in mine.Tags()["scalars"]
    writer.close()


def test_a_full_disk_is_logged_once_and_made_up_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = tensorboard_writer(tmp_path)

    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(EventFile, "flush", full)
        for step in (1, 2, 3):
            writer.write_stats("Ball", {"a": one(step)}, step)
    assert caplog.text.count("No space left on device") == 1
    writer.write_stats("Ball", {"a": one(4)}, 4)
    writer.close()
    assert [event.step for event in accumulated(tmp_path / "Ball").Scalars("a")] == [1, 2, 3, 4]


def test_several_trainers_may_write_at_once(tmp_path: Path) -> None:
    writer = tensorboard_writer(tmp_path)

    def write(behavior: str) -> None:
        for step in range(30):
            writer.write_stats(behavior, {"a": one(step)}, step)

    threads = [threading.Thread(target=write, args=(f"B{i % 2}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    writer.close()
    for behavior in ("B0", "B1"):
        assert len(accumulated(tmp_path / behavior).Scalars("a")) == 60


REWARD = {"Environment/Cumulative Reward": StatsSummary([1.0, 2.0, 4.5])}
TRAINING = {"Is Training": one(1.0)}


@pytest.mark.parametrize(
    ("values", "ending"),
    [
        (REWARD | TRAINING, "Mean Reward: 2.500. Std of Reward: 1.472. Training."),
        (REWARD | {"Is Training": one(0.0)}, "Mean Reward: 2.500. Std of Reward: 1.472. Not Training."),
        (REWARD, "Mean Reward: 2.500. Std of Reward: 1.472. Not Training."),
        (TRAINING, "No episode was completed since last summary. Training."),
        (
            REWARD | TRAINING | {"Environment/Group Cumulative Reward": StatsSummary([3.0, 4.0])},
            "Mean Reward: 2.500. Mean Group Reward: 3.500. Training.",
        ),
        (
            REWARD | TRAINING | {"Self-play/ELO": StatsSummary([1200.0, 1201.0])},
            "Mean Reward: 2.500. Std of Reward: 1.472. Training. ELO: 1200.500.",
        ),
        (TRAINING | {"Self-play/ELO": one(1.0)}, "No episode was completed since last summary. Training."),
    ],
)
def test_summary_lines(values: dict[str, StatsSummary], ending: str) -> None:
    line = summary_line("3DBall", values, 1000, 1.2894)
    assert line == f"3DBall. Step: 1000. Time Elapsed: 1.289 s. {ending}"


@pytest.mark.parametrize("run", RUNS)
def test_the_console_shows_mlagents_lines(shared_data: Path, run: str, caplog: pytest.LogCaptureFixture) -> None:
    """From ML-Agents' own numbers the same lines come, but for the time and the spread, which no file tells."""
    golden = shared_data / "golden" / "runs" / run
    expected = [line for line in (golden / "console.txt").read_text().splitlines() if ". Step: " in line]
    series = json.loads((golden / "tensorboard.json").read_text())
    console = ConsoleWriter()
    for line in expected:
        behavior, step = line.removeprefix("[INFO] ").split(". ")[0], int(line.split("Step: ")[1].split(".")[0])
        reward = dict(series[behavior]["scalars"]["Environment/Cumulative Reward"])[step]
        with caplog.at_level(logging.INFO):
            console.write_stats(behavior, {"Environment/Cumulative Reward": one(reward)} | TRAINING, step)

    def without_measures(line: str) -> list[str]:
        return [piece.split(": ")[0] if piece.startswith(("Time", "Std")) else piece for piece in line.split(". ")]

    assert [without_measures(message) for message in caplog.messages] == [
        without_measures(line.removeprefix("[INFO] ")) for line in expected
    ]


@pytest.mark.parametrize("run", RUNS)
def test_hyperparameters_are_shown_as_mlagents_does(
    shared_data: Path, run: str, caplog: pytest.LogCaptureFixture
) -> None:
    yaml = pytest.importorskip("yaml")
    golden = shared_data / "golden" / "runs" / run
    behaviors = yaml.safe_load((golden / "configuration.yaml").read_text())["behaviors"]
    shown = json.loads((golden / "tensorboard.json").read_text())
    for name, settings in behaviors.items():
        text = hyperparameters_text(settings)
        assert text == shown[name]["tensors"]["Hyperparameters/text_summary"][0][1][0]
        with caplog.at_level(logging.DEBUG):
            ConsoleWriter().add_hyperparameters(name, text)
        assert f"[INFO] {caplog.messages[-1]}\n" in (golden / "console.txt").read_text()


def test_gauges_count_summaries() -> None:
    writer = GaugeWriter()
    for values in ([1.0, 3.0], [5.0], [0.0, 0.5]):
        writer.write_stats("3D Ball", {"Policy/Learning Rate": StatsSummary(values)}, 1)
    writer.write_stats("3D Ball", {"Policy/Learning Rate": StatsSummary([float("nan")])}, 1)
    assert writer.gauges == {
        "3DBall.Policy.LearningRate.mean": Gauge(0.25, 0.25, 5.0, 3),
        "3DBall.Policy.LearningRate.sum": Gauge(0.5, 0.5, 5.0, 3),
    }


class Broken(StatsWriter):
    def __init__(self) -> None:
        self.calls = 0

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        self.calls += 1
        raise ZeroDivisionError("a plugin's mistake")


def test_an_event_file_that_cannot_be_made_ends_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    refusals = [RunFolderError("the folder cannot be made"), RunFolderError("the folder cannot be made")]

    def folder_of(category: str) -> Path:
        if refusals:
            raise refusals.pop()
        return tmp_path / category

    writer = TensorboardWriter(folder_of)
    for step in (1, 2, 3):
        writer.write_stats("Ball", {"a": one(step)}, step)
    writer.close()
    assert [event.step for event in accumulated(tmp_path / "Ball").Scalars("a")] == [3]
    assert caplog.text.count("the folder cannot be made") == 1


def test_a_resumed_run_hides_what_was_lost(tmp_path: Path) -> None:
    for resumed, steps in ((None, (10, 20, 30)), (20, (30, 40))):
        writer = tensorboard_writer(tmp_path)
        reporter = StatsReporter("Ball", [GuardedWriter("a plugin", writer)])
        if resumed is not None:
            reporter.resume(resumed)
        for step in steps:
            reporter.set("a", step)
            reporter.write(step)
        writer.close()
    assert [event.step for event in accumulated(tmp_path / "Ball").Scalars("a")] == [10, 20, 30, 40]


def test_the_hparams_tab_shows_settings_and_newest_values(tmp_path: Path) -> None:
    """As the plugin itself finds them."""
    for run, rate in (("first", 3e-4), ("second", 1e-3)):
        (tmp_path / run).mkdir()
        writer = tensorboard_writer(tmp_path / run)
        reporter = StatsReporter("Ball", [GuardedWriter("a plugin", writer)])
        settings = {
            "trainer_type": "ppo",
            "hyperparameters": {"learning_rate": rate, "shared_critic": False},
            "init_path": None,
        }
        reporter.add_hyperparameters("text")
        reporter.add_settings(settings)
        for step in (10, 20):
            writer.write_stats("Ball", {CUMULATIVE_REWARD: one(step * rate)}, step)
        writer.close()
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    multiplexer.Reload()
    flags = SimpleNamespace(generic_data="auto")
    context = base_plugin.TBContext(
        data_provider=MultiplexerDataProvider(multiplexer, str(tmp_path)), multiplexer=multiplexer, flags=flags
    )
    backend, request = HparamsContext(context), RequestContext()
    found = backend.hparams_metadata(request, "")
    experiment = backend.experiment_from_metadata(request, "", True, found, [])
    assert {info.name for info in experiment.hparam_infos} == {
        "trainer_type",
        "hyperparameters.learning_rate",
        "hyperparameters.shared_critic",
    }
    metrics = [info.name for info in experiment.metric_infos]
    assert CUMULATIVE_REWARD in [metric.tag for metric in metrics]
    wanted = api_pb2.ListSessionGroupsRequest(
        slice_size=10, allowed_statuses=[api_pb2.STATUS_SUCCESS], col_params=[api_pb2.ColParams(metric=metrics[0])]
    )
    groups = ListGroups(request, backend, "", wanted).run().session_groups
    rewards = {
        (group.name, round(group.hparams["hyperparameters.learning_rate"].number_value, 6)): round(
            group.metric_values[0].value, 6
        )
        for group in groups
    }
    assert rewards == {("first/Ball", 3e-4): 0.006, ("second/Ball", 1e-3): 0.02}
    assert accumulated(tmp_path / "first" / "Ball").Tags()["tensors"].count("Hyperparameters/text_summary") == 1
