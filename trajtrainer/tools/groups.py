"""The runs that a report or picture shows, and which of them differ only in their seed."""

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

# What may differ between runs of one group: where they are and how they were started, not what was learned.
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
    """What a report shows of a run, read once.

    Attributes:
        name: its run id.
        path: its folder.
        settings: flat: "behaviors.Ball.max_steps" -> value; empty without ``configuration.yaml``.
        behaviors: name -> tag -> series.
        sections: of ``training_status.json``, name of a behavior or parameter -> its entries; empty without one.
        timers: ``timers.json``; empty without one.
    """

    name: str
    path: Path
    settings: Mapping[str, Any]
    behaviors: Mapping[str, Mapping[str, Series]]
    sections: Mapping[str, Mapping[str, Any]]
    timers: Mapping[str, Any]

    @property
    def seed(self) -> object:
        """None if the settings do not say."""
        return self.settings.get("env_settings.seed")


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ only in their seed.

    Attributes:
        name: what their run ids have in common, or the run id of the only one.
        runs: in the order given.
    """

    name: str
    runs: Sequence[ReportedRun]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that they share, flat."""
        return {key: value for key, value in self.runs[0].settings.items() if key not in OF_A_RUN}

    def series(self, behavior: str, tag: str) -> list[Series]:
        """A statistic of each run that has it."""
        found = (run.behaviors.get(behavior, {}).get(tag) for run in self.runs)
        return [series for series in found if series is not None]


def load_runs(words: Sequence[str], results: Path) -> list[ReportedRun]:
    """Load the runs of these names, each once. One that cannot be read is left out with a warning.

    Args:
        words: run ids, or folders of runs or of one of their behaviors.
        results: the folder that contains the runs.

    Raises:
        RunFolderError: a run does not exist, or none can be read. The message names all of them.
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
        logger.warning("%s The run is left out.", problem)
    return list(runs.values())


def _load(path: Path) -> ReportedRun:
    names: list[str] | None = None
    if event_files(ContainedFolder(path), ()):  # the folder of one behavior
        names, path = [path.resolve().name], path.resolve().parent
    saved = SavedRun(ContainedFolder(path))
    names = saved.behavior_folders() if names is None else names
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
        logger.warning("%s The report leaves it out.", problem)
    return run


def group_runs(runs: Sequence[ReportedRun]) -> list[Group]:
    """Group the runs that differ only in their seed, in the order of the first of each."""
    found = same_but_for_the_seed([(run.name, run.settings, run.behaviors) for run in runs])
    return [Group(name, [runs[number] for number in numbers]) for name, numbers in found]


def same_but_for_the_seed(
    runs: Sequence[tuple[str, Mapping[str, Any], Iterable[str]]],
) -> list[tuple[str, list[int]]]:
    """The name of each group, and the positions of its runs; in the order of the first run of each group.

    Args:
        runs: run id, flat settings and behaviors of each.
    """
    groups: dict[str, list[int]] = {}
    for number, (_, settings, behaviors) in enumerate(runs):
        shared = {key: value for key, value in settings.items() if key not in OF_A_RUN}
        # What a run without settings has in common with others is unknown, so it is a group of its own.
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
