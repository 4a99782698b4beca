"""Runs of a results folder, ours and ML-Agents', as plain data for the page.

Everything is read from files that anybody may have written, and that a run may be writing at this moment: what is
missing or damaged is left out, and what was read before stays as long as the file is not whole again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from trajtrainer.core.errors import RunFolderError, SettingsError
from trajtrainer.core.filenames import behavior_of
from trajtrainer.core.timers import EARLIER
from trajtrainer.report.live.event_curves import RunCurves, behavior_folders, event_files
from trajtrainer.report.live.folder import Entry, Folder, Parts
from trajtrainer.report.live.log import Log, read_log
from trajtrainer.report.live.points import LATEST
from trajtrainer.report.runs import flat_settings
from trajtrainer.report.time_spent import all_sessions, blocks, by_kind, num_sessions, seconds_of
from trajtrainer.rundir.run_lock import Holder, ask_to_stop, find_holder, lock_file, stop_file
from trajtrainer.rundir.status import finite_or_none

T = TypeVar("T")

LOGS = "run_logs"
REWARD = "Environment/Cumulative Reward"
ELO = "Self-play/ELO"
_LARGEST_TEXT = 1 << 23
_END_OF_LOG = 1 << 20
_MOST_RUNS = 2000
_MOST_FOLDERS = 5_000
_DEEPEST = 5
_MOST_FILES = 2000
_MOST_SETTINGS = 5000
_MOST_BLOCKS = 300
_LONGEST_TEXT = 500
# A run of ML-Agents has no lock: one that writes is at work.
_FRESH_S = 90.0
# A search in a large folder costs its time less often.
_SEARCH_S = 1.0
_PAUSE_PER_COST = 20
_NAMES_S = 0.5
_NUMBERED = re.compile(r"-(\d{1,18})\.(?:pt|onnx)$")


class Kept(Generic[T]):
    """The content of a small file, read again when it has changed."""

    def __init__(self, folder: Folder, parts: Parts, parse: Callable[[str], T], nothing: T, *, tail: int = 0) -> None:
        """Read nothing yet.

        Args:
            folder: where it is.
            parts: its name.
            parse: makes something of the text; raises ``ValueError`` where it is not whole.
            nothing: in place of a missing file.
            tail: so many bytes of its end are enough; 0: the whole file, unless it is larger than any of ours.
        """
        self._folder, self._parts, self._parse, self._nothing, self._tail = folder, parts, parse, nothing, tail
        self._seen: tuple[Any, ...] | None = None
        self._content = nothing

    def get(self) -> T:
        """Return the content as it is now, or as it was when the file was whole the last time."""
        entry = self._folder.entry(self._parts)
        if entry is None or entry.is_folder:
            self._seen, self._content = None, self._nothing
            return self._nothing
        seen = (entry.identity, entry.size, entry.changed)
        if seen != self._seen and (self._tail or entry.size <= _LARGEST_TEXT):
            read = self._folder.tail(self._parts, self._tail or _LARGEST_TEXT)
            try:
                self._content = self._parse((read or b"").decode("utf-8", "replace"))
                self._seen = seen
            except (ValueError, RecursionError, SettingsError):
                pass  # it is being written, or damaged
        return self._content


@dataclass(slots=True)
class Run:
    """What is kept of a run between two looks at it.

    Attributes:
        run_id: its name below the results folder.
        parts: the same, split.
        curves: of its event files, as far as they were read.
    """

    folder: Folder
    run_id: str
    parts: Parts
    curves: RunCurves = field(init=False)
    _status: Kept[dict[str, Any]] = field(init=False)
    _timers: Kept[dict[str, Any]] = field(init=False)
    _settings: Kept[dict[str, Any]] = field(init=False)
    _log: Kept[Log] = field(init=False)
    _names: list[str] = field(default_factory=list, init=False)
    _names_due_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        logs = (*self.parts, LOGS)
        self.curves = RunCurves(self.folder, self.parts)
        self._status = Kept(self.folder, (*logs, "training_status.json"), _mapping, {})
        self._timers = Kept(self.folder, (*logs, "timers.json"), _mapping, {})
        self._settings = Kept(
            self.folder, (*self.parts, "configuration.yaml"), lambda text: flat_settings(text, self.run_id), {}
        )
        self._log = Kept(self.folder, (*logs, "trainer.log"), read_log, Log(), tail=_END_OF_LOG)

    @property
    def _path(self) -> Any:
        return self.folder.path.joinpath(*self.parts)

    def stop(self) -> None:
        """Ask the process of this machine that trains the run to save everything and end.

        Raises:
            RunFolderError: there is none, or the folder cannot be written.
        """
        holder = self._holder()
        if holder is None or not holder.is_here:
            where = "on another machine: stop it there" if holder else "at this moment"
            raise RunFolderError(f"The run {self.run_id} cannot be stopped: it is not running {where}.")
        try:
            ask_to_stop(self._path)
        except OSError as error:
            raise RunFolderError(
                f"The run {self.run_id} cannot be stopped from here: {error.strerror or error} (its results folder has "
                "to be writable for this). Press Ctrl-C where it runs."
            ) from error

    def _holder(self) -> Holder | None:
        # The lock lies beside the run's folder; the path to it is one of folders, not of links.
        if self.folder.entry((*self.parts[:-1], lock_file(self._path).name)) is None:
            return None
        return find_holder(lock_file(self._path))

    def state(self) -> dict[str, Any]:
        """Return whether it runs, or how it has ended.

        ``state`` is "running", "stopping", "killed", "failed", "finished", "stopped", "active" (of ML-Agents) or
        "ended"; ``message`` says more.
        """
        holder, log = self._holder(), self._log.get()
        beside = self.parts[:-1]
        name, message = "ended", ""
        if holder is not None:
            is_asked = self.folder.entry((*beside, stop_file(self._path).name)) is not None
            name = "stopping" if is_asked else "running"
            message = "" if holder.is_here else "on another machine"
        elif log.ended_by is not None:
            name, message = "failed", log.ended_by
        elif self._was_killed(self.folder.entry((*beside, lock_file(self._path).name))):
            name, message = "killed", "The process ended without saving. Continue with --resume."
        elif time.time() - self._updated() < _FRESH_S and not self._has_own_log():
            name = "active"
        elif any("final_checkpoint" in section for section in self._sections().values()):
            name = "finished" if self._has_enough() else "stopped"
        return {"state": name, "message": message, "can_stop": name == "running" and not message}

    def _was_killed(self, lock: Entry | None) -> bool:
        """Return whether a lock that nobody holds is of a process that has not saved everything before its end."""
        finals = [section.get("final_checkpoint") for section in self._sections().values()]
        saved = [finite_or_none(each.get("creation_time")) or 0.0 for each in finals if isinstance(each, dict)]
        return lock is not None and max(saved, default=0.0) < lock.changed

    def summary(self) -> dict[str, Any]:
        """Return what the list of runs shows."""
        return {
            "id": self.run_id,
            **self.state(),
            "updated": self._updated(),
            "behaviors": [self._behavior(name) for name in self._behavior_names()],
        }

    def details(self) -> dict[str, Any]:
        """Return everything but the curves."""
        status, timers, log = self._sections(), self._timers.get(), self._log.get()
        metadata = timers.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        settings = self._settings.get()
        began = _positive(metadata.get("start_time_seconds"))
        earlier = timers.get(EARLIER)
        first = _positive(earlier.get("start_time_seconds")) if isinstance(earlier, dict) else None
        spent = _time_spent(all_sessions(timers))
        # A process at work goes on to spend time after it has written how much it was.
        since = None if began is None else began - (spent["seconds"] - seconds_of(timers))
        return {
            **self.summary(),
            "read": self.curves.share_read,
            "is_damaged": any(each.is_damaged for each in self.curves.behaviors.values()),
            "starts": {name: each.starts[-20:] for name, each in self.curves.behaviors.items() if each.starts},
            "began": first or began or self.curves.began,
            "resumed": began if first else None,
            "since": since or self.curves.began,
            "sessions": num_sessions(timers),
            "ended": _positive(metadata.get("end_time_seconds")),
            "command": _short(metadata.get("command_line_arguments", "")),
            "versions": _versions(metadata),
            "lessons": [_lesson(name, section, settings) for name, section in status.items() if _has_lesson(section)],
            "time": spent,
            "records": [{"time": each.time, "kind": each.kind, "text": each.text} for each in log.records],
            "settings": [[key, _shown(value)] for key, value in list(settings.items())[:_MOST_SETTINGS]],
            "files": self.files(),
        }

    def files(self) -> list[dict[str, Any]]:
        """Return the files that can be downloaded."""
        found: list[dict[str, Any]] = []
        listing: list[tuple[Parts, Entry]] = [((), entry) for entry in self.folder.list(self.parts)]
        for _, entry in list(listing):
            if entry.is_folder:
                inner = self.folder.list((*self.parts, entry.name))
                listing += [((entry.name,), each) for each in inner if not each.is_folder]
        for before, entry in listing:
            if entry.is_folder or entry.name.startswith("."):
                continue
            step = _NUMBERED.search(entry.name)
            found.append(
                {
                    "path": "/".join((*before, entry.name)),
                    "folder": "/".join(before),
                    "size": entry.size,
                    "changed": entry.changed,
                    "step": int(step[1]) if step else None,
                }
            )
        return found[:_MOST_FILES]

    def has_file(self, path: str) -> Parts | None:
        """Return the parts of a file's path below the results folder, if it can be downloaded."""
        known = {file["path"] for file in self.files()}
        return (*self.parts, *path.split("/")) if path in known else None

    def version(self) -> tuple[Any, ...]:
        """Return something that changes with whatever ``details`` tells, and is quick to find out."""
        logs = tuple((each.name, each.size, each.changed) for each in self.folder.list((*self.parts, LOGS)))
        return self.curves.version, logs, self._holder(), round(self.curves.share_read, 2)

    def _behavior_names(self) -> list[str]:
        """Return the behaviours' folders, of half a second ago at most: all entries of all folders are looked at."""
        if time.monotonic() > self._names_due_s:
            self._names = [entry.name for entry in behavior_folders(self.folder, self.parts)]
            self._names_due_s = time.monotonic() + _NAMES_S
        return self._names

    def _behavior(self, name: str) -> dict[str, Any]:
        """Return how far a behaviour is, by its curves and the other files."""
        behavior = behavior_of(name)
        section = self._sections().get(behavior, {})
        curves = self.curves.behaviors.get(name)
        known = {} if curves is None else curves.curves
        steps = [curve.last[0] for curve in known.values() if curve.last is not None]
        checkpoints = section.get("checkpoints")
        records = [*(checkpoints if isinstance(checkpoints, list) else []), section.get("final_checkpoint")]
        saved: dict[str, Any] = next((each for each in reversed(records) if isinstance(each, dict)), {})
        reward, elo = (known[tag].last if tag in known else None for tag in (REWARD, ELO))
        others = (
            _count(self._gauge(behavior, "Step")),
            _count(saved.get("steps")),
        )  # a run that ends has no last summary
        rewards = (reward[2] if reward else None, self._gauge(behavior, REWARD), finite_or_none(saved.get("reward")))
        return {
            "name": behavior,
            "folder": name,
            "step": max((each for each in (*steps, *others) if each is not None), default=None),
            "max_steps": _count(self._settings.get().get(f"behaviors.{behavior}.max_steps")),
            "reward": next((each for each in rewards if each is not None), None),
            "elo": elo[2] if elo else finite_or_none(section.get("elo")),
            "best": _picked(section.get("best"), ("steps", "reward", "by", "measure")),
            "evaluation": _picked(section.get("evaluation"), ("steps", "episodes", "mean", "std", "min", "max")),
            "stopped": _picked(section.get("stopped"), ("by", "steps")),
        }

    def tags(self) -> dict[str, list[str]]:
        """Return name of a behaviour's folder -> tags of its curves."""
        return {name: sorted({*each.curves, *each.histograms}) for name, each in self.curves.behaviors.items()}

    def _gauge(self, behavior: str, tag: str) -> float | None:
        gauges = self._timers.get().get("gauges")
        key = f"{behavior}.{tag}.mean".replace("/", ".").replace(" ", "")
        gauge = gauges.get(key) if isinstance(gauges, dict) else None
        return finite_or_none(gauge.get("value")) if isinstance(gauge, dict) else None

    def _sections(self) -> dict[str, dict[str, Any]]:
        return {
            name: section
            for name, section in self._status.get().items()
            if isinstance(section, dict) and name != "metadata"
        }

    def _has_enough(self) -> bool:
        """Return whether nothing is left to train."""
        behaviors = [self._behavior(name) for name in self._behavior_names()]
        return bool(behaviors) and all(
            each["stopped"] or (each["max_steps"] and each["step"] and each["step"] >= each["max_steps"])
            for each in behaviors
        )

    def _has_own_log(self) -> bool:
        return self.folder.entry((*self.parts, LOGS, "trainer.log")) is not None

    def _updated(self) -> float:
        """Return when something was written the last time, seconds since 1970; 0 where nothing was."""
        times = [each.changed for each in self.folder.list((*self.parts, LOGS))]
        for name in self._behavior_names():
            times += [each.changed for each in event_files(self.folder, (*self.parts, name))]
        return max(times, default=0.0)


class Runs:
    """The runs of a results folder.

    Attributes:
        known: run id -> run, of those that were found the last time.
    """

    def __init__(self, folder: Folder, only: str | None = None) -> None:
        """Look for nothing yet.

        Args:
            folder: of all of them.
            only: the one to look at; None for all.
        """
        self.folder = folder
        self.only = only
        self.known: dict[str, Run] = {}
        self._due_s = 0.0

    def find(self) -> dict[str, Run]:
        """Return run id -> run, of those that are there now, or were a second ago."""
        begin_s = time.monotonic()
        if begin_s < self._due_s:
            return self.known
        there = self._search() if self.only is None else [(self.only,)] if is_run(self.folder, (self.only,)) else []
        found = {}
        for parts in there:
            run_id = "/".join(parts)
            found[run_id] = self.known.get(run_id) or Run(self.folder, run_id, parts)
        self.known = found
        end_s = time.monotonic()
        self._due_s = end_s + max(_SEARCH_S, _PAUSE_PER_COST * (end_s - begin_s))
        return found

    def _search(self) -> list[Parts]:
        found: list[Parts] = []
        waiting: list[Parts] = [()]
        for _ in range(_MOST_FOLDERS):
            if not waiting or len(found) >= _MOST_RUNS:
                break
            parts = waiting.pop()
            if parts and is_run(self.folder, parts):
                found.append(parts)
            elif len(parts) < _DEEPEST:
                waiting += [(*parts, each.name) for each in self.folder.folders(parts) if not each.name.startswith(".")]
        return sorted(found)


def is_run(folder: Folder, parts: Parts) -> bool:
    """Return whether a folder is that of a run: it has logs, settings, or behaviours with event files."""
    entries = folder.list(parts)
    if any(each.name == (LOGS if each.is_folder else "configuration.yaml") for each in entries):
        return True
    return any(event_files(folder, (*parts, each.name)) for each in entries if each.is_folder)


def _mapping(text: str) -> dict[str, Any]:
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("no object")
    return content


def _count(value: object) -> int | None:
    number = finite_or_none(value)
    return int(number) if number is not None and 0 <= number < 1 << 62 else None


def _positive(value: object) -> float | None:
    """Return a number of seconds, which ML-Agents writes as text."""
    try:
        number = finite_or_none(float(value) if isinstance(value, str) else value)
    except ValueError:
        return None
    return number if number and 0 < number < LATEST else None


def _picked(value: object, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """Return these entries of a record, as far as they can be shown."""
    if not isinstance(value, dict):
        return None
    found = {key: value[key] for key in keys if key in value}
    return {key: _short(each) if isinstance(each, str) else finite_or_none(each) for key, each in found.items()}


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return _short(value)


def _versions(metadata: Mapping[str, Any]) -> dict[str, str]:
    names = {
        "trajtrainer_version": "trajtrainer",
        "mlagents_version": "ML-Agents",
        "pytorch_version": "PyTorch",
        "python_version": "Python",
    }
    return {name: _short(metadata[key]).partition(" ")[0] for key, name in names.items() if metadata.get(key)}


def _has_lesson(section: Mapping[str, Any]) -> bool:
    return _count(section.get("lesson_num")) is not None


def _lesson(parameter: str, section: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a parameter is; the names of its lessons stand in the settings."""
    number = _count(section.get("lesson_num")) or 0
    lessons = settings.get(f"environment_parameters.{parameter}.curriculum")
    lessons = lessons if isinstance(lessons, list) else []
    names = [_short(each.get("name", "")) if isinstance(each, dict) else "" for each in lessons]
    return {
        "parameter": parameter,
        "number": number,
        "count": len(names) or None,
        "name": names[number] if number < len(names) else "",
    }


def _time_spent(timers: Mapping[str, Any]) -> dict[str, Any]:
    rows = [
        [block.name, block.depth, block.seconds, block.count, block.is_parallel]
        for _, block in zip(range(_MOST_BLOCKS), blocks(timers), strict=False)
    ]
    kinds = {kind: seconds for kind, seconds in by_kind(timers).items() if seconds > 0}
    return {"seconds": seconds_of(timers), "kinds": kinds, "blocks": rows}
