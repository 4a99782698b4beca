"""Reads, writes and summarizes recordings. The name of a file determines its format."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from trajtrainer.core import atomic
from trajtrainer.core.errors import DemonstrationError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.plugins import resolve
from trajtrainer.core.printable import counted
from trajtrainer.core.stats import Distribution
from trajtrainer.experience.recordings.formats import ReadOptions, read_recordings, writer_of
from trajtrainer.experience.recordings.source import DemonstrationSource, Summary

_HEIGHTS = " ▁▂▃▄▅▆▇█"


def find_sources(
    words: Sequence[str], raw_image_order: RawImageOrder = RawImageOrder.AUTO, *, actions: str | None = None
) -> list[DemonstrationSource]:
    """Find recordings.

    Args:
        words: ``.demo`` files and folders of them, ``.npz`` files of trajectories or of a saved replay (next to the
            checkpoint of its run), ``minari:`` followed by a data set's id or folder, and files in formats that plugins
            add.
        raw_image_order: order of raw images in ``.demo`` files; see ``open_demo``.
        actions: the kinds of the numbers in an action, for formats that do not record them.

    Raises:
        DemonstrationError: a recording is missing, damaged or of an unknown kind.
        CheckpointError: the checkpoint next to a replay cannot be read.
    """
    options = ReadOptions(raw_image_order, actions)
    return [source for word in words for source in read_recordings(word, options)]


def check_target(path: Path) -> None:
    """Check that a recording can be written to ``path``.

    Raises:
        DemonstrationError: the name has no known suffix, the path is a folder, or its folder does not exist.
    """
    writer_of(path)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise DemonstrationError(f"{path} cannot be written: it is a folder, or its folder does not exist.")


def write(path: Path, source: DemonstrationSource) -> None:
    """Write a recording in the format of its suffix. After an error, an existing file is unchanged.

    Raises:
        DemonstrationError: a trajectory cannot be read, there are no trajectories, or the file could not be written.
    """
    check_target(path)
    writer = resolve(writer_of(path))
    try:
        atomic.write_with(path, lambda temporary: writer(temporary, source))
    except OSError as error:
        raise DemonstrationError(f"{path} could not be written: {error.strerror or error}.") from error


def format_summary(summary: Summary) -> Iterator[str]:
    """Yield the lines that describe a recording."""
    yield f"{summary.path}"
    behavior, steps = summary.behavior or "without a name", counted(summary.steps, "step")
    yield f"  behavior {behavior}: {episodes_in_words(summary)}, {steps}"
    measures = {"return": summary.returns, "group return": summary.group_returns, "length": summary.lengths}
    for name, found in measures.items():
        if found is not None:
            yield f"  {name}: {_distribution(found)}"
    for number, sensor in enumerate(summary.spec.observation_specs):
        goal = ", a goal signal" if sensor.observation_type.value else ""
        yield f"  observation {number}: {sensor.name or 'without a name'} {'x'.join(map(str, sensor.shape))}{goal}"
    for number, counts in enumerate(summary.discrete):
        chosen = "  ".join(f"{choice}: {count}" for choice, count in enumerate(counts))
        yield f"  branch {number}: {chosen}"
    for number, (found, counts) in enumerate(zip(summary.continuous, summary.histogram, strict=True)):
        largest = max(1, *counts)
        bars = "".join(_HEIGHTS[-(-count * (len(_HEIGHTS) - 1) // largest)] for count in counts)
        yield f"  action {number}: {_distribution(found)}  -1 {bars} 1"
    if summary.masked:
        yield "  some actions were masked at times"


def episodes_in_words(summary: Summary) -> str:
    """Return the number of episodes as text, including how many were interrupted or are unfinished."""
    text = counted(summary.episodes, "episode")
    if summary.interrupted:
        text += f" ({summary.interrupted} of them ended by the step limit)"
    return text + (f" and {summary.unfinished} unfinished" if summary.unfinished else "")


def _distribution(found: Distribution) -> str:
    return f"mean {found.mean:.4g}, standard deviation {found.std:.4g}, {found.min:.4g} to {found.max:.4g}"
