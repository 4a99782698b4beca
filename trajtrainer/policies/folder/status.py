"""Reads and writes ``run_logs/training_status.json``: lessons, ratings and the list of kept checkpoints.

See docs/explanation/mlagents-behavior.md#training-status.

The file has ML-Agents' format, so that each trainer can continue where the other stopped::

    {"<parameter>": {"lesson_num": 1},
     "<behavior>": {"checkpoints": [...], "final_checkpoint": {...}, "elo": 1200.0,
                    "best": {...}, "evaluation": {...}, "training": {...}, "stopped": {...},
                    "raw_image_order": "hwc", "imported_from": "..."},
     "metadata": {"stats_format_version": ..., "mlagents_version": ..., "torch_version": ...}}

A parameter and a behavior with the same name share an object, as in ML-Agents. ML-Agents does not write the last six
entries, and does not change them (docs/measure/evaluation.md).
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeGuard

from trajtrainer.core import atomic
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.policies.folder.run_folder import BehaviorFolder, RunFolder

logger = logging.getLogger(__name__)

STATUS_FORMAT_VERSION = "0.3.0"
# The ML-Agents release whose file formats are used. ML-Agents compares it with its own version when it resumes a run.
# Its reader accepts exactly the three keys of the metadata, so trajtrainer's version cannot be added.
COMPATIBLE_MLAGENTS_VERSION = "1.1.0"
# The value of ``by`` in ``stopped`` if a search ended the run because other trials performed better.
PRUNING = "pruning"

FILE = "pulled_from.txt"


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One numbered checkpoint.

    Attributes:
        steps: the trainer's step when it was saved.
        reward: mean return of the episodes since the last policy update; None if there were none.
        creation_time: seconds since 1970.
    """

    steps: int
    reward: float | None
    creation_time: float

    def to_json(self, folder: BehaviorFolder, *, final: bool = False) -> dict[str, Any]:
        """Return the record in the format of the file."""
        return {
            "steps": self.steps,
            "file_path": str(folder.exported if final else folder.numbered(self.steps, ".onnx")),
            "reward": self.reward,
            "creation_time": self.creation_time,
            "auxillary_file_paths": [str(folder.numbered(self.steps, ".pt"))],
        }

    @classmethod
    def from_json(cls, entry: object) -> CheckpointRecord | None:
        """Return the record of an entry, or None if the entry is not a valid record.

        Paths in the entry are ignored; they are derived from the run folder instead. This way, the files are found even
        if the run was moved, and an entry cannot cause files outside the folder to be deleted when old checkpoints are
        removed.
        """
        if not isinstance(entry, dict):
            return None
        steps, reward, created = (entry.get(key) for key in ("steps", "reward", "creation_time"))
        if not _is_count(steps):
            return None
        return cls(steps, finite_or_none(reward), finite_or_none(created) or 0.0)


class TrainingStatus:
    """The content of the file in memory. This class is thread-safe."""

    def __init__(self, path: Path | None, sections: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Initialize the status without writing the file.

        Args:
            path: path of the file; None if it must not be written (``--inference``).
            sections: sections of the earlier run, if a run is resumed. Unknown entries are kept.
        """
        self.path = path
        self._sections: dict[str, dict[str, Any]] = {name: dict(entry) for name, entry in (sections or {}).items()}
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: Path, *, writes: bool = True) -> TrainingStatus:
        """Read the file of a resumed run.

        A missing or damaged file causes a warning, not an error, because the checkpoint managers can find the
        checkpoints in the folder.
        """
        target = path if writes else None
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            logger.warning(
                "Training status file %s not found. Lessons start over; checkpoints are taken from the folder.", path
            )
            return cls(target)
        except (OSError, ValueError, RecursionError) as error:
            logger.warning(
                "Training status file %s is damaged (%s). Lessons start over; checkpoints are taken from the folder.",
                path,
                error,
            )
            return cls(target)
        if not isinstance(content, dict):
            logger.warning("Training status file %s contains no JSON object and is ignored.", path)
            return cls(target)
        status = cls(target, {name: entry for name, entry in content.items() if isinstance(entry, dict)})
        _compare_versions(path, content.get("metadata"))
        return status

    @classmethod
    def of(cls, folder: RunFolder) -> TrainingStatus:
        """Return the status of a run: that of its folder if it is resumed, or a new one."""
        if folder.resume:
            return cls.load(folder.status, writes=folder.writes)
        return cls(folder.status if folder.writes else None)

    def lesson(self, parameter: str) -> int | None:
        """Return the number of the lesson that an environment parameter has reached, or None if unknown."""
        number = self._get(parameter, "lesson_num")
        return number if _is_count(number) else None

    def lessons(self) -> dict[str, dict[str, int]]:
        """Return the lessons of all parameters, in the form that ``Curriculum.restore`` takes."""
        with self._lock:
            names = list(self._sections)
        found = {name: self.lesson(name) for name in names}
        return {name: {"lesson_num": number} for name, number in found.items() if number is not None}

    def set_lesson(self, parameter: str, number: int) -> None:
        """Set the lesson number of an environment parameter."""
        self._set(parameter, "lesson_num", number)

    def elo(self, behavior: str) -> float | None:
        """Return the rating of a behavior that trains by self-play, or None if unknown."""
        return finite_or_none(self._get(behavior, "elo"))

    def set_elo(self, behavior: str, elo: float) -> None:
        """Set the rating of a behavior."""
        self._set(behavior, "elo", elo)

    def checkpoints(self, behavior: str) -> list[CheckpointRecord] | None:
        """Return the records of the kept checkpoints, oldest first, or None if the file does not list them."""
        entries = self._get(behavior, "checkpoints")
        if not isinstance(entries, list):
            return None
        records = [CheckpointRecord.from_json(entry) for entry in entries]
        return [record for record in records if record is not None]

    def set_checkpoints(
        self, folder: BehaviorFolder, records: Sequence[CheckpointRecord], final: CheckpointRecord | None = None
    ) -> None:
        """Replace a behavior's list of checkpoints and, if given, its final checkpoint."""
        self._set(folder.behavior, "checkpoints", [record.to_json(folder) for record in records])
        if final is not None:
            self._set(folder.behavior, "final_checkpoint", final.to_json(folder, final=True))

    @property
    def steps(self) -> int:
        """The total number of steps of all behaviors, according to their newest checkpoints."""
        with self._lock:
            names = list(self._sections)
        return sum(records[-1].steps for name in names if (records := self.checkpoints(name)))

    def best_steps(self, behavior: str) -> int | None:
        """Return the step of a behavior's best model, or None if unknown."""
        best = self._get(behavior, "best")
        steps = best.get("steps") if isinstance(best, dict) else None
        return steps if _is_count(steps) else None

    def set_best(self, behavior: str, best: Mapping[str, Any], kept: Sequence[Mapping[str, Any]] | None) -> None:
        """Set a behavior's best model. If several models are kept, ``kept`` lists them all, the best first."""
        self._set(behavior, "best", dict(best))
        if kept is not None:
            self._set(behavior, "best_models", list(kept))

    def set_evaluation(self, behavior: str, evaluation: Mapping[str, Any]) -> None:
        """Set the result of a behavior's last evaluation."""
        self._set(behavior, "evaluation", dict(evaluation))

    def set_training(self, behavior: str, mean_return: Mapping[str, Any]) -> None:
        """Set the mean return of a behavior's last summary."""
        self._set(behavior, "training", dict(mean_return))

    def set_stopped(self, behavior: str, stopped: Mapping[str, Any] | None) -> None:
        """Set the reason why a behavior's training ended before its ``max_steps``; None clears it."""
        if stopped is not None:
            self._set(behavior, "stopped", dict(stopped))
            return
        with self._lock:
            self._sections.get(behavior, {}).pop("stopped", None)

    def set_imported_from(self, behavior: str, trainer: str) -> None:
        """Set the name of the other trainer that trained a behavior's policy."""
        self._set(behavior, "imported_from", trainer)

    def raw_image_order(self) -> RawImageOrder:
        """Return the dimension order of the player's raw images; ``AUTO`` if it is unknown or behaviors differ."""
        with self._lock:
            found = [section.get("raw_image_order") for section in self._sections.values()]
        known = [order for order in (RawImageOrder.HWC, RawImageOrder.CHW) if order.value in found]
        return known[0] if len(known) == 1 else RawImageOrder.AUTO

    def set_raw_image_order(self, behavior: str, order: RawImageOrder) -> None:
        """Set the dimension order of a behavior's raw images."""
        self._set(behavior, "raw_image_order", order.value)

    def save(self) -> None:
        """Write the file atomically.

        A failure is only logged and leaves the old file, because checkpoints can be found without it.
        """
        if self.path is None:
            return
        with self._lock:
            content = {name: dict(entry) for name, entry in self._sections.items() if name != "metadata"}
            # The metadata comes last, as in ML-Agents. A behavior called "metadata" keeps its entries.
            content["metadata"] = {**self._sections.get("metadata", {}), **_metadata()}
            try:
                atomic.write_text(self.path, json.dumps(content, indent=4))
            except OSError as error:
                logger.error("%s could not be written: %s.", self.path, error.strerror or error)

    def _get(self, section: str, key: str) -> Any:
        with self._lock:
            return self._sections.get(section, {}).get(key)

    def _set(self, section: str, key: str, value: Any) -> None:
        with self._lock:
            self._sections.setdefault(section, {})[key] = value


def _metadata() -> dict[str, str]:
    return {
        "stats_format_version": STATUS_FORMAT_VERSION,
        "mlagents_version": COMPATIBLE_MLAGENTS_VERSION,
        "torch_version": installed_version("torch"),
    }


def _compare_versions(path: Path, metadata: object) -> None:
    # ML-Agents logs the same warning. The format may differ between versions.
    if not isinstance(metadata, dict):
        logger.warning("Training status file %s has no version. It is read on a best-effort basis.", path)
        return
    names = {"stats_format_version": "format", "mlagents_version": "ML-Agents", "torch_version": "PyTorch"}
    for key, now in _metadata().items():
        if metadata.get(key) != now:
            logger.warning(
                "The run was saved with %s version %s, which differs from the current version %s. "
                "Model may not behave properly.",
                names[key],
                metadata.get(key),
                now,
            )


def installed_version(package: str) -> str:
    """Return the version of an installed package without importing it, or "unknown"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**18


def finite_or_none(value: object) -> float | None:
    """Return a finite number as a float that JSON can represent, or None for any other value."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def write_origin(folder: Path, origin: str) -> None:
    """Write a file into a run folder that says where the run was downloaded from."""
    (folder / FILE).write_text(f"{origin}\n", encoding="utf-8")


def origin_of(folder: Path) -> str | None:
    """Return where a folder or one of its parents was downloaded from, or None if it was not downloaded."""
    for each in (folder, *folder.parents):
        if (each / FILE).is_file():
            return (each / FILE).read_text(encoding="utf-8", errors="replace").strip()
    return None
