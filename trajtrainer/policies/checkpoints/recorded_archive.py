"""Reads recordings from ``.npz`` files: trajectories, or a run's saved replay, which is described by its checkpoint."""

from __future__ import annotations

import contextlib
from pathlib import Path

from trajtrainer.core.errors import DemonstrationError
from trajtrainer.experience.npz import NpzError, open_npz
from trajtrainer.experience.recordings.conversions import archive_source, replay_source, write_archive
from trajtrainer.experience.recordings.formats import ReadOptions, RecordingFormat
from trajtrainer.experience.recordings.source import DemonstrationSource

_OF_REPLAY = {"start", "length", "format"}


def read_archive(name: str, _: ReadOptions) -> list[DemonstrationSource]:
    """Return the source for an ``.npz`` file.

    Raises:
        DemonstrationError: the file is missing or damaged, or it is a replay without its checkpoint.
        CheckpointError: the checkpoint next to a replay cannot be read.
    """
    path, is_replay = Path(name), False
    with contextlib.suppress(OSError, NpzError), open_npz(path) as file:  # archive_source reports the error
        is_replay = file.names >= _OF_REPLAY
    return [_replay(path) if is_replay else archive_source(path)]


def _replay(path: Path) -> DemonstrationSource:
    # Imported here because no other recording needs torch.
    from trajtrainer.policies.checkpoints.file import read_checkpoint
    from trajtrainer.policies.checkpoints.recovered_policy import recover_policy
    from trajtrainer.policies.folder.run_folder import CHECKPOINT_NAME

    checkpoint = path.parent / CHECKPOINT_NAME
    if not checkpoint.is_file():
        raise DemonstrationError(
            f"{path} is the saved replay of a run. It does not describe the agents' observations and actions, so "
            f"{CHECKPOINT_NAME} is needed in the same folder: leave the file in its behavior's folder."
        )
    policy = recover_policy(read_checkpoint(checkpoint), source=str(checkpoint))
    return replay_source(path, policy.spec, policy.behavior or path.parent.name)


ROW = RecordingFormat(read_archive, write_archive)
