"""An off-policy trainer's experience beside its checkpoints (``save_replay_buffer: true``).

A file is there whole or not at all. The trainer waits while it is written into the system's memory, not until it is on
the disk. After a kill the experience may be that of the checkpoint before, which does no harm.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from trajtrainer.data import replay_file
from trajtrainer.errors import CheckpointError
from trajtrainer.runtime import atomic
from trajtrainer.trainers.trainer import Trainer

logger = logging.getLogger(__name__)

NAME = "last_replay_buffer.npz"


class ReplayFiles:
    """The saved experience of all behaviours of a run."""

    def __init__(self) -> None:
        self._pending: dict[Path, threading.Thread] = {}

    def save(self, trainer: Trainer, folder: Path) -> None:
        """Writes the trainer's experience into the behaviour's folder, if its settings ask for it.

        A failure (full disk) is logged; the file before stays and training goes on.
        """
        replay = trainer.algorithm.saved_replay
        if replay is None:
            return
        path = folder / NAME
        self._finish(path)
        try:
            temporary = atomic.write_apart(path, lambda apart: replay_file.write(replay, apart))
        except OSError as error:
            _log_failure(path, error)
            return
        logger.info("Saving %d steps of experience to %s.", replay.num_steps, path)
        thread = threading.Thread(target=_publish, args=(temporary, path), name=f"replay of {trainer.context.behavior}")
        self._pending[path] = thread
        thread.start()

    def finish(self) -> None:
        """Waits until all that was saved is on the disk."""
        for path in list(self._pending):
            self._finish(path)

    def _finish(self, path: Path) -> None:
        thread = self._pending.pop(path, None)
        if thread is not None:
            thread.join()


def load_replay(trainer: Trainer, folder: Path) -> None:
    """Takes up the saved experience of a resumed run, if its settings ask for it. Without a file that can be used,
    training begins with none, which is told."""
    replay = trainer.algorithm.saved_replay
    if replay is None:
        return
    path = folder / NAME
    try:
        replay_file.read(replay, path)
    except CheckpointError as error:
        logger.warning("%s Training goes on without earlier experience.", error)
        return
    logger.info("Loaded %d steps of experience from %s.", replay.num_steps, path)


def _publish(temporary: Path, path: Path) -> None:
    try:
        atomic.publish(temporary, path)
    except OSError as error:
        _log_failure(path, error)


def _log_failure(path: Path, error: OSError) -> None:
    logger.error("The replay could not be saved to %s: %s. Training goes on.", path, error.strerror or error)
