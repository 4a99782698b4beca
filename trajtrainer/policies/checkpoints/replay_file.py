"""Saves a behavior's replay to a file, if the setting ``save_replay_buffer`` is on."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

from trajtrainer.core import atomic
from trajtrainer.core.errors import CheckpointError
from trajtrainer.experience import npz
from trajtrainer.experience.replay import Replay
from trajtrainer.learning.trainers.trainer import BehaviorTrainer

logger = logging.getLogger(__name__)

NAME = "last_replay_buffer.npz"


class ReplayFile:
    """The file with one behavior's replay, in the behavior's folder."""

    def __init__(self, replay: Replay, folder: Path, behavior: str) -> None:
        self.path = folder / NAME
        self._replay = replay
        self._behavior = behavior
        self._publishing: threading.Thread | None = None

    def save(self) -> None:
        """Write the replay. If this fails, for example because the disk is full, log it and keep the old file."""
        self.finish()
        with self._logging_failure():
            temporary = atomic.write_apart(self.path, lambda apart: npz.write_replay(self._replay, apart))
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
            logger.error("The replay could not be saved to %s: %s. Training continues.", self.path, reason)

    def finish(self) -> None:
        """Wait until the replay is written to disk."""
        if self._publishing is not None:
            self._publishing.join()
            self._publishing = None

    def load(self) -> None:
        """Load the replay of a resumed run. If the file is unusable, log a warning and start with an empty replay."""
        try:
            npz.read_replay(self._replay, self.path)
        except CheckpointError as error:
            logger.warning("%s Training continues without earlier experience.", error)
            return
        logger.info("Loaded %d steps of experience from %s.", self._replay.num_steps, self.path)


def replay_file_of(trainer: BehaviorTrainer, folder: Path) -> ReplayFile | None:
    """Return the replay file of a trainer, or None if its settings do not request one."""
    replay = trainer.algorithm.saved_replay
    return None if replay is None else ReplayFile(replay, folder, trainer.context.behavior)
