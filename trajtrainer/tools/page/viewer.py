"""What the page asks for. One request at a time reads runs; the curves of the runs last asked for stay in memory."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from trajtrainer.core.errors import RunFolderError
from trajtrainer.core.metrics import MetricSample, exposition
from trajtrainer.core.version import __version__
from trajtrainer.policies.folder.contained_folder import ContainedFolder, Parts
from trajtrainer.policies.folder.event_reader import LEVELS
from trajtrainer.policies.folder.saved_run import LOGS, RunCurves, gauge_key
from trajtrainer.policies.folder.series import BehaviorCurves, Series
from trajtrainer.tools.groups import same_but_for_the_seed
from trajtrainer.tools.page.runs import Runs, RunView
from trajtrainer.tools.page.table import Row, rows_of, table
from trajtrainer.tools.spread import aggregate, pooled_percentiles

T = TypeVar("T")
# Run id -> its columns: one, or one for each percentile of a histogram.
Seeds = Mapping[str, Sequence[Series]]

logger = logging.getLogger(__name__)

MOST_RUNS_AT_ONCE = 32
MOST_POINTS = 4000
_FEWEST_POINTS = 10
_END_OF_LOG = 1 << 18
# The list of runs is renewed this often, or less often with many runs: it takes at most 1/20 of the time.
_LIST_S = 2.0
_PAUSE_PER_COST = 20
# Curves that no stream keeps up to date are read on by requests, unless that was done less than this ago.
_UNWATCHED_S = 3.0
# Metrics of a run that ended do not change any more, so they are not published for longer than this.
_MEASURED_S = 24 * 3600.0
_MOST_MEASURED = 500
_AT_WORK = ("running", "stopping", "active")
_READ_S = 0.3
# As in a report, because the interval is that of 2,000 resamples at each step.
_MOST_STEPS_OF_SEEDS = 200
_MOST_POINTS_OF_SEED = 1000
_MOST_SEEDS = 20  # plotted one by one
_MOST_SPREADS = 64
_MS = 1000


class Viewer:
    """The runs of a folder, for several browsers at once."""

    def __init__(self, folder: ContainedFolder) -> None:
        self.runs = Runs(folder)
        self._lock = threading.Lock()
        self._list: list[dict[str, Any]] = []
        self._list_due_s = 0.0
        self._measured: list[dict[str, Any]] | None = None
        self._metrics = ""
        self._spreads: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()  # the newest last
        self._read_s: dict[str, float] = {}  # run id -> when its curves were read, oldest first
        self._unreadable: set[str] = set()  # the runs that a warning was about

    def summaries(self) -> list[dict[str, Any]]:
        """The list of runs, at most a few seconds old."""
        with self._lock:
            begin_s = time.monotonic()
            if begin_s >= self._list_due_s:
                self._list = [self._try(run, run.summary, run.unreadable) for run in self.runs.find().values()]
                cost_s = time.monotonic() - begin_s
                self._list_due_s = begin_s + cost_s + max(_LIST_S, _PAUSE_PER_COST * cost_s)
            return self._list

    def metrics(self) -> str:
        """The metrics of the runs that train or ended within a day, in Prometheus' text format; as old as the list."""
        summaries = self.summaries()
        with self._lock:
            if self._measured is not summaries:
                since_s = time.time() - _MEASURED_S
                newest = sorted(summaries, key=lambda each: -each["updated"])[:_MOST_MEASURED]
                samples = [MetricSample("build_info", 1, {"version": __version__})]
                samples += [
                    MetricSample("runs", number, {"state": state})
                    for state, number in Counter(each["state"] for each in summaries).items()
                ]
                runs = self.runs.find()
                for summary in sorted(newest, key=lambda each: each["id"]):
                    run = runs.get(summary["id"])
                    if run is not None and (summary["updated"] > since_s or summary["state"] in _AT_WORK):
                        samples += self._try(run, partial(run.samples, summary), list)
                self._measured, self._metrics = summaries, exposition(samples)
            return self._metrics

    def look(self, run_ids: Sequence[str]) -> tuple[dict[str, tuple[Any, ...]], bool]:
        """Read what is new in these runs, for a few tenths of a second.

        Returns:
            Run id -> a value that changes with the run, of those that exist, and whether everything was read.
        """
        with self._lock:
            found = self._found(run_ids)
            whole = [
                self._try(run, partial(self._read, run, _READ_S / len(found)), lambda: True) for run in found.values()
            ]
            return {run_id: self._try(run, run.version, tuple) for run_id, run in found.items()}, all(whole)

    def details(self, run_id: str) -> dict[str, Any]:
        """Everything of a run but its curves.

        Raises:
            RunFolderError: there is no such run.
        """
        with self._lock:
            run = self._run(run_id)
            self._read_unwatched({run_id: run})
            return run.details()

    def tags(self, run_ids: Sequence[str]) -> dict[str, Any]:
        """Run id -> which share was read (0 to 1) and the tags of each behavior, of those that exist."""
        with self._lock:
            found = self._found(run_ids)
            self._read_unwatched(found)
            return {run_id: {"read": run.saved.curves.share_read, "tags": run.tags()} for run_id, run in found.items()}

    def series(
        self, run_ids: Sequence[str], behavior: str, tag: str, points: int, span: tuple[float, float], *, by_time: bool
    ) -> dict[str, Any]:
        """A statistic over some runs; of a histogram, its percentiles.

        Args:
            run_ids: those that do not exist are left out.
            behavior: the name of its folder.
            tag: of the statistic.
            points: about this many of each run.
            span: first and last step, or with ``by_time`` second since the run's first summary.
            by_time: what ``span`` means.
        """
        most = min(max(points, _FEWEST_POINTS), MOST_POINTS)
        with self._lock:
            found = self._parts(run_ids, behavior, tag, most, span, by_time=by_time)
        return {run_id: _line(columns) for run_id, columns in found.items()}

    def table(self) -> dict[str, Any]:
        """Settings and newest statistics of all runs, as ``live.table.table`` has them."""
        with self._lock:
            runs = self.runs.find().values()
            rows: list[Row] = [row for run in runs for row in self._try(run, partial(rows_of, run), list[Row])]
            curves = [behavior for run in runs for behavior in run.saved.curves.behaviors.values()]
            tags = {gauge_key(tag): tag for behavior in curves for tag in behavior.curves}
        return table(rows, tags)

    def groups(self, run_ids: Sequence[str]) -> list[dict[str, Any]]:
        """Which of these runs differ only in their seed: name and run ids of each group."""
        with self._lock:
            return [{"name": name, "runs": list(runs)} for name, runs in self._grouped(self._found(run_ids))]

    def series_over_seeds(
        self, run_ids: Sequence[str], behavior: str, tag: str, points: int, span: tuple[float, float], *, by_time: bool
    ) -> dict[str, Any]:
        """A statistic as ``series`` has it, but one line for runs that differ only in their seed.

        The line has the run id of the first run. A histogram is the distribution over all seeds.
        """
        with self._lock:
            found = self._parts(run_ids, behavior, tag, _MOST_POINTS_OF_SEED, span, by_time=by_time)
            groups = self._grouped(self._found(run_ids))
        most = min(max(points, _FEWEST_POINTS), _MOST_STEPS_OF_SEEDS)
        lines = {}
        for name, group in groups:
            known = {run_id: found[run_id] for run_id in group if run_id in found and len(found[run_id][0].steps)}
            # Where the tag is a histogram in some runs only, the others count.
            seeds = {run_id: columns for run_id, columns in known.items() if len(columns) == 1} or known
            if seeds:
                along = {run_id: [_over_time(each) for each in columns] for run_id, columns in seeds.items()}
                lines[next(iter(seeds))] = self._spread(name, along if by_time else seeds, most, by_time=by_time)
        return lines

    def _parts(
        self, run_ids: Sequence[str], behavior: str, tag: str, most: int, span: tuple[float, float], *, by_time: bool
    ) -> dict[str, list[Series]]:
        """Run id -> its columns in this span, of the runs that have the tag."""
        runs = self._found(run_ids)
        self._read_unwatched(runs)
        found = {}
        for run_id, run in runs.items():
            curves = run.saved.curves.behaviors.get(behavior)
            if curves is not None:
                part = partial(_part, curves, tag, most, span, by_time=by_time)
                found[run_id] = self._try(run, part, list[Series])
        return {run_id: columns for run_id, columns in found.items() if columns}

    def _spread(self, name: str, seeds: Seeds, most: int, *, by_time: bool) -> dict[str, Any]:
        """The line of a group. It takes a while, so the newest ones are kept, and the lock is not held."""
        digest = hashlib.blake2b(digest_size=16)
        for each in chain.from_iterable(seeds.values()):
            digest.update(each.steps.tobytes() + each.values.tobytes())
        key = (name, *seeds, most, by_time, digest.digest())
        found = self._spreads.get(key) or {
            "name": name,
            "runs": list(seeds),
            **_over_seeds(seeds, most, by_time=by_time),
        }
        with self._lock:
            self._spreads[key] = found
            self._spreads.move_to_end(key)
            while len(self._spreads) > _MOST_SPREADS:
                self._spreads.popitem(last=False)
        return found

    def log(self, run_id: str, name: str) -> dict[str, Any]:
        """The end of one of the files in ``run_logs``.

        Raises:
            RunFolderError: there is no such run or file.
        """
        with self._lock:
            parts = (*self._run(run_id).saved.parts, LOGS, name)
        entry, content = self.runs.folder.entry(parts), self.runs.folder.tail(parts, _END_OF_LOG)
        if entry is None or content is None:
            raise RunFolderError(f"The run {run_id} has no log {name!r}.")
        is_cut = entry.size > len(content)
        if is_cut:  # within a line
            content = content.partition(b"\n")[2]
        return {"text": content.decode("utf-8", "replace"), "size": entry.size, "is_cut": is_cut}

    def file(self, run_id: str, path: str) -> Parts:
        """Where a file is that is to be downloaded.

        Raises:
            RunFolderError: there is no such run or file.
        """
        with self._lock:
            run = self._run(run_id)
            if path not in {file["path"] for file in run.files()}:
                raise RunFolderError(f"The run {run_id} has no file {path!r}.")
            return (*run.saved.parts, *path.split("/"))

    def stop(self, run_id: str) -> None:
        """Ask a run to save everything and end.

        Raises:
            RunFolderError: there is no such run, or it does not run on this machine.
        """
        with self._lock:
            self._run(run_id).stop()
            self._list_due_s = 0.0

    def annotate(self, run_id: str, changes: Mapping[str, Any], seen: str | None) -> None:
        """Change the notes about a run, as ``RunView.annotate``.

        Raises:
            RunFolderError: there is no such run, or its notes cannot be written.
            ValueError: a value is not allowed, or someone else has changed the text in the meantime.
        """
        with self._lock:
            self._run(run_id).annotate(changes, seen)
            self._list_due_s = 0.0

    def _try(self, run: RunView, read: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """Read from one run of several: whatever its files do to us, the others are shown."""
        try:
            return read()
        except Exception:
            if run.saved.run_id not in self._unreadable:
                self._unreadable.add(run.saved.run_id)
                logger.warning("The run %s cannot be read.", run.saved.run_id, exc_info=True)
            return otherwise()

    def _found(self, run_ids: Sequence[str]) -> dict[str, RunView]:
        known = self.runs.find()
        return {run_id: known[run_id] for run_id in run_ids[:MOST_RUNS_AT_ONCE] if run_id in known}

    def _grouped(self, runs: Mapping[str, RunView]) -> list[tuple[str, list[str]]]:
        found: dict[str, tuple[Mapping[str, Any], list[str]] | None] = {
            run_id: self._try(run, partial(_settings_of, run), lambda: None) for run_id, run in runs.items()
        }
        known = [(run_id, *each) for run_id, each in found.items() if each is not None]
        return [(name, [known[number][0] for number in some]) for name, some in same_but_for_the_seed(known)]

    def _run(self, run_id: str) -> RunView:
        found = self._found([run_id])
        if not found:
            raise RunFolderError(f"The run {run_id!r} does not exist. Perhaps it was deleted.")
        return found[run_id]

    def _read_unwatched(self, runs: Mapping[str, RunView]) -> None:
        late = time.monotonic() - _UNWATCHED_S
        for run_id, run in runs.items():
            if self._read_s.get(run_id, 0.0) < late:
                self._try(run, partial(self._read, run, _READ_S / len(runs)), lambda: True)

    def _read(self, run: RunView, seconds: float) -> bool:
        """Read on in the run's event files, and drop the curves that were not asked for the longest."""
        is_whole = run.saved.curves.read_on(seconds)
        self._read_s.pop(run.saved.run_id, None)
        self._read_s[run.saved.run_id] = time.monotonic()
        for run_id in list(self._read_s)[:-MOST_RUNS_AT_ONCE]:
            del self._read_s[run_id]
            gone = self.runs.known.get(run_id)
            if gone is not None:
                gone.saved.curves = RunCurves(gone.saved.folder, gone.saved.parts)
        return is_whole


def _settings_of(run: RunView) -> tuple[Mapping[str, Any], list[str]]:
    """The settings and behaviors of a run, by which runs are grouped."""
    return run.saved.configuration.flat, run.behavior_folders()


def _part(curves: BehaviorCurves, tag: str, most: int, span: tuple[float, float], *, by_time: bool) -> list[Series]:
    """A statistic in a span, with times in seconds since the first summary; empty without it."""
    began = curves.began or 0.0
    begin, end = (each + began for each in span) if by_time else span
    some = [curves.curves[tag]] if tag in curves.curves else curves.histograms.get(tag, [])
    found = [curve.series(most, begin, end, by_time=by_time) for curve in some]
    # The clock of a run may have been set back.
    return [replace(each, times=np.maximum.accumulate(each.times) - began) for each in found]


def _over_time(series: Series) -> Series:
    """The same with milliseconds as its steps."""
    times = np.round(series.times * _MS).astype(np.int64)
    last = np.append(np.diff(times) > 0, True)
    return Series(times[last], series.values[last], series.low[last], series.high[last], series.times[last])


def _line(columns: Sequence[Series]) -> dict[str, Any]:
    """A statistic of one run as the page draws it."""
    first, last = columns[0], columns[-1]
    line: dict[str, Any] = {"steps": first.steps.tolist(), "times": np.round(first.times, 1).tolist()}
    if len(columns) == 1 and (first.low == first.high).all():
        return line | {"mean": _short(first.values)}
    middle = {"mean": _short(first.values)} if len(columns) == 1 else _bands([_short(each.values) for each in columns])
    return line | middle | {"low": _short(first.low), "high": _short(last.high)}


def _over_seeds(seeds: Seeds, most: int, *, by_time: bool) -> dict[str, Any]:
    """The line of a group, as a report plots it: the mean over its seeds, their interval, and each seed."""

    def along(steps: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, list[float]]:
        found: list[float] = (steps / _MS if by_time else steps).tolist()
        return {"times" if by_time else "steps": found}

    every = list(seeds.values())
    if len(every[0]) > 1:
        steps, percentiles = pooled_percentiles(every, LEVELS, most)
        return along(steps) | _bands([_short(values) for values in percentiles])
    runs = [column for (column,) in every]
    over = aggregate(runs, most)
    line: dict[str, Any] = {"mean": _short(over.middle), **along(over.steps)}
    if len(runs) > 1:
        line |= {"low": _short(over.low), "high": _short(over.high), "seeds": []}
        for each in runs[:_MOST_SEEDS]:
            kept = np.linspace(0, len(each.steps) - 1, min(len(each.steps), most)).round().astype(np.int64)
            line["seeds"].append([*along(each.steps[kept]).values(), _short(each.values[kept])])
    return line


def _bands(percentiles: Sequence[list[float]]) -> dict[str, Any]:
    """A histogram as a line, the median, in its bands. ``percentiles``: at ``LEVELS``."""
    low, p5, p25, median, p75, p95, high = percentiles
    return {"mean": median, "bands": [[p5, p95], [p25, p75]], "low": low, "high": high}


def _short(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    """Numbers with as many digits as their files have (float32)."""
    return [float(f"{value:.7g}") for value in values.tolist()]
