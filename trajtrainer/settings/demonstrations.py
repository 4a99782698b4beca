"""Locates the recordings that a configuration refers to, before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attrs import field, frozen

from trajtrainer.settings.checks import Problem, satisfies
from trajtrainer.settings.components import algorithm_named
from trajtrainer.settings.yaml.document import PlacedValue, unwrapped

DEMO_SUFFIX = ".demo"


@frozen
class DemonstrationSettings:
    """Recorded steps in each batch, used while recorded episodes have higher returns (RLPD; Ball et al. 2023).

    Attributes:
        demo_path: a ``.demo`` or ``.npz`` file, or a folder of ``.demo`` files.
        ratio: fraction of recorded steps in each batch. The paper uses 0.5; lower it if the recording is short or of
            poor quality.
    """

    demo_path: str = field(metadata={"example": "agent.demo"})
    ratio: float = field(default=0.5, validator=satisfies(lambda ratio: 0 < ratio < 1, "a number between 0 and 1"))


def missing(path: str) -> str | None:
    """Return a message if a recording or folder of recordings does not exist or is empty, otherwise None."""
    found = Path(path)
    if not found.exists():
        return (
            f"there is no file or folder {found.absolute()}. Expected a recording ({DEMO_SUFFIX}) or a folder of "
            "recordings, relative to the current folder or to one that contains the configuration"
        )
    if found.is_dir() and not any(found.glob(f"*{DEMO_SUFFIX}")):
        return f"there is no {DEMO_SUFFIX} file in the folder {found.absolute()}"
    return None


def other_type(path: str) -> str | None:
    """Return a message if an existing recording is a file of another type, otherwise None."""
    found = Path(path)
    if found.is_dir() or found.suffix == DEMO_SUFFIX:
        return None
    return (
        f"found the file {path}, expected a recording of Unity's Demonstration Recorder ({DEMO_SUFFIX}), a folder of "
        "recordings, or a file that was converted from another format with "
        f"'trajtrainer demo convert {path} -o {found.with_suffix(DEMO_SUFFIX).name}'"
    )


def locate(root: PlacedValue) -> Iterator[Problem]:
    """Locate the recordings of all behaviors in a configuration's tree, and yield a problem for each missing one.

    A path is relative to the current folder, as in ML-Agents, or to any parent folder of the configuration. In the
    latter case, the path in the tree is replaced. Inference needs no recordings.
    """
    inference = root.mapping.get("checkpoint_settings", root).mapping.get("inference")
    if inference is not None and unwrapped(inference.content) is True:
        return
    default = root.at("default_settings")
    for behavior in [default, *root.at("behaviors").mapping.values()]:
        trainer_type = behavior.at("trainer_type").content or default.at("trainer_type").content
        row = algorithm_named(trainer_type)
        if row is not None and row.offline:
            yield from _move_to_dataset(behavior, trainer_type)
        sections = [behavior.at("behavioral_cloning"), *behavior.at("reward_signals").mapping.values()]
        demo_paths = [section.at("demo_path") for section in sections]
        dataset = behavior.at("dataset")
        others = [behavior.at("hyperparameters", "demonstrations", "demo_path")]
        others += dataset.content if isinstance(dataset.content, list) else [dataset]
        for entry in [*demo_paths, *others]:
            if not isinstance(entry.content, str):  # other types are reported when the settings are built
                continue
            entry.content = _found(entry.content, Path(root.place.source))
            problem = missing(entry.content)
            if problem is None and entry in demo_paths:
                problem = other_type(entry.content)
            if problem:
                yield Problem(entry.place, problem)


def _move_to_dataset(behavior: PlacedValue, trainer_type: str) -> Iterator[Problem]:
    """Report ``demo_path`` for a trainer that expects ``dataset``, and move the path there."""
    for section in (behavior, behavior.at("hyperparameters")):
        entry = section.mapping.pop("demo_path", None)
        if entry is not None:
            shown = entry.content if isinstance(entry.content, str) else "FILE.demo"
            message = f"trainer_type {trainer_type} learns from 'dataset'; write dataset: [{shown}] in the behavior"
            yield Problem(entry.place, message)
            behavior.mapping.setdefault("dataset", PlacedValue([entry], entry.place))


def _found(path: str, configuration: Path) -> str:
    if not Path(path).exists() and configuration.is_file():
        for folder in configuration.absolute().parents:
            if (folder / path).exists():
                return str(folder / path)
    return path
