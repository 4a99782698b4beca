"""The folder of a run while it trains: where every file is, and the checks before anything is written.

::

    results/<run-id>/
      configuration.yaml
      <Behavior>.onnx
      <Behavior>/<Behavior>-<step>.{pt,onnx}  checkpoint.pt  best.{pt,onnx}  best-<step>.{pt,onnx}
                 events.out.tfevents.*
      run_logs/timers.json  training_status.json  trainer.log  Player-<worker>.log
    results/.<run-id>.lock    while a run trains there
    results/.<run-id>.stop    asks it to end; the run removes it at once
    results/.<run-id>.notes.json   notes and labels, written by the page
    results/.<run-id>.notes.lock   while the page writes them
    results/<run-id>.start/   of a run that overwrites an earlier one (``--force``): logs opened before it is connected
    results/<run-id>.old/     the earlier run, afterwards; .old.2 and so on if that name is taken
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
"""At the end of a run id: its best models instead of the newest."""
JOURNAL = "study.journal"
"""In the folder of a search: what its trials tried and reached. The folders of their runs are next to it."""
_LONGEST_TIMERS = 1 << 23
# Enough to notice a full disk or quota, and written in no time.
_PROBE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class BehaviorFolder:
    """The files of one behavior.

    Attributes:
        behavior: its name in Unity.
        name: the same as a file name (``behavior_file_name``).
        path: the folder.
    """

    behavior: str
    name: str
    path: Path

    @property
    def exported(self) -> Path:
        """``<Behavior>.onnx`` next to the folder: the policy of the last save.

        ``_`` replaces what a file name cannot have (``ALE_Pong-v5.onnx``), unless another behavior of the run would
        have the same file, or the run already has one named like the folder, as runs of 0.1.0 do.
        """
        own = self.path.parent / f"{self.name}.onnx"
        stem = exported_name(self.name)
        if stem == self.name or own.exists() or any(name != self.name for name in _exported_as(self.path.parent, stem)):
            return own
        return own.with_name(f"{stem}.onnx")

    @property
    def checkpoint(self) -> Path:
        """The newest state, for ``--resume`` and ``--initialize-from``."""
        return self.path / CHECKPOINT_NAME

    def numbered(self, step: int, suffix: str) -> Path:
        """``<Behavior>-<step><suffix>``; the suffix is ``.pt`` or ``.onnx``."""
        return self.path / f"{self.name}-{step}{suffix}"

    @property
    def best_checkpoint(self) -> Path:
        """The best model's state, in the format of ``checkpoint``."""
        return self.path / BEST_NAME

    @property
    def best_exported(self) -> Path:
        """The best model's policy."""
        return self.best_checkpoint.with_suffix(".onnx")

    def best_numbered(self, step: int, suffix: str) -> Path:
        """``best-<step><suffix>``: one of several best models that are kept."""
        return self.path / f"{self._best_stem}-{step}{suffix}"

    def steps_on_disk(self) -> list[int]:
        """The steps of the numbered ``.pt`` files, ascending."""
        return self._steps_of(self.name)

    def best_steps_on_disk(self) -> list[int]:
        """The same of the best models."""
        return self._steps_of(self._best_stem)

    @property
    def _best_stem(self) -> str:
        # No numbered checkpoint's name may begin with it, even if the behavior is called "best".
        return "best" if self.name.lower() != "best" else "best-model"

    def _steps_of(self, stem: str) -> list[int]:
        pattern = re.compile(re.escape(stem) + r"-(\d{1,18})\.pt")
        if not self.path.is_dir():
            return []
        return sorted(int(match[1]) for path in self.path.iterdir() if (match := pattern.fullmatch(path.name)))


class RunFolder:
    """``results/<run-id>``. Constructing it touches no file, and ``check`` only reads.

    ``exclusive`` and ``create`` come before the environment is started, and ``begin`` once it is connected. Until then,
    an earlier run that this one overwrites (``--force``) or resumes stays as it is.

    Attributes:
        path: the folder; relative if ``results_dir`` is.
        resume: the run continues from its checkpoint.
        writes: False for ``--inference``, which writes nothing.
    """

    def __init__(self, settings: CheckpointSettings) -> None:
        self._results = Path(settings.results_dir)
        self.path = self._results / check_run_id(settings.run_id)
        self.resume = settings.resume or settings.load_model
        self.writes = not settings.inference
        self._force = settings.force and not self.resume
        self._overwrites = False  # the folder still belongs to an earlier run
        self._set_aside: Path | None = None  # where the earlier run was moved
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
        """The folder of logs that are opened before ``begin`` and stay open.

        Open files in the earlier run's folder would keep Windows from moving it. At the end, they are in ``logs``.
        """
        return self._start_logs if self._overwrites else self.logs

    def player_log(self, worker: int) -> Path | None:
        """None if nothing may be written."""
        return self.open_logs / f"Player-{worker}.log" if self.writes else None

    @property
    def trainer_log(self) -> Path | None:
        """The file of all log records of the run; None if nothing may be written."""
        return self.open_logs / "trainer.log" if self.writes else None

    def check(self, init_paths: Mapping[str, str | None]) -> None:
        """Check that the run may start.

        Args:
            init_paths: ``init_path`` of every behavior that the settings list.

        Raises:
            RunFolderError: a run trains there, the run id is taken or missing, or there is nothing to start from.
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
        """The file whose weights a new behavior starts with; None if it starts from scratch or the run is resumed.

        Args:
            behavior: its name.
            init_path: of its settings; a bare file name is looked for in the run of ``--initialize-from``.
            listed: whether the settings list the behavior. A behavior that they do not list may be new since the other
                run, so it starts from scratch with a warning if the file is missing.

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
                f"{message} Behavior {behavior!r} was to start from it; correct --initialize-from or its init_path."
            )
        logger.warning("%s Behavior %r starts from scratch.", message, behavior)
        return None

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other runs from writing into the folder. Does nothing for ``--inference``.

        Raises:
            RunFolderError: another run trains there, or the folder cannot be written.
        """
        if not self.writes:
            yield
            return
        lock = RunLock(lock_file(self.path), self.path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            self.take_stop()  # it was meant for an earlier run
        except OSError as error:
            raise self._unwritable(error) from error
        is_new, has_failed = False, True
        try:
            self._overwrites = self._force and _has_training_data(self.path)
            self._gather_logs()  # of a run that was killed
            is_new = not self.path.exists()
            if is_new:
                discard_notes(self.path)
            yield
            has_failed = False
        finally:
            self._gather_logs()
            if is_new and not self._has_begun:
                # A run that never connected leaves nothing, unless a player wrote something: the message about its
                # failure refers to that.
                own = (self.configuration.name, self.status.name, self.timers.name)
                written = [each for each in self.path.rglob("*") if each.is_file() and each.stat().st_size]
                if not has_failed or all(each.name in own or each.name.startswith("trainer") for each in written):
                    shutil.rmtree(self.path, ignore_errors=True)
            self.take_stop()
            lock.release()

    def take_stop(self) -> bool:
        """Whether the run was asked to end (``run_lock.ask_to_stop``) since the last call."""
        try:
            stop_file(self.path).unlink()
        except OSError:
            return False
        return True

    def create(self) -> None:
        """Make the folders, remove half-written files of a killed run, and test that there is room to write.

        Does nothing for ``--inference``.

        Raises:
            RunFolderError: the folder cannot be made or written.
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
            logger.info("Removed %d half-written files of a run that was killed.", len(leftovers))

    def begin(self) -> None:
        """Take over the folder once the environment is connected: an earlier run to overwrite is moved as a whole.

        Raises:
            RunFolderError: that failed, and the earlier run is untouched.
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
            with contextlib.suppress(OSError):  # without links, the log will be there at the end of the run
                place.parent.mkdir(exist_ok=True)
                os.link(log, place)

    def behavior(self, behavior: str) -> BehaviorFolder:
        """The behavior's folder. The first call makes it.

        Raises:
            RunFolderError: the name is unfit for a file, this file system takes another behavior's folder for the same
                (names that differ only in case), or the folder cannot be made.
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
                    f"The folder {folder.path} of behavior {behavior!r} cannot be made: {error.strerror or error}."
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
        """Write ``configuration.yaml``; before ``begin``, only if there is none. A failure is only logged."""
        with contextlib.suppress(OSError, ValueError):
            if self.configuration.read_text(encoding="utf-8") == text:
                return
        self._write("configuration", self.configuration, text, atomic.write_text)

    def write_timers(self, text: str) -> None:
        """Write ``timers.json``; before ``begin``, only if there is none. A failure is only logged."""
        self._write("timers", self.timers, text, atomic.write_unsynced)

    def refresh_timers(self, text: str) -> None:
        """Write ``timers.json`` while the run continues. The next ``write_timers`` reports a failure."""
        if self.writes and self._has_begun:
            with contextlib.suppress(OSError):
                atomic.write_unsynced(self.timers, text)

    def read_timers(self) -> str:
        """``timers.json`` of an earlier session; empty if there is none or it cannot be read."""
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
        """The logs from before ``begin``, actors' included, each with the path to move it to."""
        logs = [path for path in self._start_logs.rglob("*") if path.is_file()]
        return [(path, self.logs / path.relative_to(self._start_logs)) for path in logs]

    def _gather_logs(self) -> None:
        """Move what was logged before ``begin`` to the other logs, unless the start failed."""
        if self._overwrites or not self._start_logs.is_dir():
            return
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            for log, place in self._logs_of_start():
                place.parent.mkdir(exist_ok=True)
                place.unlink(missing_ok=True)  # the same file under another name
                log.replace(place)
            for folder in [*(path for path in self._start_logs.iterdir() if path.is_dir()), self._start_logs]:
                folder.rmdir()
        except OSError as error:
            logger.warning("The logs in %s could not be moved: %s.", self._start_logs, error.strerror or error)


def behavior_exported_as(model: Path) -> str:
    """The behavior whose model for Unity this is: by the folders next to it, or else by its name."""
    names = _exported_as(model.absolute().parent, model.stem)
    return behavior_of(names[0] if len(names) == 1 else model.stem)


def _exported_as(run: Path, stem: str) -> list[str]:
    """The names of the folders of behaviors whose model may have this name."""
    if not run.is_dir():
        return []
    return [path.name for path in run.iterdir() if exported_name(path.name) == stem and path.is_dir()]


def resume_if_begun(settings: CheckpointSettings) -> CheckpointSettings:
    """The settings for resuming a run if it has a checkpoint, or for starting it otherwise (``--resume=auto``).

    The files of an attempt that ended before its first checkpoint are moved, as by ``--force``.

    Raises:
        RunFolderError: the run's name is unfit for a folder, or the folder cannot be read.
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
    """Whether a run got further than its start there: files of a failed start do not count."""
    if not folder.is_dir():
        return False
    others = (path for path in folder.iterdir() if path.name not in ("configuration.yaml", "run_logs"))
    return any(any(path.iterdir()) if path.is_dir() else True for path in others)


def free_name(folder: Path) -> Path:
    """``<folder>.old``, or ``<folder>.old.2`` and so on if that exists."""
    names = itertools.chain([f"{folder.name}.old"], (f"{folder.name}.old.{n}" for n in itertools.count(2)))
    return next(path for path in map(folder.with_name, names) if not os.path.lexists(path))
