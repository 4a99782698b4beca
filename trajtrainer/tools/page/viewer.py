"""Answers the page's requests. Runs are read by one request at a time; curves of recently shown runs stay in memory."""

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
# Run id -> its series: a single one, or one for each percentile of a histogram.
Seeds = Mapping[str, Sequence[Series]]

logger = logging.getLogger(__name__)

MOST_RUNS_AT_ONCE = 32
MOST_POINTS = 4000
_FEWEST_POINTS = 10
_END_OF_LOG = 1 << 18
# The list of runs is refreshed this often, or less often if there are many runs, to use at most 1/20 of the time.
_LIST_S = 2.0
_PAUSE_PER_COST = 20
# A request refreshes curves that no open stream is updating, at most this often.
_UNWATCHED_S = 3.0
# Metrics of a run that has ended no longer change, so they are only published for this long.
_MEASURED_S = 24 * 3600.0
_MOST_MEASURED = 500
_AT_WORK = ("running", "stopping", "active")
_READ_S = 0.3
# The same limit as in a report, because the interval takes 2,000 resamples at each step.
_MOST_STEPS_OF_SEEDS = 200
_MOST_POINTS_OF_SEED = 1000
_MOST_SEEDS = 20  # seeds that are plotted individually
_MOST_SPREADS = 64
_MS = 1000


class Viewer:
    """Serves the runs of a folder to several browsers at once."""

    def __init__(self, folder: ContainedFolder) -> None:
        self.runs = Runs(folder)
        self._lock = threading.Lock()
        self._list: list[dict[str, Any]] = []
        self._list_due_s = 0.0
        self._measured: list[dict[str, Any]] | None = None
        self._metrics = ""
        self._spreads: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()  # most recent last
        self._read_s: dict[str, float] = {}  # run id -> when its curves were read, oldest first
        self._unreadable: set[str] = set()  # runs for which a warning was logged

    def summaries(self) -> list[dict[str, Any]]:
        """Return the list of runs, which is at most a few seconds old."""
        with self._lock:
            begin_s = time.monotonic()
            if begin_s >= self._list_due_s:
                self._list = [self._try(run, run.summary, run.unreadable) for run in self.runs.find().values()]
                cost_s = time.monotonic() - begin_s
                self._list_due_s = begin_s + cost_s + max(_LIST_S, _PAUSE_PER_COST * cost_s)
            return self._list

    def metrics(self) -> str:
        """Return the metrics of runs that are training or ended within a day, in Prometheus' text format.

        They are as old as the list of runs.
        """
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
        """Read new data of these runs, for a few tenths of a second at most.

        Returns:
            A mapping from the ids of existing runs to values that change when the run does, and whether all new data
            was read.
        """
        with self._lock:
            found = self._found(run_ids)
            whole = [
                self._try(run, partial(self._read, run, _READ_S / len(found)), lambda: True) for run in found.values()
            ]
            return {run_id: self._try(run, run.version, tuple) for run_id, run in found.items()}, all(whole)

    def details(self, run_id: str) -> dict[str, Any]:
        """Return everything about a run except its curves.

        Raises:
            RunFolderError: there is no such run.
        """
        with self._lock:
            run = self._run(run_id)
            self._read_unwatched({run_id: run})
            return run.details()

    def tags(self, run_ids: Sequence[str]) -> dict[str, Any]:
        """Return, for each existing run, the fraction that was read (0 to 1) and the tags of each behavior."""
        with self._lock:
            found = self._found(run_ids)
            self._read_unwatched(found)
            return {run_id: {"read": run.saved.curves.share_read, "tags": run.tags()} for run_id, run in found.items()}

    def series(
        self, run_ids: Sequence[str], behavior: str, tag: str, points: int, span: tuple[float, float], *, by_time: bool
    ) -> dict[str, Any]:
        """Return a statistic of several runs. For a histogram, the lines have its percentiles.

        Args:
            run_ids: the runs; those that do not exist are left out.
            behavior: name of the behavior's folder.
            tag: tag of the statistic.
            points: approximate number of points per run.
            span: first and last step, or with ``by_time``, first and last second since the run's first summary.
            by_time: whether ``span`` is in seconds instead of steps.
        """
        most = min(max(points, _FEWEST_POINTS), MOST_POINTS)
        with self._lock:
            found = self._parts(run_ids, behavior, tag, most, span, by_time=by_time)
        return {run_id: _line(columns) for run_id, columns in found.items()}

    def table(self) -> dict[str, Any]:
        """Return settings and latest statistics of all runs in the form of ``page.table.table``."""
        with self._lock:
            runs = self.runs.find().values()
            rows: list[Row] = [row for run in runs for row in self._try(run, partial(rows_of, run), list[Row])]
            curves = [behavior for run in runs for behavior in run.saved.curves.behaviors.values()]
            tags = {gauge_key(tag): tag for behavior in curves for tag in behavior.curves}
        return table(rows, tags)

    def groups(self, run_ids: Sequence[str]) -> list[dict[str, Any]]:
        """Group the runs that differ only in their seed. Return name and run ids of each group."""
        with self._lock:
            return [{"name": name, "runs": list(runs)} for name, runs in self._grouped(self._found(run_ids))]

    def series_over_seeds(
        self, run_ids: Sequence[str], behavior: str, tag: str, points: int, span: tuple[float, float], *, by_time: bool
    ) -> dict[str, Any]:
        """Return a statistic like ``series``, but with one line for all runs that differ only in their seed.

        The line has the run id of the first run. A histogram shows the distribution over all seeds.
        """
        with self._lock:
            found = self._parts(run_ids, behavior, tag, _MOST_POINTS_OF_SEED, span, by_time=by_time)
            groups = self._grouped(self._found(run_ids))
        most = min(max(points, _FEWEST_POINTS), _MOST_STEPS_OF_SEEDS)
        lines = {}
        for name, group in groups:
            known = {run_id: found[run_id] for run_id in group if run_id in found and len(found[run_id][0].steps)}
            # If the tag is a histogram in only some of the runs, the other runs are used.
            seeds = {run_id: columns for run_id, columns in known.items() if len(columns) == 1} or known
            if seeds:
                along = {run_id: [_over_time(each) for each in columns] for run_id, columns in seeds.items()}
                lines[next(iter(seeds))] = self._spread(name, along if by_time else seeds, most, by_time=by_time)
        return lines

    def _parts(
        self, run_ids: Sequence[str], behavior: str, tag: str, most: int, span: tuple[float, float], *, by_time: bool
    ) -> dict[str, list[Series]]:
        """Return run id -> series in this span, for the runs that have the tag."""
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
        """Return the line of a group. This takes a while, so recent lines are cached and the lock is not held."""
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
        """Return the end of a log file in ``run_logs``.

        Raises:
            RunFolderError: there is no such run or file.
        """
        with self._lock:
            parts = (*self._run(run_id).saved.parts, LOGS, name)
        entry, content = self.runs.folder.entry(parts), self.runs.folder.tail(parts, _END_OF_LOG)
        if entry is None or content is None:
            raise RunFolderError(f"The run {run_id} has no log {name!r}.")
        is_cut = entry.size > len(content)
        if is_cut:  # probably in the middle of a line
            content = content.partition(b"\n")[2]
        return {"text": content.decode("utf-8", "replace"), "size": entry.size, "is_cut": is_cut}

    def file(self, run_id: str, path: str) -> Parts:
        """Return the location of a file to download.

        Raises:
            RunFolderError: there is no such run or file.
        """
        with self._lock:
            run = self._run(run_id)
            if path not in {file["path"] for file in run.files()}:
                raise RunFolderError(f"The run {run_id} has no file {path!r}.")
            return (*run.saved.parts, *path.split("/"))

    def stop(self, run_id: str) -> None:
        """Ask a run to save everything and exit.

        Raises:
            RunFolderError: there is no such run, it is not running on this machine, or its folder cannot be written.
        """
        with self._lock:
            self._run(run_id).stop()
            self._list_due_s = 0.0

    def annotate(self, run_id: str, changes: Mapping[str, Any], seen: str | None) -> None:
        """Change the notes about a run, see ``RunView.annotate``.

        Raises:
            RunFolderError: there is no such run, or its notes cannot be written.
            ValueError: a value is not allowed, or someone else has changed the text since the user saw it.
        """
        with self._lock:
            self._run(run_id).annotate(changes, seen)
            self._list_due_s = 0.0

    def _try(self, run: RunView, read: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """Read one of several runs. An error is logged, so that the other runs are still shown."""
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
        known: list[tuple[str, Mapping[str, Any], list[str]]] = []
        for run in runs.values():
            known += self._try(run, partial(_settings_of, run), list)
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
        """Read new data from the run's event files, and drop the curves of the least recently requested runs."""
        is_whole = run.saved.curves.read_on(seconds)
        self._read_s.pop(run.saved.run_id, None)
        self._read_s[run.saved.run_id] = time.monotonic()
        for run_id in list(self._read_s)[:-MOST_RUNS_AT_ONCE]:
            del self._read_s[run_id]
            gone = self.runs.known.get(run_id)
            if gone is not None:
                gone.saved.curves = RunCurves(gone.saved.folder, gone.saved.parts)
        return is_whole


def _settings_of(run: RunView) -> list[tuple[str, Mapping[str, Any], list[str]]]:
    """Return the run's id, and the settings and behaviors that determine its group."""
    return [(run.saved.run_id, run.saved.configuration.flat, run.behavior_folders())]


def _part(curves: BehaviorCurves, tag: str, most: int, span: tuple[float, float], *, by_time: bool) -> list[Series]:
    """Return a statistic in a span, with times in seconds since the first summary; [] if it does not exist."""
    began = curves.began or 0.0
    begin, end = (each + began for each in span) if by_time else span
    some = [curves.curves[tag]] if tag in curves.curves else curves.histograms.get(tag, [])
    found = [curve.series(most, begin, end, by_time=by_time) for curve in some]
    # The machine's clock may have been set back during the run.
    return [replace(each, times=np.maximum.accumulate(each.times) - began) for each in found]


def _over_time(series: Series) -> Series:
    """Return the series with milliseconds instead of steps."""
    times = np.round(series.times * _MS).astype(np.int64)
    last = np.append(np.diff(times) > 0, True)
    return Series(times[last], series.values[last], series.low[last], series.high[last], series.times[last])


def _line(columns: Sequence[Series]) -> dict[str, Any]:
    """Convert a statistic of one run to the form that the page draws."""
    first, last = columns[0], columns[-1]
    line: dict[str, Any] = {"steps": first.steps.tolist(), "times": np.round(first.times, 1).tolist()}
    if len(columns) == 1 and (first.low == first.high).all():
        return line | {"mean": _short(first.values)}
    middle = {"mean": _short(first.values)} if len(columns) == 1 else _bands([_short(each.values) for each in columns])
    return line | middle | {"low": _short(first.low), "high": _short(last.high)}


def _over_seeds(seeds: Seeds, most: int, *, by_time: bool) -> dict[str, Any]:
    """Return the line of a group, as in a report: the mean over the seeds, the interval, and the individual seeds."""

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
    """Convert a histogram's percentiles at ``LEVELS`` to a line (the median) and bands around it."""
    low, p5, p25, median, p75, p95, high = percentiles
    return {"mean": median, "bands": [[p5, p95], [p25, p75]], "low": low, "high": high}


def _short(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    """Round numbers to the precision that they have in the event files (float32)."""
    return [float(f"{value:.7g}") for value in values.tolist()]
