"""Checks the demonstrations that trainers learn from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trajtrainer.core.errors import DemonstrationError, UnsupportedError
from trajtrainer.settings.components import ALGORITHMS
from trajtrainer.settings.demonstrations import missing, other_type
from trajtrainer.settings.trainer import TrainerSettings


def check_demonstrations(behaviors: Mapping[str, TrainerSettings]) -> None:
    """Check that recordings exist and that trainers can use them, before the run starts.

    Args:
        behaviors: the settings of each behavior, by name.

    Raises:
        DemonstrationError: recordings are missing or invalid. The message lists all problems of all behaviors.
        UnsupportedError: a trainer does not support ``behavioral_cloning``.
    """
    faults = []
    for name, settings in behaviors.items():
        found: list[str] = []
        of_batches = getattr(settings.hyperparameters, "demonstrations", None)
        if of_batches is not None:
            found += _faults_of_data_set(of_batches.demo_path)
        cloning = settings.behavioral_cloning
        if cloning is not None and not ALGORITHMS[settings.trainer_type].clones:
            raise UnsupportedError(
                f"Behavior {name!r}: trainer_type {settings.trainer_type} does not support behavioral_cloning. Remove "
                "this section."
            )
        for section in (cloning, *settings.reward_signals.values()):
            path = getattr(section, "demo_path", None)
            if path is not None:
                found += _faults_of_recording(path)
        faults += [f"Behavior {name!r}, demo_path: {fault}" for fault in found]
    if faults:
        raise DemonstrationError("\n".join(faults))


def _faults_of_data_set(path: str) -> Iterator[str]:
    from trajtrainer.experience.recordings.demonstrations import load_demonstrations  # only for demonstrations

    try:
        load_demonstrations([path], max_steps=1)
    except DemonstrationError as error:
        yield str(error)


def _faults_of_recording(path: str) -> Iterator[str]:
    from trajtrainer.experience.recordings.demo_file import demo_paths, read_header  # only for demonstrations

    fault = missing(path) or other_type(path)
    if fault:
        yield f"{fault}."
        return
    for recording in demo_paths([path]):
        try:
            read_header(recording)
        except DemonstrationError as error:
            yield str(error)
