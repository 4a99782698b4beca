"""An off-policy trainer's experience beside its checkpoints (``save_replay_buffer: true``).

A file is there whole or not at all. The trainer waits while it is written into the system's memory, not until it is on
the disk. After a kill the experience may be that of the checkpoint before, which does no harm.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from trajtrainer.core import atomic
from trajtrainer.core.errors import CheckpointError
from trajtrainer.data import replay_file
from trajtrainer.data.replay import Replay
from trajtrainer.trainers.trainer import Trainer

logger = logging.getLogger(__name__)

NAME = "last_replay_buffer.npz"


class ReplayFile:
    """The saved experience of one behaviour."""

    def __init__(self, replay: Replay, folder: Path, behavior: str) -> None:
        """Keep one behaviour's replay in files.

        Args:
            replay: what is saved.
            folder: of the behaviour.
            behavior: its name.
        """
        self.path = folder / NAME
        self._replay = replay
        self._behavior = behavior
        self._publishing: threading.Thread | None = None

    def save(self) -> None:
        """Write the experience beside the checkpoints.

        A failure (full disk) is logged; the file before stays and training goes on.
        """
        self.finish()
        try:
            temporary = atomic.write_apart(self.path, lambda apart: replay_file.write(self._replay, apart))
        except OSError as error:
            self._log_failure(error)
            return
        logger.info("Saving %d steps of experience to %s.", self._replay.num_steps, self.path)
        self._publishing = threading.Thread(target=self._publish, args=(temporary,), name=f"replay of {self._behavior}")
        self._publishing.start()

    def finish(self) -> None:
        """Wait until what was saved is on the disk."""
        if self._publishing is not None:
            self._publishing.join()
            self._publishing = None

    def load(self) -> None:
        """Take up the experience of a resumed run.

        Without a file that can be used, training begins with none, which is told.
        """
        try:
            replay_file.read(self._replay, self.path)
        except CheckpointError as error:
            logger.warning("%s Training goes on without earlier experience.", error)
            return
        logger.info("Loaded %d steps of experience from %s.", self._replay.num_steps, self.path)

    def _publish(self, temporary: Path) -> None:
        try:
            atomic.publish(temporary, self.path)
        except OSError as error:
            self._log_failure(error)

    def _log_failure(self, error: OSError) -> None:
        reason = error.strerror or error
        logger.error("The replay could not be saved to %s: %s. Training goes on.", self.path, reason)


def replay_file_of(trainer: Trainer, folder: Path) -> ReplayFile | None:
    """Return the file of a trainer whose settings ask for it; None of any other."""
    replay = trainer.algorithm.saved_replay
    return None if replay is None else ReplayFile(replay, folder, trainer.context.behavior)
