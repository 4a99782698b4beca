"""What the page shows, and what is kept in memory for it. One request at a time looks into the runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trajtrainer.core.errors import RunFolderError
from trajtrainer.report.live.curves import Sample
from trajtrainer.report.live.event_curves import RunCurves
from trajtrainer.report.live.folder import Folder, Parts
from trajtrainer.report.live.runs import LOGS, Run, Runs, is_run

MOST_RUNS_AT_ONCE = 32
MOST_POINTS = 4000
_FEWEST_POINTS = 10
_END_OF_LOG = 1 << 18
# The list of runs costs its time every so often; with many runs less often, so that it takes at most 1/20.
_LIST_S = 2.0
_PAUSE_PER_COST = 20
# A run whose curves nobody asks for has them read by each request that does.
_UNWATCHED_S = 3.0
_READ_S = 0.3


class Viewer:
    """The runs of a folder, for several browsers at once.

    Attributes:
        folder: the results folder, which may not exist yet.
        only: the run to show, where the folder given was that of a run; None for all.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.only: str | None = None
        self._runs = Runs(folder)
        self._lock = threading.Lock()
        self._list: list[dict[str, Any]] = []
        self._list_due_s = 0.0
        self._read_s: dict[str, float] = {}  # run id -> when its curves were read, oldest first

    def summaries(self) -> list[dict[str, Any]]:
        """Return the list of runs, a few seconds old at most."""
        with self._lock:
            begin_s = time.monotonic()
            if begin_s >= self._list_due_s:
                self._list = [run.summary() for run in self._find().values()]
                cost_s = time.monotonic() - begin_s
                self._list_due_s = begin_s + cost_s + max(_LIST_S, _PAUSE_PER_COST * cost_s)
            return self._list

    def look(self, run_ids: Sequence[str]) -> tuple[dict[str, tuple[Any, ...]], bool]:
        """Read on what was written to these runs, for some tenths of a second.

        Returns:
            Run id -> something that changes with the run, of those that are there, and whether all was read.
        """
        with self._lock:
            found = self._found(run_ids)
            whole = [self._read(run, _READ_S / len(found)) for run in found.values()]
            return {run_id: run.version() for run_id, run in found.items()}, all(whole)

    def details(self, run_id: str) -> dict[str, Any]:
        """Return everything of a run but its curves.

        Raises:
            RunFolderError: there is no such run.
        """
        with self._lock:
            run = self._run(run_id)
            self._read_unwatched({run_id: run})
            return run.details()

    def tags(self, run_ids: Sequence[str]) -> dict[str, Any]:
        """Return run id -> which part was read (0 to 1) and the tags of each behaviour; of those that are there."""
        with self._lock:
            found = self._found(run_ids)
            self._read_unwatched(found)
            return {run_id: {"read": run.curves.share_read, "tags": run.tags()} for run_id, run in found.items()}

    def series(
        self, run_ids: Sequence[str], behavior: str, tag: str, points: int, span: tuple[float, float], *, by_time: bool
    ) -> dict[str, Any]:
        """Return the course of a statistic in some runs, in so many points; of a histogram those of its percentiles.

        Args:
            run_ids: those that are not there are left out.
            behavior: the name of its folder.
            tag: of the statistic.
            points: of each run.
            span: first and last step, or with ``by_time`` second since the run's first summary.
            by_time: what ``span`` means.
        """
        most = min(max(points, _FEWEST_POINTS), MOST_POINTS)
        found = {}
        with self._lock:
            runs = self._found(run_ids)
            self._read_unwatched(runs)
            for run_id, run in runs.items():
                curves = run.curves.behaviors.get(behavior)
                if curves is None or (tag not in curves.curves and tag not in curves.histograms):
                    continue
                began = curves.began or 0.0
                begin, end = (each + began for each in span) if by_time else span
                some = [curves.curves[tag]] if tag in curves.curves else curves.histograms[tag]
                samples = [curve.sample(most, begin, end, by_time=by_time) for curve in some]
                found[run_id] = {
                    "steps": samples[0].steps.tolist(),
                    "times": np.round(np.maximum.accumulate(samples[0].times) - began, 1).tolist(),
                    **(_course(samples[0]) if len(samples) == 1 else _distribution(samples)),
                }
        return found

    def log(self, run_id: str, name: str) -> dict[str, Any]:
        """Return the end of one of the files in ``run_logs``.

        Raises:
            RunFolderError: there is no such run or file.
        """
        with self._lock:
            parts = (*self._run(run_id).parts, LOGS, name)
        entry, content = self.folder.entry(parts), self.folder.tail(parts, _END_OF_LOG)
        if entry is None or content is None:
            raise RunFolderError(f"The run {run_id} has no log {name!r}.")
        is_cut = entry.size > len(content)
        if is_cut:  # in the midst of a line
            content = content.partition(b"\n")[2]
        return {"text": content.decode("utf-8", "replace"), "size": entry.size, "is_cut": is_cut}

    def file(self, run_id: str, path: str) -> Parts:
        """Return where a file is that is to be downloaded.

        Raises:
            RunFolderError: there is no such run or file.
        """
        with self._lock:
            parts = self._run(run_id).has_file(path)
        if parts is None:
            raise RunFolderError(f"The run {run_id} has no file {path!r}.")
        return parts

    def stop(self, run_id: str) -> None:
        """Ask a run to save everything and end.

        Raises:
            RunFolderError: there is no such run, or it does not run on this machine.
        """
        with self._lock:
            self._run(run_id).stop()
            self._list_due_s = 0.0

    def _found(self, run_ids: Sequence[str]) -> dict[str, Run]:
        known = self._find()
        return {run_id: known[run_id] for run_id in run_ids[:MOST_RUNS_AT_ONCE] if run_id in known}

    def _find(self) -> dict[str, Run]:
        if self.only is None and not self._runs.known and is_run(self.folder, ()):
            self.folder, self.only = Folder(self.folder.path.parent), self.folder.path.name
            self._runs = Runs(self.folder, self.only)
        return self._runs.find()

    def _run(self, run_id: str) -> Run:
        found = self._found([run_id])
        if not found:
            raise RunFolderError(f"The run {run_id!r} does not exist. Perhaps it was deleted.")
        return found[run_id]

    def _read_unwatched(self, runs: Mapping[str, Run]) -> None:
        late = time.monotonic() - _UNWATCHED_S
        for run_id, run in runs.items():
            if self._read_s.get(run_id, 0.0) < late:
                self._read(run, _READ_S / len(runs))

    def _read(self, run: Run, seconds: float) -> bool:
        """Read on in the run's event files, and forget the curves that nobody has asked for the longest."""
        is_whole = run.curves.read_on(seconds)
        self._read_s.pop(run.run_id, None)
        self._read_s[run.run_id] = time.monotonic()
        for run_id in list(self._read_s)[:-MOST_RUNS_AT_ONCE]:
            del self._read_s[run_id]
            gone = self._runs.known.get(run_id)
            if gone is not None:
                gone.curves = RunCurves(self.folder, gone.parts)
        return is_whole


def _course(sample: Sample) -> dict[str, Any]:
    """Return the mean, and the extremes where a bucket has several points."""
    is_thinned = bool((sample.low != sample.high).any())
    return {
        "mean": _short(sample.mean),
        **({"low": _short(sample.low), "high": _short(sample.high)} if is_thinned else {}),
    }


def _distribution(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the median, the extremes, and the borders of the middle 90 % and 50 %, of the percentiles' courses."""
    _, p5, p25, median, p75, p95, _ = (_short(sample.mean) for sample in samples)
    return {
        "mean": median,
        "low": _short(samples[0].low),
        "high": _short(samples[-1].high),
        "bands": [[p5, p95], [p25, p75]],
    }


def _short(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    """Return numbers in as many digits as their files have (float32)."""
    return [float(f"{value:.7g}") for value in values.tolist()]
