"""Copies of a run's files for publishing, without this machine's absolute paths (``Places``).

Numbers, weights and images stay the same to the bit; only text changes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from trajtrainer.core.errors import CheckpointError
from trajtrainer.policies.checkpoints.file import read_checkpoint
from trajtrainer.policies.folder import event_file
from trajtrainer.policies.folder.event_reader import EventRecordReader

logger = logging.getLogger(__name__)

_FRAME_BYTES = 16  # of a record, around its content: length, checksum; checksum

_END = r"\s'\",;:|<>()\[\]{}"  # what ends a path inside of a text
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]+://"
_URL = re.compile(_SCHEME)
_IN_TEXT = re.compile(
    rf"(?P<url>{_SCHEME}[^\s'\",;|<>()\[\]{{}}]+)"
    rf"|(?<![\w/\\])(?:[A-Za-z]:[\\/]|\\\\)(?P<windows>[^{_END}]+)"
    rf"|(?<![\w.~/\\)\]}}-])(?:~[\w.-]*)?/(?=[\w.~])(?P<posix>[^{_END}]+)"
)


def clean_events(path: Path, target: Path, places: Places) -> Path | None:
    """Copy an event file without the absolute paths in its texts and hyperparameters.

    Only summaries are copied, not the other kinds of records (the graph of a program, its log), and nothing after
    damage.

    Raises:
        OSError: a file cannot be read or written.
    """
    with path.open("rb") as file, target.open("wb") as written:
        reader = EventRecordReader(path)
        for content in reader.records(file):
            try:
                event = Event.FromString(content)
            except DecodeError:
                continue
            if event.WhichOneof("what") not in (None, "file_version", "summary", "session_log"):
                continue
            before = event.SerializeToString(deterministic=True)
            _clean_event(event, places)
            if event.SerializeToString(deterministic=True) != before:
                written.write(event_file.record(event))
            else:
                size = len(content) + _FRAME_BYTES
                file.seek(reader.offset - size)
                written.write(file.read(size))
    return target


def _clean_event(event: Any, places: Places) -> None:
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


def clean_checkpoint(path: Path, target: Path, places: Places) -> Path | None:
    """The file to publish: ``path`` if it has none of the known paths, otherwise a copy without them.

    None if it cannot be read: it would be of no use, and its content is unknown.

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
    """The file to publish: ``path`` if its comments have no paths, otherwise a copy without them.

    ``torch.onnx.export`` may write into them which source lines made each node. None if the file cannot be read.

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
    """Cut the paths in every ``doc_string`` and ``metadata_props``. Return whether there were any."""
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
    """Clean all texts of a message and of the messages in it."""
    for field, value in message.ListFields():
        is_single = hasattr(value, "ListFields") or isinstance(value, str)
        if field.type == FieldDescriptor.TYPE_STRING and is_single:
            setattr(message, field.name, clean(value))
        elif field.type == FieldDescriptor.TYPE_STRING:
            value[:] = map(clean, value)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in [value] if is_single else value.values() if hasattr(value, "values") else value:
                _clean_strings(inner, clean)


class Places:
    """Cuts absolute paths to their last part.

    Args:
        known: absolute paths that are found anywhere in a text, even if they contain spaces.
    """

    def __init__(self, known: Iterable[str]) -> None:
        self._names = {place: last_part(place) for place in known if last_part(place)}
        longest_first = sorted(self._names, key=len, reverse=True)
        # If more follows, it is another path, which the general pattern finds.
        self._known = re.compile(f"({'|'.join(map(re.escape, longest_first))})(?![\\w/\\\\-])") if self._names else None

    def in_value(self, value: Any) -> Any:
        """Clean plain data, in which a text may be a path, be ``key=path``, or contain paths."""
        if isinstance(value, dict):
            return {key: self.in_value(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.in_value(inner) for inner in value]
        if not isinstance(value, str):
            return value
        if _URL.match(value):
            return _cut_url(value)
        if is_absolute(value):
            return last_part(value)
        key, sign, path = value.partition("=")
        alone = sign and "=" not in path and is_absolute(path)
        return f"{key}={last_part(path)}" if alone else self.in_text(value)

    def in_text(self, text: str) -> str:
        """Clean a text that may contain paths."""

        def cut(match: re.Match[str]) -> str:
            return _cut_url(match["url"]) if match["url"] else last_part(match["windows"] or match["posix"])

        return _IN_TEXT.sub(cut, self._without_known(text))

    def in_lines(self, text: str) -> str:
        """Clean a text whose lines may be ``key:<tab>value``, as in the summary of the settings."""
        lines = (line.partition(":\t") for line in text.split("\n"))
        return "\n".join(key + sign + self.in_value(value) if sign else self.in_text(key) for key, sign, value in lines)

    def known_in(self, value: Any) -> Any:
        """Clean the content of a checkpoint; return the same object if it has no known path.

        Other paths stay, because the name of a sensor may look like one.
        """
        if isinstance(value, str):
            cut = self._names.get(value) or self._without_known(value)
            return value if cut == value else cut
        if isinstance(value, dict):
            pairs = [(self.known_in(key), self.known_in(inner)) for key, inner in value.items()]
            same = all(a is b and c is d for (a, c), (b, d) in zip(pairs, value.items(), strict=True))
            return value if same else dict(pairs)
        if isinstance(value, list | tuple):
            items = [self.known_in(inner) for inner in value]
            return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
        return value

    def _without_known(self, text: str) -> str:
        return self._known.sub(lambda match: self._names[match[1]], text) if self._known else text


def is_absolute(text: str) -> bool:
    """Whether a text is an absolute path, of POSIX or of Windows, or a path in a home folder."""
    starts_at_home = re.match(r"~[\w.-]*[/\\]", text) is not None
    return starts_at_home or PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute()


def last_part(path: str) -> str:
    """The last part of a path of any operating system."""
    return re.split(r"[/\\]+", path.rstrip("/\\"))[-1]


def paths_in(value: Any) -> Iterator[str]:
    """Yield the absolute paths in plain data that have more than one part."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from paths_in(inner)
    elif isinstance(value, str):
        for text in (value, value.partition("=")[2]):
            if is_absolute(text) and len(re.findall(r"[/\\]+[^/\\]", text)) > 1:
                yield text


def _cut_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    server, slash, path = rest.partition("/")
    server = server.rpartition("@")[2]
    # Without a server it is a file of this machine: file:///home/..., sqlite:////home/...
    return f"{scheme}://{server}{slash}{last_part(path) if server in ('', 'localhost') else path}"
