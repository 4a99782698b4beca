"""Reads a run of trajtrainer or ML-Agents from its folder, whether it is finished, killed or still running.

The files are untrusted. Symbolic links are not followed (``ContainedFolder``), memory is bounded, and missing or
damaged files are ignored. While a file is being written, its last complete content is used.
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
# Maximum number of buckets of all curves of a run together. With many tags, each curve has fewer.
_MAX_BUCKETS_OF_RUN = 1 << 19
# "2026-01-31 12:00:00 WARNING [loop.py:123] text". Further lines of the same record are indented.
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
    """The settings of a run, as written in the file.

    Attributes:
        nested: the settings with the file's structure.
        flat: the same settings by dotted name, such as "behaviors.Ball.max_steps".
    """

    nested: dict[str, Any]
    flat: dict[str, Any]

    def of_behavior(self, name: str) -> dict[str, Any]:
        """Return the settings of one behavior by dotted name, such as "hyperparameters.learning_rate"."""
        behaviors = self.nested.get("behaviors")
        section = behaviors.get(name) if isinstance(behaviors, dict) else None
        return dict(leaves(section)) if isinstance(section, dict) else {}


class SavedRun:
    """A run in a results folder.

    Attributes:
        folder: the results folder.
        parts: the run folder's path below ``folder``; empty if ``folder`` is the run folder itself.
        run_id: ``parts`` joined by "/".
        path: path of the run folder.
        curves: the curves from the event files, as far as they have been read.
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
        """The content of ``configuration.yaml``."""
        return self._configuration.get()

    @property
    def status(self) -> dict[str, Any]:
        """The content of ``training_status.json``."""
        return self._status.get()

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        """The sections of the status without the metadata: name of a behavior or parameter -> its entries."""
        sections = self.status.items()
        return {name: entry for name, entry in sections if isinstance(entry, dict) and name != "metadata"}

    @property
    def timers(self) -> dict[str, Any]:
        """The content of ``timers.json``."""
        return self._timers.get()

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata in ``timers.json``, which describes the start and end of the run."""
        metadata = self.timers.get("metadata")
        return metadata if isinstance(metadata, dict) else {}

    def gauges(self, behavior: str) -> dict[str, float]:
        """Return the latest mean of each statistic of a behavior in ``timers.json``, by ``gauge_key`` of its tag."""
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
        """The notes that users wrote about the run on its web page."""
        return notes_about(self._notes.get(), self.folder, self.parts)

    @property
    def problems(self) -> list[str]:
        """Reasons why requested files could not be used."""
        found = (each.problem for each in (self._configuration, self._status, self._timers))
        return [problem for problem in found if problem]

    def behavior_folders(self) -> list[str]:
        """Return the names of the folders with event files."""
        return [entry.name for entry in _behavior_folders(self.folder, self.parts)]

    def updated(self, behavior_folders: list[str]) -> float:
        """Return the time when a log or event file was last written, in seconds since 1970; 0 if there are no files."""
        times = [each.changed for each in self.folder.list((*self.parts, LOGS))]
        for name in behavior_folders:
            times += [each.changed for each in event_files(self.folder, (*self.parts, name))]
        return max(times, default=0.0)

    def holder(self) -> Holder | None:
        """Return the process that is training the run, or None."""
        # ``neighbor`` makes sure that the path of the lock contains no symbolic links.
        if self.neighbor(lock_file(self.path)) is None:
            return None
        return find_holder(lock_file(self.path))

    def neighbor(self, path: Path) -> FolderEntry | None:
        """Return the entry with the name of ``path`` next to the run folder, or None if it does not exist."""
        return self.folder.entry((*self.parts[:-1], path.name))

    def _parse_configuration(self, text: str) -> Configuration:
        root, _ = read(text, str(self.path / "configuration.yaml"))
        if root is None or not root.mapping:
            return Configuration({}, {})
        content = _plain(root.plain())
        return Configuration(content, dict(leaves(content)))


def gauge_key(tag: str) -> str:
    """Return the name of a tag in ``timers.json``, without the behavior and the kind of statistic."""
    return tag.replace("/", ".").replace(" ", "")


def is_run(folder: ContainedFolder, parts: Parts) -> bool:
    """Return whether a folder is a run folder: it has logs, a configuration, or behaviors with event files."""
    entries = folder.list(parts)
    if any(each.name == (LOGS if each.is_folder else "configuration.yaml") for each in entries):
        return True
    return any(event_files(folder, (*parts, each.name)) for each in entries if each.is_folder)


def _behavior_folders(folder: ContainedFolder, parts: Parts) -> list[FolderEntry]:
    return [each for each in folder.folders(parts) if event_files(folder, (*parts, each.name))]


class RunCurves:
    """The curves of a run.

    Attributes:
        behaviors: name of a behavior's folder -> its curves.
    """

    def __init__(self, folder: ContainedFolder, parts: Parts) -> None:
        self._folder = folder
        self._parts = parts
        self.behaviors: dict[str, BehaviorCurves] = {}

    def read_on(self, seconds: float) -> bool:
        """Read new records for about ``seconds``. Return whether everything was read."""
        until_s = time.monotonic() + seconds
        there = {entry.name for entry in _behavior_folders(self._folder, self._parts)}
        for gone in self.behaviors.keys() - there:
            del self.behaviors[gone]
        for name in sorted(there - self.behaviors.keys()):
            self.behaviors[name] = BehaviorCurves(self._folder, (*self._parts, name))
        most = _MAX_BUCKETS_OF_RUN // max(1, len(self.behaviors))
        whole = [each.read_on(until_s, most) for each in self.behaviors.values()]  # a list, because all() stops early
        return all(whole)

    @property
    def began(self) -> float | None:
        """The time when the first point was written, in seconds since 1970; None if there is no point yet."""
        return min((each.began for each in self.behaviors.values() if each.began is not None), default=None)

    @property
    def version(self) -> tuple[tuple[str, int], ...]:
        """A value that changes whenever the curves change."""
        return tuple((name, each.version) for name, each in self.behaviors.items())

    @property
    def share_read(self) -> float:
        """The fraction of the files that has been read, from 0 to 1."""
        size = sum(each.num_bytes for each in self.behaviors.values())
        num_read = sum(each.num_read for each in self.behaviors.values())
        return min(1.0, num_read / size) if size else 1.0


class CachedFile(Generic[T]):
    """The parsed content of a small file, which is parsed again when the file has changed.

    Attributes:
        problem: why the file or its newest version could not be used, starting with the path; empty if it could.
    """

    def __init__(
        self, folder: ContainedFolder, parts: Parts, parse: Callable[[str], T], missing: T, *, tail: int = 0
    ) -> None:
        """Initialize the cache without reading the file.

        Args:
            folder: folder that contains the file.
            parts: path of the file below ``folder``.
            parse: parses the text, and raises ``ValueError`` or ``SettingsError`` if it is incomplete.
            missing: content to return if the file does not exist.
            tail: parse only this number of bytes at the end of the file. With 0, parse the whole file, unless it is
                larger than any file that trajtrainer writes.
        """
        self.problem = ""
        self._folder, self._parts, self._parse, self._missing, self._tail = folder, parts, parse, missing, tail
        self._seen: tuple[Any, ...] | None = None
        self._content = missing

    def get(self) -> T:
        """Return the current content, or the last complete content if the file is not complete now."""
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
    """A log record to show to the user.

    Attributes:
        time: the time as written in the log, in the time zone of the run.
        kind: "start", "restart" (of an environment), "warning" or "error".
        text: the command for a start; otherwise the message, which may have several lines.
    """

    time: str
    kind: str
    text: str


@dataclass(slots=True)
class Log:
    """The end of a log.

    Attributes:
        records: the records, oldest first.
        ended_by: the error that ended the run after its latest start; None if it did not end with an error.
    """

    records: list[LogEntry] = field(default_factory=list)
    ended_by: str | None = None


def _read_log(text: str) -> Log:
    """Extract starts, restarts, warnings and errors from the end of a log."""
    log = Log()
    current: LogEntry | None = None
    for line in text.splitlines():
        found = _RECORD.match(line)
        if found is None:
            if current is None:
                continue
            line = line.strip()
            if current.kind == "start":  # only the command in the banner is shown
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
        raise ValueError("not a JSON object")
    return content


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return value.value if isinstance(value, Written) else value


def shown_setting(value: object) -> str:
    """Format a value of ``Configuration.flat`` as YAML. Long floats are shortened to six digits."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    return f"{value:.6g}" if isinstance(value, float) and len(text) > _LONGEST_NUMBER else text
