"""A search from its first trial to its last: several at once, each a run in a process of its own."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve

from trajtrainer.core import atomic
from trajtrainer.core.errors import RunFolderError, SettingsError, TrajtrainerError
from trajtrainer.core.filenames import check_run_id
from trajtrainer.envs.unity.ports import BASE_PORT
from trajtrainer.policies.folder.run_folder import CHECKPOINT_NAME, JOURNAL, RunFolder, free_name
from trajtrainer.policies.folder.run_lock import RunLock, lock_file
from trajtrainer.policies.folder.status import PRUNING, TrainingStatus
from trajtrainer.run.signals import StopRequest, stop_on_signals
from trajtrainer.settings.run import CheckpointSettings, RunSettings
from trajtrainer.settings.search import Combined, Direction, Plan, Value
from trajtrainer.settings.yaml.convert import dump
from trajtrainer.tools.search.outcome import brief, short_names
from trajtrainer.tools.search.study import Study
from trajtrainer.tools.search.trial import TrialHandle, TrialTask
from trajtrainer.tools.spread import interquartile_mean

logger = logging.getLogger(__name__)

BEST = "best.yaml"
PICTURE = "search.png"
_POLL_S = 0.2
# Runs that are stopped save everything; those that take longer are ended.
_STOP_S = 60.0
# If this many trials fail from the start, the others would fail, too.
_HOPELESS = 3

Start = Callable[[TrialTask], TrialHandle]


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """The end of a trial.

    Attributes:
        value: what it reached; None if it did not get to its end.
        is_pruned: it was ended because others do better.
        error: why it failed; empty if it did not. A trial with none of the three was interrupted.
    """

    value: float | None = None
    is_pruned: bool = False
    error: str = ""


class StudyFolder:
    """``results/<study>``: the journal, the best configuration, and the folders of the runs.

    Args:
        settings: of the search; its run id is the study's.
        resume: continue an earlier search.
        force: start over; an earlier search is kept under another name.
    """

    def __init__(self, settings: CheckpointSettings, *, resume: bool, force: bool) -> None:
        self.results = Path(settings.results_dir)
        self.name = check_run_id(settings.run_id)
        self.path = self.results / self.name
        self._resume, self._force = resume, force
        self._lock = RunLock(lock_file(self.path), self.path)

    @property
    def journal(self) -> Path:
        """The file of the study."""
        return self.path / JOURNAL

    def __enter__(self) -> StudyFolder:
        """Make the folder, and keep other searches out.

        Raises:
            RunFolderError: there is a search already, or none to resume, or the folder cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            try:
                if self._resume and not self.journal.is_file():
                    raise RunFolderError(
                        f"There is no search to resume: {self.journal} does not exist. Remove --resume."
                    )
                if not self._resume and self.path.exists() and any(self.path.iterdir()):
                    if not self._force:
                        raise RunFolderError(
                            f"{self.path} has been used before. Choose another --run-id, continue with --resume, or "
                            "start over with --force (the existing folder is kept under another name)."
                        )
                    aside = free_name(self.path)
                    atomic.move(self.path, aside)
                    logger.warning("The earlier search was moved to %s, complete.", aside)
                self.path.mkdir(exist_ok=True)
                atomic.remove_leftovers([self.path])
            except BaseException:
                self._lock.release()
                raise
        except OSError as error:
            raise RunFolderError(f"The folder {self.path} cannot be written: {error.strerror or error}.") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def run_id(self, number: int, seed: int | None) -> str:
        """The run id of a trial; ``seed`` where it has several."""
        return f"{self.name}/trial-{number:04d}" + ("" if seed is None else f"-seed-{seed}")


class Search:
    """A search.

    Args:
        plan: what is tried.
        folder: its files, entered.
        start: begins a run.
        stop: asks for the end.
    """

    def __init__(self, plan: Plan, folder: StudyFolder, start: Start, stop: StopRequest) -> None:
        self.plan = plan
        self.folder = folder
        self.study = Study(folder.journal, plan)
        self._start = start
        self._stop = stop
        self._handles: set[TrialHandle] = set()
        self._slots = set(range(plan.parallel))  # numbers of trials at once that are free
        self._lock = threading.Lock()  # of the handles
        self._is_ending = False
        self._failures = 0
        self._written: int | None = None  # the number of the trial whose configuration is in the folder

    def run(self) -> None:
        """Try settings until there are enough trials or the end is asked for.

        Raises:
            SettingsError: the first trials all failed.
            RunFolderError: the study cannot be written.
        """
        running: dict[Future[TrialOutcome], Any] = {}
        self._stop.on_abort(self._kill)
        self._write_best()  # an earlier search may have ended before it could
        limit_s = self.plan.search.timeout
        deadline_s = math.inf if limit_s is None else time.monotonic() + limit_s
        with stop_on_signals(self._stop), ThreadPoolExecutor(self.plan.parallel) as pool:
            try:
                while not self._stop.requested:
                    while len(running) < self.plan.parallel and time.monotonic() < deadline_s:
                        trial = self.study.next()
                        if trial is None:
                            break
                        running[pool.submit(self._try, trial)] = trial
                    if not running:
                        break
                    for future in wait(running, _POLL_S, FIRST_COMPLETED).done:
                        self._finish(running.pop(future), future.result())
            finally:
                self._end(running)
        self._write_best()

    def settings_of(self, values: Mapping[str, Value]) -> RunSettings:
        """The configuration with these values, for a training of its own."""
        return evolve(self.plan.settings_with(values), checkpoint_settings=CheckpointSettings())

    def _end(self, running: dict[Future[TrialOutcome], Any]) -> None:
        """Let all runs that are under way end in good order, and end those that do not within some time."""
        with self._lock:
            self._is_ending = True
            under_way = list(self._handles)
        for handle in under_way:
            handle.stop()
        if wait(running, _STOP_S).not_done:
            logger.warning("The runs did not end in time. Ending them.")
            self._kill()
        for future in wait(running).done:
            self._finish(running.pop(future), future.result())

    def _kill(self) -> None:
        for handle in list(self._handles):
            handle.kill()

    def _finish(self, trial: Any, outcome: TrialOutcome) -> None:
        """Record and log how a trial ended.

        Raises:
            SettingsError: the first trials all failed.
        """
        short = short_names(list(trial.params))
        values = ", ".join(f"{short[key]} {brief(value)}" for key, value in trial.params.items())
        name = f"Trial {trial.number} ({values})"
        if outcome.value is not None:
            self.study.complete(trial, outcome.value)
            best, reached = self.study.completed[0], brief(outcome.value)
            logger.info("%s: %s. Best so far: %s (trial %d).", name, reached, brief(best.value), best.number)
            self._write_best()
        elif outcome.is_pruned:
            self.study.prune(trial)
            logger.info("%s: ended early, because others do better.", name)
        elif outcome.error:
            self.study.fail(trial, outcome.error)
            logger.warning("%s failed and was left out: %s", name, outcome.error)
            self._failures += 1
            if self._failures == _HOPELESS and not self.study.completed:
                raise SettingsError(f"The first {_HOPELESS} trials have all failed. The last one: {outcome.error}")

    def _write_best(self) -> None:
        """Write the configuration of the best trial, unless it is there. A failure is logged."""
        best = next(iter(self.study.completed), None)
        if best is None or best.number == self._written:
            return
        path = self.folder.path / BEST
        try:
            atomic.write_text(path, dump(self.settings_of(best.params)))
        except OSError as error:
            logger.error("%s could not be written: %s.", path, error.strerror or error)
        else:
            self._written = best.number

    def _try(self, trial: Any) -> TrialOutcome:
        """Make the runs of a trial, one seed after the other."""
        reached = []
        slot = self._slots.pop()
        try:
            for offset in range(self.plan.search.seeds):
                outcome = self._make_run(trial, offset, slot)
                if outcome.value is None:
                    return outcome
                reached.append(outcome.value)
        finally:
            self._slots.add(slot)
        combine = interquartile_mean if self.plan.search.combined is Combined.IQM else np.mean
        return TrialOutcome(float(combine(np.array(reached))))

    def _make_run(self, trial: Any, offset: int, slot: int) -> TrialOutcome:
        """Make the run of one seed. The first one decides whether to prune."""
        try:
            task = self._task(trial, offset, slot)
            with self._lock:
                if self._is_ending:
                    return TrialOutcome()
                handle = self._start(task)
                self._handles.add(handle)
        except (TrajtrainerError, OSError) as error:
            return TrialOutcome(error=str(error))
        outcome = TrialOutcome()
        failure: RunFolderError | None = None
        for message in handle.messages():
            if "report" in message:
                try:
                    if offset == 0 and self.study.report(trial, message["report"], message["value"]):
                        outcome = TrialOutcome(is_pruned=True)
                        handle.stop()
                except RunFolderError as error:
                    failure = error
                    handle.stop()
            elif "error" in message:
                outcome = TrialOutcome(error=message["error"])
            elif "value" in message:
                outcome = TrialOutcome(message["value"])
        how_it_ended = handle.end()
        if outcome.is_pruned:
            self._note_pruning(self._run_id(trial, offset))
        with self._lock:
            self._handles.discard(handle)
            if failure is not None:
                raise failure
            is_cut_off = outcome == TrialOutcome() and not self._is_ending
        return TrialOutcome(error=f"its process {how_it_ended}") if is_cut_off else outcome

    def _run_id(self, trial: Any, offset: int) -> str:
        search = self.plan.search
        return self.folder.run_id(trial.number, search.seed + offset if search.seeds > 1 else None)

    def _note_pruning(self, run_id: str) -> None:
        """Record in the status of a run that it was pruned: its page would say that it can be continued."""
        folder = RunFolder(CheckpointSettings(run_id=run_id, results_dir=str(self.folder.results)))
        if not folder.status.is_file():  # the run did not get that far
            return
        status = TrainingStatus.load(folder.status)
        records = status.checkpoints(self.plan.behavior) or []
        status.set_stopped(self.plan.behavior, {"by": PRUNING, "steps": records[-1].steps if records else 0})
        status.save()

    def _task(self, trial: Any, offset: int, slot: int) -> TrialTask:
        search = self.plan.search
        settings = self.plan.settings_with(trial.params).with_seed(search.seed + offset)
        env = settings.env_settings
        if env.base_port != BASE_PORT:  # by default runs choose free ports themselves
            # Evaluations look for free ports behind those of the training.
            own = env.num_envs + (0 if settings.evaluation is None else settings.evaluation.num_envs)
            settings = evolve(settings, env_settings=evolve(env, base_port=env.base_port + slot * 2 * own))
        run_id = self._run_id(trial, offset)
        run = self.folder.results / run_id
        is_there = any(run.glob(f"*/{CHECKPOINT_NAME}"))  # it was interrupted
        checkpoints = evolve(
            settings.checkpoint_settings,
            run_id=run_id,
            results_dir=str(self.folder.results.absolute()),
            resume=is_there,
            load_model=False,
            force=not is_there,
            initialize_from=None if is_there else settings.checkpoint_settings.initialize_from,
        )
        return TrialTask(
            # Trials that run at the same time cannot share a port or a file.
            settings=dump(evolve(settings, checkpoint_settings=checkpoints, monitoring=None)),
            behavior=self.plan.behavior,
            metric=search.metric,
            measured=search.value.value,
            sign=1 if search.direction is Direction.MAXIMIZE else -1,
            reports=search.reports,
        )
