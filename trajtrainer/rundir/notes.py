"""The notes that people keep about a run: a text, labels, and whether the run is archived.

The file is next to the run's folder, as the lock is, because the folder belongs to the process that trains into it.
``push`` uploads nothing from there.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trajtrainer.core import atomic
from trajtrainer.core.printable import one_line
from trajtrainer.rundir.contained_folder import ContainedFolder, Parts
from trajtrainer.rundir.run_lock import FileLock

MAX_TEXT = 20_000
MAX_LABELS = 20
MAX_LABEL = 40
_LARGEST = 1 << 20
# A change takes some milliseconds, but many may want to make one at the same time.
_PATIENCE_S = 10.0


def notes_file(run: Path) -> Path:
    """Where the notes of a run are."""
    return run.with_name(f".{run.name}.notes.json")


@dataclass(frozen=True, slots=True)
class RunNotes:
    """Notes about a run.

    Attributes:
        text: up to ``MAX_TEXT`` characters.
        labels: up to ``MAX_LABELS``, each of one line, sorted, none twice.
        archived: whether lists of runs leave the run out.
    """

    text: str = ""
    labels: tuple[str, ...] = ()
    archived: bool = False

    def changed(self, changes: Mapping[str, Any]) -> RunNotes:
        """The notes with other values for some attributes.

        Raises:
            ValueError: an attribute does not exist, or its value is not allowed. The message is for the user.
        """
        unknown = changes.keys() - asdict(self).keys()
        if unknown:
            raise ValueError(f"Notes have no {', '.join(sorted(unknown))}; expected text, labels or archived.")
        text, labels, archived = (changes.get(key, getattr(self, key)) for key in ("text", "labels", "archived"))
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise ValueError(f"The text of a note can have up to {MAX_TEXT:,} characters.")
        if not isinstance(labels, list | tuple) or not all(isinstance(each, str) for each in labels):
            raise ValueError("Labels must be a list of texts.")
        labels = tuple(sorted({one_line(each).strip() for each in labels} - {""}))
        if len(labels) > MAX_LABELS or any(len(each) > MAX_LABEL for each in labels):
            raise ValueError(f"A run can have up to {MAX_LABELS} labels of up to {MAX_LABEL} characters each.")
        if not isinstance(archived, bool):
            raise ValueError("archived must be true or false.")
        return replace(self, text=text, labels=labels, archived=archived)


def parse_notes(text: str) -> RunNotes:
    """Parse the content of a ``notes_file``.

    Raises:
        ValueError: it is damaged.
    """
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("no object")
    return RunNotes().changed({key: value for key, value in content.items() if key in asdict(RunNotes())})


def write_notes(run: Path, notes: RunNotes) -> None:
    """Replace the notes of a run; a link in their place is replaced, not followed.

    Raises:
        OSError: the file cannot be written.
    """
    path = notes_file(run)
    if notes == RunNotes():
        path.unlink(missing_ok=True)
    else:
        atomic.write_text(path, json.dumps(asdict(notes), indent=2) + "\n")


@contextlib.contextmanager
def notes_locked(run: Path) -> Iterator[None]:
    """Keep other processes from changing the notes of a run. Wait for one that does.

    Raises:
        HeldError: another process does not finish.
        OSError: the lock cannot be made.
    """
    lock = FileLock(run.with_name(f".{run.name}.notes.lock"), _PATIENCE_S)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def change_notes(folder: ContainedFolder, parts: Parts, change: Callable[[RunNotes], RunNotes]) -> None:
    """Change the notes of a run, as one step to all other processes.

    Args:
        folder: the results folder.
        parts: the run's folder below that one.
        change: returns the new notes for the present ones, or raises an error.

    Raises:
        HeldError: another process does not finish its change.
        OSError: the file cannot be written.
    """
    run = folder.path.joinpath(*parts)
    with notes_locked(run):
        content = folder.tail((*parts[:-1], notes_file(run).name), _LARGEST)
        try:
            notes = RunNotes() if content is None else parse_notes(content.decode("utf-8", "replace"))
        except (ValueError, RecursionError):  # damaged, so nobody sees any
            notes = RunNotes()
        write_notes(run, change(notes))
