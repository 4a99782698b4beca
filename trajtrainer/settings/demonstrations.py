"""Where the recordings are that a configuration names: found before anything is started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import field, frozen

from trajtrainer.settings.checks import Problem, satisfies
from trajtrainer.settings.components import ALGORITHMS
from trajtrainer.settings.yaml.document import Entry, Written

DEMO_SUFFIX = ".demo"


@frozen
class DemonstrationSettings:
    """Recorded steps that are part of each batch (RLPD; Ball et al. 2023).

    Attributes:
        demo_path: a ``.demo`` or ``.npz`` file, or a folder of ``.demo`` files.
        ratio: the recorded part of each batch. 0.5 as published; less where there are few steps, or poor ones.
    """

    demo_path: str = field(metadata={"example": "agent.demo"})
    ratio: float = field(default=0.5, validator=satisfies(lambda ratio: 0 < ratio < 1, "a number between 0 and 1"))


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


def other_type(path: str) -> str | None:
    """Return what is wrong with a recording that is there: it is a file of another type. None if nothing is."""
    found = Path(path)
    if found.is_dir() or found.suffix == DEMO_SUFFIX:
        return None
    return (
        f"found the file {path}, expected a recording of Unity's Demonstration Recorder ({DEMO_SUFFIX}), a folder of "
        f"some, or what 'trajtrainer demo convert {path} -o {found.with_suffix(DEMO_SUFFIX).name}' makes of a file in "
        "another format"
    )


def locate(root: Entry) -> Iterator[Problem]:
    """Find the recordings of all behaviors of a configuration's tree, and yield those that are not there.

    A path is relative to the current folder, as in ML-Agents, or else to a folder that the configuration is in; then
    it is replaced by the one that was found. Without training none is needed.
    """
    inference = root.mapping.get("checkpoint_settings", root).mapping.get("inference")
    if inference is not None and _value(inference) is True:
        return
    behaviors = root.mapping.get("behaviors")
    default = root.mapping.get("default_settings")
    for behavior in [default, *(behaviors.mapping.values() if behaviors else ())]:
        if behavior is None:
            continue
        trainer_type = behavior.mapping.get("trainer_type") or (default and default.mapping.get("trainer_type"))
        if trainer_type is not None and isinstance(trainer_type.content, str):
            yield from _move_to_dataset(behavior, trainer_type.content)
        demo_paths = list(_demo_paths(behavior))
        for entry in [*demo_paths, *_of_batches(behavior), *_dataset(behavior)]:
            entry.content = _found(entry.content, Path(root.place.source))
            problem = missing(entry.content)
            if problem is None and entry in demo_paths:
                problem = other_type(entry.content)
            if problem:
                yield Problem(entry.place, problem)


def _value(entry: Entry) -> object:
    return entry.content.value if isinstance(entry.content, Written) else entry.content


def _demo_paths(behavior: Entry) -> Iterator[Entry]:
    """Yield every ``demo_path`` that is text, which other checks see to."""
    signals = behavior.mapping.get("reward_signals")
    sections = [behavior.mapping.get("behavioral_cloning"), *(signals.mapping.values() if signals else ())]
    for section in sections:
        path = section.mapping.get("demo_path") if section else None
        if path is not None and isinstance(path.content, str):
            yield path


def _of_batches(behavior: Entry) -> Iterator[Entry]:
    """Yield the ``demo_path`` of ``hyperparameters.demonstrations``, where it is text."""
    hyperparameters = behavior.mapping.get("hyperparameters")
    section = hyperparameters.mapping.get("demonstrations") if hyperparameters else None
    path = section.mapping.get("demo_path") if section else None
    if path is not None and isinstance(path.content, str):
        yield path


def _move_to_dataset(behavior: Entry, trainer_type: str) -> Iterator[Problem]:
    """Report every ``demo_path`` of a trainer that knows only ``dataset``, and read it as if it stood there.

    So nothing else is reported that only follows from it.
    """
    row = ALGORITHMS.get(trainer_type)
    if row is None or not row.offline:
        return
    hyperparameters = behavior.mapping.get("hyperparameters", behavior)
    found = [
        section.mapping.pop("demo_path") for section in (behavior, hyperparameters) if "demo_path" in section.mapping
    ]
    found += _demo_paths(behavior)
    for section in (behavior, behavior.mapping.get("reward_signals", behavior)):
        for name, inner in list(section.mapping.items()):
            if "demo_path" in inner.mapping:
                del section.mapping[name]
    if found and "reward_signals" in behavior.mapping and not behavior.mapping["reward_signals"].mapping:
        del behavior.mapping["reward_signals"]
    for entry in found:
        shown = entry.content if isinstance(entry.content, str) else "FILE.demo"
        message = f"trainer_type {trainer_type} learns from 'dataset'; write dataset: [{shown}] in the behavior"
        yield Problem(entry.place, message)
    if found:
        behavior.mapping.setdefault("dataset", Entry(found, found[0].place))


def _dataset(behavior: Entry) -> Iterator[Entry]:
    """Yield what ``dataset`` lists, where it is text."""
    dataset = behavior.mapping.get("dataset")
    listed: Sequence[object] = ()
    if dataset is not None:
        listed = dataset.content if isinstance(dataset.content, list) else [dataset]
    yield from (path for path in listed if isinstance(path, Entry) and isinstance(path.content, str))


def _found(path: str, configuration: Path) -> str:
    if not Path(path).exists() and configuration.is_file():
        for folder in configuration.absolute().parents:
            if (folder / path).exists():
                return str(folder / path)
    return path
