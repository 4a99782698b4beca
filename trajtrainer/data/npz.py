"""Reads ``.npz`` files of any origin: without pickle, and in no more memory than their arrays take."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.filenames import open_regular

_SUFFIX = ".npy"
# A compressed file can be a thousand times as large in memory. One that is not compressed may be as large as it is.
MOST_BYTES = 1 << 34
_BLOCK = 1 << 20


class NpzError(ValueError):
    """A file is not an ``.npz`` file, is damaged, or lacks an array."""


class NpzFile:
    """An open file.

    Attributes:
        names: of its arrays.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.names = frozenset(name.removesuffix(_SUFFIX) for name in archive.namelist() if name.endswith(_SUFFIX))

    def read(self, name: str) -> NDArray[Any]:
        """Return an array.

        Raises:
            NpzError: it is not there or damaged.
        """
        if name not in self.names:
            raise NpzError(f"it has no {name}")
        try:
            with self._archive.open(name + _SUFFIX) as file:
                return _array(file, name, self._archive.getinfo(name + _SUFFIX).file_size)
        except NpzError:
            raise
        except MemoryError as error:
            raise NpzError(f"there is not enough memory for {name}") from error
        except Exception as error:  # zipfile, zlib and numpy raise anything for damaged bytes
            raise NpzError(f"{name} cannot be read ({explain(error)})") from error


@contextmanager
def open_npz(path: Path) -> Iterator[NpzFile]:
    """Open a file.

    Raises:
        OSError: it cannot be opened.
        NpzError: it is not an ``.npz`` file, or it unpacks to more than ``MOST_BYTES``.
    """
    with open_regular(path) as file:
        try:
            archive = zipfile.ZipFile(file)
        except Exception as error:
            raise NpzError(f"it is not an .npz file, or damaged ({explain(error)})") from error
        with archive:
            size = sum(entry.file_size for entry in archive.infolist())
            if size > max(MOST_BYTES, os.fstat(file.fileno()).st_size):
                raise NpzError(f"it unpacks to {size:,} bytes; at most {MOST_BYTES:,} are read")
            yield NpzFile(archive)


def explain(error: BaseException) -> str:
    """Return the first line of what a library says, or the name of the error if it says nothing."""
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__


def _array(file: IO[bytes], name: str, size: int) -> NDArray[Any]:
    is_old = np.lib.format.read_magic(file) == (1, 0)
    read_header = np.lib.format.read_array_header_1_0 if is_old else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read_header(file)
    if dtype.hasobject:
        raise NpzError(f"{name} holds Python objects (pickle), which are not read: they could run any program")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size - file.tell():
        raise NpzError(f"{name} has {size} bytes, but its header names the shape {shape} of {dtype}")
    flat = np.empty(math.prod(shape), dtype)
    data = flat.view(np.uint8) if flat.nbytes else np.zeros(0, np.uint8)
    done = 0
    while piece := file.read(_BLOCK):  # up to the end, where the check sum is compared
        data[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
        done += len(piece)
    if done < len(data):
        raise NpzError(f"{name} ends after {done} of {len(data)} bytes")
    array: NDArray[Any] = flat.reshape(shape, order="F" if fortran_order else "C")
    return array
