"""Writes TensorBoard event files without TensorFlow, torch or a background thread.

Like ML-Agents (through ``torch.utils.tensorboard``), it writes ``simple_value`` and ``histo``, because scripts that
read ML-Agents' event files expect these rather than the newer tensor-based summaries. TensorBoard's own writer would
import TensorFlow if it is installed, and start a thread per file, which reports write errors (such as a full disk) only
in a later call.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.histogram_pb2 import HistogramProto
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT, DT_STRING
from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

from trajtrainer.core.filenames import EVENT_FILE_PREFIX
from trajtrainer.settings.yaml.document import leaves

# Maximum number of bytes kept in memory while the disk is full: about 10,000 summaries of 20 values.
_MAX_PENDING_BYTES = 16 * 2**20


class EventFile:
    """An append-only event file. Each summary is one record, so a killed run never leaves half a summary."""

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        """Store the folder. The first ``flush`` creates the file.

        Args:
            folder: folder for the file. It is created if it does not exist.
            resumed_at: the step from which a run is resumed. TensorBoard then hides values of later steps in earlier
                files.
        """
        self._folder = folder
        self._file: Any = None
        self._end = 0  # end of the last complete record
        self._head = record(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resumed_at is not None:
            start = Event(wall_time=time.time(), step=resumed_at + 1, session_log=SessionLog(status=SessionLog.START))
            # Written twice, because TensorBoard takes the first SessionLog.START for the start of the run and hides
            # nothing.
            self._head += 2 * record(start)
        self._pending = bytearray()

    def add(self, values: Iterable[Any], step: int) -> None:
        """Append a summary with these ``Summary.Value`` messages. It is written by the next ``flush``."""
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=values))
        if len(self._pending) < _MAX_PENDING_BYTES:
            self._pending += record(event)

    def flush(self) -> None:
        """Write pending records.

        Raises:
            OSError: they could not be written, for example because the disk is full. They stay pending, and the file
                still ends with a complete record.
        """
        if not self._pending:
            return
        try:
            is_there = self._file is not None and os.path.samestat(
                os.fstat(self._file.fileno()), os.stat(self._file.name)
            )
        except OSError:  # deleted by the user
            is_there = False
        if not is_there:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = _new_file(self._folder)
            if self._file is not None:
                self._file.close()
            self._file, self._end = file, file.seek(0, os.SEEK_END)
            self._pending[:0] = self._head
        data = bytes(self._pending)
        try:
            self._file.seek(self._end)
            written = 0
            while written < len(data):  # a nearly full disk accepts only a part
                written += self._file.write(data[written:])
        except OSError:
            self._file.truncate(self._end)
            raise
        self._end += len(data)
        self._pending.clear()

    def close(self) -> None:
        """Write pending records and close the file.

        Raises:
            OSError: pending records could not be written.
        """
        try:
            self.flush()
        finally:
            if self._file is not None:
                self._file.close()


def scalar(tag: str, value: float) -> Any:
    """Return a ``Summary.Value`` for a scalar, which is stored as float32."""
    return Summary.Value(tag=tag, simple_value=value)


def text(tag: str, content: str) -> Any:
    """Return a ``Summary.Value`` for the TEXT tab, under ``<tag>/text_summary``."""
    return Summary.Value(
        tag=f"{tag}/text_summary",
        metadata=SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text", content=b"")),
        tensor=TensorProto(
            dtype=DT_STRING,
            string_val=[content.encode("utf-8", "backslashreplace")],
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        ),
    )


def hparams_begin(settings: Mapping[str, Any]) -> Any:
    """Return a ``Summary.Value`` for the HPARAMS tab: the settings at the start of a session.

    No experiment summary is written, because TensorBoard would apply the summary of one run to all runs. Without it,
    TensorBoard determines the columns, such as the newest value of each scalar, automatically.

    Args:
        settings: nested settings. Their leaves are the hyperparameters, with names like ``a.b.c``.
    """
    info = SessionStartInfo(start_time_secs=time.time())
    for name, value in leaves(settings):
        if value is None or isinstance(value, Mapping):
            continue
        entry = info.hparams[name]
        if isinstance(value, bool):
            entry.bool_value = value
        elif isinstance(value, int | float):
            entry.number_value = value
        else:
            entry.string_value = str(value)
    return _hparams("start", HParamsPluginData(version=0, session_start_info=info))


def hparams_end() -> Any:
    """Return a ``Summary.Value`` that marks the end of a session in the HPARAMS tab."""
    info = SessionEndInfo(status=STATUS_SUCCESS, end_time_secs=time.time())
    return _hparams("end", HParamsPluginData(version=0, session_end_info=info))


def _hparams(which: str, data: Any) -> Any:
    plugin = SummaryMetadata.PluginData(plugin_name="hparams", content=data.SerializeToString())
    nothing = TensorProto(dtype=DT_FLOAT, tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=0)]))
    return Summary.Value(
        tag=f"_hparams_/session_{which}_info", metadata=SummaryMetadata(plugin_data=plugin), tensor=nothing
    )


def histogram(tag: str, values: NDArray[np.float64]) -> Any:
    """Return a ``Summary.Value`` with the distribution of ``values`` (at least one, all finite).

    The buckets are TensorFlow's: their edges grow by a factor of 1.1 from 1e-12 to 1e20, on both sides of 0.
    """
    counts, _ = np.histogram(values, bins=_borders())
    filled = np.flatnonzero(counts)
    first, last = (int(filled[0]), int(filled[-1])) if len(filled) else (0, 0)
    # Only right edges are stored, so an empty bucket comes first, to mark the left edge of the first filled bucket.
    return Summary.Value(
        tag=tag,
        histo=HistogramProto(
            min=values.min(),
            max=values.max(),
            num=len(values),
            sum=values.sum(),
            sum_squares=values.dot(values),
            bucket_limit=_borders()[first : last + 2].tolist(),
            bucket=[0.0, *counts[first : last + 1].tolist()],
        ),
    )


@cache
def _borders() -> NDArray[np.float64]:
    border, positive = 1e-12, []
    while border < 1e20:
        positive.append(border)
        border *= 1.1
    return np.array([*(-b for b in reversed(positive)), 0.0, *positive])


def _new_file(folder: Path) -> Any:
    """Open a file with a name that TensorBoard expects, unbuffered so that no failed write is repeated later.

    ``wandb.init(sync_tensorboard=True)`` replaces TensorBoard's writer with one that reports its files to wandb. In
    that case, wandb's writer creates the file.
    """
    module = sys.modules.get("tensorboard.summary.writer.event_file_writer")
    if module is not None and module.EventFileWriter.__module__ != module.__name__:
        before = set(folder.glob(f"{EVENT_FILE_PREFIX}*"))
        module.EventFileWriter(str(folder)).close()
        made = set(folder.glob(f"{EVENT_FILE_PREFIX}*")) - before
        if made:
            return made.pop().open("r+b", buffering=0)
    start = f"{EVENT_FILE_PREFIX}{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
    number = 0
    while True:
        try:
            return (folder / f"{start}.{number}").open("xb", buffering=0)
        except FileExistsError:
            number += 1


def record(event: Any) -> bytes:
    """Return an ``Event`` as a record: its length and its bytes, each followed by a checksum."""
    data: bytes = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


@cache
def _crc_table() -> tuple[int, ...]:
    # The table for CRC-32C (Castagnoli), which is not in the standard library.
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


def masked_crc(data: bytes) -> int:
    """Return the checksum of TensorFlow's record format: CRC-32C, rotated and offset."""
    crc = 0xFFFFFFFF
    table = _crc_table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
