"""The folder of a run: where every file is, and the checks before anything is written.

::

    results/<run-id>/
      configuration.yaml
      <Behavior>.onnx
      <Behavior>/<Behavior>-<step>.{pt,onnx}  checkpoint.pt  best.{pt,onnx}  best-<step>.{pt,onnx}
                 events.out.tfevents.*
      run_logs/timers.json  training_status.json  trainer.log  Player-<worker>.log
    results/.<run-id>.lock    while a run is at work there
    results/.<run-id>.stop    asks it to end, for an instant
    results/<run-id>.start/   of a run that overwrites an earlier one (``--force``): logs opened before it is connected
    results/<run-id>.old/     the earlier run, afterwards; .old.2 and so on where that name is taken
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
from trajtrainer.rundir.run_lock import RunLock, lock_file, stop_file
from trajtrainer.settings.run import CheckpointSettings

logger = logging.getLogger(__name__)

CHECKPOINT_NAME = "checkpoint.pt"
BEST_NAME = "best.pt"
BEST = "@best"
"""Behind a run id: the best models instead of the newest."""
_LONGEST_TIMERS = 1 << 23
# Enough to notice a full disk or quota, too little to wait for.
_PROBE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class BehaviorFolder:
    """The files of one behavior.

    Attributes:
        behavior: the name as Unity knows it.
        name: the same as a file name (``behavior_file_name``).
        path: the folder.
    """

    behavior: str
    name: str
    path: Path

    @property
    def exported(self) -> Path:
        """``<Behavior>.onnx`` beside the folder, the policy of the last save.

        ``_`` replaces what no file may be called (``ALE_Pong-v5.onnx``), unless another behavior of the run would have
        the same file, or the run has one already under the name of the folder, as those of 0.1.0 do.
        """
        own = self.path.parent / f"{self.name}.onnx"
        stem = exported_name(self.name)
        if stem == self.name or own.exists() or any(name != self.name for name in _exported_as(self.path.parent, stem)):
            return own
        return own.with_name(f"{stem}.onnx")

    @property
    def checkpoint(self) -> Path:
        """The newest state, used by ``--resume`` and ``--initialize-from``."""
        return self.path / CHECKPOINT_NAME

    def numbered(self, step: int, suffix: str) -> Path:
        """Return ``<Behavior>-<step><suffix>``, with the suffix ``.pt`` or ``.onnx``."""
        return self.path / f"{self.name}-{step}{suffix}"

    @property
    def best_checkpoint(self) -> Path:
        """The best model's state, in the form of ``checkpoint``."""
        return self.path / BEST_NAME

    @property
    def best_exported(self) -> Path:
        """The best model's policy."""
        return self.best_checkpoint.with_suffix(".onnx")

    def best_numbered(self, step: int, suffix: str) -> Path:
        """Return ``best-<step><suffix>``, of one of several best models that are kept."""
        return self.path / f"{self._best_stem}-{step}{suffix}"

    def steps_on_disk(self) -> list[int]:
        """Return the steps of the numbered ``.pt`` files that are there, ascending."""
        return self._steps_of(self.name)

    def best_steps_on_disk(self) -> list[int]:
        """Return the same of the best models."""
        return self._steps_of(self._best_stem)

    @property
    def _best_stem(self) -> str:
        """The first part of these names, which no checkpoint's begins with, whatever the behavior is called."""
        return "best" if self.name.lower() != "best" else "best-model"

    def _steps_of(self, stem: str) -> list[int]:
        pattern = re.compile(re.escape(stem) + r"-(\d{1,18})\.pt")
        if not self.path.is_dir():
            return []
        return sorted(int(match[1]) for path in self.path.iterdir() if (match := pattern.fullmatch(path.name)))


class RunFolder:
    """``results/<run-id>``. Making the object touches no file; ``check`` only looks.

    Before the environment is started come ``exclusive`` and ``create``, once it is connected ``begin``: an earlier run
    that this one overwrites (``--force``) or goes on with stays untouched in its place until then.

    Attributes:
        path: the folder, as given by ``results_dir`` (so relative where that is).
        resume: the run goes on from its checkpoint.
        writes: False for ``--inference``, which leaves no trace.
    """

    def __init__(self, settings: CheckpointSettings) -> None:
        self._results = Path(settings.results_dir)
        self.path = self._results / check_run_id(settings.run_id)
        self.resume = settings.resume or settings.load_model
        self.writes = not settings.inference
        self._force = settings.force and not self.resume
        self._overwrites = False  # there is an earlier run in the folder, which is still its own
        self._set_aside: Path | None = None  # where that one went
        self._has_begun = False
        self._start_logs = self.path.with_name(f"{self.path.name}.start")
        # Resuming wins over starting from another run's weights.
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

        An open file would keep Windows from setting the earlier run aside. They are in ``logs`` at the end of the run.
        """
        return self._start_logs if self._overwrites else self.logs

    def player_log(self, worker: int) -> Path | None:
        """Return where a player writes its log; None when nothing may be written."""
        return self.open_logs / f"Player-{worker}.log" if self.writes else None

    @property
    def trainer_log(self) -> Path | None:
        """The file of everything that the run says; None when nothing may be written."""
        return self.open_logs / "trainer.log" if self.writes else None

    def check(self, init_paths: Mapping[str, str | None]) -> None:
        """Look whether the run may start.

        Args:
            init_paths: ``init_path`` of every behavior that the settings list.

        Raises:
            RunFolderError: the run id is taken or missing, or there is nothing to start from.
        """
        try:
            self._check_folders()
            if not self.resume:
                for behavior, init_path in init_paths.items():
                    self.initial_weights(behavior, init_path)
        except OSError as error:
            raise RunFolderError(f"The results folder cannot be read: {error}.") from error

    def initial_weights(self, behavior: str, init_path: str | None, *, listed: bool = True) -> Path | None:
        """Return the file whose weights a new behavior starts with.

        Args:
            behavior: its name.
            init_path: of its settings; a bare file name is looked for in the run of ``--initialize-from``.
            listed: whether the settings list the behavior. One that does not stand there may be new since the
                other run, so that it starts afresh with a warning.

        Returns:
            None when it starts from scratch (always when resuming).

        Raises:
            RunFolderError: the file is missing or no ``.pt`` file.
        """
        if self.resume or (init_path is None and self.initialize_from is None):
            return None
        source = self.initialize_from
        if init_path is None or (source is not None and "/" not in init_path and "\\" not in init_path):
            assert source is not None
            path = source / behavior_file_name(behavior) / (init_path or self._initial_name)
        else:
            path = Path(init_path)
        path = self._present_place(path)
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
        """Keep other runs from writing there while this lasts. Does nothing for ``--inference``.

        Raises:
            RunFolderError: another run is at work there, or the folder cannot be written.
        """
        if not self.writes:
            yield
            return
        lock = RunLock(lock_file(self.path), self.path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            self.take_stop()  # it was for an earlier run
        except OSError as error:
            raise self._unwritable(error) from error
        is_new, has_failed = False, True
        try:
            self._overwrites = self._force and _has_training_data(self.path)
            self._gather_logs()  # of a run that was killed
            is_new = not self.path.exists()
            yield
            has_failed = False
        finally:
            self._gather_logs()
            if is_new and not self._has_begun and not (has_failed and self._has_player_logs()):
                shutil.rmtree(self.path, ignore_errors=True)
            self.take_stop()
            lock.release()

    def take_stop(self) -> bool:
        """Return whether somebody has asked the run to end (``run_lock.ask_to_stop``), once for each time."""
        try:
            stop_file(self.path).unlink()
        except OSError:
            return False
        return True

    def create(self) -> None:
        """Make the folders, remove what a killed run left half-written, and try whether there is room to write.

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
        """Take the folder over, as the environment is connected: a run to be overwritten is set aside as a whole.

        Raises:
            RunFolderError: that cannot be done. The earlier run is untouched then.
        """
        if self._overwrites:
            self._move_earlier_run()
        self._has_begun = True

    def _move_earlier_run(self) -> None:
        aside = free_name(self.path)
        try:
            atomic.move(self.path, aside)
        except OSError as error:
            raise RunFolderError(
                f"The earlier run {self.path} cannot be set aside as {aside}: {error.strerror or error}. It is "
                "untouched. End the programs that have files of it open, or choose another --run-id."
            ) from error
        self._set_aside, self._overwrites = aside, False
        logger.warning("The earlier run was moved to %s, complete. Delete that folder when you need it no more.", aside)
        try:
            self.logs.mkdir(parents=True)
        except OSError as error:
            raise self._unwritable(error) from error
        for log, place in self._logs_of_start():
            with contextlib.suppress(OSError):  # a file system without links: it will be there at the end
                place.parent.mkdir(exist_ok=True)
                os.link(log, place)

    def behavior(self, behavior: str) -> BehaviorFolder:
        """Return the behavior's folder, made at its first mention.

        Raises:
            RunFolderError: the name is unfit for a file, another behavior's folder is the same for this file
                system (names that differ only in case), or the folder cannot be made.
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
            self._refuse_shared_folder(folder)
        self._behaviors[behavior] = folder
        return folder

    def write_configuration(self, text: str) -> None:
        """Write ``configuration.yaml``; before ``begin`` no earlier one. A failure is logged and ends no run."""
        with contextlib.suppress(OSError, ValueError):
            if self.configuration.read_text(encoding="utf-8") == text:
                return
        self._write("configuration", self.configuration, text, atomic.write_text)

    def write_timers(self, text: str) -> None:
        """Write ``timers.json``; before ``begin`` no earlier one. A failure is logged and ends no run."""
        self._write("timers", self.timers, text, atomic.write_unsynced)

    def refresh_timers(self, text: str) -> None:
        """Write ``timers.json`` once more while the run goes on. A failure is reported by the next ``write_timers``."""
        if self.writes and self._has_begun:
            with contextlib.suppress(OSError):
                atomic.write_unsynced(self.timers, text)

    def read_timers(self) -> str:
        """Return ``timers.json`` as an earlier session left it; empty where there is none that can be read."""
        try:
            with self.timers.open(encoding="utf-8", errors="replace") as file:
                return file.read(_LONGEST_TIMERS)
        except OSError:
            return ""

    def _unwritable(self, error: OSError) -> RunFolderError:
        return RunFolderError(
            f"The results folder {self.path} cannot be written: {error.strerror or error}. Make room or correct the "
            "rights there, or choose another place with --results-dir."
        )

    def _check_folders(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderError(f"{self.path} is a file, not the folder of a run. Choose another --run-id.")
        if self.resume and not self.path.is_dir():
            raise RunFolderError(
                f"Previous data from this run ID was not found: there is no folder {self.path}. "
                "Train a new run by removing the --resume flag."
            )
        if not self.resume and not self._force and _has_training_data(self.path):
            raise RunFolderError(
                f"Previous data from this run ID was found in {self.path}. Either specify a new run ID, use --resume "
                "to resume this run, or use the --force parameter to overwrite existing data."
            )
        if self.initialize_from is not None and not self.initialize_from.is_dir():
            raise RunFolderError(
                f"Could not initialize from {self.initialize_from}. "
                "Make sure models have already been saved with that run ID."
            )

    def _write(self, what: str, path: Path, text: str, write: Callable[[Path, str], None]) -> None:
        is_of_earlier_run = not self._has_begun and path.exists()
        if not self.writes or self._overwrites or is_of_earlier_run:
            return
        try:
            write(path, text)
        except OSError as error:
            logger.error("The %s could not be written to %s: %s.", what, path, error.strerror or error)

    def _present_place(self, path: Path) -> Path:
        """Return where a file of the earlier run is by now; any other path as it is."""
        if self._set_aside is None or not path.resolve().is_relative_to(self.path.resolve()):
            return path
        return self._set_aside / path.resolve().relative_to(self.path.resolve())

    def _logs_of_start(self) -> list[tuple[Path, Path]]:
        """Return the logs from before ``begin``, those of actors included, each with its place afterwards."""
        logs = [path for path in self._start_logs.rglob("*") if path.is_file()]
        return [(path, self.logs / path.relative_to(self._start_logs)) for path in logs]

    def _gather_logs(self) -> None:
        """Move what was logged before ``begin`` to the other logs. A start that failed leaves it where it is."""
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
            logger.warning("The logs in %s stay there: %s.", self._start_logs, error.strerror or error)

    def _has_player_logs(self) -> bool:
        """Return whether a player has written anything, to which the message about its failure points."""
        own = (self.configuration.name, self.status.name, self.timers.name)
        files = [path for path in self.path.rglob("*") if path.is_file()]
        return any(
            path.stat().st_size and path.name not in own and not path.name.startswith("trainer") for path in files
        )

    def _refuse_shared_folder(self, folder: BehaviorFolder) -> None:
        for other in self._behaviors.values():
            if other.path.samefile(folder.path):
                raise RunFolderError(
                    f"The behaviors {other.behavior!r} and {folder.behavior!r} have the same folder {folder.path} on "
                    "this file system. Rename one of them in Unity."
                )


def behavior_exported_as(model: Path) -> str:
    """Return the behavior whose model for Unity this is, by the folders beside it or else by its name."""
    names = _exported_as(model.absolute().parent, model.stem)
    return behavior_of(names[0] if len(names) == 1 else model.stem)


def _exported_as(run: Path, stem: str) -> list[str]:
    """Return the names of the folders of behaviors whose model may be called so."""
    if not run.is_dir():
        return []
    return [path.name for path in run.iterdir() if exported_name(path.name) == stem and path.is_dir()]


def resume_if_begun(settings: CheckpointSettings) -> CheckpointSettings:
    """Return the settings of a run that goes on if it has a checkpoint, and starts otherwise (``--resume=auto``).

    What an attempt left that ended before its first checkpoint is set aside, as by ``--force``.

    Raises:
        RunFolderError: the run's name fits no folder, or the folder cannot be read.
    """
    path = RunFolder(settings).path
    try:
        has_checkpoint = any(path.glob("*/*.pt"))
        is_in_the_way = not has_checkpoint and _has_training_data(path)
    except OSError as error:
        raise RunFolderError(f"The results folder cannot be read: {error}.") from error
    if has_checkpoint:
        logger.info("The run %s has a checkpoint and goes on.", settings.run_id)
        return evolve(settings, resume=True, load_model=False, initialize_from=None)
    logger.info("The run %s has no checkpoint yet and starts.", settings.run_id)
    return evolve(settings, resume=False, load_model=False, force=settings.force or is_in_the_way)


def _has_training_data(folder: Path) -> bool:
    """Return whether a run has got further there than its start: what a failed start leaves is in nobody's way."""
    if not folder.is_dir():
        return False
    return any(
        path.name != "configuration.yaml" and path.name != "run_logs" and _is_data(path) for path in folder.iterdir()
    )


def _is_data(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else True


def free_name(folder: Path) -> Path:
    """Return ``<folder>.old``, numbered if there is one already."""
    names = itertools.chain([f"{folder.name}.old"], (f"{folder.name}.old.{n}" for n in itertools.count(2)))
    return next(path for path in map(folder.with_name, names) if not os.path.lexists(path))
