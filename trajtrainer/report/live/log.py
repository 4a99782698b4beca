"""The end of a run's ``trainer.log``: what went wrong, when the run was started, and what ended it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# "2026-01-31 12:00:00 WARNING [loop.py:123] text"; lines of a record behind the first are indented.
_RECORD = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) ([A-Z]+) \[[^\]\n]{1,200}\] (.*)")
_STARTED = re.compile(r"trajtrainer \S+")
_COMMAND = "Command: "
_ENDED_BY = "The run ends: "
_RESTART = "Restarting worker"
_MOST_RECORDS = 200
_LONGEST = 2000
_LEVELS = {"WARNING": "warning", "ERROR": "error", "CRITICAL": "error"}


@dataclass(slots=True)
class Record:
    """One thing that the run said.

    Attributes:
        time: as it stands there, in the time zone of the run.
        kind: "start", "restart" (of an environment), "warning" or "error".
        text: in one or several lines.
    """

    time: str
    kind: str
    text: str


@dataclass(slots=True)
class Log:
    """The end of a log.

    Attributes:
        records: those that somebody should know of, oldest first.
        ended_by: the error that ended the newest start, if one did.
    """

    records: list[Record] = field(default_factory=list)
    ended_by: str | None = None


def read_log(text: str) -> Log:
    """Return what stands in the end of a log."""
    log = Log()
    current: Record | None = None
    for line in text.splitlines():
        found = _RECORD.match(line)
        if found is None:
            if current is not None:
                _go_on(current, line.strip())
            continue
        time, level, said = found.groups()
        current = None
        if _STARTED.fullmatch(said):
            current = Record(time, "start", "")
            log.ended_by = None
        elif level in _LEVELS:
            if said.startswith(_ENDED_BY):
                log.ended_by = said.removeprefix(_ENDED_BY)[:_LONGEST]
            kind = "restart" if said.startswith(_RESTART) else _LEVELS[level]
            current = Record(time, kind, said[:_LONGEST])
        if current is not None:
            log.records.append(current)
    del log.records[:-_MOST_RECORDS]
    return log


def _go_on(record: Record, line: str) -> None:
    """Take a further line of a record; of the banner only the command."""
    if record.kind == "start":
        if line.startswith(_COMMAND):
            record.text = line.removeprefix(_COMMAND)[:_LONGEST]
    elif len(record.text) + len(line) < _LONGEST:
        record.text += f"\n{line}"
