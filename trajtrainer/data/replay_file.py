"""A replay in a file: an uncompressed ``.npz`` that ``numpy.load`` reads without pickle.

Written straight from the ring's memory, piece by piece, so that saving takes no copy of it. The archive's checksums
tell a damaged file.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.errors import CheckpointError
from trajtrainer.data.npz import explain, open_npz
from trajtrainer.data.replay import Replay

_FORMAT = 1


def write(replay: Replay, path: Path) -> None:
    """Write all sequences that can be sampled.

    Raises:
        OSError: it could not be written.
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


def read(replay: Replay, path: Path) -> None:
    """Fill an empty replay. If it holds less than the file, the newest experience is taken.

    Raises:
        CheckpointError: the file is missing, damaged, or of other observations, actions or memories. The replay stays
            empty.
    """
    _open(path, replay.fill)


def read_columns(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return some columns of a file by name.

    Raises:
        CheckpointError: the file is missing or damaged, or has not all of them.
    """
    found: dict[str, NDArray[Any]] = {}
    _open(path, lambda column_of: found.update((name, column_of(name)) for name in names))
    return found


def _open(path: Path, take: Callable[[Callable[[str], NDArray[Any]]], None]) -> None:
    """Let ``take`` ask for columns."""
    try:
        with open_npz(path) as file:
            version = file.read("format")
            if version.tolist() != [_FORMAT]:
                raise ValueError(f"its format is {version.tolist()}, expected {[_FORMAT]}")
            take(file.read)
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no saved replay {path}.") from error
    except (OSError, ValueError, MemoryError) as error:
        raise CheckpointError(
            f"The saved replay {path} cannot be used: it is damaged or of another behavior or network "
            f"({explain(error)})."
        ) from error
