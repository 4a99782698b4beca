"""A search on disk: its folder, and its trials in Optuna's journal, an append-only file of JSON lines.

Several processes, even on different machines, can work on one search. They share the journal, and each process holds a
lock on every trial that it runs. A started trial whose lock is free was interrupted, and the first process that locks
it continues it. Locks are released when their process ends.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from attrs import evolve

from trajtrainer.core import atomic
from trajtrainer.core.errors import RunFolderError, SettingsError
from trajtrainer.core.filenames import check_run_id
from trajtrainer.policies.folder.run_folder import JOURNAL, free_name
from trajtrainer.policies.folder.run_lock import FileLock, HeldError, find_holder, lock_file
from trajtrainer.policies.folder.series import Series
from trajtrainer.settings.run import CheckpointSettings
from trajtrainer.settings.search import Direction, Plan, PrunerKind, Range, SamplerKind
from trajtrainer.settings.yaml.convert import dump, to_mapping
from trajtrainer.settings.yaml.document import leaves
from trajtrainer.settings.yaml.structuring import CONVERTER
from trajtrainer.tools.search.trial import TrialOutcome

logger = logging.getLogger(__name__)

BEST = "best.yaml"
_CONFIGURATION = "configuration"
# Settings that affect the values of trials. Others, such as the number of trials, may change when a search is resumed.
_COMPARED = ("metric", "direction", "value", "seeds", "combined", "seed", "reports")
_COMPARED_SECTIONS = ("default_settings", "behaviors", "environment_parameters", "evaluation")
_REASON = "reason"
_PATIENCE_S = 60.0  # how long to wait for other processes, which lock the journal only briefly


def import_optuna() -> ModuleType:
    """Import Optuna and limit its log to errors.

    Raises:
        SettingsError: Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise SettingsError(
            "A search needs the package optuna, which is not installed. Install it with: pip install "
            "'trajtrainer[tune]'."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    module: ModuleType = optuna
    return module


class _Unlocked:
    """A substitute for the lock of Optuna's journal, because ``Study`` holds its own lock whenever it writes."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None: ...


class Study:
    """The past and future trials of a search. All methods that write may raise ``RunFolderError``.

    Args:
        plan: plan of the search. The study is in the folder with its run id in the results folder.
    """

    def __init__(self, plan: Plan) -> None:
        self._optuna = import_optuna()
        self.plan = plan
        checkpoints = plan.settings.checkpoint_settings
        self.name = check_run_id(checkpoints.run_id)
        self.results = Path(checkpoints.results_dir)
        self.path = self.results / self.name
        self._journal = self.path / JOURNAL
        self._lock = FileLock(lock_file(self.path), _PATIENCE_S)
        self._claims: dict[int, FileLock] = {}
        self._distributions = {name: _distribution(self._optuna, each) for name, each in plan.ranges.items()}
        self._study: Any = None

    @contextlib.contextmanager
    def opened(self, *, resume: bool | None, force: bool) -> Iterator[Study]:
        """Make the folder, or continue an existing search, even while other processes work on it.

        Args:
            resume: True if the search must exist, False if it must not exist; None to accept both.
            force: keep an existing folder under another name, and start over.

        Raises:
            SettingsError: the trials so far used other settings.
            RunFolderError: the search already exists, the search to resume does not exist, the folder cannot be
                written, or the journal is damaged.
        """
        try:
            with self._writing():
                self._make_folder(resume=self._journal.is_file() if resume is None else resume, force=force)
                try:
                    self._study = self._load()
                except OSError:
                    raise
                except Exception as error:  # Optuna does not validate the journal
                    raise RunFolderError(
                        f"The study {self._journal} is damaged: {str(error) or type(error).__name__}. Repair the "
                        "damaged line, or start over with --force (the trials so far are kept)."
                    ) from error
                self._check_settings()
                self._write_best()  # an earlier search may have ended before writing it
            if self._lock.problem:
                logger.warning(
                    "The file system of %s has no locks (%s). Do not start a second search there, on any machine.",
                    self.path,
                    self._lock.problem,
                )
            yield self
        finally:
            for claim in self._claims.values():
                claim.release()

    def _make_folder(self, *, resume: bool, force: bool) -> None:
        if resume and not self._journal.is_file():
            raise RunFolderError(f"There is no search to resume: {self._journal} does not exist. Remove --resume.")
        if not resume and self.path.exists() and any(self.path.iterdir()):
            if not force:
                raise RunFolderError(
                    f"{self.path} has been used before. Choose another --run-id, continue with --resume, or start "
                    "over with --force (the existing folder is kept under another name)."
                )
            for holder in filter(None, map(find_holder, self.path.glob(".*.claim.lock"))):
                raise holder.error_about(self.path)
            aside = free_name(self.path)
            atomic.move(self.path, aside)
            logger.warning("The earlier search was moved to %s.", aside)
        self.path.mkdir(exist_ok=True)
        atomic.remove_leftovers([self.path])

    def _load(self) -> Any:
        optuna, search = self._optuna, self.plan.search
        pruner = optuna.pruners.NopPruner()
        if search.pruner is PrunerKind.MEDIAN:
            pruner = optuna.pruners.MedianPruner(n_startup_trials=search.startup, n_warmup_steps=search.warmup)
        elif search.pruner is PrunerKind.HYPERBAND:
            pruner = optuna.pruners.HyperbandPruner(min_resource=max(1, search.warmup), max_resource=search.reports)
        backend = optuna.storages.journal.JournalFileBackend(str(self._journal), lock_obj=_Unlocked())
        return optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name="search",
            direction=search.direction.value,
            pruner=pruner,
            load_if_exists=True,
        )

    def next(self) -> Any | None:
        """Return the next trial with its values (``params``), interrupted trials first, or None if no trial is left."""
        study = self._study
        with self._writing():
            trials = study.get_trials(deepcopy=False)
            begun = (each for each in trials if each.state.name == "RUNNING")
            known = next((each for each in begun if self._claim(each.number)), None)
            if known is not None:
                study.sampler = sampler = self._sampler(known.number)
                trial = self._optuna.trial.Trial(study, known._trial_id)
                # The search may have ended before all values of this trial were drawn. Draw the earlier values again,
                # so that the others are the same as in an uninterrupted search.
                for name in known.params:
                    sampler.sample_independent(study, known, name, self._distributions[name])
                for name, distribution in self._distributions.items():
                    trial._suggest(name, distribution)
                return trial
            if len(trials) < self.plan.search.trials and self._claim(len(trials)):
                study.sampler = self._sampler(len(trials))
                return study.ask(self._distributions)
        return None

    def _claim(self, number: int) -> bool:
        """Lock a trial; return False if a process has already locked it."""
        claim = FileLock(lock_file(self.path / f"trial-{number:04d}.claim"), patience_s=0.0)
        if number in self._claims:  # on a file system without locks, acquire() never fails
            return False
        try:
            claim.acquire()
        except HeldError:
            return False
        self._claims[number] = claim
        return True

    def report(self, trial: Any, series: Series, part: int) -> bool:
        """Record the metric's mean over each completed part of a run; return whether the trial should be pruned.

        Args:
            trial: a running trial.
            series: the metric of its first run so far.
            part: steps between two reports.
        """
        last, done = trial.storage.get_trial(trial._trial_id).last_step or 0, int(series.steps[-1]) // part
        if done <= last:
            return False
        with self._writing():
            for number in range(last + 1, done + 1):
                values = series.values[(series.steps > (number - 1) * part) & (series.steps <= number * part)]
                if len(values):
                    trial.report(float(values.mean()), number)
            return bool(trial.should_prune())

    def finish(self, trial: Any, outcome: TrialOutcome) -> None:
        """Record how a trial ended. An interrupted trial will be continued later."""
        states = self._optuna.trial.TrialState
        if outcome != TrialOutcome():
            with self._writing():
                if outcome.value is not None:
                    self._study.tell(trial, outcome.value)
                    if self.completed[0].number == trial.number:
                        self._write_best()
                elif outcome.is_pruned:
                    self._study.tell(trial, state=states.PRUNED)
                else:
                    trial.set_user_attr(_REASON, outcome.error)
                    self._study.tell(trial, state=states.FAIL)
        self._claims.pop(trial.number).release()

    def _write_best(self) -> None:
        """Write the configuration of the best trial. Failures are logged."""
        for best in self.completed[:1]:
            settings = evolve(self.plan.settings_with(best.params), checkpoint_settings=CheckpointSettings())
            try:
                atomic.write_text(self.path / BEST, dump(settings))
            except OSError as error:
                logger.error("%s could not be written: %s.", self.path / BEST, error.strerror or error)

    @property
    def trials(self) -> list[Any]:
        """All trials (``optuna.trial.FrozenTrial``), ordered by number."""
        return list(self._study.get_trials(deepcopy=False))

    @property
    def is_unfinished(self) -> bool:
        """True if a resumed search would have trials to run."""
        trials = self.trials
        return len(trials) < self.plan.search.trials or any(trial.state.name == "RUNNING" for trial in trials)

    @property
    def completed(self) -> list[Any]:
        """The completed trials, the best first; equally good trials are ordered by number."""
        done = [trial for trial in self.trials if trial.state.name == "COMPLETE"]
        sign = 1 if self.plan.search.direction is Direction.MAXIMIZE else -1
        return sorted(done, key=lambda trial: (-sign * trial.value, trial.number))

    def importances(self) -> dict[str, float]:
        """Return how much each range matters, the most important first, or nothing if there are too few trials.

        The importances are computed by PED-ANOVA (Watanabe et al. 2023) from the completed trials, and add up to 1.
        """
        importance = self._optuna.importance
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", ".*importances will be equal", UserWarning)
                found = importance.get_param_importances(
                    self._study, evaluator=importance.PedAnovaImportanceEvaluator(), normalize=True
                )
        except (ValueError, RuntimeError, UserWarning):  # too few trials
            return {}
        return {name: float(weight) for name, weight in found.items() if math.isfinite(weight)}

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Lock the journal against other processes."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            try:
                with contextlib.suppress(FileNotFoundError), self._journal.open("r+b") as file:
                    # A killed process may have left an incomplete line, which would damage the next one.
                    file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
                    if file.read() not in (b"", b"\n"):
                        file.seek(0)
                        file.truncate(file.read().rfind(b"\n") + 1)
                yield
            finally:
                self._lock.release()
        except OSError as error:
            raise RunFolderError(
                f"The study {self._journal} cannot be written: {error.strerror or error}. The trials so far are kept. "
                "Free some space or fix the permissions, and continue with --resume."
            ) from error

    def _check_settings(self) -> None:
        """Raise ``SettingsError`` if earlier trials used other settings, because their values cannot be compared."""
        search, settings = CONVERTER.unstructure(self.plan.search), to_mapping(self.plan.settings)
        compared = {
            "search": {key: search[key] for key in _COMPARED} | {"behavior": self.plan.behavior},
            "ranges": {name: CONVERTER.unstructure(each) for name, each in self.plan.ranges.items()},
            **{key: settings.get(key) for key in _COMPARED_SECTIONS},
        }
        configuration = json.loads(json.dumps(dict(leaves(compared))))
        known = self._study.user_attrs.get(_CONFIGURATION)
        if known is None:
            self._study.set_user_attr(_CONFIGURATION, configuration)
            return
        changed = [key for key in {**known, **configuration} if known.get(key) != configuration.get(key)]
        if changed:
            raise SettingsError(
                f"The search in {self.path} used other settings. They differ in: {', '.join(changed[:5])}"
                f"{', ...' if len(changed) > 5 else ''}. Choose another --run-id, or start over with --force (the "
                "trials so far are kept)."
            )

    def _sampler(self, number: int) -> Any:
        """Return the sampler of a trial, seeded by its number so that a resumed search draws the same values."""
        seed = self.plan.search.seed * 1_000_003 + number
        samplers = self._optuna.samplers
        if self.plan.search.sampler is SamplerKind.RANDOM:
            return samplers.RandomSampler(seed=seed)
        return samplers.TPESampler(seed=seed, constant_liar=True)  # constant_liar: avoid values of running trials


def _distribution(optuna: ModuleType, given: Range) -> Any:
    distributions = optuna.distributions
    if given.choices:
        return distributions.CategoricalDistribution(given.choices)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the range may not be a multiple of ``step``
        if given.is_whole:
            return distributions.IntDistribution(int(given.low), int(given.high), given.log, int(given.step or 1))
        return distributions.FloatDistribution(given.low, given.high, given.log, given.step)
