"""Saving and loading a behaviour's checkpoints so that a kill at any moment leaves a run that can be resumed.

A save writes, each whole or not at all (``atomic``) and in this order: ``checkpoint.pt`` (so that it is always the
newest state), ``<B>-<step>.pt``, ``<B>-<step>.onnx``; then the checkpoints beyond ``keep_checkpoints`` are removed, and
``training_status.json`` is written. After a kill in between, the status lists files that are gone and lacks one that
is there: the next ``--resume`` puts that right.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trajtrainer.checkpoints.file import first_line, load_checkpoint, read_checkpoint
from trajtrainer.checkpoints.mlagents.layout import STEP, STEP_ENTRY
from trajtrainer.core import atomic
from trajtrainer.core.errors import CheckpointError
from trajtrainer.rundir.folder import BehaviorFolder
from trajtrainer.rundir.status import CheckpointRecord, TrainingStatus, finite_or_none

logger = logging.getLogger(__name__)

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint's content (module name -> state dict and the like) and the file it came from."""

    path: Path
    state: State


class CheckpointManager:
    """The checkpoints of one behaviour: saves, keeps the newest few, finds the one to resume."""

    def __init__(self, folder: BehaviorFolder, status: TrainingStatus, keep: int, *, writes: bool = True) -> None:
        """Begin with what the status tells of a behaviour.

        Args:
            folder: where the files are.
            status: the run's status file, shared by all behaviours.
            keep: ``keep_checkpoints``; 0 keeps all.
            writes: False never writes (``--inference``): ``save`` and ``save_final`` do nothing.
        """
        self.folder = folder
        self._status = status
        self._keep = keep
        self._writes = writes
        self._records: list[CheckpointRecord] = []
        self._verified = False

    @property
    def records(self) -> list[CheckpointRecord]:
        """The kept checkpoints, oldest first."""
        return list(self._records)

    def save(self, step: int, reward: float | None, state: Mapping[str, Any], export: Callable[[Path], object]) -> bool:
        """Save a checkpoint and remove the oldest beyond ``keep``.

        Args:
            step: the trainer's step.
            reward: mean return of the episodes since the last policy update; None or NaN without any.
            state: tensors and plain data only, so that ``read_checkpoint`` takes it.
            export: writes the policy as ONNX to the path it is given. Its failure is logged and the ``.pt`` stays.

        Returns:
            False if it could not be written (full disk). That is logged; older checkpoints are untouched and
            training can go on.
        """
        if not self._writes:
            return True
        try:
            self._save(step, reward, state, export)
            self._update_status(None)
        except CheckpointError as error:
            logger.error("%s Training goes on; the next checkpoint is tried when it is due.", error)
            return False
        return True

    def save_final(
        self, step: int, reward: float | None, state: Mapping[str, Any], export: Callable[[Path], object]
    ) -> None:
        """Save the last checkpoint of a run and copy its policy to ``<Behavior>.onnx``. Arguments as ``save``.

        Raises:
            CheckpointError: it could not be written. Older checkpoints are untouched.
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
                self._update_status(None)  # the numbered one is there
                raise
            self._update_status(record)
        except CheckpointError as error:
            raise CheckpointError(
                f"The final checkpoint of behavior {self.folder.behavior!r} at step {step} could not be saved. "
                f"{error} The checkpoints saved before are untouched; make room and continue with --resume."
            ) from error

    def resume(self) -> LoadedCheckpoint | None:
        """Find the newest checkpoint that loads, and take over the list of the kept ones.

        ``checkpoint.pt`` counts as the newest. If it is missing, damaged or could not be replaced, the numbered ones
        follow, newest first, with a warning each.

        Returns:
            None when the run was ended before its first checkpoint, so that training starts from step 0.

        Raises:
            CheckpointError: there are checkpoints, but none can be loaded.
        """
        self._records = self._listed_and_found()
        self._status.set_checkpoints(self.folder, self._records)
        logger.info("Resuming from %s.", self.folder.path)
        refused = []
        older: LoadedCheckpoint | None = None
        for path in self._candidates():
            try:
                loaded = LoadedCheckpoint(path, read_checkpoint(path))
            except CheckpointError as error:
                logger.warning("%s", error)
                refused.append(path.name)
                continue
            if path == self.folder.checkpoint and self._is_outdated(loaded):
                logger.warning("%s is older than the checkpoints beside it: it could not be replaced.", path)
                older = loaded
                continue
            if path != self.folder.checkpoint:
                logger.warning("Falling back to the checkpoint %s.", path)
            return loaded
        if older is not None:
            return older
        if refused:
            raise CheckpointError(
                f"No checkpoint of behavior {self.folder.behavior!r} in {self.folder.path} can be loaded "
                f"({', '.join(refused)}). Use --force to start this run anew, or --initialize-from another run."
            )
        logger.warning(
            "There is no checkpoint of behavior %r in %s yet. Its training starts from step 0.",
            self.folder.behavior,
            self.folder.path,
        )
        return None

    def _save(
        self, step: int, reward: float | None, state: Mapping[str, Any], export: Callable[[Path], object]
    ) -> tuple[CheckpointRecord, Path | None]:
        """Return the new record and the exported policy, if there is one."""
        data = self._serialized(state)
        numbered = self.folder.numbered(step, ".pt")
        refusal: OSError | None = None
        try:
            atomic.write_bytes(self.folder.checkpoint, data, syncs_folder=False)
        except OSError as error:  # another program may have that one file open
            refusal = error
        with _writing(numbered):
            atomic.write_bytes(numbered, data, syncs_folder=False)
        if refusal is not None:
            logger.error(
                "%s could not be written: %s. %s has the same, and --resume takes it.",
                self.folder.checkpoint,
                refusal.strerror or refusal,
                numbered,
            )
        exported = self._export(self.folder.numbered(step, ".onnx"), export)
        atomic.sync_folder(self.folder.path)
        record = CheckpointRecord(step, finite_or_none(reward), time.time())
        self._add(record)
        return record, exported

    def _serialized(self, state: Mapping[str, Any]) -> memoryview:
        buffer = io.BytesIO()
        try:
            torch.save(dict(state), buffer)
            if not self._verified:  # once per run is enough: the kinds of things in it do not change
                buffer.seek(0)
                load_checkpoint(buffer)
                self._verified = True
        except Exception as error:
            raise CheckpointError(
                f"The state of behavior {self.folder.behavior!r} cannot be saved so that it loads again: it may only "
                f"hold tensors, numbers, text, lists and dicts ({first_line(error)})."
            ) from error
        return buffer.getbuffer()

    def _export(self, path: Path, export: Callable[[Path], object]) -> Path | None:
        try:
            atomic.write_with(path, export, syncs_folder=False)
        except Exception as error:
            logger.error(
                "The policy of behavior %r could not be exported to %s (%s). The .pt checkpoint is kept.",
                self.folder.behavior,
                path,
                first_line(error),
            )
            logger.debug("Failed export:", exc_info=error)
            return None
        logger.info("Exported %s", path)
        return path

    def _add(self, record: CheckpointRecord) -> None:
        """List the record.

        The oldest ones beyond ``keep`` are removed before the status forgets them, so that a kill in between leaves no
        file that nobody knows. One that cannot be removed stays listed, and is tried again with the next checkpoint.
        """
        records = [known for known in self._records if known.steps != record.steps] + [record]
        surplus = max(0, len(records) - self._keep) if self._keep > 0 else 0
        stuck = [old for old in records[:surplus] if not self._remove(old)]
        self._records = stuck + records[surplus:]

    def _remove(self, record: CheckpointRecord) -> bool:
        """Remove a checkpoint's files. A failure is logged and returned as False."""
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

    def _listed_and_found(self) -> list[CheckpointRecord]:
        """Return what the status lists, without what is gone, with what a killed run saved without listing it."""
        found = self.folder.steps_on_disk()
        listed = self._status.checkpoints(self.folder.behavior)
        if listed is None:
            return [self._found(step) for step in found]
        records = list({record.steps: record for record in listed}.values())
        if records:
            newest = records[-1]
            # Older ones are those of an earlier run, which ML-Agents' --force leaves alone.
            unlisted = (record for record in map(self._found, found) if record.steps > newest.steps)
            records += [record for record in unlisted if record.creation_time >= newest.creation_time]
        return [record for record in records if self._is_there(record)]

    def _candidates(self) -> list[Path]:
        """Return where the newest state may be, best first."""
        listed = [record.steps for record in reversed(self._records)]
        others = [step for step in reversed(self.folder.steps_on_disk()) if step not in listed]
        paths = [self.folder.checkpoint, *(self.folder.numbered(step, ".pt") for step in listed + others)]
        return [path for path in paths if path.exists()]

    def _is_outdated(self, loaded: LoadedCheckpoint) -> bool:
        """Return whether a later step was saved after it.

        One that somebody put there to go back to is the younger file.
        """
        if not self._records:
            return False
        latest = self._records[-1].steps
        try:
            if int(loaded.state[STEP][STEP_ENTRY]) >= latest:
                return False
            return loaded.path.stat().st_mtime_ns < self.folder.numbered(latest, ".pt").stat().st_mtime_ns
        except (OSError, KeyError, TypeError, ValueError):  # what is wrong with a state is told where it is taken over
            return False

    def _found(self, step: int) -> CheckpointRecord:
        return CheckpointRecord(step, None, self.folder.numbered(step, ".pt").stat().st_mtime)

    def _is_there(self, record: CheckpointRecord) -> bool:
        return any(self.folder.numbered(record.steps, suffix).exists() for suffix in (".pt", ".onnx"))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path} could not be written: {error.strerror or error}.") from error
