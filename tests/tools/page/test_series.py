"""Curves of the page: of damaged event files, and of histograms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.util.tensor_util import make_tensor_proto

from tests.policies.folder.runs import REWARD
from trajtrainer.policies.folder import event_file
from trajtrainer.policies.folder.contained_folder import ContainedFolder
from trajtrainer.policies.folder.event_file import EventFile
from trajtrainer.tools.page.viewer import Viewer


def damaged_events(folder: Path, how_many: int) -> None:
    """Points with wall times that cannot be, between points of a second after 1970."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [Event(wall_time=1.0, step=1, summary=Summary(value=[Summary.Value(tag=REWARD, simple_value=1.0)]))]
    for i in range(how_many):
        wrong = (1e308, -1e308, float("nan"), float("inf"), -1.0, 1e200)[i % 6]
        value = Summary.Value(tag=REWARD, simple_value=2.0)
        records.append(Event(wall_time=wrong, step=100 + i, summary=Summary(value=[value])))
    records.append(
        Event(wall_time=2.0, step=9999, summary=Summary(value=[Summary.Value(tag=REWARD, simple_value=3.0)]))
    )
    for i in range(40):  # doubles, as newer writers have them, whose sum is infinite
        huge = make_tensor_proto(1.7e308, np.float64)
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
        value = Summary.Value(tag="huge", tensor=huge, metadata=metadata)
        records.append(Event(wall_time=3.0, step=20_000 + i, summary=Summary(value=[value])))
    (folder / "events.out.tfevents.1").write_bytes(b"".join(event_file.record(each) for each in records))


@pytest.mark.parametrize("how_many", [6, 60], ids=["one by one", "together"])
def test_moments_and_values_that_cannot_be_are_left_out(tmp_path: Path, how_many: int) -> None:
    damaged_events(tmp_path / "run" / "Ball", how_many)
    viewer = Viewer(ContainedFolder(tmp_path))
    for by_time in (False, True):
        found = viewer.series(["run"], "Ball", REWARD, 10, (-1e17, 1e17), by_time=by_time)["run"]
        json.dumps(found, allow_nan=False)
        assert (found["steps"], found["times"], found["mean"]) == ([1, 9999], [0.0, 1.0], [1.0, 3.0])
        json.dumps(viewer.series(["run"], "Ball", "huge", 10, (-1e17, 1e17), by_time=by_time), allow_nan=False)
    json.dumps([viewer.summaries(), viewer.details("run")], allow_nan=False)


class TestHistograms:
    """What a run of a Gaussian writes whose mean is its number; its buckets are a tenth wide."""

    def values(self, number: int) -> NDArray[np.float64]:
        return np.random.default_rng(number).normal(100 + number, 5, 2000)

    def write(self, folder: Path, numbers: range, resumed_at: int | None = None) -> None:
        file = EventFile(folder, resumed_at)
        for number in numbers:
            file.add([event_file.scalar("a", number), event_file.histogram("H", self.values(number))], 10 * number)
        file.close()

    def series(self, results: Path, tag: str = "H") -> dict[str, Any]:
        viewer = Viewer(ContainedFolder(results))
        assert tag in viewer.tags(["run"])["run"]["tags"]["Ball"]
        found: dict[str, Any] = viewer.series(["run"], "Ball", tag, 1000, (-1e17, 1e17), by_time=False)["run"]
        json.dumps(found, allow_nan=False)
        return found

    @pytest.mark.parametrize("count", [5, 60], ids=["one by one", "together"])
    def test_percentiles_are_those_of_the_values(self, tmp_path: Path, count: int) -> None:
        self.write(tmp_path / "run" / "Ball", range(1, count + 1))
        found = self.series(tmp_path)
        assert found["steps"] == [10 * number for number in range(1, count + 1)]
        levels = [found["low"], found["bands"][0][0], found["bands"][1][0], found["mean"]]
        levels += [found["bands"][1][1], found["bands"][0][1], found["high"]]
        for i, number in enumerate(range(1, count + 1)):
            exact = np.percentile(self.values(number), [0, 5, 25, 50, 75, 95, 100])
            np.testing.assert_allclose([level[i] for level in levels], exact, rtol=0.06)
        extremes = [self.values(1).min(), self.values(1).max()]
        np.testing.assert_allclose([found["low"][0], found["high"][0]], extremes, rtol=1e-6)
        assert self.series(tmp_path, "a")["mean"] == list(range(1, count + 1))

    def test_what_a_killed_run_had_written_is_left_out(self, tmp_path: Path) -> None:
        self.write(tmp_path / "run" / "Ball", range(1, 10))
        self.write(tmp_path / "run" / "Ball", range(6, 8), resumed_at=55)
        assert self.series(tmp_path)["steps"] == [10, 20, 30, 40, 50, 60, 70]
