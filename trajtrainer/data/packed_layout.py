"""Packed steps as one run of bytes, for shared memory and for other machines.

Shape legend: B packed steps, S trajectories, M most groupmates of one step, E rows of other groupmates, R bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trajtrainer.core.columns import Columns, Entry, Store, bootstrap_names, entries_of, sensor_name
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.data.trajectory import PackedGroups, PackedSteps

_ALIGNMENT = 64
_FLAG, _NUMBER, _AGENT = Entry(np.dtype("?"), ()), Entry(np.dtype("<i4"), ()), Entry(np.dtype("<i8"), ())


class Counts(NamedTuple):
    """The sizes of packed steps: with the layout of their behaviour all that is needed to find their arrays.

    Attributes:
        steps: B.
        trajectories: S.
        mates: M; 0 without groups.
        others: E; 0 without groups.
    """

    steps: int
    trajectories: int
    mates: int = 0
    others: int = 0

    @classmethod
    def of(cls, packed: PackedSteps) -> Counts:
        """Return those of ``packed``."""
        groups = packed.groups
        if groups is None:
            return cls(len(packed), packed.num_trajectories)
        return cls(len(packed), packed.num_trajectories, groups.mates.shape[1], len(groups.others))


class PackedLayout:
    """The places of all arrays of one behaviour's packed steps, one after the other, each at a multiple of 64 bytes.

    Both ends make it from the same settings, so that nothing but ``Counts`` travels beside the bytes.
    """

    def __init__(
        self, spec: BehaviorSpec, obs_dtypes: Sequence[DTypeLike], *, memory_size: int = 0, groups: bool = False
    ) -> None:
        """Resolve the columns.

        Args:
            spec: of the behaviour.
            obs_dtypes: per sensor, f32 or u8.
            memory_size: H; 0 without a recurrent memory.
            groups: whether the groupmates are there.
        """
        stores = Store.POOL | Store.GROUP if groups else Store.POOL
        self._steps = entries_of(stores, spec, obs_dtypes, memory_size=memory_size)
        sensors = [sensor_name(number) for number in range(len(obs_dtypes))]
        self._bootstrap = {name: self._steps[name] for name in bootstrap_names(len(obs_dtypes))}
        self._others = {name: self._steps[name] for name in [*sensors, "continuous", "discrete"]} if groups else {}
        self._has_groups = groups

    def size(self, counts: Counts) -> int:
        """Return R, the bytes that packed steps of these sizes take."""
        return sum(_bytes(entry, length) for entry, length in self._arrays(counts))

    def over(self, buffer: NDArray[np.uint8], counts: Counts) -> PackedSteps:
        """Return packed steps whose arrays are views of ``buffer``, u8 [R or more]."""
        position = 0

        def views(arrays: Iterator[tuple[Entry, int]]) -> Iterator[NDArray[Any]]:
            nonlocal position
            for entry, length in arrays:
                yield np.ndarray((length, *entry.shape), entry.dtype, buffer, position)
                position += _bytes(entry, length)

        found = views(self._arrays(counts))

        def columns(entries: dict[str, Entry]) -> Columns[NDArray[Any]]:
            return Columns({name: next(found) for name in entries})

        steps, bootstrap = columns(self._steps), columns(self._bootstrap)
        offset, terminated, ended, agent = (next(found) for _ in range(4))
        groups = None
        if self._has_groups:
            mates, next_mates = next(found), next(found)
            others = columns(self._others)
            groups = PackedGroups(mates, next_mates, others, next(found))
        return PackedSteps(steps, bootstrap, offset, terminated, ended, agent, groups)

    def write(self, packed: PackedSteps, buffer: NDArray[np.uint8]) -> None:
        """Write packed steps into ``buffer``; arrays that are there already (see ``gather``) are not copied."""
        for target, source in zip(_all(self.over(buffer, Counts.of(packed))), _all(packed), strict=True):
            if target.__array_interface__["data"] != source.__array_interface__["data"]:
                target[...] = source

    def _arrays(self, counts: Counts) -> Iterator[tuple[Entry, int]]:
        """Yield type and length of all arrays, in their order."""
        steps, trajectories, mates, others = counts
        yield from ((entry, steps) for entry in self._steps.values())
        yield from ((entry, trajectories) for entry in self._bootstrap.values())
        yield from ((_NUMBER, trajectories + 1), (_FLAG, trajectories), (_FLAG, trajectories), (_AGENT, trajectories))
        if self._has_groups:
            width = Entry(_NUMBER.dtype, (mates,))
            yield from ((width, steps), (width, trajectories))
            yield from ((entry, others) for entry in self._others.values())
            yield _FLAG, trajectories


def _all(packed: PackedSteps) -> Iterator[NDArray[Any]]:
    """Yield all arrays, in the order of the layout."""
    yield from packed.steps.values()
    yield from packed.bootstrap.values()
    yield from (packed.offset, packed.terminated, packed.ended, packed.agent)
    if packed.groups is not None:
        groups = packed.groups
        yield from (groups.mates, groups.next_mates, *groups.others.values(), groups.all_done)


def _bytes(entry: Entry, length: int) -> int:
    size = length * math.prod(entry.shape) * entry.dtype.itemsize
    return -(-size // _ALIGNMENT) * _ALIGNMENT
