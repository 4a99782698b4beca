"""Reads and writes recordings; the name of a file decides its format."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from trajtrainer.core import atomic
from trajtrainer.core.errors import DemonstrationError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.experience.npz import NpzError, open_npz
from trajtrainer.experience.recordings import conversions, demo_file, godot_source
from trajtrainer.experience.recordings.conversions import (
    MINARI_PREFIX,
    archive_source,
    minari_source,
    replay_source,
    write_archive,
)
from trajtrainer.experience.recordings.source import DemonstrationSource, demo_sources, write_source

_OF_REPLAY = {"start", "length", "format"}


def find_sources(
    words: Sequence[str], raw_image_order: RawImageOrder = RawImageOrder.AUTO, *, actions: str | None = None
) -> list[DemonstrationSource]:
    """Find recordings.

    Args:
        words: ``.demo`` files and folders of them, ``.npz`` files of trajectories or of a saved replay (next to the
            checkpoint of its run), ``.json`` files of Godot's plugin, and ``minari:`` followed by a data set's id or
            folder.
        raw_image_order: of raw images in ``.demo`` files; see ``open_demo``.
        actions: what Godot's plugin does not record; see ``godot_source``.

    Raises:
        DemonstrationError: one is missing, damaged or of another kind.
        CheckpointError: the checkpoint next to a replay cannot be read.
    """
    found: list[DemonstrationSource] = []
    for word in words:
        path = Path(word)
        if word.startswith(MINARI_PREFIX):
            found.append(minari_source(word.removeprefix(MINARI_PREFIX)))
        elif path.suffix == godot_source.SUFFIX:
            found.append(godot_source.godot_source(path, actions))
        elif path.suffix != conversions.SUFFIX:
            found += demo_sources([path], raw_image_order)
        else:
            is_replay = False
            with contextlib.suppress(OSError, NpzError), open_npz(path) as file:  # archive_source says why
                is_replay = file.names >= _OF_REPLAY
            found.append(_replay(path) if is_replay else archive_source(path))
    return found


def _replay(path: Path) -> DemonstrationSource:
    # Late: no other recording needs torch.
    from trajtrainer.policies.checkpoints.file import read_checkpoint
    from trajtrainer.policies.checkpoints.recovered_policy import recover_policy
    from trajtrainer.policies.folder.run_folder import CHECKPOINT_NAME

    checkpoint = path.parent / CHECKPOINT_NAME
    if not checkpoint.is_file():
        raise DemonstrationError(
            f"{path} is the saved replay of a run, which does not say what its agents see and do. Expected "
            f"{CHECKPOINT_NAME}, which does, in the same folder: leave the file in the folder of its behavior."
        )
    policy = recover_policy(read_checkpoint(checkpoint), source=str(checkpoint))
    return replay_source(path, policy.spec, policy.behavior or path.parent.name)


def check_target(path: Path) -> None:
    """Check that a recording can be written there.

    Raises:
        DemonstrationError: its name has no known suffix, or its folder does not exist.
    """
    formats = (demo_file.SUFFIX, conversions.SUFFIX)
    if path.suffix not in formats:
        raise DemonstrationError(f"{path} cannot be written: expected a name that ends in {' or '.join(formats)}.")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise DemonstrationError(f"{path} cannot be written: it is a folder, or its folder does not exist.")


def write(path: Path, source: DemonstrationSource) -> None:
    """Write a recording in the format of its suffix. After an error, what was there before stays.

    Raises:
        DemonstrationError: a trajectory cannot be read, there is none, or the file could not be written.
    """
    check_target(path)
    writer = write_source if path.suffix == demo_file.SUFFIX else write_archive
    try:
        atomic.write_with(path, lambda temporary: writer(temporary, source))
    except OSError as error:
        raise DemonstrationError(f"{path} could not be written: {error.strerror or error}.") from error
