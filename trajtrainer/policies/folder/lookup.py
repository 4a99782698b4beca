"""Finds the folder of a run that is named on the command line or in a configuration."""

from __future__ import annotations

from pathlib import Path

from trajtrainer.settings.checks import closest


def look_up(word: str | Path, results: Path) -> Path:
    """The path that a run id, or the path of a run, of one of its folders or of a file, refers to. It may not exist.

    A file at that path comes first, then the results folder, then a folder at that path. So an export that was written
    to a folder with the name of its run does not hide the run.
    """
    path = Path(word)
    is_id = bool(path.parts) and not path.is_absolute() and ".." not in path.parts
    return results / path if is_id and not path.is_file() and (results / path).is_dir() else path


def tried(word: str | Path, results: Path) -> str:
    """Where ``look_up`` has looked, and the run that may be meant, for messages."""
    path = Path(word)
    try:
        runs = [run.name for run in results.iterdir() if run.is_dir()]
    except OSError:
        runs = []
    hint = "." if path.name in runs else closest(path.name, runs) or "."
    return f"Tried {path}." if path.is_absolute() else f"Tried {results / path}, then {path}{hint}"
