"""Reads a run from its folder: ours or ML-Agents', finished, killed, or being written at this moment.

Anyone may have written these files. Links are not followed (``ContainedFolder``), memory is bounded, and whatever is
missing or damaged is left out; while a file is being written, its last whole content counts.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from trajtrainer.core.errors import SettingsError
from trajtrainer.policies.folder.contained_folder import ContainedFolder, FolderEntry, Parts
from trajtrainer.policies.folder.notes import RunNotes, notes_about, notes_file, parse_notes
from trajtrainer.policies.folder.run_lock import Holder, find_holder, lock_file
from trajtrainer.policies.folder.series import BehaviorCurves, event_files
from trajtrainer.policies.folder.status import finite_or_none
from trajtrainer.settings.yaml.document import Written, leaves, read

T = TypeVar("T")

LOGS = "run_logs"
_LARGEST_TEXT = 1 << 23
_END_OF_LOG = 1 << 20
# Of all curves of a run together; with many tags each has fewer.
_MAX_BUCKETS_OF_RUN = 1 << 19
# "2026-01-31 12:00:00 WARNING [loop.py:123] text"; further lines of a record are indented.
_RECORD = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) ([A-Z]+) \[[^\]\n]{1,200}\] (.*)")
_STARTED = re.compile(r"trajtrainer \S+")
_COMMAND = "Command: "
_ENDED_BY = "The run ends: "
_RESTART = "Restarting worker"
_MAX_RECORDS = 200
_LONGEST_RECORD = 2000
_LONGEST_NUMBER = 12
_LEVELS = {"WARNING": "warning", "ERROR": "error", "CRITICAL": "error"}


class Configuration(NamedTuple):
    """The settings of a run, as they are written.

    Attributes:
        nested: as in the file.
        flat: "behaviors.Ball.max_steps" -> value.
    """

    nested: dict[str, Any]
    flat: dict[str, Any]

    def of_behavior(self, name: str) -> dict[str, Any]:
        """The settings of one behavior, flat: "hyperparameters.learning_rate" -> value."""
        behaviors = self.nested.get("behaviors")
        section = behaviors.get(name) if isinstance(behaviors, dict) else None
        return dict(leaves(section)) if isinstance(section, dict) else {}


class SavedRun:
    """A run in a results folder.

    Attributes:
        folder: in which it is.
        parts: its folder below that one; empty where ``folder`` is the run's own.
        run_id: the same as a name.
        path: the same as a path.
        curves: those of its event files, as far as they were read.
    """

    def __init__(self, folder: ContainedFolder, parts: Parts = ()) -> None:
        self.folder = folder
        self.parts = parts
        self.path: Path = folder.path.joinpath(*parts)
        self.run_id = "/".join(parts) or self.path.name
        self.curves = RunCurves(folder, parts)
        self._configuration = CachedFile(
            folder, (*parts, "configuration.yaml"), self._parse_configuration, Configuration({}, {})
        )
        self._status: CachedFile[dict[str, Any]] = CachedFile(
            folder, (*parts, LOGS, "training_status.json"), _parse_object, {}
        )
        self._timers: CachedFile[dict[str, Any]] = CachedFile(folder, (*parts, LOGS, "timers.json"), _parse_object, {})
        self._log = CachedFile(folder, (*parts, LOGS, "trainer.log"), _read_log, Log(), tail=_END_OF_LOG)
        self._notes = CachedFile(folder, (*parts[:-1], notes_file(self.path).name), parse_notes, RunNotes())

    @property
    def configuration(self) -> Configuration:
        """``configuration.yaml``."""
        return self._configuration.get()

    @property
    def status(self) -> dict[str, Any]:
        """``training_status.json``."""
        return self._status.get()

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        """The status without its metadata: name of a behavior or parameter -> its entries."""
        sections = self.status.items()
        return {name: entry for name, entry in sections if isinstance(entry, dict) and name != "metadata"}

    @property
    def timers(self) -> dict[str, Any]:
        """``timers.json``."""
        return self._timers.get()

    @property
    def metadata(self) -> dict[str, Any]:
        """How the run was started and ended, as of ``timers.json``."""
        metadata = self.timers.get("metadata")
        return metadata if isinstance(metadata, dict) else {}

    def gauges(self, behavior: str) -> dict[str, float]:
        """Newest mean of each statistic of a behavior, as of ``timers.json``: ``gauge_key`` of its tag -> value."""
        gauges = self.timers.get("gauges")
        begin, end = f"{gauge_key(behavior)}.", ".mean"
        return {
            key.removeprefix(begin).removesuffix(end): value
            for key, gauge in (gauges.items() if isinstance(gauges, dict) else ())
            if key.startswith(begin) and key.endswith(end) and isinstance(gauge, dict)
            if (value := finite_or_none(gauge.get("value"))) is not None
        }

    @property
    def log(self) -> Log:
        """The end of ``trainer.log``."""
        return self._log.get()

    @property
    def notes(self) -> RunNotes:
        """What people wrote about the run, on its page."""
        return notes_about(self._notes.get(), self.folder, self.parts)

    @property
    def problems(self) -> list[str]:
        """Why files were left out, of those that were asked for so far."""
        found = (each.problem for each in (self._configuration, self._status, self._timers))
        return [problem for problem in found if problem]

    def behavior_folders(self) -> list[str]:
        """The names of the folders with event files."""
        return [entry.name for entry in _behavior_folders(self.folder, self.parts)]

    def updated(self, behavior_folders: list[str]) -> float:
        """When a log or event file was last written, seconds since 1970; 0 without any."""
        times = [each.changed for each in self.folder.list((*self.parts, LOGS))]
        for name in behavior_folders:
            times += [each.changed for each in event_files(self.folder, (*self.parts, name))]
        return max(times, default=0.0)

    def holder(self) -> Holder | None:
        """The process that trains into the folder; None without one."""
        # The lock lies next to the run's folder; the path to it consists of folders, not of links.
        if self.neighbor(lock_file(self.path)) is None:
            return None
        return find_holder(lock_file(self.path))

    def neighbor(self, path: Path) -> FolderEntry | None:
        """The file of this name next to the run's folder; None without one."""
        return self.folder.entry((*self.parts[:-1], path.name))

    def _parse_configuration(self, text: str) -> Configuration:
        root, _ = read(text, str(self.path / "configuration.yaml"))
        if root is None or not root.mapping:
            return Configuration({}, {})
        content = _plain(root.plain())
        return Configuration(content, dict(leaves(content)))


def gauge_key(tag: str) -> str:
    """The name of a tag in ``timers.json``, without behavior and kind."""
    return tag.replace("/", ".").replace(" ", "")


def is_run(folder: ContainedFolder, parts: Parts) -> bool:
    """Whether a folder is that of a run: it has logs, settings, or behaviors with event files."""
    entries = folder.list(parts)
    if any(each.name == (LOGS if each.is_folder else "configuration.yaml") for each in entries):
        return True
    return any(event_files(folder, (*parts, each.name)) for each in entries if each.is_folder)


def _behavior_folders(folder: ContainedFolder, parts: Parts) -> list[FolderEntry]:
    return [each for each in folder.folders(parts) if event_files(folder, (*parts, each.name))]


class RunCurves:
    """The curves of a run.

    Attributes:
        behaviors: name of a folder -> its curves.
    """

    def __init__(self, folder: ContainedFolder, parts: Parts) -> None:
        self._folder = folder
        self._parts = parts
        self.behaviors: dict[str, BehaviorCurves] = {}

    def read_on(self, seconds: float) -> bool:
        """Read what is new, for at most so long. Return whether that was all."""
        until_s = time.monotonic() + seconds
        there = {entry.name for entry in _behavior_folders(self._folder, self._parts)}
        for gone in self.behaviors.keys() - there:
            del self.behaviors[gone]
        for name in sorted(there - self.behaviors.keys()):
            self.behaviors[name] = BehaviorCurves(self._folder, (*self._parts, name))
        most = _MAX_BUCKETS_OF_RUN // max(1, len(self.behaviors))
        whole = [each.read_on(until_s, most) for each in self.behaviors.values()]  # a little of each
        return all(whole)

    @property
    def began(self) -> float | None:
        """When the first point was written, seconds since 1970; None before that."""
        return min((each.began for each in self.behaviors.values() if each.began is not None), default=None)

    @property
    def version(self) -> tuple[tuple[str, int], ...]:
        """A value that changes with the curves."""
        return tuple((name, each.version) for name, each in self.behaviors.items())

    @property
    def share_read(self) -> float:
        """Which share of the files was read, 0 to 1."""
        size = sum(each.num_bytes for each in self.behaviors.values())
        num_read = sum(each.num_read for each in self.behaviors.values())
        return min(1.0, num_read / size) if size else 1.0


class CachedFile(Generic[T]):
    """The content of a small file, parsed again when the file has changed.

    Attributes:
        problem: why the file was left out, or its newest state was; empty if nothing was. It begins with the path.
    """

    def __init__(
        self, folder: ContainedFolder, parts: Parts, parse: Callable[[str], T], missing: T, *, tail: int = 0
    ) -> None:
        """Read nothing yet.

        Args:
            folder: where it is.
            parts: its name.
            parse: raises ``ValueError`` or ``SettingsError`` where the text is not whole.
            missing: stands for the content of a missing file.
            tail: parse this many bytes of its end; 0: parse all of it, unless it is larger than any of ours.
        """
        self.problem = ""
        self._folder, self._parts, self._parse, self._missing, self._tail = folder, parts, parse, missing, tail
        self._seen: tuple[Any, ...] | None = None
        self._content = missing

    def get(self) -> T:
        """The content as it is now, or as it was when the file was last whole."""
        entry = self._folder.entry(self._parts)
        if entry is None or entry.is_folder:
            self._seen, self._content, self.problem = None, self._missing, ""
            return self._missing
        seen = (entry.identity, entry.size, entry.changed)
        if seen == self._seen:
            return self._content
        path = self._folder.path.joinpath(*self._parts)
        if not self._tail and entry.size > _LARGEST_TEXT:
            self.problem = f"{path} has more than {_LARGEST_TEXT:,} bytes."
            return self._content
        content = self._folder.tail(self._parts, self._tail or _LARGEST_TEXT)
        if content is None:
            self.problem = f"{path} cannot be read."
            return self._content
        try:
            self._content = self._parse(content.decode("utf-8", "replace"))
            self._seen, self.problem = seen, ""
        except SettingsError as error:
            self.problem = str(error)
        except (ValueError, RecursionError):
            self.problem = f"{path} is damaged."
        return self._content


@dataclass(slots=True)
class LogEntry:
    """One record of the log that a person should know of.

    Attributes:
        time: as it is written there, in the time zone of the run.
        kind: "start", "restart" (of an environment), "warning" or "error".
        text: of a start the command; otherwise the message, in one line or several.
    """

    time: str
    kind: str
    text: str


@dataclass(slots=True)
class Log:
    """The end of a log.

    Attributes:
        records: oldest first.
        ended_by: the error that ended the newest start, if one did.
    """

    records: list[LogEntry] = field(default_factory=list)
    ended_by: str | None = None


def _read_log(text: str) -> Log:
    """Pick the starts, restarts, warnings and errors from the end of a log."""
    log = Log()
    current: LogEntry | None = None
    for line in text.splitlines():
        found = _RECORD.match(line)
        if found is None:
            if current is None:
                continue
            line = line.strip()
            if current.kind == "start":  # a banner, of which only the command is shown
                if line.startswith(_COMMAND):
                    current.text = line.removeprefix(_COMMAND)[:_LONGEST_RECORD]
            elif len(current.text) + len(line) < _LONGEST_RECORD:
                current.text += f"\n{line}"
            continue
        moment, level, message = found.groups()
        current = None
        if _STARTED.fullmatch(message):
            current = LogEntry(moment, "start", "")
            log.ended_by = None
        elif level in _LEVELS:
            if message.startswith(_ENDED_BY):
                log.ended_by = message.removeprefix(_ENDED_BY)[:_LONGEST_RECORD]
            kind = "restart" if message.startswith(_RESTART) else _LEVELS[level]
            current = LogEntry(moment, kind, message[:_LONGEST_RECORD])
        if current is not None:
            log.records.append(current)
    del log.records[:-_MAX_RECORDS]
    return log


def _parse_object(text: str) -> dict[str, Any]:
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("no object")
    return content


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return value.value if isinstance(value, Written) else value


def shown_setting(value: object) -> str:
    """A value of ``Configuration.flat`` as YAML has it. A long number, which no one typed, has six digits."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    return f"{value:.6g}" if isinstance(value, float) and len(text) > _LONGEST_NUMBER else text
