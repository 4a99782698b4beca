"""A user's notes about a run: a text, labels, and whether the run is archived.

The file is next to the run folder, like the lock, because the folder itself is reserved for the process that trains the
run. ``push`` does not upload it.

The folder may be deleted, and another run may take its place. The notes therefore identify their run by data that was
written once, at the start of the run (``marks_of``).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trajtrainer.core import atomic
from trajtrainer.core.filenames import EVENT_FILE_PREFIX
from trajtrainer.core.printable import one_line
from trajtrainer.policies.folder.contained_folder import ContainedFolder, Parts
from trajtrainer.policies.folder.run_lock import FileLock

MAX_TEXT = 20_000
MAX_LABELS = 20
MAX_LABEL = 40
_CHANGEABLE = ("text", "labels", "archived")
_LARGEST = 1 << 20
# Timeout for the lock. A change takes a few milliseconds, but many processes may be waiting to make one.
_PATIENCE_S = 10.0
_HEAD_OF_LOG = 1 << 12
# The first record of an event file: the time, with sub-microsecond precision, and the format version.
_HEAD_OF_EVENTS = 40
_RECORD = re.compile(rb"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z]+ ", re.MULTILINE)


def notes_file(run: Path) -> Path:
    """Return the path of a run's notes."""
    return run.with_name(f".{run.name}.notes.json")


@dataclass(frozen=True, slots=True)
class RunNotes:
    """Notes about a run.

    Attributes:
        text: a text of up to ``MAX_TEXT`` characters.
        labels: up to ``MAX_LABELS`` labels of one line each, sorted and unique.
        archived: whether the run is hidden in lists of runs.
        about: some of the marks that ``marks_of`` returns for the run; empty if unknown, as in files of version 0.1.0.
    """

    text: str = ""
    labels: tuple[str, ...] = ()
    archived: bool = False
    about: tuple[str, ...] = ()

    def changed(self, changes: Mapping[str, Any]) -> RunNotes:
        """Return the notes with some attributes changed.

        Raises:
            ValueError: an attribute does not exist, or its value is not allowed. The message is for the user.
        """
        unknown = changes.keys() - set(_CHANGEABLE)
        if unknown:
            raise ValueError(f"Notes do not have {', '.join(sorted(unknown))}; expected text, labels or archived.")
        text, labels, archived = (changes.get(key, getattr(self, key)) for key in _CHANGEABLE)
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise ValueError(f"The text of a note can have up to {MAX_TEXT:,} characters.")
        if not isinstance(labels, list | tuple) or not all(isinstance(each, str) for each in labels):
            raise ValueError("Labels must be a list of strings.")
        labels = tuple(sorted({one_line(each).strip() for each in labels} - {""}))
        if len(labels) > MAX_LABELS or any(len(each) > MAX_LABEL for each in labels):
            raise ValueError(f"A run can have up to {MAX_LABELS} labels of up to {MAX_LABEL} characters each.")
        if not isinstance(archived, bool):
            raise ValueError("archived must be true or false.")
        return replace(self, text=text, labels=labels, archived=archived)


def parse_notes(text: str) -> RunNotes:
    """Parse the content of a ``notes_file``.

    Raises:
        ValueError: the content is damaged.
    """
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    about = content.get("about", [])
    if not isinstance(about, list) or not all(isinstance(each, str) for each in about):
        raise ValueError("about is not a list of strings")
    known = {key: value for key, value in content.items() if key in _CHANGEABLE}
    return replace(RunNotes().changed(known), about=tuple(about))


def marks_of(folder: ContainedFolder, parts: Parts) -> Iterator[str]:
    """Yield marks that distinguish a run from another one with the same name.

    They are hashes of the first record of the log and of the start of the first event file. Both stay the same when the
    run is resumed, moved, or restored from a backup. A run that has just started only has the log, and a run of
    ML-Agents only has event files.
    """
    logs = (*parts, "run_logs")
    for entry in folder.list(logs):
        if entry.name.startswith("trainer.log"):  # a long log is split over several files
            with contextlib.suppress(OSError), folder.open((*logs, entry.name)) as file:
                head = file.read(_HEAD_OF_LOG)
                second = next((found.start() for found in _RECORD.finditer(head) if found.start()), len(head))
                yield f"log {hashlib.sha256(head[:second]).hexdigest()[:32]}"
    found = [
        (each.name, behavior.name)
        for behavior in folder.folders(parts)
        for each in folder.list((*parts, behavior.name))
        if each.name.startswith(EVENT_FILE_PREFIX) and not each.is_folder
    ]
    if found:
        name, behavior_name = min(found)
        with contextlib.suppress(OSError), folder.open((*parts, behavior_name, name)) as file:
            head = file.read(_HEAD_OF_EVENTS)
            if len(head) == _HEAD_OF_EVENTS:
                yield f"events {hashlib.sha256(name.encode() + head).hexdigest()[:32]}"


def notes_about(notes: RunNotes, folder: ContainedFolder, parts: Parts) -> RunNotes:
    """Return the notes, or empty notes if they are about an earlier run with the same name."""
    is_about = not notes.about or any(mark in notes.about for mark in marks_of(folder, parts))
    return notes if is_about else RunNotes()


def write_notes(run: Path, notes: RunNotes) -> None:
    """Replace the notes of a run. A symbolic link at their path is replaced, not followed.

    Raises:
        OSError: the file cannot be written.
    """
    path = notes_file(run)
    if replace(notes, about=()) == RunNotes():
        path.unlink(missing_ok=True)
    else:
        atomic.write_text(path, json.dumps(asdict(notes), indent=2) + "\n")


@contextlib.contextmanager
def notes_locked(run: Path) -> Iterator[None]:
    """Lock the notes of a run against changes by other processes. Wait if another process is changing them.

    Raises:
        HeldError: another process did not finish its change in time.
        OSError: the lock file cannot be created.
    """
    lock = FileLock(run.with_name(f".{run.name}.notes.lock"), _PATIENCE_S)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def change_notes(folder: ContainedFolder, parts: Parts, change: Callable[[RunNotes], RunNotes]) -> None:
    """Change the notes of a run atomically.

    Args:
        folder: the results folder.
        parts: the run folder's path below ``folder``.
        change: takes the current notes and returns the new ones, or raises an error.

    Raises:
        HeldError: another process did not finish its change in time.
        OSError: the file cannot be written, or the run was deleted.
    """
    run = folder.path.joinpath(*parts)
    with notes_locked(run):
        content = folder.tail((*parts[:-1], notes_file(run).name), _LARGEST)
        try:
            notes = RunNotes() if content is None else parse_notes(content.decode("utf-8", "replace"))
        except (ValueError, RecursionError):  # damaged notes are treated as empty
            notes = RunNotes()
        if folder.entry(parts) is None:
            raise FileNotFoundError(errno.ENOENT, "the run was deleted", str(run))
        changed = change(notes_about(notes, folder, parts))
        write_notes(run, replace(changed, about=tuple(marks_of(folder, parts)) or changed.about))


def move_with_notes(run: Path, target: Path) -> None:
    """Rename a run folder, with its notes, to ``target``, which must not exist.

    Raises:
        OSError: the folder cannot be renamed. Nothing was moved.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # problems with the notes must not prevent the move
            stack.enter_context(notes_locked(run))
        atomic.move(run, target)
        with contextlib.suppress(OSError):
            os.replace(notes_file(run), notes_file(target))


def discard_notes(run: Path) -> None:
    """Remove the notes of a deleted run, before another run takes its name."""
    with contextlib.suppress(OSError), notes_locked(run):
        notes_file(run).unlink()
