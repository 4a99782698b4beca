"""A search from its first trial to its last: several trials at once, with each run in a separate process."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve

from trajtrainer.core.errors import RunFolderError, SettingsError
from trajtrainer.core.filenames import behavior_file_name
from trajtrainer.envs.unity.ports import BASE_PORT
from trajtrainer.policies.folder.contained_folder import ContainedFolder
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.policies.folder.run_lock import ask_to_stop, stop_file
from trajtrainer.policies.folder.series import MAX_BUCKETS, BehaviorCurves, Series
from trajtrainer.policies.folder.status import PRUNING, TrainingStatus
from trajtrainer.run.signals import StopRequest, stop_on_signals
from trajtrainer.settings.run import CheckpointSettings
from trajtrainer.settings.search import Combined, Direction
from trajtrainer.settings.yaml.convert import dump
from trajtrainer.tools.search.outcome import brief, short_names
from trajtrainer.tools.search.study import Study
from trajtrainer.tools.search.trial import TrialHandle, TrialOutcome, measure
from trajtrainer.tools.spread import interquartile_mean

logger = logging.getLogger(__name__)

POLL_S = 0.5
# Stopped runs have this long to save everything; then they are killed.
_STOP_S = 60.0
# If this many trials fail before one completes, the others would probably fail, too.
_HOPELESS = 3
_MOST_TAGS = 1 << 10

Start = Callable[[Path], TrialHandle]
"""A function that starts the process of a trial from a configuration file."""


class RunningTrial:
    """A trial that this process runs: one run per seed, sequentially. The first run decides whether to prune the trial.

    Args:
        study: the study that contains the trial.
        trial: the trial with its values.
        slot: a number that is unique among the trials that run at the same time.
        start: a function that starts a run.

    Attributes:
        is_stopping: True if the trial's run should save everything and exit, to be continued later.
    """

    def __init__(self, study: Study, trial: Any, slot: int, start: Start) -> None:
        self.trial = trial
        self.slot = slot
        self.is_stopping = False
        self._study = study
        self._start = start
        self._is_pruned = False
        self._reached: list[float] = []
        self._process: TrialHandle | None = None

    def poll(self) -> TrialOutcome | None:
        """Start and finish the trial's runs, and report their progress. Return its outcome, or None if it is running.

        Raises:
            RunFolderError: the study cannot be written, or a process cannot be started.
        """
        if self._process is None:
            if self.is_stopping:
                return TrialOutcome()
            try:
                self._begin()
            except SettingsError as error:
                return TrialOutcome(error=str(error))
            except OSError as error:
                raise RunFolderError(
                    f"Trial {self.trial.number} cannot be started: {error}. The trials so far are kept; continue with "
                    "--resume."
                ) from error
        assert self._process is not None
        is_running = self._process.is_running()
        series = self._series()
        is_first = not self._reached and not self._is_pruned and not self.is_stopping
        if is_first and series is not None and self._study.report(self.trial, series, self._part):
            self._is_pruned = is_running
        if is_running:
            if self._is_pruned or self.is_stopping:
                with contextlib.suppress(OSError):
                    ask_to_stop(self._run)  # repeated at each poll, because the run may not have been ready before
            return None
        return self._finish(self._process.end(), series)

    def kill(self) -> None:
        """Kill the trial's run."""
        if self._process is not None:
            self._process.kill()

    def _begin(self) -> None:
        """Start the run of the next seed, or continue it if it was interrupted."""
        study, search = self._study, self._study.plan.search
        seed = search.seed + len(self._reached)
        settings = study.plan.settings_with(self.trial.params).with_seed(seed)
        self._part = max(1, settings.for_behavior(study.plan.behavior).max_steps // search.reports)
        env = settings.env_settings
        if env.base_port != BASE_PORT:  # by default runs choose free ports themselves
            # Evaluations look for free ports above those of the training.
            own = env.num_envs + (0 if settings.evaluation is None else settings.evaluation.num_envs)
            settings = evolve(settings, env_settings=evolve(env, base_port=env.base_port + self.slot * 2 * own))
        name = f"trial-{self.trial.number:04d}" + (f"-seed-{seed}" if search.seeds > 1 else "")
        checkpoints = evolve(
            settings.checkpoint_settings,
            run_id=f"{study.name}/{name}",
            results_dir=str(study.results.absolute()),
            resume=False,
            load_model=False,
            force=False,
        )
        self._run = study.path.absolute() / name
        self._curves = BehaviorCurves(ContainedFolder(self._run), (behavior_file_name(study.plan.behavior),))
        self._withdraw_stop()  # an earlier search may have tried to stop a run that had just ended
        configuration = self._run.with_name(f"{name}.yaml")
        # Trials that run at the same time cannot share a metrics port or file.
        settings = evolve(settings, checkpoint_settings=checkpoints, monitoring=None)
        configuration.write_text(dump(settings), encoding="utf-8")
        self._process = self._start(configuration)

    def _series(self) -> Series | None:
        """Return the metric of the run so far, or None if it has no value yet."""
        self._curves.read_on(math.inf, MAX_BUCKETS * _MOST_TAGS)
        curve = self._curves.curves.get(self._study.plan.search.metric)
        return None if curve is None or curve.last is None else curve.series()

    def _finish(self, failure: str, series: Series | None) -> TrialOutcome | None:
        """Return the outcome of the trial after one of its runs has ended, or None if another run follows."""
        search, self._process = self._study.plan.search, None
        self._withdraw_stop()
        if self._is_pruned:
            self._note_pruning()
            return TrialOutcome(is_pruned=True)
        if self.is_stopping:
            return TrialOutcome()
        if failure:
            return TrialOutcome(error=failure)
        if series is None:
            behavior, there = self._study.plan.behavior, ", ".join(sorted(self._curves.curves)) or "nothing"
            return TrialOutcome(error=f"behavior {behavior!r} has not written {search.metric!r}; it has: {there}")
        sign = 1 if search.direction is Direction.MAXIMIZE else -1
        self._reached.append(measure(series, search.value, sign))
        if len(self._reached) < search.seeds:
            return None
        combine = interquartile_mean if search.combined is Combined.IQM else np.mean
        return TrialOutcome(float(combine(np.array(self._reached))))

    def _withdraw_stop(self) -> None:
        with contextlib.suppress(OSError):
            stop_file(self._run).unlink()

    def _note_pruning(self) -> None:
        """Record in the run's status that it was pruned; otherwise, its page would say that it can be continued."""
        run_id = f"{self._study.name}/{self._run.name}"
        folder = RunFolder(CheckpointSettings(run_id=run_id, results_dir=str(self._study.results)))
        if not folder.status.is_file():  # the run ended before it wrote a status
            return
        status, behavior = TrainingStatus.load(folder.status), self._study.plan.behavior
        records = status.checkpoints(behavior) or []
        status.set_stopped(behavior, {"by": PRUNING, "steps": records[-1].steps if records else 0})
        status.save()


class Search:
    """A search.

    Args:
        study: an opened study.
        start: a function that starts a run.
        stop: a request to stop the search.
    """

    def __init__(self, study: Study, start: Start, stop: StopRequest) -> None:
        self.study = study
        self._start = start
        self._stop = stop
        self._running: list[RunningTrial] = []
        self._failures = 0

    def run(self) -> None:
        """Run trials until there are enough, the time limit is reached, or a stop is requested.

        Raises:
            SettingsError: the first trials all failed.
            RunFolderError: the study cannot be written.
        """
        self._stop.on_abort(self._kill)
        limit_s = self.study.plan.search.timeout
        deadline_s = math.inf if limit_s is None else time.monotonic() + limit_s
        with stop_on_signals(self._stop):
            try:
                while not self._stop.requested:
                    if time.monotonic() < deadline_s:
                        self._fill()
                    if not self._running:
                        break
                    self._poll()
                    time.sleep(POLL_S)
            finally:
                self._end()

    def _fill(self) -> None:
        """Start as many trials as may run at the same time."""
        free = set(range(self.study.plan.parallel)) - {each.slot for each in self._running}
        for slot in sorted(free):
            trial = self.study.next()
            if trial is None:
                return
            self._running.append(RunningTrial(self.study, trial, slot, self._start))

    def _poll(self) -> None:
        for each in list(self._running):
            outcome = each.poll()
            if outcome is not None:
                self._running.remove(each)
                self._finish(each.trial, outcome)

    def _end(self) -> None:
        """Let all active runs save everything and exit, and kill those that take too long."""
        for each in self._running:
            each.is_stopping = True
        deadline_s = time.monotonic() + _STOP_S
        while self._running:
            if time.monotonic() > deadline_s:
                logger.warning("The runs did not stop in time. Killing them.")
                self._kill()
                deadline_s = math.inf
            self._poll()
            if self._running:
                time.sleep(POLL_S)

    def _kill(self) -> None:
        for each in list(self._running):
            each.kill()

    def _finish(self, trial: Any, outcome: TrialOutcome) -> None:
        """Record and log how a trial ended.

        Raises:
            SettingsError: the first trials all failed.
        """
        self.study.finish(trial, outcome)
        short = short_names(list(trial.params))
        values = ", ".join(f"{short[key]} {brief(value)}" for key, value in trial.params.items())
        name = f"Trial {trial.number} ({values})"
        if outcome.value is not None:
            best, reached = self.study.completed[0], brief(outcome.value)
            logger.info("%s: %s. Best so far: %s (trial %d).", name, reached, brief(best.value), best.number)
        elif outcome.is_pruned:
            logger.info("%s: stopped early, because other trials do better.", name)
        elif outcome.error:
            logger.warning("%s failed and is ignored: %s", name, outcome.error)
            self._failures += 1
            if self._failures == _HOPELESS and not self.study.completed:
                raise SettingsError(f"The first {_HOPELESS} trials have all failed. The last one: {outcome.error}")
