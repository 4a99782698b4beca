"""Registry of recording formats, which are identified by a file suffix or a name prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trajtrainer.core.errors import DemonstrationError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.plugins import Reference, Registry, resolve
from trajtrainer.experience.recordings.conversions import minari_source
from trajtrainer.experience.recordings.demo_file import demo_paths
from trajtrainer.experience.recordings.source import DemonstrationSource, demo_source, write_source


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for information that may be missing in a file.

    Attributes:
        raw_image_order: dimension order of raw images in ``.demo`` files; see ``open_demo``.
        actions: types and sizes of the actions in order, such as ``continuous:2,discrete:3``.
    """

    raw_image_order: RawImageOrder = RawImageOrder.AUTO
    actions: str | None = None


@dataclass(frozen=True, slots=True)
class RecordingFormat:
    """A recording format.

    Attributes:
        read: function that takes a path or name and ``ReadOptions``, and returns a list of ``DemonstrationSource``.
        write: function that takes a path and a ``DemonstrationSource``; None if the format cannot be written.
        is_prefix: whether the format is selected by a name prefix (``minari:ID``) instead of a file suffix.
    """

    read: Reference
    write: Reference | None = None
    is_prefix: bool = False


def read_demo(path: str, options: ReadOptions) -> list[DemonstrationSource]:
    """Return the source for a ``.demo`` file, or the sources for all ``.demo`` files in a folder."""
    return [demo_source(each, options.raw_image_order) for each in demo_paths([path])]


def read_minari(name: str, _: ReadOptions) -> list[DemonstrationSource]:
    """Return the source for a Minari data set, given its id or folder."""
    return [minari_source(name)]


RECORDING_FORMATS: Registry[RecordingFormat] = Registry(
    "recording format",
    "trajtrainer.recording_formats",
    RecordingFormat,
    {
        "demo": RecordingFormat(read_demo, write_source),
        "npz": "trajtrainer.policies.checkpoints.recorded_archive:ROW",
        "minari": RecordingFormat(read_minari, is_prefix=True),
        "json": "trajtrainer.plugins.godot.recordings:ROW",
    },
)
"""The recording formats, by suffix without the dot or prefix without the colon."""


def read_recordings(word: str, options: ReadOptions) -> list[DemonstrationSource]:
    """Return the sources that ``word`` refers to. By default, it is a ``.demo`` file or a folder of these.

    Raises:
        DemonstrationError: a recording is missing, damaged or not in a supported format.
        CheckpointError: the checkpoint next to a replay cannot be read.
        PluginError: the package that provides the format is broken.
    """
    prefix, _, name = word.partition(":")
    suffix = Path(word).suffix.removeprefix(".")
    for key, rest, is_prefix in ((prefix, name, True), (suffix, word, False)):
        if key in RECORDING_FORMATS and RECORDING_FORMATS[key].is_prefix is is_prefix:
            with RECORDING_FORMATS.blaming(key):
                return list(resolve(RECORDING_FORMATS[key].read)(rest, options))
    return read_demo(word, options)


def writer_of(path: Path) -> Reference:
    """Return the function that writes a recording with the format given by the suffix of ``path``.

    Raises:
        DemonstrationError: no format with this suffix can be written.
    """
    row = RECORDING_FORMATS.get(path.suffix.removeprefix("."))
    if row is not None and row.write is not None and not row.is_prefix:
        return row.write
    rows = {name: RECORDING_FORMATS.get(name) for name in RECORDING_FORMATS}
    known: Sequence[str] = [f".{name}" for name, row in rows.items() if row is not None and row.write is not None]
    raise DemonstrationError(f"{path} cannot be written: expected a name that ends in {' or '.join(known)}.")
