"""Writes TensorBoard event files: the record format and the messages in it, without TensorFlow, torch or a thread.

ML-Agents (through ``torch.utils.tensorboard``) writes ``simple_value`` and ``histo``. Scripts that read its event files
find these, and not the newer tensor-based summaries. TensorBoard's own writer would import TensorFlow where it is
installed, and start a thread per file whose write errors (a full disk) surface in some later call.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Iterable, Mapping
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

from trajtrainer.settings.yaml.document import leaves

# Kept in memory while the disk is full: about 10,000 summaries of 20 values.
_MAX_PENDING_BYTES = 16 * 2**20
PREFIX = "events.out.tfevents."


class EventFile:
    """One event file that grows. A summary is one record, so a kill never leaves half of one to be shown."""

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        """Remember the folder; the first ``flush`` makes the file.

        Args:
            folder: made where it is missing.
            resumed_at: the step from which a run is resumed. TensorBoard hides what earlier files have of later
                steps.
        """
        self._folder = folder
        self._file: Any = None
        self._end = 0  # of the last complete record
        self._head = record(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resumed_at is not None:
            start = Event(wall_time=time.time(), step=resumed_at + 1, session_log=SessionLog(status=SessionLog.START))
            # Twice: the first start that TensorBoard ever sees marks the beginning of the run, and hides nothing.
            self._head += 2 * record(start)
        self._pending = bytearray()

    def add(self, values: Iterable[Any], step: int) -> None:
        """Append a summary of ``Summary.Value`` messages. ``flush`` writes it."""
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=values))
        if len(self._pending) < _MAX_PENDING_BYTES:
            self._pending += record(event)

    def flush(self) -> None:
        """Write what is pending.

        Raises:
            OSError: it could not be written (full disk). It stays pending, and the file ends with a whole record.
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
            while written < len(data):  # a nearly full disk takes a part, and refuses the next try
                written += self._file.write(data[written:])
        except OSError:
            self._file.truncate(self._end)
            raise
        self._end += len(data)
        self._pending.clear()

    def close(self) -> None:
        """Flush and close.

        Raises:
            OSError: what was pending could not be written.
        """
        try:
            self.flush()
        finally:
            if self._file is not None:
                self._file.close()


def scalar(tag: str, value: float) -> Any:
    """A ``Summary.Value`` of one number, which is kept as float32."""
    return Summary.Value(tag=tag, simple_value=value)


def text(tag: str, content: str) -> Any:
    """A ``Summary.Value`` for the text tab, under ``<tag>/text_summary``."""
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
    """A ``Summary.Value`` for the HPARAMS tab: the settings of a session that begins.

    There is no summary of the experiment, because TensorBoard would apply that of one run to all. It finds the columns,
    such as the newest value of each scalar, on its own.

    Args:
        settings: nested; their leaves are the hyperparameters, called ``a.b.c``.
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
    """A ``Summary.Value`` that marks the end of a session in the HPARAMS tab."""
    info = SessionEndInfo(status=STATUS_SUCCESS, end_time_secs=time.time())
    return _hparams("end", HParamsPluginData(version=0, session_end_info=info))


def _hparams(which: str, data: Any) -> Any:
    plugin = SummaryMetadata.PluginData(plugin_name="hparams", content=data.SerializeToString())
    nothing = TensorProto(dtype=DT_FLOAT, tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=0)]))
    return Summary.Value(
        tag=f"_hparams_/session_{which}_info", metadata=SummaryMetadata(plugin_data=plugin), tensor=nothing
    )


def histogram(tag: str, values: NDArray[np.float64]) -> Any:
    """A ``Summary.Value`` of the distribution of ``values`` (at least one, all finite).

    The buckets are TensorFlow's: borders grow by a tenth, from 1e-12 to 1e20 on both sides of 0.
    """
    counts, _ = np.histogram(values, bins=_BORDERS)
    filled = np.flatnonzero(counts)
    first, last = (int(filled[0]), int(filled[-1])) if len(filled) else (0, 0)
    # A bucket is given by its right border; an empty bucket before the first one says where that begins.
    return Summary.Value(
        tag=tag,
        histo=HistogramProto(
            min=values.min(),
            max=values.max(),
            num=len(values),
            sum=values.sum(),
            sum_squares=values.dot(values),
            bucket_limit=_BORDERS[first : last + 2].tolist(),
            bucket=[0.0, *counts[first : last + 1].tolist()],
        ),
    )


def _borders() -> NDArray[np.float64]:
    border, positive = 1e-12, []
    while border < 1e20:
        positive.append(border)
        border *= 1.1
    return np.array([*(-b for b in reversed(positive)), 0.0, *positive])


_BORDERS = _borders()


def _new_file(folder: Path) -> Any:
    """Open a file with a name that TensorBoard expects; unbuffered, so that no failed write is repeated later.

    ``wandb.init(sync_tensorboard=True)`` replaces TensorBoard's writer with one that reports its files to wandb. If it
    did, that one makes the file.
    """
    module = sys.modules.get("tensorboard.summary.writer.event_file_writer")
    if module is not None and module.EventFileWriter.__module__ != module.__name__:
        before = set(folder.glob(f"{PREFIX}*"))
        module.EventFileWriter(str(folder)).close()
        made = set(folder.glob(f"{PREFIX}*")) - before
        if made:
            return made.pop().open("r+b", buffering=0)
    start = f"{PREFIX}{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
    number = 0
    while True:
        try:
            return (folder / f"{start}.{number}").open("xb", buffering=0)
        except FileExistsError:
            number += 1


def record(event: Any) -> bytes:
    """An ``Event`` as a record: its length, its bytes, and a checksum of each."""
    data: bytes = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def _crc_table() -> tuple[int, ...]:
    # Of CRC-32C (Castagnoli), which the standard library does not have.
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC_TABLE = _crc_table()


def masked_crc(data: bytes) -> int:
    """The checksum of TensorFlow's record format: CRC-32C, rotated and shifted."""
    crc = 0xFFFFFFFF
    table = _CRC_TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
