"""Which rows of a pool were in the same group at the same moment.

Shape legend: R rows of a pool, n entries, G groups of a message, K moments, W places of a moment, U some moments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import run_or_rows
from trajtrainer.core.steps import BoolArray, IntArray, LongArray

_FIRST_MOMENTS = 64
_NONE = np.zeros(0, np.int64)
# ``ufunc.at`` is a hundred times slower if the value is of another type than the array.
_ONE = np.int32(1)


class Arrangement(NamedTuple):
    """Entries by their groups. Entries without a group have no place.

    Attributes:
        present: i64 [n], the entries that have a group.
        which: i64 [n], number of the group of each of these.
        rank: i64 [n], place of each in its group.
        sizes: i64 [G], entries of each group.
        width: the largest size.
        is_whole: whether all entries have a group.
    """

    present: LongArray
    which: LongArray
    rank: LongArray
    sizes: LongArray
    width: int
    is_whole: bool


def arrange(group: IntArray) -> Arrangement:
    """Arrange entries by their group numbers; 0 means no group."""
    present = np.flatnonzero(group > 0)
    keys = group[present]
    order = keys.argsort(kind="stable")
    ordered = keys[order]
    is_first = np.ones(len(order), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    number = is_first.cumsum() - 1
    which, rank = np.empty_like(order), np.empty_like(order)
    which[order] = number
    rank[order] = np.arange(len(order)) - is_first.nonzero()[0][number]
    sizes = np.bincount(number)
    return Arrangement(present, which, rank, sizes, int(sizes.max(initial=0)), len(present) == len(group))


class Members(NamedTuple):
    """The groups of some rows at their moments.

    Attributes:
        table: i32 [U, W], rows of the members of each moment, padded with -1.
        which: i64 [n], the moment of each row; -1 for none.
        rank: i32 [n], its place among the members; their number if it is not one of them.
    """

    table: IntArray
    which: LongArray
    rank: IntArray

    def mates(self, table: IntArray) -> IntArray:
        """The groupmates of each row, i32 [n, W - 1], padded with -1.

        Args:
            table: i32 [U, W], ``self.table``, with any numbers in place of its rows.
        """
        width = table.shape[1]
        # Column by column, which is several times faster than row by row.
        members = np.full((width, len(table) + 1), -1, np.int32)
        members[:, :-1] = table.T
        found = members.take(self.which, axis=1)
        places = np.arange(width - 1, dtype=np.int32)
        return np.where(places[:, None] < self.rank, found[:-1], found[1:]).T


class GroupMoments:
    """The members of groups at the moments at which rows were observed.

    A moment is one group in one message: the rows of all members that were present. The members' trajectories end and
    are drained at different times, so a moment keeps these rows from being reused for as long as there is a reference
    to any row that was observed at it (a user). A row is a user of one moment at most, but may be a member of several,
    if its agent decides less often than others.

    Not thread-safe: the pool's lock is held for everything but ``members``.
    """

    def __init__(self) -> None:
        self._of_row = np.zeros(0, np.int32)
        self._rank = np.zeros(0, np.int32)
        # How many moments keep each row, and scratch space for ``release``.
        self._keeps = np.zeros(0, np.int32)
        self._note = np.zeros(0, np.int64)
        self._members = np.zeros((0, 1), np.int32)
        # References to the rows that were observed at each moment; -1 for a moment that is not open.
        self._uses = np.zeros(0, np.int32)
        self._free = np.zeros(0, np.int64)
        self._num_free = 0

    def add_rows(self, capacity: int) -> None:
        """Extend the tables to ``capacity`` rows."""
        self._of_row = _longer(self._of_row, capacity, -1)
        self._rank = _longer(self._rank, capacity, 0)
        self._keeps = _longer(self._keeps, capacity, 0)
        self._note = _longer(self._note, capacity, 0)

    def clear(self, rows: LongArray) -> None:
        """Detach rows that are free from their moments."""
        self._of_row[rows] = -1

    def open(self, rows: LongArray, arrangement: Arrangement, num_users: int | None = None) -> None:
        """Open a moment for every group in a message.

        Args:
            rows: of all entries, distinct. Those that were observed now come first, ascending.
            arrangement: of these entries.
            num_users: how many entries were observed now and are users of their moment, with one reference each; None
                for all. Groups without users get no moment.
        """
        _, which, rank, sizes, width, is_whole = arrangement
        if not width:
            return
        moments = self._reserve(len(sizes), width)
        moment = moments[which]
        if not is_whole:
            rows = rows[arrangement.present]
        users: LongArray | slice
        if num_users is None:
            users = run_or_rows(rows)
            self._uses[moments] = sizes
            self._members[moment, rank] = rows
            self._keeps[users] = 1
        else:
            is_user = arrangement.present < num_users
            uses = np.bincount(which[is_user], minlength=len(sizes))
            self._uses[moments] = uses
            is_used = uses[which] > 0
            self._members[moment[is_used], rank[is_used]] = rows[is_used]
            self._keeps[rows[is_used]] += 1
            users, moment, rank = rows[is_user], moment[is_user], rank[is_user]
            self._give_back(moments[uses == 0])
        self._of_row[users] = moment
        self._rank[users] = rank

    def open_last(self, rows: LongArray, stays: BoolArray, others: LongArray) -> None:
        """Open the moment of the last observations of some members of one group.

        Args:
            rows: of these observations, with one reference each.
            stays: which of them are members of the moment themselves.
            others: rows of the other members.
        """
        (moment,) = self._reserve(1, len(rows) + len(others))
        staying = rows[stays]
        members = np.concatenate([staying, others]) if len(staying) else others
        self._members[moment, : len(members)] = members
        self._keeps[members] += 1
        self._uses[moment] = len(rows)
        self._of_row[rows] = moment
        self._rank[rows] = len(members)
        self._rank[staying] = np.arange(len(staying))

    def retain(self, rows: NDArray[Any]) -> None:
        """Count one more reference to each of these rows."""
        np.add.at(self._uses, self._moments_of(rows), _ONE)

    def release(self, rows: NDArray[Any]) -> LongArray:
        """Count one reference less to each of these rows, and close moments without references.

        Returns:
            The rows that no moment keeps anymore, distinct.
        """
        moments = self._moments_of(rows)
        if not len(moments):
            return _NONE
        np.subtract.at(self._uses, moments, _ONE)
        ended = np.flatnonzero(self._uses == 0)
        if not len(ended):
            return _NONE
        members = self._members[ended]
        members = members[members >= 0].astype(np.intp)
        np.subtract.at(self._keeps, members, _ONE)
        self._give_back(ended)
        # Without duplicates: of equal rows, the last one finds its own place in the note.
        members = members[self._keeps[members] == 0]
        places = np.arange(len(members))
        self._note[members] = places
        distinct: LongArray = members[self._note[members] == places]
        return distinct

    def kept(self, rows: NDArray[Any]) -> BoolArray:
        """Which of these rows a moment keeps, as a mask."""
        kept: BoolArray = self._keeps[rows] > 0
        return kept

    def members(self, rows: NDArray[Any]) -> Members:
        """The groups of these rows at their moments.

        For rows with a reference, this may run while another thread opens moments.
        """
        # Each array is read once, ``_members`` last, because the other thread replaces arrays when they grow.
        of_row, rank = self._of_row.take(rows), self._rank.take(rows)
        members = self._members
        is_needed = np.zeros(len(members) + 1, np.bool_)
        is_needed[of_row] = True
        needed = np.flatnonzero(is_needed[:-1])
        place = np.full(len(members) + 1, -1)
        place[needed] = np.arange(len(needed))
        return Members(members[needed], place.take(of_row), rank)

    def _moments_of(self, rows: NDArray[Any]) -> LongArray:
        moments = self._of_row.take(rows)
        return moments[moments >= 0].astype(np.intp)

    def _reserve(self, count: int, width: int) -> LongArray:
        """Numbers of ``count`` empty moments with at least ``width`` places, as a view."""
        if width > self._members.shape[1]:
            wider = np.full((len(self._members), width), -1, np.int32)
            wider[:, : self._members.shape[1]] = self._members
            self._members = wider
        if count > self._num_free:
            old = len(self._uses)
            new = old + max(count, old, _FIRST_MOMENTS)
            self._members = _longer(self._members, new, -1)
            self._uses = _longer(self._uses, new, -1)
            self._free = _longer(self._free, new, 0)
            self._give_back(np.arange(old, new))
        self._num_free -= count
        return self._free[self._num_free : self._num_free + count]

    def _give_back(self, moments: LongArray) -> None:
        self._uses[moments] = self._members[moments] = -1
        self._free[self._num_free : self._num_free + len(moments)] = moments
        self._num_free += len(moments)


def _longer(array: NDArray[Any], length: int, filling: int) -> NDArray[Any]:
    longer = np.full((length, *array.shape[1:]), filling, array.dtype)
    longer[: len(array)] = array
    return longer
