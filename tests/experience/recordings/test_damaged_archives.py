"""Damaged ``.npz`` files, of trajectories and of replays, end in one message that names the file and what is wrong."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.experience.recordings.making import SPECS, packed_steps
from trajtrainer.core.errors import CheckpointError, DemonstrationError
from trajtrainer.core.spec import spec_to_plain
from trajtrainer.experience import npz
from trajtrainer.experience.recordings.conversions import archive_source, replay_source
from trajtrainer.experience.recordings.source import summarize
from trajtrainer.experience.replay import Replay

SPEC = SPECS["hybrid"]
_LOCAL, _CENTRAL = b"PK\x03\x04", b"PK\x01\x02"


def archive_arrays() -> dict[str, Any]:
    packed = packed_steps("hybrid", [3, 2])
    steps = {name: column for name, column in packed.steps.items() if column[:1].size}
    spec = np.array(json.dumps({"behavior": "Own", **spec_to_plain(SPEC)}))
    return {**steps, "offset": np.array([0, 3, 5]), "spec": spec}


def replay_arrays() -> dict[str, Any]:
    packed = packed_steps("hybrid", [3, 2])
    replay = Replay(SPEC, [np.float32, np.float32], num_rows=60)
    packed["continuous"][:] = np.clip(packed["continuous"], -1, 1)
    replay.add(packed)
    return {
        "format": np.array([1], np.int64),
        **{name: np.concatenate(pieces) for name, pieces in replay.saved_columns().items()},
    }


def packed_up(path: Path, arrays: dict[str, Any]) -> Path:
    """Write arrays; bytes stand for a file of their own."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            file = io.BytesIO()
            if isinstance(array, bytes):
                file.write(array)
            else:
                np.save(file, array, allow_pickle=False)
            archive.writestr(f"{name}.npy", file.getvalue())
    return path


def read_archive(path: Path) -> None:
    summarize(archive_source(path))


def read_replay(path: Path) -> None:
    """As a data set, and by a run that is resumed."""
    try:
        npz.read_replay(Replay(SPEC, [np.float32, np.float32], num_rows=60), path)
    finally:
        summarize(replay_source(path, SPEC, "Own"))


READERS: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[Path], None]]] = {
    "archive": (archive_arrays, read_archive),
    "replay": (replay_arrays, read_replay),
}
readers = pytest.mark.parametrize("kind", READERS)


def refused(kind: str, path: Path) -> str:
    with pytest.raises((DemonstrationError, CheckpointError)) as raised:
        READERS[kind][1](path)
    text = str(raised.value)
    assert str(path) in text
    assert "\n" not in text
    return text


@readers
def test_the_whole_files_are_read(tmp_path: Path, kind: str) -> None:
    arrays, read = READERS[kind]
    read(packed_up(tmp_path / "x.npz", arrays()))


def with_flags(content: bytearray, flags: int) -> None:
    for place in positions(content, _LOCAL):
        struct.pack_into("<H", content, place + 6, flags)
    for place in positions(content, _CENTRAL):
        struct.pack_into("<H", content, place + 8, flags)


def with_version(content: bytearray) -> None:
    for place in positions(content, _CENTRAL):
        struct.pack_into("<H", content, place + 6, 200)


def with_method(content: bytearray) -> None:
    for place in positions(content, _CENTRAL):
        struct.pack_into("<H", content, place + 10, 77)


def positions(content: bytearray, mark: bytes) -> Iterator[int]:
    place = content.find(mark)
    while place >= 0:
        yield place
        place = content.find(mark, place + 1)


@readers
@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda content: with_flags(content, 1), "encrypted"),
        (lambda content: with_flags(content, 1 << 5), "patched"),
        (with_version, "20.0"),
        (with_method, "compression"),
    ],
)
def test_zip_files_that_nobody_reads(
    tmp_path: Path, kind: str, damage: Callable[[bytearray], None], expected: str
) -> None:
    path = packed_up(tmp_path / "x.npz", READERS[kind][0]())
    content = bytearray(path.read_bytes())
    damage(content)
    path.write_bytes(content)
    assert expected in refused(kind, path)


def header(shape: str, descr: str = "'<f4'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@readers
@pytest.mark.parametrize("name", ["reward", "discrete", "obs.0"])
@pytest.mark.parametrize(
    "array",
    [
        np.array(1.0, np.float32),
        np.zeros((5, 7, 7), np.float32),
        np.array(["a"] * 5),
        np.zeros(5, "M8[s]"),
        np.zeros(5, [("a", "f4"), ("b", "i4")]),
        np.full((5, 1), 1j),
        np.full((5, 1), 0.5, np.float16),
        header("(1000000000000,)"),
        header("(-2, -3)"),
        header("(" * 120 + ")" * 120),
        header("(3,)", "'|O'"),
        header("(3,)", "[('a', '|V0')]"),
        b"",
        b"\x93NUMPY\x09\x00",
    ],
    ids=lambda array: repr(array)[:30],
)
def test_arrays_of_another_kind(tmp_path: Path, kind: str, name: str, array: Any) -> None:
    path = packed_up(tmp_path / "x.npz", {**READERS[kind][0](), name: array})
    text = refused(kind, path)
    assert name in text or "expected (" in text, "one of two columns of different length may be the wrong one"


NESTED = "[" * 100_000
SIZES = {"action_spec": {"continuous_size": 1, "discrete_branches": [2**31 - 1]}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"spec": np.array(NESTED)}, "its spec does not describe observations and actions"),
        ({"spec": np.array(json.dumps({**spec_to_plain(SPEC), **SIZES}))}, "its spec does not describe"),
        ({"spec": np.array("[1, 2]")}, "its spec does not describe"),
        ({"spec": np.array(json.dumps({"action_spec": [], "observation_specs": {}}))}, "its spec does not describe"),
        ({"spec": np.zeros(7)}, "its spec does not describe"),
        ({"offset": np.array([0, 4, 2, 5], np.uint8)}, "offset does not increase"),
        ({"offset": np.array([0.0, 5.0])}, "offset does not increase"),
        ({"offset": np.array([0, 2**63 + 5, 5], np.uint64)}, "offset does not increase"),
        ({"discrete": np.full((5, 1), 7)}, "step 1: it chose [7]"),
        ({"spec": None, "branches": np.array([3.5])}, "branches is [3.5]"),
        ({"spec": None, "branches": np.array([2**40])}, "branches is"),
        ({"spec": None, "branches": np.array([3]), "continuous": np.zeros(5)}, "continuous has the shape (5,)"),
        ({"spec": None, "branches": np.array([3]), "obs.1": np.zeros(5)}, "obs.1 has the shape (5,)"),
        ({"done": None, "reward": None}, "it has no reward, done"),
    ],
)
def test_archives_that_do_not_fit_together(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    arrays = {name: each for name, each in (archive_arrays() | changes).items() if each is not None}
    path = packed_up(tmp_path / "x.npz", arrays)
    text = refused("archive", path)
    assert expected in text
    assert "Error" not in text, "names of Python classes say nothing to a user"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"discrete": np.full((60, 1), 7, np.int32)}, "it chose [7]"),
        ({"start": np.array([0, 1, 2, 4, 2**63 - 1])}, "outside"),
        ({"start": np.array([0, 1, 1, 4, 5])}, "overlap"),
        ({"start": np.array([[1]])}, "start has the shape"),
        ({"length": np.zeros(0, np.int32)}, "length has the shape"),
    ],
)
def test_replays_that_do_not_fit_together(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    arrays = replay_arrays()
    rows = len(arrays["reward"])
    changes = {name: each[:rows] if len(each) > rows else each for name, each in changes.items()}
    assert expected in refused("replay", packed_up(tmp_path / "x.npz", arrays | changes))


@readers
def test_a_file_that_unpacks_to_more_than_is_read(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "MOST_BYTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("obs.0.npy", header("(300000,)") + bytes(1_200_000))
        archive.writestr("format.npy", b"")
    assert "unpacks to 1,2" in refused(kind, tmp_path / "x.npz")

    # What is not compressed takes no more memory than it takes on the disk.
    whole = packed_up(tmp_path / "y.npz", READERS[kind][0]() | {"unused": np.zeros(400_000, np.float32)})
    READERS[kind][1](whole)


@readers
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_bytes_give_a_message_or_steps(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / f"damaged {kind}.npz"
    arrays, read = READERS[kind]
    content = bytearray(packed_up(path, arrays()).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    path.write_bytes(bytes(content))
    with contextlib.suppress(DemonstrationError, CheckpointError):
        read(path)
