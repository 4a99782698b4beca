"""Loads the runs for a report or plot, and groups those that differ only in their seed."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from trajtrainer.core.errors import RunFolderError
from trajtrainer.policies.folder.contained_folder import ContainedFolder
from trajtrainer.policies.folder.lookup import look_up, tried
from trajtrainer.policies.folder.saved_run import SavedRun
from trajtrainer.policies.folder.series import Series, event_files, read_scalars

logger = logging.getLogger(__name__)

# Settings that may differ between runs of the same group. They say where a run is and how it was started, and do not
# affect what is learned, except for the seed.
OF_A_RUN = {
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


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """The data of a run that a report shows.

    Attributes:
        name: the run id.
        path: the run's folder.
        settings: flat settings, such as "behaviors.Ball.max_steps" -> value; empty without ``configuration.yaml``.
        behaviors: name -> tag -> series.
        sections: name of a behavior or parameter -> its entries in ``training_status.json``; empty without that file.
        timers: content of ``timers.json``; empty without that file.
    """

    name: str
    path: Path
    settings: Mapping[str, Any]
    behaviors: Mapping[str, Mapping[str, Series]]
    sections: Mapping[str, Mapping[str, Any]]
    timers: Mapping[str, Any]

    @property
    def seed(self) -> object:
        """The run's seed, or None if the settings do not have it."""
        return self.settings.get("env_settings.seed")


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ only in their seed.

    Attributes:
        name: the common prefix of the run ids, or the run id if there is only one run.
        runs: the runs, in the order in which the user gave them.
    """

    name: str
    runs: Sequence[ReportedRun]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that all runs of the group share, flat."""
        return {key: value for key, value in self.runs[0].settings.items() if key not in OF_A_RUN}

    def series(self, behavior: str, tag: str) -> list[Series]:
        """Return the series of a statistic, for each run that has it."""
        return [run.behaviors[behavior][tag] for run in self.runs if tag in run.behaviors.get(behavior, {})]


def load_runs(words: Sequence[str], results: Path) -> list[ReportedRun]:
    """Load the runs with these names, without duplicates. Leave out runs that cannot be read, with a warning.

    Args:
        words: run ids, or folders of runs or of one of their behaviors.
        results: the folder that contains the runs.

    Raises:
        RunFolderError: a run does not exist, or no run can be read. The message lists all problems.
    """
    missing: list[str] = []
    problems: list[str] = []
    runs: dict[Path, ReportedRun] = {}
    for word in words:
        path = look_up(word, results)
        if not path.is_dir():
            missing.append(f"There is no run {word!r}. {tried(word, results)}")
            continue
        try:
            run = _load(path)
            runs.setdefault(run.path.resolve(), run)
        except RunFolderError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{word}: {error.filename} cannot be read: {error.strerror or error}.")
    if missing or not runs:
        raise RunFolderError("\n".join([*missing, *problems]))
    for problem in problems:
        logger.warning("%s Skipping this run.", problem)
    return list(runs.values())


def _load(path: Path) -> ReportedRun:
    names: list[str] = []
    if event_files(ContainedFolder(path), ()):  # the path is the folder of one behavior
        names, path = [path.resolve().name], path.resolve().parent
    saved = SavedRun(ContainedFolder(path))
    names = names or saved.behavior_folders()
    if not names:
        raise RunFolderError(
            f"{path} has no event files (events.out.tfevents.*), neither directly nor in its folders. It is not a run, "
            "or the run ended before its first summary (summary_freq)."
        )
    run = ReportedRun(
        name=saved.path.name,
        path=path,
        settings=saved.configuration.flat,
        behaviors={name: read_scalars(saved.path / name) for name in names},
        sections=saved.sections,
        timers=saved.timers,
    )
    for problem in saved.problems:
        logger.warning("%s The report does not contain it.", problem)
    return run


def group_runs(runs: Sequence[ReportedRun]) -> list[Group]:
    """Group the runs that differ only in their seed. Groups are in the order of their first runs."""
    found = same_but_for_the_seed([(run.name, run.settings, run.behaviors) for run in runs])
    return [Group(name, [runs[number] for number in numbers]) for name, numbers in found]


def same_but_for_the_seed(
    runs: Sequence[tuple[str, Mapping[str, Any], Iterable[str]]],
) -> list[tuple[str, list[int]]]:
    """Return the name of each group and the indices of its runs. Groups are in the order of their first runs.

    Args:
        runs: run id, flat settings and behaviors of each run.
    """
    groups: dict[str, list[int]] = {}
    for number, (_, settings, behaviors) in enumerate(runs):
        shared = {key: value for key, value in settings.items() if key not in OF_A_RUN}
        # A run without settings cannot be compared with others, so it gets its own group.
        key = json.dumps([shared, sorted(behaviors)], sort_keys=True, default=str) if shared else f"run {number}"
        groups.setdefault(key, []).append(number)
    ids = [[runs[number][0] for number in numbers] for numbers in groups.values()]
    names = [_name(some) for some in ids]
    return [
        (name if names.count(name) == 1 else _joined(some), numbers)
        for name, some, numbers in zip(names, ids, groups.values(), strict=True)
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
