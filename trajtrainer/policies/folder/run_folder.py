"""The folder of a run during training: the paths of its files, and the checks before anything is written to it.

::

    results/<run-id>/
      configuration.yaml
      <Behavior>.onnx
      <Behavior>/<Behavior>-<step>.{pt,onnx}  checkpoint.pt  best.{pt,onnx}  best-<step>.{pt,onnx}
                 events.out.tfevents.*
      run_logs/timers.json  training_status.json  trainer.log  Player-<worker>.log
    results/.<run-id>.lock    exists while the run trains
    results/.<run-id>.stop    asks the run to stop; the run removes it immediately
    results/.<run-id>.notes.json   notes and labels, written by the web page
    results/.<run-id>.notes.lock   exists while the notes are written
    results/<run-id>.start/   logs of a run that overwrites an earlier one (``--force``), until it is connected
    results/<run-id>.old/     the overwritten run; .old.2, .old.3, ... if the name is taken
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from attrs import evolve

from trajtrainer.core import atomic
from trajtrainer.core.errors import RunFolderError
from trajtrainer.core.filenames import behavior_file_name, behavior_of, check_run_id, exported_name
from trajtrainer.policies.folder.notes import discard_notes, move_with_notes
from trajtrainer.policies.folder.run_lock import RunLock, check_no_one_trains, lock_file, stop_file
from trajtrainer.settings.run import CheckpointSettings

logger = logging.getLogger(__name__)

CHECKPOINT_NAME = "checkpoint.pt"
BEST_NAME = "best.pt"
BEST = "@best"
"""Suffix of a run id that selects the run's best models instead of the newest."""
JOURNAL = "study.journal"
"""File in a search folder with the settings and results of its trials. The trials' run folders are next to it."""
_LONGEST_TIMERS = 1 << 23
# Large enough to detect a full disk or quota, and small enough to be written quickly.
_PROBE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class BehaviorFolder:
    """The files of one behavior.

    Attributes:
        behavior: the behavior's name in Unity.
        name: the name in a form that is valid as a file name (``behavior_file_name``).
        path: the behavior's folder.
    """

    behavior: str
    name: str
    path: Path

    @property
    def exported(self) -> Path:
        """``<Behavior>.onnx`` next to the folder, with the policy at the end of the run.

        Characters that are not allowed in file names are replaced by ``_`` (``ALE_Pong-v5.onnx``). The file has the
        folder's name instead if another behavior of the run would get the same file, or if a file with that name exists
        already, as in runs of version 0.1.0.
        """
        own = self.path.parent / f"{self.name}.onnx"
        stem = exported_name(self.name)
        if stem == self.name or own.exists() or any(name != self.name for name in _exported_as(self.path.parent, stem)):
            return own
        return own.with_name(f"{stem}.onnx")

    @property
    def checkpoint(self) -> Path:
        """The checkpoint with the newest state, for ``--resume`` and ``--initialize-from``."""
        return self.path / CHECKPOINT_NAME

    def numbered(self, step: int, suffix: str) -> Path:
        """Return the path of ``<Behavior>-<step><suffix>``; the suffix is ``.pt`` or ``.onnx``."""
        return self.path / f"{self.name}-{step}{suffix}"

    @property
    def best_checkpoint(self) -> Path:
        """The checkpoint of the best model, in the same format as ``checkpoint``."""
        return self.path / BEST_NAME

    @property
    def best_exported(self) -> Path:
        """The exported policy of the best model."""
        return self.best_checkpoint.with_suffix(".onnx")

    def best_numbered(self, step: int, suffix: str) -> Path:
        """Return the path of ``best-<step><suffix>``, used when several best models are kept."""
        return self.path / f"{self._best_stem}-{step}{suffix}"

    def steps_on_disk(self) -> list[int]:
        """Return the steps of the numbered ``.pt`` files in ascending order."""
        return self._steps_of(self.name)

    def best_steps_on_disk(self) -> list[int]:
        """Return the steps of the numbered best models in ascending order."""
        return self._steps_of(self._best_stem)

    @property
    def _best_stem(self) -> str:
        # It must differ from the prefix of numbered checkpoints, even if the behavior is called "best".
        return "best" if self.name.lower() != "best" else "best-model"

    def _steps_of(self, stem: str) -> list[int]:
        pattern = re.compile(re.escape(stem) + r"-(\d{1,18})\.pt")
        if not self.path.is_dir():
            return []
        return sorted(int(match[1]) for path in self.path.iterdir() if (match := pattern.fullmatch(path.name)))


class RunFolder:
    """The folder ``results/<run-id>``. The constructor does not access the disk, and ``check`` only reads.

    ``exclusive`` and ``create`` are called before the environment is started, and ``begin`` once it is connected. Until
    then, an earlier run that this one overwrites (``--force``) or resumes is left unchanged.

    Attributes:
        path: path of the folder; relative if ``results_dir`` is relative.
        resume: whether the run continues from its checkpoint.
        writes: whether files may be written; False for ``--inference``.
        initialize_from: folder of the run whose weights the new run starts with; None if not given or not used.
    """

    def __init__(self, settings: CheckpointSettings) -> None:
        self._results = Path(settings.results_dir)
        self.path = self._results / check_run_id(settings.run_id)
        self.resume = settings.resume or settings.load_model
        self.writes = not settings.inference
        self._force = settings.force and not self.resume
        self._overwrites = False  # True while the folder still holds an earlier run to overwrite
        self._set_aside: Path | None = None  # new path of the earlier run
        self._has_begun = False
        self._start_logs = self.path.with_name(f"{self.path.name}.start")
        # Resuming takes precedence over starting from another run's weights.
        initialize_from = None if self.resume else settings.initialize_from
        self.initialize_from: Path | None = None
        self._initial_name = CHECKPOINT_NAME
        if initialize_from is not None:
            self.initialize_from = self._results / check_run_id(initialize_from, "--initialize-from")
            if initialize_from.endswith(BEST) and not self.initialize_from.is_dir():
                self.initialize_from = self._results / check_run_id(
                    initialize_from.removesuffix(BEST), "--initialize-from"
                )
                self._initial_name = BEST_NAME
        self._behaviors: dict[str, BehaviorFolder] = {}

    @property
    def configuration(self) -> Path:
        """The path of ``configuration.yaml``."""
        return self.path / "configuration.yaml"

    @property
    def logs(self) -> Path:
        """The path of ``run_logs``."""
        return self.path / "run_logs"

    @property
    def status(self) -> Path:
        """The path of ``training_status.json``."""
        return self.logs / "training_status.json"

    @property
    def timers(self) -> Path:
        """The path of ``timers.json``."""
        return self.logs / "timers.json"

    @property
    def open_logs(self) -> Path:
        """The folder for logs that are opened before ``begin`` and remain open.

        On Windows, the earlier run's folder cannot be moved while it contains open files. At the end of the run, the
        logs are moved to ``logs``.
        """
        return self._start_logs if self._overwrites else self.logs

    def player_log(self, worker: int) -> Path | None:
        """Return the path of a player's log, or None if nothing may be written."""
        return self.open_logs / f"Player-{worker}.log" if self.writes else None

    @property
    def trainer_log(self) -> Path | None:
        """The path of the run's log; None if nothing may be written."""
        return self.open_logs / "trainer.log" if self.writes else None

    def check(self, init_paths: Mapping[str, str | None]) -> None:
        """Check that the run may start.

        Args:
            init_paths: ``init_path`` of each behavior in the settings.

        Raises:
            RunFolderError: another process is training the run, the run id is taken or does not exist, or the files to
                start from are missing.
        """
        try:
            if self.writes:
                check_no_one_trains(self.path)
            if self.path.exists() and not self.path.is_dir():
                raise RunFolderError(f"{self.path} is a file, not the folder of a run. Choose another --run-id.")
            if self.resume and not self.path.is_dir():
                raise RunFolderError(
                    f"Previous data from this run ID was not found: there is no folder {self.path}. "
                    "Train a new run by removing the --resume flag."
                )
            if not self.resume and not self._force and _has_training_data(self.path):
                raise RunFolderError(
                    f"Previous data from this run ID was found in {self.path}. Either specify a new run ID, use "
                    "--resume to resume this run, or use the --force parameter to overwrite existing data."
                )
            if self.initialize_from is not None and not self.initialize_from.is_dir():
                raise RunFolderError(
                    f"Could not initialize from {self.initialize_from}. "
                    "Make sure models have already been saved with that run ID."
                )
            if not self.resume:
                for behavior, init_path in init_paths.items():
                    self.initial_weights(behavior, init_path)
        except OSError as error:
            raise RunFolderError(f"The results folder cannot be read: {error}.") from error

    def initial_weights(self, behavior: str, init_path: str | None, *, listed: bool = True) -> Path | None:
        """Return the file whose weights a new behavior starts with.

        Returns None if the behavior starts from scratch or the run is resumed.

        Args:
            behavior: name of the behavior.
            init_path: the behavior's ``init_path`` setting. A bare file name is looked up in the run of
                ``--initialize-from``.
            listed: whether the settings list the behavior. An unlisted behavior may not have existed in the other run,
                so if the file is missing, a warning is logged and the behavior starts from scratch.

        Raises:
            RunFolderError: the file is missing or not a ``.pt`` file.
        """
        if self.resume or (init_path is None and self.initialize_from is None):
            return None
        source = self.initialize_from
        if init_path is None or (source is not None and "/" not in init_path and "\\" not in init_path):
            assert source is not None
            path = source / behavior_file_name(behavior) / (init_path or self._initial_name)
        else:
            path = Path(init_path)
        if self._set_aside is not None and path.resolve().is_relative_to(self.path.resolve()):
            path = self._set_aside / path.resolve().relative_to(self.path.resolve())  # the earlier run was moved
        if path.is_file() and path.suffix == ".pt":
            return path
        message = f"Could not initialize from {path}: the file does not exist or is not a `.pt` file."
        if listed:
            raise RunFolderError(
                f"{message} Behavior {behavior!r} should start from it; correct --initialize-from or its init_path."
            )
        logger.warning("%s Behavior %r starts from scratch.", message, behavior)
        return None

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock the folder, so that no other run writes to it. Does nothing for ``--inference``.

        Raises:
            RunFolderError: another process is training the run, or the folder cannot be written.
        """
        if not self.writes:
            yield
            return
        lock = RunLock(lock_file(self.path), self.path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            self.take_stop()  # the request was for an earlier run
        except OSError as error:
            raise self._unwritable(error) from error
        is_new, has_failed = False, True
        try:
            self._overwrites = self._force and _has_training_data(self.path)
            self._gather_logs()  # left over from a killed run
            is_new = not self.path.exists()
            if is_new:
                discard_notes(self.path)
            yield
            has_failed = False
        finally:
            self._gather_logs()
            if is_new and not self._has_begun:
                # Remove the folder of a run that never connected, unless it contains a player's log, which the error
                # message refers to.
                own = (self.configuration.name, self.status.name, self.timers.name)
                written = [each for each in self.path.rglob("*") if each.is_file() and each.stat().st_size]
                if not has_failed or all(each.name in own or each.name.startswith("trainer") for each in written):
                    shutil.rmtree(self.path, ignore_errors=True)
            self.take_stop()
            lock.release()

    def take_stop(self) -> bool:
        """Return whether the run was asked to stop (``run_lock.ask_to_stop``) since the last call."""
        try:
            stop_file(self.path).unlink()
        except OSError:
            return False
        return True

    def create(self) -> None:
        """Create the folders, remove half-written files of a killed run, and test that there is free disk space.

        Does nothing for ``--inference``.

        Raises:
            RunFolderError: a folder cannot be created or written.
        """
        if not self.writes:
            return
        leftovers: list[Path] = []
        try:
            self.open_logs.mkdir(parents=True, exist_ok=True)
            atomic.try_writing(self.open_logs, _PROBE_BYTES)
            if not self._overwrites:
                leftovers = atomic.remove_leftovers([self.path, *(p for p in self.path.iterdir() if p.is_dir())])
        except OSError as error:
            raise self._unwritable(error) from error
        if leftovers:
            logger.info("Removed %d incomplete files that a killed run left behind.", len(leftovers))

    def begin(self) -> None:
        """Take over the folder once the environment is connected. An earlier run to overwrite is moved as a whole.

        Raises:
            RunFolderError: the earlier run could not be moved and is untouched, or the new folder cannot be written.
        """
        if self._overwrites:
            self._move_earlier_run()
        self._has_begun = True

    def _move_earlier_run(self) -> None:
        aside = free_name(self.path)
        try:
            move_with_notes(self.path, aside)
        except OSError as error:
            raise RunFolderError(
                f"The earlier run {self.path} cannot be moved to {aside}: {error.strerror or error}. It is untouched. "
                "Close the programs that have its files open, or choose another --run-id."
            ) from error
        self._set_aside, self._overwrites = aside, False
        logger.warning("The earlier run was moved to %s. Delete that folder when you no longer need it.", aside)
        try:
            self.logs.mkdir(parents=True)
        except OSError as error:
            raise self._unwritable(error) from error
        for log, place in self._logs_of_start():
            with contextlib.suppress(OSError):  # if links are not supported, the log is moved at the end of the run
                place.parent.mkdir(exist_ok=True)
                os.link(log, place)

    def behavior(self, behavior: str) -> BehaviorFolder:
        """Return the behavior's folder. The first call creates it.

        Raises:
            RunFolderError: the name cannot be used as a file name, the file system treats it like another behavior's
                name (for example, if they differ only in case), or the folder cannot be created.
        """
        known = self._behaviors.get(behavior)
        if known is not None:
            return known
        name = behavior_file_name(behavior)
        folder = BehaviorFolder(behavior, name, self.path / name)
        if self.writes:
            try:
                folder.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RunFolderError(
                    f"The folder {folder.path} of behavior {behavior!r} cannot be created: {error.strerror or error}."
                ) from error
            for other in self._behaviors.values():
                if other.path.samefile(folder.path):
                    raise RunFolderError(
                        f"The behaviors {other.behavior!r} and {behavior!r} have the same folder {folder.path} on this "
                        "file system. Rename one of them in Unity."
                    )
        self._behaviors[behavior] = folder
        return folder

    def write_configuration(self, text: str) -> None:
        """Write ``configuration.yaml``; before ``begin``, only if it does not exist. A failure is only logged."""
        with contextlib.suppress(OSError, ValueError):
            if self.configuration.read_text(encoding="utf-8") == text:
                return
        self._write("configuration", self.configuration, text, atomic.write_text)

    def write_timers(self, text: str) -> None:
        """Write ``timers.json``; before ``begin``, only if it does not exist. A failure is only logged."""
        self._write("timers", self.timers, text, atomic.write_unsynced)

    def refresh_timers(self, text: str) -> None:
        """Write ``timers.json`` during the run. Failures are ignored here, and reported by ``write_timers``."""
        if self.writes and self._has_begun:
            with contextlib.suppress(OSError):
                atomic.write_unsynced(self.timers, text)

    def read_timers(self) -> str:
        """Return ``timers.json`` from an earlier session, or an empty text if it cannot be read."""
        try:
            with self.timers.open(encoding="utf-8", errors="replace") as file:
                return file.read(_LONGEST_TIMERS)
        except OSError:
            return ""

    def _unwritable(self, error: OSError) -> RunFolderError:
        return RunFolderError(
            f"The results folder {self.path} cannot be written: {error.strerror or error}. Free some space or correct "
            "its permissions, or choose another folder with --results-dir."
        )

    def _write(self, what: str, path: Path, text: str, write: Callable[[Path, str], None]) -> None:
        is_of_earlier_run = not self._has_begun and path.exists()
        if not self.writes or self._overwrites or is_of_earlier_run:
            return
        try:
            write(path, text)
        except OSError as error:
            logger.error("The %s could not be written to %s: %s.", what, path, error.strerror or error)

    def _logs_of_start(self) -> list[tuple[Path, Path]]:
        """Return the logs opened before ``begin``, including those of actors, each with the path to move it to."""
        logs = [path for path in self._start_logs.rglob("*") if path.is_file()]
        return [(path, self.logs / path.relative_to(self._start_logs)) for path in logs]

    def _gather_logs(self) -> None:
        """Move the logs that were opened before ``begin`` to the other logs, unless the start failed."""
        if self._overwrites or not self._start_logs.is_dir():
            return
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            for log, place in self._logs_of_start():
                place.parent.mkdir(exist_ok=True)
                place.unlink(missing_ok=True)  # a hard link to the same file
                log.replace(place)
            for folder in [*(path for path in self._start_logs.iterdir() if path.is_dir()), self._start_logs]:
                folder.rmdir()
        except OSError as error:
            logger.warning("The logs in %s could not be moved: %s.", self._start_logs, error.strerror or error)


def behavior_exported_as(model: Path) -> str:
    """Return the behavior of an exported model, based on the folders next to it or else on its file name."""
    names = _exported_as(model.absolute().parent, model.stem)
    return behavior_of(names[0] if len(names) == 1 else model.stem)


def _exported_as(run: Path, stem: str) -> list[str]:
    """Return the behavior folders whose exported model would have this name."""
    if not run.is_dir():
        return []
    return [path.name for path in run.iterdir() if exported_name(path.name) == stem and path.is_dir()]


def resume_if_begun(settings: CheckpointSettings) -> CheckpointSettings:
    """Return the settings to resume a run if it has a checkpoint, or to start it otherwise (``--resume=auto``).

    Files of an attempt that ended before its first checkpoint are moved away, as with ``--force``.

    Raises:
        RunFolderError: the run's name cannot be used as a folder name, or the folder cannot be read.
    """
    path = RunFolder(settings).path
    try:
        has_checkpoint = any(path.glob("*/*.pt"))
        is_in_the_way = not has_checkpoint and _has_training_data(path)
    except OSError as error:
        raise RunFolderError(f"The results folder cannot be read: {error}.") from error
    if has_checkpoint:
        logger.info("The run %s has a checkpoint and continues.", settings.run_id)
        return evolve(settings, resume=True, load_model=False, initialize_from=None)
    logger.info("The run %s has no checkpoint yet and starts from the beginning.", settings.run_id)
    return evolve(settings, resume=False, load_model=False, force=settings.force or is_in_the_way)


def _has_training_data(folder: Path) -> bool:
    """Return whether a folder has results of a run. Files of a failed start do not count."""
    if not folder.is_dir():
        return False
    others = (path for path in folder.iterdir() if path.name not in ("configuration.yaml", "run_logs"))
    return any(any(path.iterdir()) if path.is_dir() else True for path in others)


def free_name(folder: Path) -> Path:
    """Return an unused path: ``<folder>.old``, or else ``<folder>.old.2``, ``<folder>.old.3``, etc."""
    names = itertools.chain([f"{folder.name}.old"], (f"{folder.name}.old.{n}" for n in itertools.count(2)))
    return next(path for path in map(folder.with_name, names) if not os.path.lexists(path))
