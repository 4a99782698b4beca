"""What the page asks for. One request at a time reads runs; the curves of the runs last asked for stay in memory."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trajtrainer.core.errors import RunFolderError
from trajtrainer.core.metrics import Sample, exposition
from trajtrainer.core.version import __version__
from trajtrainer.report.live.runs import Runs, RunView
from trajtrainer.rundir.contained_folder import ContainedFolder, Parts
from trajtrainer.rundir.saved_run import LOGS, RunCurves, is_run

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


class Viewer:
    """The runs of a folder, for several browsers at once.

    Attributes:
        folder: the results folder, which may not exist yet.
        only: the run to show, where the folder given was that of a run; None for all.
    """

    def __init__(self, folder: ContainedFolder) -> None:
        self.folder = folder
        self.only: str | None = None
        self._runs = Runs(folder)
        self._lock = threading.Lock()
        self._list: list[dict[str, Any]] = []
        self._list_due_s = 0.0
        self._measured: list[dict[str, Any]] | None = None
        self._metrics = ""
        self._read_s: dict[str, float] = {}  # run id -> when its curves were read, oldest first

    def summaries(self) -> list[dict[str, Any]]:
        """The list of runs, at most a few seconds old."""
        with self._lock:
            begin_s = time.monotonic()
            if begin_s >= self._list_due_s:
                self._list = [run.summary() for run in self._find().values()]
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
                samples = [Sample("build_info", 1, {"version": __version__})]
                samples += [
                    Sample("runs", number, {"state": state})
                    for state, number in Counter(each["state"] for each in summaries).items()
                ]
                runs = self._find()
                for summary in sorted(newest, key=lambda each: each["id"]):
                    run = runs.get(summary["id"])
                    if run is not None and (summary["updated"] > since_s or summary["state"] in _AT_WORK):
                        samples += run.samples(summary)
                self._measured, self._metrics = summaries, exposition(samples)
            return self._metrics

    def look(self, run_ids: Sequence[str]) -> tuple[dict[str, tuple[Any, ...]], bool]:
        """Read what is new in these runs, for a few tenths of a second.

        Returns:
            Run id -> a value that changes with the run, of those that exist, and whether everything was read.
        """
        with self._lock:
            found = self._found(run_ids)
            whole = [self._read(run, _READ_S / len(found)) for run in found.values()]
            return {run_id: run.version() for run_id, run in found.items()}, all(whole)

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
        found = {}
        with self._lock:
            runs = self._found(run_ids)
            self._read_unwatched(runs)
            for run_id, run in runs.items():
                curves = run.saved.curves.behaviors.get(behavior)
                if curves is None or (tag not in curves.curves and tag not in curves.histograms):
                    continue
                began = curves.began or 0.0
                begin, end = (each + began for each in span) if by_time else span
                some = [curves.curves[tag]] if tag in curves.curves else curves.histograms[tag]
                columns = [curve.series(most, begin, end, by_time=by_time) for curve in some]
                entry: dict[str, Any] = {
                    "steps": columns[0].steps.tolist(),
                    "times": np.round(np.maximum.accumulate(columns[0].times) - began, 1).tolist(),
                }
                if len(columns) > 1:  # of a histogram: its percentiles
                    _, p5, p25, median, p75, p95, _ = (_short(series.values) for series in columns)
                    entry |= {"mean": median, "bands": [[p5, p95], [p25, p75]]}
                else:
                    entry["mean"] = _short(columns[0].values)
                if len(columns) > 1 or (columns[0].low != columns[0].high).any():
                    entry |= {"low": _short(columns[0].low), "high": _short(columns[-1].high)}
                found[run_id] = entry
        return found

    def log(self, run_id: str, name: str) -> dict[str, Any]:
        """The end of one of the files in ``run_logs``.

        Raises:
            RunFolderError: there is no such run or file.
        """
        with self._lock:
            parts = (*self._run(run_id).saved.parts, LOGS, name)
        entry, content = self.folder.entry(parts), self.folder.tail(parts, _END_OF_LOG)
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

    def _found(self, run_ids: Sequence[str]) -> dict[str, RunView]:
        known = self._find()
        return {run_id: known[run_id] for run_id in run_ids[:MOST_RUNS_AT_ONCE] if run_id in known}

    def _find(self) -> dict[str, RunView]:
        if self.only is None and not self._runs.known and is_run(self.folder, ()):
            self.folder, self.only = ContainedFolder(self.folder.path.parent), self.folder.path.name
            self._runs = Runs(self.folder, self.only)
        return self._runs.find()

    def _run(self, run_id: str) -> RunView:
        found = self._found([run_id])
        if not found:
            raise RunFolderError(f"The run {run_id!r} does not exist. Perhaps it was deleted.")
        return found[run_id]

    def _read_unwatched(self, runs: Mapping[str, RunView]) -> None:
        late = time.monotonic() - _UNWATCHED_S
        for run_id, run in runs.items():
            if self._read_s.get(run_id, 0.0) < late:
                self._read(run, _READ_S / len(runs))

    def _read(self, run: RunView, seconds: float) -> bool:
        """Read on in the run's event files, and drop the curves that were not asked for the longest."""
        is_whole = run.saved.curves.read_on(seconds)
        self._read_s.pop(run.saved.run_id, None)
        self._read_s[run.saved.run_id] = time.monotonic()
        for run_id in list(self._read_s)[:-MOST_RUNS_AT_ONCE]:
            del self._read_s[run_id]
            gone = self._runs.known.get(run_id)
            if gone is not None:
                gone.saved.curves = RunCurves(self.folder, gone.saved.parts)
        return is_whole


def _short(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    """Numbers with as many digits as their files have (float32)."""
    return [float(f"{value:.7g}") for value in values.tolist()]
