"""Scalars of TensorBoard event files, ours and ML-Agents', also of runs that were killed or go on.

A reader of our own: TensorBoard's takes everything into memory (or a random part of it), pictures and histograms
included.
"""

from __future__ import annotations

import logging
import os
import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.util.tensor_util import make_ndarray

from trajtrainer.rundir.event_file import PREFIX, masked_crc

logger = logging.getLogger(__name__)

# Of one tag so many points are kept, evenly over the run; more are not seen in any picture.
MOST_POINTS = 4096
MOST_TAGS = 5000
LONGEST_TAG = 1000
_LARGEST_RECORD = 1 << 24  # a larger one holds no scalar of ours or of ML-Agents
_CHUNK = 1 << 20
_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4


@dataclass(frozen=True, slots=True)
class Series:
    """The course of one statistic.

    Attributes:
        steps: ascending, i64 [P].
        values: finite, f64 [P].
    """

    steps: NDArray[np.int64]
    values: NDArray[np.float64]


class _Points:
    """Points of one tag as they come; when they become too many, every second is dropped."""

    def __init__(self) -> None:
        self._steps, self._values = array("q"), array("d")
        self._stride = 1
        self._count = 0
        self._last: tuple[int, float] | None = None

    def add(self, step: int, value: float) -> None:
        """Take a point. One of a step that was there means that the run went on from before it."""
        if self._last is not None and step <= self._last[0]:
            self.drop_from(step)
        self._last = (step, value)
        if self._count % self._stride == 0:
            self._steps.append(step)
            self._values.append(value)
        self._count += 1
        if len(self._steps) == 2 * MOST_POINTS:
            self._steps, self._values = self._steps[::2], self._values[::2]
            self._stride *= 2

    def drop_from(self, step: int) -> None:
        """Forget what came from this step on."""
        if self._last is None or self._last[0] < step:
            return
        while self._steps and self._steps[-1] >= step:
            self._steps.pop()
            self._values.pop()
        self._count = len(self._steps) * self._stride
        self._last = (self._steps[-1], self._values[-1]) if self._steps else None

    def series(self) -> Series:
        """Return what is kept, and the newest."""
        steps, values = self._steps[:], self._values[:]
        if self._last is not None and steps[-1] < self._last[0]:
            steps.append(self._last[0])
            values.append(self._last[1])
        return Series(np.array(steps, np.int64), np.array(values, np.float64))


def event_files(folder: Path) -> list[Path]:
    """Return the event files of a behaviour's folder, in the order in which they were begun."""
    return sorted(path for path in folder.glob(f"{PREFIX}*") if path.is_file())


def read_scalars(folder: Path) -> dict[str, Series]:
    """Return tag -> course, of all event files of a folder together.

    What a run had written before it was killed and then went on from an earlier step is left out.

    Raises:
        OSError: a file cannot be read.
    """
    points: dict[str, _Points] = {}
    for path in event_files(folder):
        with path.open("rb") as file:
            for event in EventReader(path).read(file):
                if event.HasField("session_log") and event.session_log.status == SessionLog.START:
                    for known in points.values():
                        known.drop_from(event.step)
                for value in event.summary.value:
                    number = scalar_of(value)
                    if number is not None and np.isfinite(number) and len(value.tag) <= LONGEST_TAG:
                        if value.tag not in points and len(points) >= MOST_TAGS:
                            continue
                        points.setdefault(value.tag, _Points()).add(event.step, number)
    found = {tag: each.series() for tag, each in points.items()}
    return {tag: series for tag, series in sorted(found.items()) if len(series.steps)}


class EventReader:
    """Reads an event file from where it was the last time: files grow while a run is at work.

    Attributes:
        offset: bytes that were read; whole records.
        is_damaged: what is behind ``offset`` cannot be read.
    """

    def __init__(self, path: Path) -> None:
        """Begin at the beginning.

        Args:
            path: for messages.
        """
        self.offset = 0
        self.is_damaged = False
        self._path = path

    def read(self, file: BinaryIO) -> Iterator[Any]:
        """Yield the events up to the end of the file, or up to damage: behind that nothing can be found."""
        for record in self.records(file):
            try:
                event = Event.FromString(record)
            except DecodeError:
                logger.warning("%s has a damaged record, which is left out.", self._path)
                continue
            yield event

    def records(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the same as bytes. Whoever leaves the loop goes on later behind the record that came last."""
        size = os.fstat(file.fileno()).st_size
        wanted = _CHUNK
        while not self.is_damaged and self.offset + _HEADER.size <= size:
            file.seek(self.offset)
            begin, asked = self.offset, min(wanted, size - self.offset)
            data = file.read(asked)
            yield from self._whole_records(data)
            if self.is_damaged or len(data) < asked:  # it was cut meanwhile
                return
            needed = self._next_length(data[self.offset - begin :])
            if self.offset + needed > size:
                return  # the run was killed in the midst of writing, or writes now
            if needed > _LARGEST_RECORD:
                self.offset += needed
            wanted = max(_CHUNK, min(needed, _LARGEST_RECORD))

    def _whole_records(self, data: bytes) -> Iterator[bytes]:
        """Yield the whole records at the beginning of ``data``."""
        at, end = 0, len(data) - _HEADER.size
        while at <= end:
            length, checksum = _HEADER.unpack_from(data, at)
            if checksum != _checksum(data[at : at + 8]):
                logger.warning("%s is damaged at byte %d; what follows is left out.", self._path, self.offset)
                self.is_damaged = True
                return
            behind = at + _HEADER.size + length + _FOOTER_BYTES
            if behind > len(data):
                return
            content = data[at + _HEADER.size : behind - _FOOTER_BYTES]
            self.offset += behind - at
            at = behind
            yield content

    @staticmethod
    def _next_length(rest: bytes) -> int:
        """Return how long the record is that begins here; its head alone where that is all there is."""
        if len(rest) < _HEADER.size:
            return _HEADER.size
        length: int = _HEADER.unpack_from(rest)[0]
        return _HEADER.size + length + _FOOTER_BYTES


@lru_cache(maxsize=4096)
def _checksum(length: bytes) -> int:
    """Return the checksum of a record's length: there are few different ones."""
    return masked_crc(length)


def scalar_of(value: Any) -> float | None:
    """Return the number of a ``Summary.Value``: ML-Agents' and our ``simple_value``, or a newer tensor of one."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind == "tensor" and value.metadata.plugin_data.plugin_name == "scalars":
        try:
            numbers = np.ravel(make_ndarray(value.tensor))
            return float(numbers[0]) if numbers.size == 1 else None
        except (TypeError, ValueError):
            return None
    return None


def tags_of(behaviors: Mapping[str, Mapping[str, Series]]) -> list[str]:
    """Return all tags of some behaviours, sorted."""
    return sorted({tag for scalars in behaviors.values() for tag in scalars})
