"""Where the recordings are that a configuration names: found before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trajtrainer.settings.document import Entry, Written
from trajtrainer.settings.problems import Problem

DEMO_SUFFIX = ".demo"


def missing(path: str) -> str | None:
    """Return what is wrong with a recording, or a folder of some: it is not there, or empty. None if nothing is."""
    found = Path(path)
    if not found.exists():
        return (
            f"there is no file or folder {found.absolute()}. Expected a recording ({DEMO_SUFFIX}) or a folder of "
            "some, relative to the current folder or to one that the configuration is in"
        )
    if found.is_dir() and not any(found.glob(f"*{DEMO_SUFFIX}")):
        return f"there is no {DEMO_SUFFIX} file in the folder {found.absolute()}"
    return None


def locate(root: Entry) -> Iterator[Problem]:
    """Find the recordings of all behaviors of a configuration's tree, and yield those that are not there.

    A path is relative to the current folder, as in ML-Agents, or else to a folder that the configuration is in; then
    it is replaced by the one that was found. Without training none is needed.
    """
    inference = root.mapping.get("checkpoint_settings", root).mapping.get("inference")
    if inference is not None and _value(inference) is True:
        return
    behaviors = root.mapping.get("behaviors")
    for behavior in [root.mapping.get("default_settings"), *(behaviors.mapping.values() if behaviors else ())]:
        for entry in _paths(behavior) if behavior else ():
            entry.content = _found(entry.content, Path(root.place.source))
            problem = missing(entry.content)
            if problem:
                yield Problem(entry.place, problem)


def _value(entry: Entry) -> object:
    return entry.content.value if isinstance(entry.content, Written) else entry.content


def _paths(behavior: Entry) -> Iterator[Entry]:
    """Yield every ``demo_path`` and what ``dataset`` lists, where it is text, which other checks see to."""
    signals = behavior.mapping.get("reward_signals")
    sections = [behavior.mapping.get("behavioral_cloning"), *(signals.mapping.values() if signals else ())]
    for section in sections:
        path = section.mapping.get("demo_path") if section else None
        if path is not None and isinstance(path.content, str):
            yield path
    dataset = behavior.mapping.get("dataset")
    listed = dataset.content if dataset is not None and isinstance(dataset.content, list) else ()
    yield from (path for path in listed if isinstance(path, Entry) and isinstance(path.content, str))


def _found(path: str, configuration: Path) -> str:
    if not Path(path).exists() and configuration.is_file():
        for folder in configuration.absolute().parents:
            if (folder / path).exists():
                return str(folder / path)
    return path
