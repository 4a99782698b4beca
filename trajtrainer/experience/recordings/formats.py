"""Registry of the formats of recordings, by the suffix of their files or the prefix of their names."""

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
    """What a file may not say itself.

    Attributes:
        raw_image_order: of raw images in ``.demo`` files; see ``open_demo``.
        actions: what each number of an action is, in order: ``continuous:2,discrete:3``.
    """

    raw_image_order: RawImageOrder = RawImageOrder.AUTO
    actions: str | None = None


@dataclass(frozen=True, slots=True)
class RecordingFormat:
    """A format of recordings.

    Attributes:
        read: called with a path or name and ``ReadOptions``; returns a list of ``DemonstrationSource``.
        write: called with a path and a ``DemonstrationSource``. None if recordings cannot be written in this format.
        is_prefix: whether its name is the prefix of names (``minari:ID``) instead of the suffix of files.
    """

    read: Reference
    write: Reference | None = None
    is_prefix: bool = False


def read_demo(path: str, options: ReadOptions) -> list[DemonstrationSource]:
    """Sources for a ``.demo`` file, or for all in a folder."""
    return [demo_source(each, options.raw_image_order) for each in demo_paths([path])]


def read_minari(name: str, _: ReadOptions) -> list[DemonstrationSource]:
    """The source for a data set of Minari, by its id or folder."""
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
"""Suffix without its dot, or prefix without its colon -> format."""


def read_recordings(word: str, options: ReadOptions) -> list[DemonstrationSource]:
    """Read what a word names; without a suffix that has a format, it is a ``.demo`` file or a folder of them.

    Raises:
        DemonstrationError: it is missing, damaged or of another kind.
        CheckpointError: the checkpoint next to a replay cannot be read.
        PluginError: the package that has the format is broken.
    """
    prefix, _, name = word.partition(":")
    suffix = Path(word).suffix.removeprefix(".")
    for key, rest, is_prefix in ((prefix, name, True), (suffix, word, False)):
        if key in RECORDING_FORMATS and RECORDING_FORMATS[key].is_prefix is is_prefix:
            with RECORDING_FORMATS.blaming(key):
                return list(resolve(RECORDING_FORMATS[key].read)(rest, options))
    return read_demo(word, options)


def writer_of(path: Path) -> Reference:
    """What writes a recording of this name.

    Raises:
        DemonstrationError: its suffix is that of no format that can be written.
    """
    row = RECORDING_FORMATS.get(path.suffix.removeprefix("."))
    if row is not None and row.write is not None and not row.is_prefix:
        return row.write
    rows = {name: RECORDING_FORMATS.get(name) for name in RECORDING_FORMATS}
    known: Sequence[str] = [f".{name}" for name, row in rows.items() if row is not None and row.write is not None]
    raise DemonstrationError(f"{path} cannot be written: expected a name that ends in {' or '.join(known)}.")
