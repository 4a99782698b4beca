"""An off-policy trainer's experience beside its checkpoints (``save_replay_buffer: true``).

A file is there whole or not at all. The trainer waits while it is written into the system's memory, not until it is on
the disk. After a kill the experience may be that of the checkpoint before, which does no harm.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

from trajtrainer.core import atomic
from trajtrainer.core.errors import CheckpointError
from trajtrainer.data import replay_file
from trajtrainer.data.replay import Replay
from trajtrainer.trainers.trainer import BehaviorTrainer

logger = logging.getLogger(__name__)

NAME = "last_replay_buffer.npz"


class ReplayFile:
    """The saved experience of one behavior, in its folder."""

    def __init__(self, replay: Replay, folder: Path, behavior: str) -> None:
        self.path = folder / NAME
        self._replay = replay
        self._behavior = behavior
        self._publishing: threading.Thread | None = None

    def save(self) -> None:
        """Write the experience. A failure (full disk) is logged; the file before stays and training goes on."""
        self.finish()
        with self._logging_failure():
            temporary = atomic.write_apart(self.path, lambda apart: replay_file.write(self._replay, apart))
            logger.info("Saving %d steps of experience to %s.", self._replay.num_steps, self.path)
            name = f"replay of {self._behavior}"
            self._publishing = threading.Thread(target=self._publish, args=(temporary,), name=name)
            self._publishing.start()

    def _publish(self, temporary: Path) -> None:
        with self._logging_failure():
            atomic.publish(temporary, self.path)

    @contextlib.contextmanager
    def _logging_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            logger.error("The replay could not be saved to %s: %s. Training goes on.", self.path, reason)

    def finish(self) -> None:
        """Wait until what was saved is on the disk."""
        if self._publishing is not None:
            self._publishing.join()
            self._publishing = None

    def load(self) -> None:
        """Take up the experience of a resumed run; without a file that can be used, warn and begin with none."""
        try:
            replay_file.read(self._replay, self.path)
        except CheckpointError as error:
            logger.warning("%s Training goes on without earlier experience.", error)
            return
        logger.info("Loaded %d steps of experience from %s.", self._replay.num_steps, self.path)


def replay_file_of(trainer: BehaviorTrainer, folder: Path) -> ReplayFile | None:
    """Return the file of a trainer whose settings ask for it; None of any other."""
    replay = trainer.algorithm.saved_replay
    return None if replay is None else ReplayFile(replay, folder, trainer.context.behavior)
