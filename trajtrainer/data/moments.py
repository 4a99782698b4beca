"""Who was in a group at the same moment, for the rows of a pool.

Shape legend: R rows of a pool, n entries, G groups of a message, K moments, W places of a moment.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.steps import BoolArray, IntArray, LongArray

_FIRST_MOMENTS = 64
_NONE = np.zeros(0, np.int64)


class Arrangement(NamedTuple):
    """Entries by their groups. Those without a group have no place.

    Attributes:
        present: i64 [n], the entries that have a group.
        which: i64 [n], number of the group of each of these.
        rank: i64 [n], place of each in its group: those that stay come first.
        sizes: i64 [G], entries of each group.
    """

    present: LongArray
    which: LongArray
    rank: LongArray
    sizes: LongArray


def arrange(group: IntArray, stays: BoolArray | None = None) -> Arrangement:
    """Return the places of entries with these groups, of which some may not stay."""
    present = np.flatnonzero(group > 0)
    keys = group[present].astype(np.int64)
    order = np.argsort(keys if stays is None else 2 * keys + ~stays[present], kind="stable")
    begins = np.flatnonzero(np.diff(keys[order], prepend=0))
    sizes = np.diff(begins, append=len(order))
    which, rank = np.empty_like(order), np.empty_like(order)
    which[order] = np.repeat(np.arange(len(sizes)), sizes)
    rank[order] = np.arange(len(order)) - np.repeat(begins, sizes)
    return Arrangement(present, which, rank, sizes)


class Moments:
    """The members of groups at the moments at which rows were observed.

    A moment is one group in one message: the rows of all members that were there then. It keeps these rows from being
    reused for as long as anybody refers to a row that was observed at it (a user), as the members' trajectories end and
    are drained at different times. A row has one moment at most, but may be a member of several: of an agent that is
    not asked for decisions as often as others.

    Not safe to use from several threads: the pool's lock is held for everything but ``mates``.
    """

    def __init__(self) -> None:
        self._of_row = np.zeros(0, np.int32)
        self._rank = np.zeros(0, np.int32)
        # How many moments keep each row.
        self._keeps = np.zeros(0, np.int32)
        self._members = np.zeros((0, 1), np.int32)
        self._uses = np.zeros(0, np.int32)
        self._free = np.zeros(0, np.int64)
        self._num_free = 0

    @property
    def num_open(self) -> int:
        """Return how many moments there are."""
        return len(self._uses) - self._num_free

    def add_rows(self, capacity: int) -> None:
        """Make room for a pool of so many rows."""
        self._of_row = _longer(self._of_row, capacity, -1)
        self._rank = _longer(self._rank, capacity, 0)
        self._keeps = _longer(self._keeps, capacity, 0)

    def forget(self, rows: LongArray) -> None:
        """Forget the moment of rows that are used anew."""
        self._of_row[rows] = -1

    def open(
        self, rows: LongArray, arrangement: Arrangement, num_users: int | None = None, stays: BoolArray | None = None
    ) -> None:
        """Note who is there with whom.

        Args:
            rows: of all entries, distinct.
            arrangement: of these.
            num_users: the first so many entries have been observed now and belong to the moment, with one reference
                each; None for all. Each group has one of them at least.
            stays: which are members; None for all.
        """
        present, which, rank, sizes = arrangement
        moments = self._take(len(sizes), int(sizes.max()))
        rows, of_row = rows[present], moments[which]
        if stays is None:
            self._members[of_row, rank] = rows
            self._keeps[rows] += 1
        else:
            there = stays[present]
            self._members[of_row[there], rank[there]] = rows[there]
            self._keeps[rows[there]] += 1
        if num_users is not None:
            users = present < num_users
            rows, of_row, rank = rows[users], of_row[users], rank[users]
            sizes = np.bincount(which[users], minlength=len(sizes))
        self._uses[moments] = sizes
        self._of_row[rows] = of_row
        self._rank[rows] = rank

    def retain(self, rows: NDArray[Any]) -> None:
        """Note one more reference to each of these rows."""
        moments = self._of_row[rows]
        np.add.at(self._uses, moments[moments >= 0], 1)

    def release(self, rows: NDArray[Any]) -> LongArray:
        """Note one reference less to each of these rows; moments without any end.

        Returns:
            The rows that no moment keeps any more, distinct.
        """
        moments = self._of_row[rows]
        moments = moments[moments >= 0]
        np.subtract.at(self._uses, moments, 1)
        ended = np.unique(moments[self._uses[moments] == 0])
        if not len(ended):
            return _NONE
        members = self._members[ended]
        members = members[members >= 0]
        np.subtract.at(self._keeps, members, 1)
        self._free[self._num_free : self._num_free + len(ended)] = ended
        self._num_free += len(ended)
        return np.unique(members[self._keeps[members] == 0]).astype(np.int64)

    def kept(self, rows: NDArray[Any]) -> BoolArray:
        """Return which of these rows a moment keeps."""
        kept: BoolArray = self._keeps[rows] > 0
        return kept

    def mates(self, rows: NDArray[Any]) -> IntArray:
        """Return the rows of the groupmates of each of these rows, i32 [len(rows), W - 1]; -1 behind them.

        May be called while another thread opens moments, for rows that have a reference.
        """
        # Once each: they are replaced when they grow.
        members, of_row, ranks = self._members, self._of_row, self._rank
        moments, rank = of_row.take(rows), ranks.take(rows)
        if not len(members):
            return np.zeros((len(rows), 0), np.int32)
        found = members.take(moments, axis=0)
        mates: IntArray = np.where(np.arange(found.shape[1] - 1) < rank[:, None], found[:, :-1], found[:, 1:])
        mates[moments < 0] = -1
        return mates

    def _take(self, count: int, width: int) -> LongArray:
        """Return the numbers of so many moments without members, which have so many places at least."""
        if width > self._members.shape[1]:
            wider = np.full((len(self._members), width), -1, np.int32)
            wider[:, : self._members.shape[1]] = self._members
            self._members = wider
        if count > self._num_free:
            self._add_moments(max(count, len(self._uses), _FIRST_MOMENTS))
        self._num_free -= count
        moments = self._free[self._num_free : self._num_free + count].copy()
        self._members[moments] = -1
        return moments

    def _add_moments(self, count: int) -> None:
        old = len(self._uses)
        self._members = _longer(self._members, old + count, -1)
        self._uses = _longer(self._uses, old + count, 0)
        self._free = _longer(self._free, old + count, 0)
        self._free[self._num_free : self._num_free + count] = np.arange(old, old + count)
        self._num_free += count


def _longer(array: NDArray[Any], length: int, filling: int) -> NDArray[Any]:
    longer = np.full((length, *array.shape[1:]), filling, array.dtype)
    longer[: len(array)] = array
    return longer
