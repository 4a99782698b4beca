"""Reads untrusted ``.npz`` files without pickle and with bounded memory, and reads and writes saved replays."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.archives import open_zip
from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.filenames import open_regular
from trajtrainer.experience.replay import Replay

_SUFFIX = ".npy"
# Limit for compressed files, which can become a thousand times larger in memory.
MOST_BYTES = 1 << 34
_BLOCK = 1 << 20

_FORMAT = 1


class NpzError(ValueError):
    """The file is not an ``.npz`` file, is damaged, or does not contain an array."""


class NpzFile:
    """An open ``.npz`` file.

    Attributes:
        names: the names of the arrays.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.names = frozenset(name.removesuffix(_SUFFIX) for name in archive.namelist() if name.endswith(_SUFFIX))

    def read(self, name: str) -> NDArray[Any]:
        """Read an array.

        Raises:
            NpzError: the array is missing or damaged, or too large for the memory.
        """
        if name not in self.names:
            raise NpzError(f"it has no array {name}")
        try:
            with self._archive.open(name + _SUFFIX) as file:
                return _read_array(file, name, self._archive.getinfo(name + _SUFFIX).file_size)
        except NpzError:
            raise
        except MemoryError as error:
            raise NpzError(f"there is not enough memory for {name}") from error
        except Exception as error:  # zipfile, zlib and numpy can raise any exception for damaged data
            raise NpzError(f"{name} cannot be read ({explain(error)})") from error


@contextmanager
def open_npz(path: Path) -> Iterator[NpzFile]:
    """Open an ``.npz`` file.

    Raises:
        OSError: the file cannot be opened.
        NpzError: the file is not an ``.npz`` file, or it unpacks to more than ``MOST_BYTES``.
    """
    with open_regular(path) as file:
        try:
            archive = open_zip(file)
        except Exception as error:
            raise NpzError(f"it is not a valid .npz file ({explain(error)})") from error
        with archive:
            size = sum(entry.file_size for entry in archive.infolist())
            if size > max(MOST_BYTES, os.fstat(file.fileno()).st_size):
                raise NpzError(f"it unpacks to {size:,} bytes, expected at most {MOST_BYTES:,}")
            yield NpzFile(archive)


def explain(error: BaseException) -> str:
    """Return the first line of an error's message, or the type of the error if there is no message."""
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__


def _read_array(file: IO[bytes], name: str, size: int) -> NDArray[Any]:
    version = np.lib.format.read_magic(file)
    if version != (1, 0):  # other versions allow headers of up to 4 GB, and only structured arrays need them
        raise NpzError(f"{name} is in version {version[0]}.{version[1]} of the format, expected 1.0")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.hasobject:
        raise NpzError(f"{name} has Python objects (pickle), which are not read because they could run code")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size - file.tell():
        raise NpzError(f"{name} has {size} bytes, but its header says shape {shape} and dtype {dtype}")
    flat = np.empty(math.prod(shape), dtype)
    data = flat.view(np.uint8) if flat.nbytes else np.zeros(0, np.uint8)
    done = 0
    while piece := file.read(_BLOCK):  # read to the end, so that zipfile verifies the checksum
        data[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
        done += len(piece)
    if done < len(data):
        raise NpzError(f"{name} ends after {done} of {len(data)} bytes")
    array: NDArray[Any] = flat.reshape(shape, order="F" if fortran_order else "C")
    return array


def write_replay(replay: Replay, path: Path) -> None:
    """Write all sequences that can be sampled to an uncompressed file.

    The file is written in pieces directly from the ring's memory, without a copy. The archive's checksums reveal
    damage.

    Raises:
        OSError: the file could not be written.
    """
    columns = {"format": [np.array([_FORMAT], np.int64)], **replay.saved_columns()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, pieces in columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                shape = (sum(len(piece) for piece in pieces), *pieces[0].shape[1:])
                header = {"descr": pieces[0].dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for piece in pieces:
                    if piece.size:
                        file.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)


def read_replay(replay: Replay, path: Path) -> None:
    """Fill an empty replay from a file. If the file does not fit, only the newest experience is loaded.

    Raises:
        CheckpointError: the file is missing or damaged, or has other observations, actions or memory sizes. The replay
            stays empty.
    """
    _read_saved(path, replay.fill)


def read_columns(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read the given columns of a saved replay.

    Raises:
        CheckpointError: the file is missing or damaged, or lacks one of the columns.
    """
    found: dict[str, NDArray[Any]] = {}
    _read_saved(path, lambda column_of: found.update((name, column_of(name)) for name in names))
    return found


def _read_saved(path: Path, reader: Callable[[Callable[[str], NDArray[Any]]], None]) -> None:
    """Call ``reader`` with a function that reads a column by name."""
    try:
        with open_npz(path) as file:
            version = file.read("format")
            if version.tolist() != [_FORMAT]:
                raise ValueError(f"its format is {version.tolist()}, expected {[_FORMAT]}")
            reader(file.read)
    except FileNotFoundError as error:
        raise CheckpointError(f"The saved replay {path} does not exist.") from error
    except (OSError, ValueError, MemoryError) as error:
        raise CheckpointError(
            f"The saved replay {path} cannot be used: it is damaged, or from another behavior or network "
            f"({explain(error)})."
        ) from error
