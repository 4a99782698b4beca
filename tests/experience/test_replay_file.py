"""Saving a replay and taking it up again."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.experience.replay_streams import MEMORY, Ending, Stream, empty_replay
from tests.experience.streams import vector_spec
from trajtrainer.core.errors import CheckpointError
from trajtrainer.experience.npz import read_replay, write_replay
from trajtrainer.experience.replay import Replay, Sample


def _fill(replay: Replay, stream: Stream, lengths: list[int]) -> None:
    packed = stream.packed(lengths, [Ending(terminated=True)])
    memory = None
    if replay.sequence_length > 1:
        count = sum(-(-length // replay.sequence_length) for length in lengths)
        memory = np.full((count, MEMORY), len(packed), np.float32)
    replay.add(packed, memory)


def _all(replay: Replay) -> Sample:
    return replay.sample(np.arange(replay.num_sequences))


def _assert_same(first: Sample, second: Sample) -> None:
    for name in Sample.__slots__:
        ours, theirs = getattr(first, name), getattr(second, name)
        pairs = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]
        for a, b in pairs:
            np.testing.assert_array_equal(a, b, err_msg=name)


@settings(deadline=None, max_examples=30)
@given(
    drains=st.lists(st.lists(st.integers(1, 13), min_size=1, max_size=4), min_size=1, max_size=8),
    num_rows=st.integers(20, 60),
    length=st.sampled_from([1, 4]),
    after=st.lists(st.integers(1, 13), min_size=1, max_size=4),
)
def test_what_was_saved_goes_on_as_if_nothing_had_happened(
    drains: list[list[int]], num_rows: int, length: int, after: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("replay") / "replay.npz"
    first, second = empty_replay(num_rows, length), empty_replay(num_rows, length)
    stream = Stream(MEMORY if length > 1 else 0)
    for lengths in drains:
        _fill(first, stream, lengths)
    write_replay(first, path)
    read_replay(second, path)
    assert second.num_steps == first.num_steps
    _assert_same(_all(first), _all(second))
    twin = Stream(MEMORY if length > 1 else 0)
    twin._next = stream._next
    for _ in range(3):
        _fill(first, stream, after)
        _fill(second, twin, after)
        assert second.num_sequences == first.num_sequences
        _assert_same(_all(first), _all(second))


@pytest.mark.parametrize("length", [1, 4])
def test_a_smaller_replay_takes_the_newest(tmp_path: Path, length: int) -> None:
    path = tmp_path / "replay.npz"
    large, small = empty_replay(100, length), empty_replay(20, length)
    stream = Stream(MEMORY if length > 1 else 0)
    for _ in range(9):
        _fill(large, stream, [10])
    write_replay(large, path)
    read_replay(small, path)
    count = small.num_sequences
    assert 0 < small.num_steps <= 20
    _assert_same(_all(small), large.sample(np.arange(large.num_sequences - count, large.num_sequences)))
    for _ in range(5):
        _fill(small, stream, [10])
    assert small.sample(np.array([small.num_sequences - 1])).obs[0][0, 0] > 110


def test_an_empty_replay(tmp_path: Path) -> None:
    path = tmp_path / "replay.npz"
    write_replay(empty_replay(20), path)
    replay = empty_replay(20)
    read_replay(replay, path)
    assert replay.num_steps == 0


def test_numpy_alone_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "replay.npz"
    replay, stream = empty_replay(20), Stream()
    for _ in range(5):
        _fill(replay, stream, [6])
    write_replay(replay, path)
    with np.load(path, allow_pickle=False) as file:
        assert set(file) >= {"obs.0", "obs.1", "continuous", "discrete", "reward", "terminated", "start"}
        # 20 rows hold the two newest trajectories with the observations that follow, and the last 5 steps before.
        assert file["obs.0"][file["start"], 0].tolist() == _all(replay).obs[0][:, 0].tolist()
        assert file["obs.1"].dtype == np.uint8


def _saved(tmp_path: Path) -> Path:
    path = tmp_path / "replay.npz"
    replay, stream = empty_replay(200), Stream()
    for _ in range(5):
        _fill(replay, stream, [20])
    write_replay(replay, path)
    return path


def _refused(path: Path, replay: Replay | None = None) -> str:
    replay = replay or empty_replay(200)
    with pytest.raises(CheckpointError) as caught:
        read_replay(replay, path)
    assert replay.num_steps == 0
    _fill(replay, Stream(MEMORY if replay.sequence_length > 1 else 0), [20])
    assert replay.num_steps == 20, "it can be used as if nothing had been tried"
    return str(caught.value)


def test_missing(tmp_path: Path) -> None:
    assert "does not exist" in _refused(tmp_path / "replay.npz")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_truncated(tmp_path: Path, share: float) -> None:
    path = _saved(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert "damaged" in _refused(path)


@pytest.mark.parametrize("column", ["obs.0", "obs.1", "reward", "start", "format"])
def test_a_wrong_byte(tmp_path: Path, column: str) -> None:
    path = _saved(tmp_path)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(f"{column}.npy")
        inside = entry.header_offset + entry.compress_size // 2 + 100
    content[inside] ^= 0xFF
    path.write_bytes(bytes(content))
    assert "damaged" in _refused(path)


def test_something_else(tmp_path: Path) -> None:
    path = tmp_path / "replay.npz"
    path.write_text("not a replay")
    assert "damaged" in _refused(path)


class _Code:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('code of the file was run')",)


def test_code_in_it_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "replay.npz"
    np.savez(path, format=np.array([1]), start=np.array([_Code()], object))
    assert "damaged" in _refused(path)
    path.write_bytes(pickle.dumps(_Code()))
    assert "damaged" in _refused(path)


def test_other_columns_are_refused(tmp_path: Path) -> None:
    path = _saved(tmp_path)
    assert "obs.0 is float32 (2,) per entry" in _refused_by_vector(path)
    assert "memory is float32 (0,) per entry, expected float32 (2,)" in _refused(path, empty_replay(200, 4))


def _refused_by_vector(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_replay(Replay(vector_spec(8), [np.float32], num_rows=50), path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("start", np.arange(100)[::-1].copy()),
        ("start", np.arange(100) + 60),
        ("start", np.arange(100) - 1),
        ("start", np.array([*range(99), 2**63 - 1])),
        ("length", np.full(100, 2, np.int32)),
        ("length", np.zeros(100, np.int32)),
        ("length", np.ones(99, np.int32)),
        ("reward", np.zeros(7, np.float32)),
        ("terminated", np.zeros(105, np.int8)),
        ("format", np.array([99])),
    ],
)
def test_numbers_that_make_no_replay_are_refused(
    tmp_path: Path, column: str, values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
) -> None:
    path = _saved(tmp_path)
    with np.load(path, allow_pickle=False) as file:
        columns = dict(file)
    np.savez(path, **columns | {column: values})
    assert "cannot be used" in _refused(path)
