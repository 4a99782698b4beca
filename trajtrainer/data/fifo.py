"""Parallel columns that grow at one end and shrink at the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_FIRST_CAPACITY = 64


class Fifo:
    """Entries in order of arrival, each a line over several columns. Entry 0 is the oldest.

    Appending takes constant time on average; memory is at most four times what the entries need.
    """

    def __init__(self, columns: Mapping[str, tuple[tuple[int, ...], DTypeLike]]) -> None:
        """Make empty columns, name -> (shape of one entry, type)."""
        self._columns: dict[str, NDArray[Any]] = {
            name: np.zeros((_FIRST_CAPACITY, *shape), dtype) for name, (shape, dtype) in columns.items()
        }
        self._start, self._stop, self._capacity = 0, 0, _FIRST_CAPACITY

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return all entries of a column: a view, void after the next ``append``."""
        return self._columns[name][self._start : self._stop]

    @property
    def num_bytes(self) -> int:
        """The size of all columns."""
        return sum(column.nbytes for column in self._columns.values())

    def append(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Add entries: every column's values, all of the same length."""
        count = len(next(iter(values.values())))
        if self._stop + count > self._capacity:
            self._make_room(count)
        for name, column in self._columns.items():
            column[self._stop : self._stop + count] = values[name]
        self._stop += count

    def drop(self, count: int) -> None:
        """Remove the oldest entries."""
        self._start += count

    def _make_room(self, count: int) -> None:
        """Move the entries to the front, of longer columns if they are more than half of what there is room for."""
        held = len(self)
        while 2 * (held + count) > self._capacity:
            self._capacity *= 2
        for name, column in self._columns.items():
            moved = column
            if len(column) < self._capacity:
                moved = np.zeros((self._capacity, *column.shape[1:]), column.dtype)
            moved[:held] = column[self._start : self._stop]
            self._columns[name] = moved
        self._start, self._stop = 0, held
