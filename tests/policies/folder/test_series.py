"""What is kept of event files: every extreme, in bounded memory, read on from where it was."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.histogram_pb2 import HistogramProto
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.util.tensor_util import make_tensor_proto

from tests.policies.folder.runs import REWARD, write_events
from trajtrainer.policies.folder import event_file, event_reader, saved_run
from trajtrainer.policies.folder.contained_folder import ContainedFolder
from trajtrainer.policies.folder.event_file import EventFile, masked_crc
from trajtrainer.policies.folder.event_reader import parse_records, percentiles, percentiles_of_tensor, scalar_of
from trajtrainer.policies.folder.series import BehaviorCurves, Curve

MOST = 1 << 12


def extended(curve: Curve, steps: list[int], most: int = 64) -> None:
    """The value at a step is a number of its own, and so is the moment."""
    column = np.array(steps, np.int64)
    curve.extend(column, column / 2 + 1e9, np.sin(column * 1.7) * column, most)


class TestHistograms:
    def test_newer_histograms(self) -> None:
        rows = np.array([[0.0, 1.0, 0.0], [1.0, 2.0, 3.0], [2.0, 4.0, 1.0], [4.0, 9.0, 0.0]])
        found = percentiles_of_tensor(make_tensor_proto(rows, np.float64))
        assert found is not None
        np.testing.assert_allclose(found, [1, 1 + 0.2 / 3, 4 / 3, 5 / 3, 2, 3.6, 4])

    @pytest.mark.parametrize(
        "wrong",
        [
            HistogramProto(),
            HistogramProto(min=0, max=1, bucket=[1.0], bucket_limit=[]),
            HistogramProto(min=0, max=1, bucket=[-1.0], bucket_limit=[1.0]),
            HistogramProto(min=2, max=1, bucket=[1.0], bucket_limit=[1.0]),
            HistogramProto(min=float("nan"), max=1, bucket=[1.0], bucket_limit=[1.0]),
            HistogramProto(min=-1e308, max=1e308, bucket=[1.0], bucket_limit=[1.0]),
            HistogramProto(min=0, max=1, bucket=[1e308, 1e308], bucket_limit=[0.5, 1.0]),
            HistogramProto(min=0, max=1, bucket=[1.0, 1.0], bucket_limit=[1.0, 0.5]),
            HistogramProto(min=0, max=1, bucket=[1.0, 1.0], bucket_limit=[0.5, float("nan")]),
        ],
    )
    def test_damaged_ones_are_left_out(self, wrong: Any) -> None:
        assert percentiles(wrong) is None
        value = Summary.Value(tag="H", histo=wrong)
        record = Event(wall_time=1.0, step=1, summary=Summary(value=[value])).SerializeToString()
        assert parse_records([record]).histograms == parse_records([record] * 40).histograms == {}

    @pytest.mark.parametrize(
        "rows", [np.zeros((0, 3)), np.zeros((4, 2)), np.zeros(3), np.array([[0.0, 1.0, 0.0], [1.0, 2.0, -1.0]])]
    )
    def test_newer_ones_that_are_empty_or_damaged_are_left_out(self, rows: NDArray[np.float64]) -> None:
        assert percentiles_of_tensor(make_tensor_proto(rows, np.float64)) is None

    def test_newer_histograms_are_read_from_their_records(self) -> None:
        def record(step: int, content: Any) -> bytes:
            metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="histograms"))
            value = Summary.Value(tag="H", tensor=content, metadata=metadata)
            return bytes(Event(wall_time=1.0, step=step, summary=Summary(value=[value])).SerializeToString())

        whole = make_tensor_proto(np.array([[0.0, 2.0, 4.0]]), np.float64)
        text = make_tensor_proto(["no", "numbers"])
        found = parse_records([record(1, whole), record(2, text), record(3, whole)])
        assert found.points == {}
        assert found.histograms["H"].steps.tolist() == [1, 3]
        np.testing.assert_allclose(found.histograms["H"].values, [[0, 0.1, 0.5, 1, 1.5, 1.9, 2]] * 2)


@pytest.mark.parametrize(
    "content", [make_tensor_proto(["text"]), make_tensor_proto([1.0, 2.0]), TensorProto(dtype=99), TensorProto(dtype=1)]
)
def test_a_tensor_that_is_no_single_number_is_no_scalar(content: Any) -> None:
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
    assert scalar_of(Summary.Value(tag="x", tensor=content, metadata=metadata)) is None


class TestCurve:
    @given(st.lists(st.integers(1, 90), min_size=1, max_size=12), st.sampled_from([16, 64]))
    @settings(deadline=None, max_examples=60)
    def test_extremes_mean_and_newest_point_outlive_all_thinning(self, sizes: list[int], most: int) -> None:
        curve, begin = Curve(), 0
        for size in sizes:
            extended(curve, list(range(begin, begin + size)), most)
            begin += size
        steps = np.arange(begin)
        values = np.sin(steps * 1.7) * steps
        found = curve.series()
        assert curve._size <= most
        assert (found.low.min(), found.high.max()) == (values.min(), values.max())
        assert curve.last == (begin - 1, (begin - 1) / 2 + 1e9, values[-1])
        assert (np.diff(found.steps) > 0).all()
        assert found.steps[-1] == begin - 1
        borders = np.searchsorted(steps, found.steps, "right")
        pieces = np.split(values, borders[:-1])
        np.testing.assert_allclose(found.low, [piece.min() for piece in pieces])
        np.testing.assert_allclose(found.high, [piece.max() for piece in pieces])
        np.testing.assert_allclose(found.values, [piece.mean() for piece in pieces], atol=1e-9)

    def test_few_points_are_kept_as_they_are(self) -> None:
        curve = Curve()
        extended(curve, [10, 20, 30])
        found = curve.series(100)
        assert found.steps.tolist() == [10, 20, 30]
        assert found.values.tolist() == found.low.tolist() == found.high.tolist()

    def test_a_part_is_sampled_finer_with_a_neighbor_at_each_end(self) -> None:
        curve = Curve()
        extended(curve, list(range(1000)), 4096)
        assert len(curve.series(50).steps) == 50
        assert curve.series(50, 100, 120).steps.tolist() == list(range(99, 122))
        moments = curve.series(50, 1e9 + 50, 1e9 + 52, by_time=True)
        assert moments.steps.tolist() == list(range(99, 106))
        assert len(curve.series(50, 5000, 6000).steps) <= 1

    def test_steps_that_come_again_replace_what_was_there(self) -> None:
        curve = Curve()
        extended(curve, [1, 2, 3, 4, 3, 5])
        assert curve.series(100).steps.tolist() == [1, 2, 3, 5]
        extended(curve, list(range(6, 500)), 16)
        curve.drop_from(300)
        assert curve.last is not None
        assert 250 < curve.last[0] < 300
        extended(curve, [301, 302], 16)
        assert curve.last[:1] == (302,)
        curve.drop_from(0)
        assert len(curve.series(10).steps) == 0
        extended(curve, [5])
        assert curve.series(10).steps.tolist() == [5]


def value(tag: str, kind: int, number: float) -> Summary.Value:
    if kind == 0:
        return event_file.histogram(tag, np.array([number]))
    if kind == 1:
        return event_file.text(tag, "text")
    return event_file.scalar(tag, number)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 127, 128, 300, 2**35, -5]),
        st.lists(st.tuples(st.sampled_from(["a", "ä/b"]), st.integers(0, 5), st.floats(width=32)), max_size=3),
        st.sampled_from(["", "start", "no time", "rubbish"]),
    ),
    max_size=8,
)


@given(EVENTS, st.integers(1, 20))
@settings(deadline=None, max_examples=120)
def test_many_records_at_once_give_what_each_of_them_gives(
    events: list[tuple[int, list[tuple[str, int, float]], str]], times: int
) -> None:
    """Repeated, so that there are enough of one layout; with others of the same length in between."""
    records: list[bytes] = []
    expected: list[tuple[str, int, int, float, float]] = []
    starts: dict[int, int] = {}
    for step, values, kind in events * times:
        event = Event(wall_time=len(records) + 1.5, step=step, summary=Summary(value=[value(*each) for each in values]))
        if kind == "start":
            event.session_log.status = SessionLog.START
            starts[len(records)] = max(0, step)
        if kind == "no time":
            event.wall_time = float("nan")
        record = event.SerializeToString()
        if kind == "rubbish":
            records.append(bytes([7] * len(record)))
            continue
        if step >= 0 and kind != "no time":
            numbers = [(each.tag, scalar_of(each)) for each in event.summary.value]
            expected += [
                (tag, len(records), step, event.wall_time, number)
                for tag, number in numbers
                if number is not None and np.isfinite(number)
            ]
        records.append(record)
    found = parse_records(records)
    columns = {
        tag: (p.order.tolist(), p.steps.tolist(), p.times.tolist(), p.values.tolist())
        for tag, p in found.points.items()
    }
    flat = [(tag, *point) for tag, column in columns.items() for point in zip(*column, strict=True)]
    assert sorted(flat) == sorted(expected)
    for order, *_ in columns.values():
        assert order == sorted(order)
    assert found.starts == starts


@given(st.lists(st.binary(max_size=40), max_size=60))
@settings(deadline=None, max_examples=60)
def test_rubbish_gives_nothing_worse_than_nothing(records: list[bytes]) -> None:
    parse_records(records * 16)


class TestReading:
    @pytest.fixture
    def curves(self, tmp_path: Path) -> BehaviorCurves:
        (tmp_path / "Ball").mkdir()
        return BehaviorCurves(ContainedFolder(tmp_path), ("Ball",))

    def steps(self, curves: BehaviorCurves) -> list[int]:
        assert curves.read_on(time.monotonic() + 10, MOST * 100)
        return curves.curves[REWARD].series().steps.tolist() if REWARD in curves.curves else []

    def test_a_file_that_grows_is_read_on(self, tmp_path: Path, curves: BehaviorCurves) -> None:
        assert self.steps(curves) == []
        file = EventFile(tmp_path / "Ball")
        file.add([event_file.scalar(REWARD, 1.0)], 1)
        file.flush()
        assert self.steps(curves) == [1]
        version, (path,) = curves.version, (tmp_path / "Ball").iterdir()
        assert self.steps(curves) == [1]
        assert curves.version == version
        whole = path.read_bytes()
        file.add([event_file.scalar(REWARD, 2.0)], 2)
        file.close()
        more = path.read_bytes()
        path.write_bytes(more[: len(whole) + 20])  # in the midst of writing
        assert self.steps(curves) == [1]
        path.write_bytes(more)
        assert self.steps(curves) == [1, 2]
        assert curves.version > version

    def test_a_run_that_goes_on_hides_what_was_lost(self, tmp_path: Path, curves: BehaviorCurves) -> None:
        write_events(tmp_path / "Ball", [(step, {REWARD: 1.0}) for step in (100, 200, 300)])
        assert self.steps(curves) == [100, 200, 300]
        write_events(tmp_path / "Ball", [(250, {REWARD: 2.0})], resumed_at=200)
        assert self.steps(curves) == [100, 200, 250]
        assert curves.starts == [201]

    def test_another_run_of_the_same_name_begins_anew(self, tmp_path: Path, curves: BehaviorCurves) -> None:
        write_events(tmp_path / "Ball", [(step, {REWARD: 1.0}) for step in (100, 200)])
        assert self.steps(curves) == [100, 200]
        for path in (tmp_path / "Ball").iterdir():
            path.rename(tmp_path / "old")
        assert self.steps(curves) == []
        write_events(tmp_path / "Ball", [(7, {REWARD: 1.0})])
        assert self.steps(curves) == [7]

    def test_a_damaged_file_gives_what_is_before_the_damage(self, tmp_path: Path, curves: BehaviorCurves) -> None:
        write_events(tmp_path / "Ball", [(step, {REWARD: 1.0}) for step in range(1, 21)])
        (path,) = (tmp_path / "Ball").iterdir()
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] + bytes(400))
        found = self.steps(curves)
        assert found == list(range(1, len(found) + 1))
        assert 5 < len(found) < 15
        assert curves.is_damaged
        assert curves.num_read == curves.num_bytes

    def test_a_record_that_is_too_large_is_skipped(
        self, tmp_path: Path, curves: BehaviorCurves, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(event_reader, "_LARGEST_RECORD", 10_000)
        monkeypatch.setattr(event_reader, "_CHUNK", 100)
        folder = tmp_path / "Ball"
        folder.mkdir(exist_ok=True)
        records = [
            Event(wall_time=1.0, step=step, summary=Summary(value=[Summary.Value(tag=REWARD, simple_value=1.0)]))
            for step in (1, 2, 3)
        ]
        records.insert(1, Event(wall_time=1.0, step=9, file_version="x" * 20_000))
        records.insert(3, Event(wall_time=1.0, step=9, file_version="x" * 5_000))  # several chunks
        (folder / "events.out.tfevents.1").write_bytes(b"".join(map(event_file.record, records)))
        assert self.steps(curves) == [1, 2, 3]

    def test_very_many_points_take_little_memory_and_time(self, tmp_path: Path, curves: BehaviorCurves) -> None:
        """And what is asked for meanwhile is there: reading stops when its time is over."""
        number, count = 7.0, 60_000  # fewer, for the suite's time
        with (tmp_path / "Ball" / "events.out.tfevents.1").open("wb") as file:
            head = {length: struct.pack("<QI", length, masked_crc(struct.pack("<Q", length))) for length in range(100)}
            for step in range(1, count + 1):
                number = 1e6 if step == count // 3 else (number * 31 + 7) % 1000
                summary = Summary(value=[Summary.Value(tag=REWARD, simple_value=number)])
                data = Event(wall_time=step, step=step, summary=summary).SerializeToString()
                file.write(head[len(data)] + data + bytes(4))
        begin_s, looks, longest_s = time.monotonic(), 0, 0.0
        is_whole = False
        while not is_whole:
            look_s = time.monotonic()
            is_whole = curves.read_on(look_s, saved_run._MAX_BUCKETS_OF_RUN)
            longest_s, looks = max(longest_s, time.monotonic() - look_s), looks + 1
        curve = curves.curves[REWARD]
        assert looks > 3
        assert longest_s < 2
        assert time.monotonic() - begin_s < 20
        assert curve.num_points == count
        assert curve._size <= 8192
        assert curve.series(300).high.max() == 1e6
        assert curve.last is not None
        assert curve.last[0] == count
