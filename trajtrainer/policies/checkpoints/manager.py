"""Saves and loads a behavior's checkpoints, so that a run can be resumed even if it was killed at any moment.

A save writes these files in this order, each of them atomically: ``checkpoint.pt`` (so that it is always the newest
state), ``<B>-<step>.pt``, ``<B>-<step>.onnx``. Then it removes the checkpoints beyond ``keep_checkpoints`` and writes
``training_status.json``. If the run is killed in between, the status may list files that no longer exist or omit one
that does; the next ``--resume`` corrects it. The replay (``last_replay_buffer.npz``) is written after the checkpoint,
in a thread.
"""

from __future__ import annotations

import errno
import io
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trajtrainer.core import atomic
from trajtrainer.core.errors import CheckpointError, first_line
from trajtrainer.policies.checkpoints.file import NoCheckpointError, check_entries, load_checkpoint, read_checkpoint
from trajtrainer.policies.checkpoints.mlagents.convert import STEP, STEP_ENTRY
from trajtrainer.policies.folder.run_folder import BehaviorFolder
from trajtrainer.policies.folder.status import CheckpointRecord, TrainingStatus, finite_or_none

logger = logging.getLogger(__name__)


State = Mapping[str, Any]
Export = Callable[[Path], object]
"""Function that exports the policy as ONNX to a path. If it fails, the error is logged and the ``.pt`` is kept."""


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint's file and content."""

    path: Path
    state: dict[str, Any]


class CheckpointManager:
    """Saves one behavior's checkpoints, keeps the newest ``keep`` (0: all), and finds the one to resume from.

    If ``writes`` is False (``--inference``), ``save`` and ``save_final`` do nothing.
    """

    def __init__(self, folder: BehaviorFolder, status: TrainingStatus, keep: int, *, writes: bool = True) -> None:
        self.folder = folder
        self._status = status
        self._keep = keep
        self._writes = writes
        self._records: list[CheckpointRecord] = []
        self._verified = False

    @property
    def records(self) -> list[CheckpointRecord]:
        """The records of the kept checkpoints, oldest first."""
        return list(self._records)

    def save(self, step: int, reward: float | None, state: State, export: Export) -> bool:
        """Save a checkpoint and remove the oldest ones beyond ``keep``.

        Args:
            step: the trainer's step.
            reward: mean return of the episodes since the last policy update; None or NaN if there were none.
            state: content of the checkpoint. It may hold only tensors and plain data, since ``read_checkpoint``
                rejects everything else.
            export: exports the policy.

        Returns:
            False if the checkpoint could not be written (for example, because the disk is full) or could not be loaded
            again. This is logged, and older checkpoints are unchanged.
        """
        if not self._writes:
            return True
        try:
            self._save(step, reward, state, export)
            self._update_status(None)
        except CheckpointError as error:
            problem = "%s Training continues, and the next checkpoint is saved when it is due. %s"
            logger.error(problem, error, self._newest)
            return False
        return True

    def save_final(self, step: int, reward: float | None, state: State, export: Export) -> None:
        """Save the last checkpoint of a run, and copy its policy to ``<Behavior>.onnx``. Arguments as for ``save``.

        Raises:
            CheckpointError: the checkpoint could not be written. Older checkpoints are unchanged.
        """
        if not self._writes:
            return
        try:
            record, exported = self._save(step, reward, state, export)
            try:
                if exported is not None:
                    with _writing(self.folder.exported):
                        atomic.write_bytes(self.folder.exported, exported.read_bytes())
                    logger.info("Copied %s to %s.", exported, self.folder.exported)
            except CheckpointError:
                self._update_status(None)  # the numbered checkpoint exists
                raise
            self._update_status(record)
        except CheckpointError as error:
            cause = error.__cause__
            is_full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
            raise CheckpointError(
                f"The final checkpoint of behavior {self.folder.behavior!r} at step {step} could not be saved. "
                f"{error} {'Free some disk space. ' if is_full else ''}{self._newest}"
            ) from error

    @property
    def _newest(self) -> str:
        """A sentence about the newest checkpoint, for the error message after a failed save."""
        if not self._records:
            return "There is no earlier checkpoint."
        return f"The newest checkpoint is from step {self._records[-1].steps}; --resume continues from it."

    def _save(
        self, step: int, reward: float | None, state: State, export: Export
    ) -> tuple[CheckpointRecord, Path | None]:
        """Save a checkpoint. Return its record, and the path of the exported policy if the export succeeded."""
        data = self._serialized(state)
        latest, numbered = self.folder.checkpoint, self.folder.numbered(step, ".pt")
        refusal: OSError | None = None
        try:
            atomic.write_bytes(latest, data, syncs_folder=False)
        except OSError as error:  # another program may have this particular file open
            refusal = error
        with _writing(numbered):
            atomic.write_bytes(numbered, data, syncs_folder=False)
        if refusal is not None:
            problem = "%s could not be written: %s. %s has the same content, and --resume uses it."
            logger.error(problem, latest, refusal.strerror or refusal, numbered)
        exported = self.folder.numbered(step, ".onnx")
        is_exported = True
        try:
            atomic.write_with(exported, export, syncs_folder=False)
            logger.info("Exported %s", exported)
        except Exception as error:
            problem = "The policy of behavior %r could not be exported to %s (%s). The .pt checkpoint is kept."
            logger.error(problem, self.folder.behavior, exported, first_line(error))
            logger.debug("Failed export:", exc_info=error)
            is_exported = False
        atomic.sync_folder(self.folder.path)
        record = CheckpointRecord(step, finite_or_none(reward), time.time())
        records = [known for known in self._records if known.steps != step] + [record]
        # The oldest checkpoints are deleted before they are removed from the status, so that no unlisted file is left
        # if the run is killed in between. A checkpoint that cannot be deleted stays listed, and the next save tries
        # again.
        surplus = max(0, len(records) - self._keep) if self._keep > 0 else 0
        self._records = [old for old in records[:surplus] if not self._remove(old)] + records[surplus:]
        return record, exported if is_exported else None

    def _serialized(self, state: State) -> memoryview:
        buffer = io.BytesIO()
        try:
            check_entries(dict(state))
            torch.save(dict(state), buffer)
            if not self._verified:  # once per run is enough, because the state always has the same types
                buffer.seek(0)
                load_checkpoint(buffer)
                self._verified = True
        except NoCheckpointError as error:
            raise CheckpointError(
                f"The state of behavior {self.folder.behavior!r} cannot be saved: {error}."
            ) from error
        except Exception as error:
            raise CheckpointError(
                f"The state of behavior {self.folder.behavior!r} cannot be saved, because it could not be loaded again "
                f"({first_line(error)}). It may only contain tensors, numbers, strings, lists and dicts."
            ) from error
        return buffer.getbuffer()

    def _remove(self, record: CheckpointRecord) -> bool:
        try:
            for suffix in (".onnx", ".pt"):
                self.folder.numbered(record.steps, suffix).unlink(missing_ok=True)
        except OSError as error:
            path = error.filename or self.folder.numbered(record.steps, ".pt")
            logger.warning("The old checkpoint %s could not be removed: %s.", path, error.strerror or error)
            return False
        return True

    def _update_status(self, final: CheckpointRecord | None) -> None:
        self._status.set_checkpoints(self.folder, self._records, final)
        self._status.save()

    def resume(self) -> LoadedCheckpoint | None:
        """Load the newest usable checkpoint, and restore the list of kept checkpoints.

        ``checkpoint.pt`` counts as the newest. If it is missing, damaged or outdated, the numbered checkpoints are
        tried, newest first, and a warning is logged. Returns None if the run ended before its first checkpoint.

        Raises:
            CheckpointError: there are checkpoints, but none can be loaded.
        """
        folder = self.folder
        self._records = self._listed_and_found()
        self._status.set_checkpoints(folder, self._records)
        logger.info("Resuming from %s.", folder.path)
        listed = [record.steps for record in reversed(self._records)]
        others = [step for step in reversed(folder.steps_on_disk()) if step not in listed]
        refused = []
        older: LoadedCheckpoint | None = None
        for path in (folder.checkpoint, *(folder.numbered(step, ".pt") for step in listed + others)):
            if not path.exists():
                continue
            try:
                loaded = LoadedCheckpoint(path, read_checkpoint(path))
            except CheckpointError as error:
                logger.warning("%s", error)
                refused.append(path.name)
                continue
            if path != folder.checkpoint:
                logger.warning("Falling back to the checkpoint %s.", path)
            elif self._is_outdated(loaded):
                logger.warning("%s is older than the numbered checkpoints, because it could not be replaced.", path)
                older = loaded
                continue
            return loaded
        if older is not None:
            return older
        if refused:
            raise CheckpointError(
                f"No checkpoint of behavior {folder.behavior!r} in {folder.path} can be loaded "
                f"({', '.join(refused)}). Use --force to start this run again, or --initialize-from another run."
            )
        problem = "Behavior %r has no checkpoint in %s yet. Its training starts from step 0."
        logger.warning(problem, folder.behavior, folder.path)
        return None

    def _listed_and_found(self) -> list[CheckpointRecord]:
        """Return the listed checkpoints that exist, and those that a killed run saved but did not list."""
        folder = self.folder
        found = [
            CheckpointRecord(step, None, folder.numbered(step, ".pt").stat().st_mtime)
            for step in folder.steps_on_disk()
        ]
        listed = self._status.checkpoints(folder.behavior)
        if listed is None:
            return found
        records = list({record.steps: record for record in listed}.values())
        if records:
            newest = records[-1]
            # Older files are from an earlier run: ML-Agents' --force leaves them in place.
            unlisted = (record for record in found if record.steps > newest.steps)
            records += [record for record in unlisted if record.creation_time >= newest.creation_time]
        suffixes = (".pt", ".onnx")
        return [each for each in records if any(folder.numbered(each.steps, suffix).exists() for suffix in suffixes)]

    def _is_outdated(self, loaded: LoadedCheckpoint) -> bool:
        """Return whether a later step was saved after ``checkpoint.pt``.

        If a user copied an old checkpoint there to go back to it, it has a newer modification time and is not outdated.
        """
        if not self._records:
            return False
        latest = self._records[-1].steps
        try:
            if int(loaded.state[STEP][STEP_ENTRY]) >= latest:
                return False
            return loaded.path.stat().st_mtime_ns < self.folder.numbered(latest, ".pt").stat().st_mtime_ns
        except (OSError, KeyError, TypeError, ValueError):  # restoring the state reports the problem
            return False


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path} could not be written: {error.strerror or error}.") from error
