"""Runs as they lie in the results folder, and which of them differ in their seed only."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from trajtrainer.core.errors import RunFolderError, SettingsError
from trajtrainer.rundir.series import Series, event_files, read_scalars
from trajtrainer.settings.yaml.document import Written, read

logger = logging.getLogger(__name__)

_LARGEST_TEXT = 1 << 23
# What may differ between runs of one group: where they are and how often they were tried, not what was learnt.
_OF_A_RUN = {
    "checkpoint_settings.run_id",
    "checkpoint_settings.results_dir",
    "checkpoint_settings.resume",
    "checkpoint_settings.force",
    "checkpoint_settings.load_model",
    "checkpoint_settings.train_model",
    "env_settings.seed",
    "env_settings.base_port",
    "debug",
}
_SEED = "env_settings.seed"


@dataclass(frozen=True, slots=True)
class SavedRun:
    """What is on disk of a run.

    Attributes:
        name: its run id.
        path: its folder.
        settings: of ``configuration.yaml``, flat: "behaviors.Ball.max_steps" -> value; empty where there is none.
        behaviors: name -> tag -> course.
        status: ``training_status.json``; empty where there is none.
        timers: ``timers.json``; empty where there is none.
    """

    name: str
    path: Path
    settings: Mapping[str, Any]
    behaviors: Mapping[str, Mapping[str, Series]]
    status: Mapping[str, Any]
    timers: Mapping[str, Any]

    @property
    def seed(self) -> object:
        """The seed, or None where nobody knows it."""
        return self.settings.get(_SEED)


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ in their seed only.

    Attributes:
        name: what their run ids have in common, or the run id of the only one.
        runs: in the order given.
    """

    name: str
    runs: Sequence[SavedRun]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that they share, flat."""
        return {key: value for key, value in self.runs[0].settings.items() if key not in _OF_A_RUN}

    def series(self, behavior: str, tag: str) -> list[Series]:
        """Return the course of a statistic in each run that has it."""
        found = (run.behaviors.get(behavior, {}).get(tag) for run in self.runs)
        return [series for series in found if series is not None]


def load_runs(words: Sequence[str], results: Path) -> list[SavedRun]:
    """Return the runs of these names, each once.

    Args:
        words: run ids, or folders of runs or of one of their behaviours.
        results: where run ids are looked for.

    Raises:
        RunFolderError: there is no such run, or it has no event files. All that are missing are named.
    """
    problems: list[str] = []
    runs: dict[Path, SavedRun] = {}
    for word in words:
        try:
            run = _load(_folder(word, results))
            runs.setdefault(run.path.resolve(), run)
        except RunFolderError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{word}: {error.filename} cannot be read: {error.strerror or error}.")
    if problems:
        raise RunFolderError("\n".join(problems))
    return list(runs.values())


def group_runs(runs: Sequence[SavedRun]) -> list[Group]:
    """Put runs together that differ in their seed only, in the order of the first of each."""
    groups: dict[str, list[SavedRun]] = {}
    for number, run in enumerate(runs):
        shared = {key: value for key, value in run.settings.items() if key not in _OF_A_RUN}
        # Of a run without settings nobody knows what it has in common with others.
        key = json.dumps([shared, sorted(run.behaviors)], sort_keys=True, default=str) if shared else f"run {number}"
        groups.setdefault(key, []).append(run)
    names = [_name([run.name for run in some]) for some in groups.values()]
    return [
        Group(name if names.count(name) == 1 else _joined([run.name for run in some]), some)
        for name, some in zip(names, groups.values(), strict=True)
    ]


def _joined(run_ids: Sequence[str]) -> str:
    return ", ".join(run_ids[:3]) + (" ..." if len(run_ids) > 3 else "")


def _name(run_ids: Sequence[str]) -> str:
    if len(run_ids) == 1:
        return run_ids[0]
    shared = takewhile(lambda signs: len(set(signs)) == 1, zip(*run_ids, strict=False))
    prefix = "".join(signs[0] for signs in shared).rstrip("0123456789").rstrip("-_. ")
    for ending in ("seed", "s"):
        for sign in "-_.":
            prefix = prefix.removesuffix(sign + ending)
    return prefix or _joined(run_ids)


def _folder(word: str, results: Path) -> Path:
    for path in (results / word, Path(word)):
        if path.is_dir():
            return path
    raise RunFolderError(f"There is no run {word!r}: neither {results / word} nor {word} is a folder.")


def _load(path: Path) -> SavedRun:
    if event_files(path):  # of a behaviour alone
        folders, path = [path], path.resolve().parent
    else:
        folders = sorted(folder for folder in path.iterdir() if folder.is_dir() and event_files(folder))
    if not folders:
        raise RunFolderError(
            f"{path} has no event files (events.out.tfevents.*), neither in itself nor in its folders: it is no run, "
            "or one that ended before its first summary (summary_freq)."
        )
    return SavedRun(
        name=path.resolve().name,
        path=path,
        settings=_settings(path / "configuration.yaml"),
        behaviors={folder.name: read_scalars(folder) for folder in folders},
        status=_json(path / "run_logs" / "training_status.json"),
        timers=_json(path / "run_logs" / "timers.json"),
    )


def _settings(path: Path) -> dict[str, Any]:
    text = _text(path)
    try:
        return {} if text is None else flat_settings(text, str(path))
    except SettingsError as error:
        logger.warning("%s It is left out.", error)
        return {}


def flat_settings(text: str, source: str) -> dict[str, Any]:
    """Return the settings of a YAML, flat: "behaviors.Ball.max_steps" -> value.

    Raises:
        SettingsError: it is no YAML. The message names ``source``.
    """
    root, _ = read(text, source)
    return dict(_flat(root.plain(), "")) if root is not None and root.mapping else {}


def _flat(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [entry for key, inner in value.items() for entry in _flat(inner, f"{path}.{key}" if path else str(key))]
    return [(path, _plain(value))]


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return value.value if isinstance(value, Written) else value


def _json(path: Path) -> dict[str, Any]:
    text = _text(path)
    if text is None:
        return {}
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        logger.warning("%s is damaged and left out.", path)
        return {}
    return content


def _text(path: Path) -> str | None:
    try:
        if path.stat().st_size > _LARGEST_TEXT:
            logger.warning("%s is larger than %d bytes and left out.", path, _LARGEST_TEXT)
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
