"""Archives of arrays from anywhere."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.core.crowded import crowded
from trajtrainer.core.errors import CheckpointError
from trajtrainer.experience import npz
from trajtrainer.experience.npz import NpzError, open_npz, read_columns


def archive(path: Path, **arrays: bytes) -> Path:
    """An archive with these files, compressed."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in arrays.items():
            file.writestr(f"{name}.npy", content)
    return path


def stored(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


NUMBERS = np.arange(12, dtype=np.float32).reshape(3, 4)


def refused(path: Path) -> str:
    with open_npz(path) as file, pytest.raises(NpzError) as caught:
        file.read("x")
    return str(caught.value)


@pytest.mark.parametrize("array", [NUMBERS, np.asfortranarray(NUMBERS), NUMBERS[:0], np.float64(7), NUMBERS > 5])
def test_arrays_are_read_as_numpy_wrote_them(
    tmp_path: Path, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=array, other=NUMBERS)
    with open_npz(tmp_path / "a.npz") as file:
        assert file.names == {"x", "other"}
        found = file.read("x")
    np.testing.assert_array_equal(found, array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)


def test_an_array_that_is_missing_is_named(tmp_path: Path) -> None:
    assert refused(archive(tmp_path / "a.npz", y=stored(NUMBERS))) == "it has no array x"


def test_a_header_that_names_another_size_is_refused_before_memory_is_reserved(tmp_path: Path) -> None:
    header = stored(np.zeros(12, np.float32)).replace(b"(12,)", b"(10000000000000,)")
    message = refused(archive(tmp_path / "a.npz", x=header))
    assert message == f"x has {len(header)} bytes, but its header says shape (10000000000000,) and dtype float32"


def test_an_array_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", x=stored(np.zeros(1000, np.float32))[:-400])
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\1\2")  # of the directory at the end of the archive; +24: the size of the content
    (size,) = struct.unpack_from("<I", content, entry + 24)
    struct.pack_into("<I", content, entry + 24, size + 400)
    path.write_bytes(content)
    assert refused(path) == "x ends after 3600 of 4000 bytes"


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "a.npz", x=stored(np.zeros(100_000, np.float32)))
    monkeypatch.setattr(npz, "MOST_BYTES", 10_000)
    with pytest.raises(NpzError, match=r"unpacks to 400,128 bytes, expected at most 10,000"), open_npz(path):
        pass
    np.savez(path, x=np.zeros(100_000, np.float32))  # as large on the disk, so it hides nothing
    with open_npz(path) as file:
        assert len(file.read("x")) == 100_000


def test_an_archive_of_many_members_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NpzError, match="its list of members has"), open_npz(crowded(tmp_path / "a.npz", 30_000)):
        pass


def test_an_array_with_a_header_of_any_size_is_refused(tmp_path: Path) -> None:
    header = b"\x93NUMPY\2\0" + struct.pack("<I", 2**20) + b" " * 2**20
    assert refused(archive(tmp_path / "a.npz", x=header)) == "x is in version 2.0 of the format, expected 1.0"


def test_some_columns_of_a_saved_replay(tmp_path: Path) -> None:
    path = tmp_path / "replay.npz"
    np.savez(path, format=np.array([1]), x=NUMBERS, y=NUMBERS + 100)
    found = read_columns(path, ["y"])
    assert list(found) == ["y"]
    np.testing.assert_array_equal(found["y"], NUMBERS + 100)
    with pytest.raises(CheckpointError, match="it has no array z"):
        read_columns(path, ["y", "z"])
