"""Recordings in every form that is read and written, found by their names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trajtrainer.core import atomic
from trajtrainer.core.errors import DemonstrationError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.data.npz import NpzError, open_npz
from trajtrainer.demos import conversions, demo_file, godot_source
from trajtrainer.demos.conversions import PREFIX, archive_source, minari_source, replay_source, write_archive
from trajtrainer.demos.source import Source, demo_sources, write_source

_OF_REPLAY = {"start", "length", "format"}


def find_sources(
    words: Sequence[str], raw_image_order: RawImageOrder = RawImageOrder.AUTO, *, actions: str | None = None
) -> list[Source]:
    """Return recordings.

    Args:
        words: ``.demo`` files and folders of them, ``.npz`` files of trajectories or of a saved replay (which lies
            beside the checkpoint of its run), ``.json`` files of Godot's plugin, and ``minari:`` with a data set's id
            or folder behind it.
        raw_image_order: of raw images in ``.demo`` files; see ``open_demo``.
        actions: what Godot's plugin does not record; see ``godot_source``.

    Raises:
        DemonstrationError: one is missing, damaged or of another kind.
        CheckpointError: the checkpoint beside a replay cannot be read.
    """
    return [source for word in words for source in _sources(word, raw_image_order, actions)]


def _sources(word: str, raw_image_order: RawImageOrder, actions: str | None) -> list[Source]:
    path = Path(word)
    if word.startswith(PREFIX):
        return [minari_source(word.removeprefix(PREFIX))]
    if path.suffix == godot_source.SUFFIX:
        return [godot_source.godot_source(path, actions)]
    if path.suffix != conversions.SUFFIX:
        return demo_sources([path], raw_image_order)
    return [_replay(path) if _is_replay(path) else archive_source(path)]


def _is_replay(path: Path) -> bool:
    try:
        with open_npz(path) as file:
            return file.names >= _OF_REPLAY
    except (OSError, NpzError):
        return False  # archive_source says why


def _replay(path: Path) -> Source:
    # Late: all other recordings do without torch.
    from trajtrainer.checkpoints.file import read_checkpoint
    from trajtrainer.checkpoints.recovered_policy import recover_policy
    from trajtrainer.rundir.folder import CHECKPOINT_NAME

    checkpoint = path.parent / CHECKPOINT_NAME
    if not checkpoint.is_file():
        raise DemonstrationError(
            f"{path} is the saved replay of a run, which does not say what its agents see and do. Expected "
            f"{CHECKPOINT_NAME}, which does, in the same folder: leave the file in the folder of its behavior."
        )
    policy = recover_policy(read_checkpoint(checkpoint), source=str(checkpoint))
    return replay_source(path, policy.spec, policy.behavior or path.parent.name)


def check_target(path: Path) -> None:
    """Look whether a recording can be written there.

    Raises:
        DemonstrationError: its name tells no format, or its folder is not there.
    """
    formats = (demo_file.SUFFIX, conversions.SUFFIX)
    if path.suffix not in formats:
        raise DemonstrationError(f"{path} cannot be written: expected a name that ends in {' or '.join(formats)}.")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise DemonstrationError(f"{path} cannot be written: it is a folder, or its folder does not exist.")


def write(path: Path, source: Source) -> None:
    """Write a recording in the format that its name tells. It is there whole, or what was there before stays.

    Raises:
        DemonstrationError: a trajectory cannot be read, there is none, or the file could not be written.
    """
    check_target(path)
    writer = write_source if path.suffix == demo_file.SUFFIX else write_archive
    try:
        atomic.write_with(path, lambda temporary: writer(temporary, source))
    except OSError as error:
        raise DemonstrationError(f"{path} could not be written: {error.strerror or error}.") from error
