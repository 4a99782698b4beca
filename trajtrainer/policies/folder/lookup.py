"""Finds the folder of a run from a name on the command line or in a configuration."""

from __future__ import annotations

from pathlib import Path

from trajtrainer.core.spelling import closest


def look_up(word: str | Path, results: Path) -> Path:
    """Return the path that ``word`` refers to: a run id, or the path of a run, one of its folders or a file.

    The path may not exist. A file at the path ``word`` has priority, then a folder in ``results``, then a folder at the
    path. This way, a run is not hidden by an export that was written to a folder with the run's name.
    """
    path = Path(word)
    is_id = bool(path.parts) and not path.is_absolute() and ".." not in path.parts
    return results / path if is_id and not path.is_file() and (results / path).is_dir() else path


def tried(word: str | Path, results: Path) -> str:
    """Return a sentence for messages: the paths that ``look_up`` tried, and a run with a similar name, if any."""
    path = Path(word)
    try:
        runs = [run.name for run in results.iterdir() if run.is_dir()]
    except OSError:
        runs = []
    hint = "." if path.name in runs else closest(path.name, runs) or "."
    return f"Tried {path}." if path.is_absolute() else f"Tried {results / path}, then {path}{hint}"
