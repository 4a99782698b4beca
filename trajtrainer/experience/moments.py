"""Keeps track of which rows of a pool were in the same group at the same moment.

Shape legend: R rows of a pool, n entries, G groups in a message, K moments, W places per moment, U selected moments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import run_or_rows
from trajtrainer.core.steps import BoolArray, IntArray, LongArray

_FIRST_MOMENTS = 64
_NONE = np.zeros(0, np.int64)
# ``ufunc.at`` is a hundred times slower if the value and the array have different dtypes.
_ONE = np.int32(1)


class Arrangement(NamedTuple):
    """Entries arranged by group. Entries without a group are left out.

    Attributes:
        present: i64 [n], the indices of the entries that have a group.
        which: i64 [n], the group of each of these entries, numbered from 0.
        rank: i64 [n], the place of each of these entries in its group.
        sizes: i64 [G], the number of entries in each group.
        width: the number of entries in the largest group.
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
    """The group of each of n rows when the row was observed.

    Attributes:
        table: i32 [U, W], the members' rows at each moment, padded with -1.
        which: i64 [n], the index in ``table`` of each row's moment; -1 if the row has no moment.
        rank: i32 [n], the place of each row among the members; the number of members if the row is not a member.
    """

    table: IntArray
    which: LongArray
    rank: IntArray

    def mates(self, table: IntArray) -> IntArray:
        """Return the groupmates of each row, i32 [n, W - 1], padded with -1.

        Args:
            table: i32 [U, W], ``self.table`` or a copy in which the row numbers are replaced with other numbers.
        """
        width = table.shape[1]
        # Working column by column is several times faster than row by row.
        members = np.full((width, len(table) + 1), -1, np.int32)
        members[:, :-1] = table.T
        found = members.take(self.which, axis=1)
        places = np.arange(width - 1, dtype=np.int32)
        return np.where(places[:, None] < self.rank, found[:-1], found[1:]).T


class GroupMoments:
    """The members of groups at the moments when rows were observed.

    A moment is a group in a message: the rows of all its members that were present. A row that was observed at a moment
    is called a user of the moment. The members' trajectories end and are drained at different times, so a moment keeps
    its members' rows from being reused as long as any of its users has a reference. A row is a user of at most one
    moment, but can be a member of several moments if its agent decides less often than others.

    This class is not thread-safe: callers must hold the pool's lock for all methods except ``members``.
    """

    def __init__(self) -> None:
        self._of_row = np.zeros(0, np.int32)
        self._rank = np.zeros(0, np.int32)
        # The number of moments that each row is a member of, and scratch space for ``release``.
        self._keeps = np.zeros(0, np.int32)
        self._note = np.zeros(0, np.int64)
        self._members = np.zeros((0, 1), np.int32)
        # The number of references to the users of each moment; -1 for a moment that is not open.
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
        """Detach free rows from their moments."""
        self._of_row[rows] = -1

    def open(self, rows: LongArray, arrangement: Arrangement, num_users: int | None = None) -> None:
        """Open a moment for every group in a message.

        Args:
            rows: distinct rows of all entries. The rows observed with this message come first, in ascending order.
            arrangement: the arrangement of these entries by group.
            num_users: the number of entries that were observed with this message; None if all were. They are the users
                of their moment, with one reference each. Groups without users get no moment.
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
        """Open a moment for the last observations of agents in one group.

        Args:
            rows: rows of these observations, with one reference each.
            stays: mask of the rows that are also members of the moment.
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
        """Add a reference to each of these rows."""
        np.add.at(self._uses, self._moments_of(rows), _ONE)

    def release(self, rows: NDArray[Any]) -> LongArray:
        """Remove a reference to each of these rows, and close moments that have no references left.

        Returns:
            The distinct rows that are no longer kept by any moment.
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
        # Remove duplicates: for equal rows, only the index of the last one remains in ``_note``.
        members = members[self._keeps[members] == 0]
        places = np.arange(len(members))
        self._note[members] = places
        distinct: LongArray = members[self._note[members] == places]
        return distinct

    def kept(self, rows: NDArray[Any]) -> BoolArray:
        """Return a mask of the rows that are kept by a moment."""
        kept: BoolArray = self._keeps[rows] > 0
        return kept

    def members(self, rows: NDArray[Any]) -> Members:
        """Return the groups of these rows at the moments when they were observed.

        This is safe while another thread opens moments, provided that the rows have references.
        """
        # Read each array only once, and ``_members`` last, because the other thread may replace arrays with longer
        # ones.
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
        """Reserve ``count`` moments with at least ``width`` places. Return their numbers as a view."""
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
