"""Converts the runs of a results folder to plain data for the page, whatever state their files are in."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from trajtrainer.core.errors import RunFolderError
from trajtrainer.core.filenames import behavior_of
from trajtrainer.core.metrics import MAX_STEPS, OF_STATISTICS, STEP, MetricSample, of_statistics
from trajtrainer.core.timers import EARLIER
from trajtrainer.policies.folder.contained_folder import ContainedFolder, Parts
from trajtrainer.policies.folder.event_reader import LATEST
from trajtrainer.policies.folder.notes import RunNotes, change_notes
from trajtrainer.policies.folder.run_folder import JOURNAL
from trajtrainer.policies.folder.run_lock import HeldError, ask_to_stop, lock_file, stop_file
from trajtrainer.policies.folder.saved_run import LOGS, SavedRun, gauge_key, is_run, shown_setting
from trajtrainer.policies.folder.status import PRUNING, finite_or_none
from trajtrainer.tools.page.resuming import resume_command
from trajtrainer.tools.time_spent import all_sessions, blocks, by_kind, num_sessions, seconds_of

REWARD = "Environment/Cumulative Reward"
ELO = "Self-play/ELO"
# Charts in the view of a single run.
_SHOWN = (REWARD, ELO, "Perf/CPU", "Perf/Memory", "Perf/GPU", "Perf/GPU Memory")
_MAX_RUNS = 2000
_MAX_FOLDERS = 5_000
_MAX_DEPTH = 5
_MAX_FILES = 2000
_MAX_SETTINGS = 5000
_MAX_BLOCKS = 300
_LONGEST_TEXT = 500
# ML-Agents' runs have no lock. They count as active if they wrote something within this time.
_FRESH_S = 90.0
# Searching for runs takes at most 1/20 of the time, however large the folder is.
_SEARCH_S = 1.0
_PAUSE_PER_COST = 20
_NAMES_S = 0.5
_NUMBERED = re.compile(r"-(\d{1,18})\.(?:pt|onnx)$")


class RunView:
    """A run as the page shows it."""

    def __init__(self, saved: SavedRun) -> None:
        self.saved = saved
        self._names: list[str] = []
        self._names_due_s = 0.0

    def stop(self) -> None:
        """Ask the process that trains the run to save everything and exit.

        Raises:
            RunFolderError: no process on this machine trains the run, or the folder cannot be written.
        """
        run_id, holder = self.saved.run_id, self.saved.holder()
        if holder is None:
            raise RunFolderError(f"The run {run_id} cannot be stopped: it is not running.")
        if not holder.is_here:
            raise RunFolderError(f"The run {run_id} cannot be stopped here: it is running on another machine.")
        try:
            ask_to_stop(self.saved.path)
        except OSError as error:
            raise RunFolderError(
                f"The run {run_id} cannot be stopped from here: {error.strerror or error} (the page needs write access "
                "to the results folder). Press Ctrl-C where the run was started."
            ) from error

    def annotate(self, changes: Mapping[str, Any], seen: str | None) -> None:
        """Change the notes.

        Args:
            changes: attribute of ``RunNotes`` -> new value.
            seen: the text that the user saw before the change; None if the text does not change.

        Raises:
            RunFolderError: the file cannot be written, or another process is writing it and does not finish.
            ValueError: a value is not allowed, or someone else has changed the text since the user saw it.
        """

        def change(notes: RunNotes) -> RunNotes:
            if seen is not None and seen != notes.text:
                raise ValueError("Someone else has changed this note. Copy your text, and reload the page.")
            return notes.changed(changes)

        try:
            change_notes(self.saved.folder, self.saved.parts, change)
        except HeldError as error:
            raise RunFolderError(
                f"The notes about {self.saved.run_id} were not saved: another program is changing them. Try again."
            ) from error
        except OSError as error:
            raise RunFolderError(
                f"The notes about {self.saved.run_id} cannot be saved: {error.strerror or error}. The page needs write "
                "access to the results folder."
            ) from error

    def state(self) -> dict[str, Any]:
        """Return whether the run is training, or how it ended.

        ``state`` is "running", "stopping", "killed", "failed", "finished", "pruned" (by a search), "stopped",
        "active" (ML-Agents) or "ended". ``message`` has details.
        """
        saved = self.saved
        holder, sections = saved.holder(), saved.sections
        finals = [section.get("final_checkpoint") for section in sections.values()]
        last_saved = [finite_or_none(each.get("creation_time")) or 0.0 for each in finals if isinstance(each, dict)]
        lock = saved.neighbor(lock_file(saved.path))
        name, message = "ended", ""
        if holder is not None:
            name = "running" if saved.neighbor(stop_file(saved.path)) is None else "stopping"
            message = "" if holder.is_here else "on another machine"
        elif saved.log.ended_by is not None:
            name, message = "failed", saved.log.ended_by
        # If no process holds the lock file, its process was killed, unless it saved everything after creating the file.
        elif lock is not None and max(last_saved, default=0.0) < lock.changed:
            name, message = "killed", "The process ended without saving. Continue with --resume."
        elif (
            time.time() - self._updated() < _FRESH_S and saved.folder.entry((*saved.parts, LOGS, "trainer.log")) is None
        ):
            name = "active"
        elif any("final_checkpoint" in section for section in sections.values()):
            behaviors = [self._behavior(name) for name in self.behavior_folders()]
            has_enough = bool(behaviors) and all(
                each["stopped"] or (each["max_steps"] and each["step"] and each["step"] >= each["max_steps"])
                for each in behaviors
            )
            is_pruned = any(each["stopped"] and each["stopped"].get("by") == PRUNING for each in behaviors)
            name = "pruned" if is_pruned else "finished" if has_enough else "stopped"
        return {"state": name, "message": message, "can_stop": name == "running" and not message}

    def search(self) -> str | None:
        """Return the folder of the search that created the run, or None.

        It is also None if the page shows the search's own folder.
        """
        above = self.saved.parts[:-1]
        return "/".join(above) if above and self.saved.folder.entry((*above, JOURNAL)) is not None else None

    def summary(self) -> dict[str, Any]:
        """Return the data for the list of runs."""
        notes = self.saved.notes
        return {
            "id": self.saved.run_id,
            "search": self.search(),
            **self.state(),
            "note": shortened(notes.text.partition("\n")[0]),
            "labels": notes.labels,
            "archived": notes.archived,
            "took": seconds_of(all_sessions(self.saved.timers)),
            "updated": self._updated(),
            "behaviors": [self._behavior(name) for name in self.behavior_folders()],
        }

    def unreadable(self) -> dict[str, Any]:
        """Return the data for the list of runs if ``summary`` fails."""
        message = "This run cannot be read. See the error in the terminal where the page was started."
        state = {"id": self.saved.run_id, "search": None, "state": "unreadable", "message": message, "can_stop": False}
        return state | {"note": "", "labels": (), "archived": False, "took": 0.0, "updated": 0.0, "behaviors": []}

    def samples(self, summary: Mapping[str, Any]) -> list[MetricSample]:
        """Return the metrics of the run and its behaviors, based on a recent ``summary``."""
        labels = {"run": self.saved.run_id}
        found = [
            MetricSample("run_state", 1, {**labels, "state": summary["state"]}),
            MetricSample("run_updated_time_seconds", summary["updated"], labels),
        ]
        began = _positive(self.saved.metadata.get("start_time_seconds"))
        if began is not None:
            found.append(MetricSample("run_start_time_seconds", began, labels))
        for behavior in summary["behaviors"]:
            name = behavior["name"]
            known = (STEP.name, behavior["step"]), (MAX_STEPS, behavior["max_steps"])
            gauges = self.saved.gauges(name)
            numbers = of_statistics({metric.tag: gauges.get(gauge_key(metric.tag)) for metric in OF_STATISTICS}.get)
            numbers |= {key: value for key, value in known if value is not None}
            found += [MetricSample(key, value, {**labels, "behavior": name}) for key, value in numbers.items()]
        return found

    def details(self) -> dict[str, Any]:
        """Return everything about the run except its curves."""
        timers, curves, metadata = self.saved.timers, self.saved.curves, self.saved.metadata
        settings = self.saved.configuration.flat
        began = _positive(metadata.get("start_time_seconds"))
        earlier = timers.get(EARLIER)
        first = _positive(earlier.get("start_time_seconds")) if isinstance(earlier, dict) else None
        every_session = all_sessions(timers)
        some_blocks = [
            [block.name, block.depth, block.seconds, block.count, block.is_parallel]
            for _, block in zip(range(_MAX_BLOCKS), blocks(every_session), strict=False)
        ]
        # Treat earlier sessions as if they had ended right before this one started. The duration in the file cannot be
        # shown, because the run keeps running after it last wrote timers.json.
        since = None if began is None else began - (seconds_of(every_session) - seconds_of(timers))
        return {
            **self.summary(),
            "notes": self.saved.notes.text,
            "resume": dict(zip(("command", "remark"), resume_command(self.saved), strict=True)),
            "charts": {name: [tag for tag in _SHOWN if tag in each.curves] for name, each in curves.behaviors.items()},
            "read": curves.share_read,
            "is_damaged": any(each.is_damaged for each in curves.behaviors.values()),
            "starts": {name: each.starts[-20:] for name, each in curves.behaviors.items() if each.starts},
            "began": first or began or curves.began,
            "resumed": began if first else None,
            "since": since or curves.began,
            "sessions": num_sessions(timers),
            "ended": _positive(metadata.get("end_time_seconds")),
            "command": shortened(metadata.get("command_line_arguments", "")),
            "versions": {
                name: shortened(metadata[key]).partition(" ")[0]
                for key, name in (
                    ("trajtrainer_version", "trajtrainer"),
                    ("mlagents_version", "ML-Agents"),
                    ("pytorch_version", "PyTorch"),
                    ("python_version", "Python"),
                )
                if metadata.get(key)
            },
            "lessons": [
                _lesson(name, number, settings)
                for name, section in self.saved.sections.items()
                if (number := _count(section.get("lesson_num"))) is not None
            ],
            "time": {
                "seconds": seconds_of(every_session),
                "kinds": {kind: seconds for kind, seconds in by_kind(every_session).items() if seconds > 0},
                "blocks": some_blocks,
            },
            "records": [{"time": each.time, "kind": each.kind, "text": each.text} for each in self.saved.log.records],
            "settings": [
                [key, shortened(shown_setting(value))] for key, value in list(settings.items())[:_MAX_SETTINGS]
            ],
            "files": self.files(),
        }

    def files(self) -> list[dict[str, Any]]:
        """Return the files that can be downloaded."""
        folder, parts = self.saved.folder, self.saved.parts
        inner = [each.name for each in folder.folders(parts)]
        listing = [("", "", entry) for entry in folder.list(parts)]
        listing += [(name, f"{name}/", entry) for name in inner for entry in folder.list((*parts, name))]
        files = [each for each in listing if not each[2].is_folder and not each[2].name.startswith(".")]
        return [
            {
                "path": prefix + entry.name,
                "folder": place,
                "size": entry.size,
                "changed": entry.changed,
                "step": int(step[1]) if (step := _NUMBERED.search(entry.name)) else None,
            }
            for place, prefix, entry in files[:_MAX_FILES]
        ]

    def version(self) -> tuple[Any, ...]:
        """Return a value that changes whenever ``details`` does, but is faster to compute."""
        saved = self.saved
        logs = tuple((each.name, each.size, each.changed) for each in saved.folder.list((*saved.parts, LOGS)))
        return saved.curves.version, logs, saved.notes, saved.holder(), round(saved.curves.share_read, 2)

    def tags(self) -> dict[str, list[str]]:
        """Return the tags of the curves, by the name of the behavior's folder."""
        return {name: sorted({*each.curves, *each.histograms}) for name, each in self.saved.curves.behaviors.items()}

    def _updated(self) -> float:
        return self.saved.updated(self.behavior_folders())

    def behavior_folders(self) -> list[str]:
        """Return the names of the behaviors' folders."""
        # Cached for half a second, because finding them lists all entries of all folders.
        if time.monotonic() > self._names_due_s:
            self._names = self.saved.behavior_folders()
            self._names_due_s = time.monotonic() + _NAMES_S
        return self._names

    def _behavior(self, name: str) -> dict[str, Any]:
        """Return a behavior's progress, according to its curves and the other files."""
        behavior = behavior_of(name)
        section = self.saved.sections.get(behavior, {})
        curves = self.saved.curves.behaviors.get(name)
        known = {} if curves is None else curves.curves
        gauges = self.saved.gauges(behavior)
        steps = [curve.last[0] for curve in known.values() if curve.last is not None]
        checkpoints = section.get("checkpoints")
        records = [*(checkpoints if isinstance(checkpoints, list) else []), section.get("final_checkpoint")]
        checkpoint: dict[str, Any] = next((each for each in reversed(records) if isinstance(each, dict)), {})
        # At the end of a run, the last steps are not in any summary, but in the last checkpoint.
        steps += [each for each in (_count(gauges.get("Step")), _count(checkpoint.get("steps"))) if each is not None]
        reward, elo = (known[tag].last if tag in known else None for tag in (REWARD, ELO))
        rewards = (
            reward[2] if reward else None,
            gauges.get(gauge_key(REWARD)),
            finite_or_none(checkpoint.get("reward")),
        )
        return {
            "name": behavior,
            "folder": name,
            "step": max(steps, default=None),
            "max_steps": _count(self.saved.configuration.flat.get(f"behaviors.{behavior}.max_steps")),
            "reward": next((each for each in rewards if each is not None), None),
            "elo": elo[2] if elo else finite_or_none(section.get("elo")),
            "best": _picked(section.get("best"), ("steps", "reward", "by", "measure")),
            "evaluation": _picked(section.get("evaluation"), ("steps", "episodes", "mean", "std", "min", "max")),
            "stopped": _picked(section.get("stopped"), ("by", "steps")),
        }


class Runs:
    """The runs of a results folder.

    Attributes:
        folder: the results folder, which may not exist yet.
        only: the only run to show, if the given folder is that of a run; None to show all runs.
        known: run id -> run, as found by the last search.
    """

    def __init__(self, folder: ContainedFolder) -> None:
        """Store the folder without reading it. ``find`` searches it for runs."""
        self.folder = folder
        self.only: str | None = None
        self.known: dict[str, RunView] = {}
        self._due_s = 0.0

    def find(self) -> dict[str, RunView]:
        """Return the runs by run id. The result is cached for about a second, or longer if the folder is large."""
        begin_s = time.monotonic()
        if begin_s < self._due_s:
            return self.known
        if self.only is None and not self.known and is_run(self.folder, ()):
            self.folder, self.only = ContainedFolder(self.folder.path.parent), self.folder.path.name
        there = self._search() if self.only is None else [(self.only,)] if is_run(self.folder, (self.only,)) else []
        known = {"/".join(parts): parts for parts in there}
        self.known = {
            run_id: self.known.get(run_id) or RunView(SavedRun(self.folder, parts)) for run_id, parts in known.items()
        }
        end_s = time.monotonic()
        self._due_s = end_s + max(_SEARCH_S, _PAUSE_PER_COST * (end_s - begin_s))
        return self.known

    def _search(self) -> list[Parts]:
        found: list[Parts] = []
        waiting: list[Parts] = [()]
        for _ in range(_MAX_FOLDERS):
            if not waiting or len(found) >= _MAX_RUNS:
                break
            parts = waiting.pop()
            if parts and is_run(self.folder, parts):
                found.append(parts)
            elif len(parts) < _MAX_DEPTH:
                waiting += [(*parts, each.name) for each in self.folder.folders(parts) if not each.name.startswith(".")]
        return sorted(found)


def _count(value: object) -> int | None:
    number = finite_or_none(value)
    return int(number) if number is not None and 0 <= number < 1 << 62 else None


def _positive(value: object) -> float | None:
    """Return a positive number of seconds, or None. ML-Agents writes such numbers as text."""
    try:
        number = finite_or_none(float(value) if isinstance(value, str) else value)
    except ValueError:
        return None
    return number if number and 0 < number < LATEST else None


def _picked(value: object, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """Return these entries of a dict in a form that JSON can represent, or None if the value is not a dict."""
    if not isinstance(value, dict):
        return None
    found = {key: value[key] for key in keys if key in value}
    return {key: shortened(each) if isinstance(each, str) else finite_or_none(each) for key, each in found.items()}


def shortened(value: object) -> str:
    """Return the value as text for the page, cut off if it is too long."""
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


def _lesson(parameter: str, number: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    lessons = settings.get(f"environment_parameters.{parameter}.curriculum")
    lessons = lessons if isinstance(lessons, list) else []
    names = [shortened(each.get("name", "")) if isinstance(each, dict) else "" for each in lessons]
    return {
        "parameter": parameter,
        "number": number,
        "count": len(names) or None,
        "name": names[number] if number < len(names) else "",
    }
