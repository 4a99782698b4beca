"""Copies of a run's files without the absolute paths of this machine (``places``), to be published.

Numbers, weights and pictures stay as they are, bit for bit; only texts change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from trajtrainer.checkpoints.file import read_checkpoint
from trajtrainer.core.errors import CheckpointError
from trajtrainer.hub.places import Places
from trajtrainer.rundir import event_file
from trajtrainer.rundir.series import EventReader

logger = logging.getLogger(__name__)

_FRAME_BYTES = 16  # of a record, around its content: length, checksum; checksum


def clean_events(path: Path, target: Path, places: Places) -> Path | None:
    """Write an event file whose texts and hyperparameters have no absolute paths. Other records are copied.

    A record of another kind than TensorBoard's summaries (a graph of a program, its log) is left out, and so is what
    follows after damage.

    Raises:
        OSError: a file cannot be read or written.
    """
    with path.open("rb") as file, target.open("wb") as written:
        reader = EventReader(path)
        for content in reader.records(file):
            try:
                event = Event.FromString(content)
            except DecodeError:
                continue
            if event.WhichOneof("what") not in (None, "file_version", "summary", "session_log"):
                continue
            if _clean_event(event, places):
                written.write(event_file.record(event))
            else:
                size = len(content) + _FRAME_BYTES
                file.seek(reader.offset - size)
                written.write(file.read(size))
    return target


def _clean_event(event: Any, places: Places) -> bool:
    """Take the paths out of an event. Return whether it had any."""
    before = event.SerializeToString(deterministic=True)
    if event.HasField("session_log"):
        _clean_strings(event.session_log, places.in_value)
    for value in event.summary.value:
        if value.metadata.summary_description:
            value.metadata.summary_description = places.in_lines(value.metadata.summary_description)
        if value.metadata.plugin_data.plugin_name == "hparams":
            data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
            if data.HasField("experiment"):
                data.experiment.user = ""
            _clean_strings(data, places.in_value)
            value.metadata.plugin_data.content = data.SerializeToString(deterministic=True)
        if value.tensor.string_val:
            texts = [text.decode("utf-8", "surrogateescape") for text in value.tensor.string_val]
            value.tensor.string_val[:] = [places.in_lines(text).encode("utf-8", "surrogateescape") for text in texts]
    return bool(event.SerializeToString(deterministic=True) != before)


def clean_checkpoint(path: Path, target: Path, places: Places) -> Path | None:
    """Write a checkpoint without the known paths. Return the file to publish: the given one if it has none.

    None if it cannot be read: nobody could use it, and what is in it cannot be known.

    Raises:
        OSError: a file cannot be written.
    """
    import torch

    try:
        state = read_checkpoint(path)
    except CheckpointError as error:
        logger.warning("%s It is left out.", error)
        return None
    cleaned = places.known_in(state)
    if cleaned is state:
        return path
    torch.save(cleaned, target)
    return target


def clean_onnx(path: Path, target: Path, places: Places) -> Path | None:
    """Write a model without the paths in its remarks. Return the file to publish: the given one if it has none.

    ``torch.onnx.export`` may leave the lines of the program there that made each node. Returns None if the file
    cannot be read.

    Raises:
        OSError: a file cannot be written.
    """
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, ValueError) as error:
        logger.warning("%s cannot be read (%s) and is left out.", path, type(error).__name__)
        return None
    if not _clean_remarks(model, places):
        return path
    target.write_bytes(model.SerializeToString(deterministic=True))
    return target


def _clean_remarks(message: Any, places: Places) -> bool:
    """Take the paths out of all ``doc_string`` and ``metadata_props``. Return whether there were any."""
    changed = False
    for field, value in message.ListFields():
        if field.name == "doc_string":
            cleaned = places.in_text(value)
            changed |= cleaned != value
            message.doc_string = cleaned
        elif field.name == "metadata_props":
            for entry in value:
                cleaned = places.in_value(entry.value)
                changed |= cleaned != entry.value
                entry.value = cleaned
        elif field.type == FieldDescriptor.TYPE_MESSAGE and field.name not in ("initializer", "input", "output"):
            for inner in [value] if hasattr(value, "ListFields") else value:
                changed |= _clean_remarks(inner, places)
    return changed


def _clean_strings(message: Any, clean: Callable[[Any], Any]) -> None:
    """Clean all texts of a message and of those in it."""
    for field, value in message.ListFields():
        is_single = hasattr(value, "ListFields") or isinstance(value, str)
        if field.type == FieldDescriptor.TYPE_STRING and is_single:
            setattr(message, field.name, clean(value))
        elif field.type == FieldDescriptor.TYPE_STRING:
            value[:] = map(clean, value)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in [value] if is_single else value.values() if hasattr(value, "values") else value:
                _clean_strings(inner, clean)
