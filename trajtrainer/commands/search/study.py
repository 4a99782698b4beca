"""The trials of a search in a file that outlives it: Optuna's journal, lines of JSON that are only ever added to."""

from __future__ import annotations

import contextlib
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from trajtrainer.core.errors import RunFolderError, SettingsError
from trajtrainer.settings.search import Direction, Plan, PrunerKind, Range, SamplerKind, Value
from trajtrainer.settings.yaml.convert import to_mapping
from trajtrainer.settings.yaml.structuring import CONVERTER

JOURNAL = "study.journal"
_CONFIGURATION = "configuration"
# What decides what the values of trials mean. The rest, such as the number of trials, may change from start to start.
_COMPARED = ("metric", "direction", "value", "seeds", "combined", "seed", "reports")
_COMPARED_SECTIONS = ("default_settings", "behaviors", "environment_parameters", "evaluation")
_REASON = "reason"


def import_optuna() -> ModuleType:
    """Return Optuna, which says nothing but errors.

    Raises:
        SettingsError: it is not installed.
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


class Study:
    """The trials so far, and those to come.

    Args:
        path: of the journal; its folder exists, and nobody else writes into it.
        plan: what is tried.

    Raises:
        SettingsError: Optuna is not installed, or the trials in the journal were of other settings.
        RunFolderError: the journal is damaged or cannot be written.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        self._optuna = import_optuna()
        self._path = path
        self._plan = plan
        self._distributions = {name: _distribution(self._optuna, each) for name, each in plan.ranges.items()}
        try:
            with self._writing():
                _mend(path)
                self._study = self._open(path)
        except RunFolderError:
            raise
        except Exception as error:  # Optuna believes every line of its journal, and raises anything
            raise RunFolderError(
                f"The study {path} is damaged: {str(error) or type(error).__name__}. Repair the line or begin anew "
                "with --force (the trials so far are kept)."
            ) from error
        self._check(path)
        states = self._optuna.trial.TrialState
        self._interrupted: list[Any] = self._study.get_trials(deepcopy=False, states=[states.RUNNING])

    def next(self) -> Any | None:
        """Return the next trial, one that was interrupted before others; None if there are enough.

        The trial has its values (``params``).

        Raises:
            RunFolderError: the journal cannot be written. The same holds for all that note something.
        """
        with self._writing():
            if self._interrupted:
                known = self._interrupted.pop(0)
                self._study.sampler = sampler = self._sampler(known.number)
                trial = self._optuna.trial.Trial(self._study, known._trial_id)
                # The search may have ended before all of its values were drawn: the others are those of a search that
                # was not interrupted, if those before them are drawn again.
                for name in known.params:
                    sampler.sample_independent(self._study, known, name, self._distributions[name])
            elif len(self.trials) < self._plan.search.trials:
                self._study.sampler = self._sampler(len(self.trials))
                trial = self._study.ask()
            else:
                return None
            for name, distribution in self._distributions.items():
                _suggest(trial, name, self._plan.ranges[name], distribution)
        return trial

    def report(self, trial: Any, number: int, value: float) -> bool:
        """Note how a trial goes, and return whether it is to be pruned. May be called from any thread."""
        last = trial.study._storage.get_trial(trial._trial_id).last_step
        if math.isfinite(value) and (last is None or number > last):
            with self._writing():
                trial.report(value, number)
        return bool(trial.should_prune())

    def complete(self, trial: Any, value: float) -> None:
        """Note what a trial has reached."""
        with self._writing():
            self._study.tell(trial, value)

    def prune(self, trial: Any) -> None:
        """Note that a trial was pruned."""
        with self._writing():
            self._study.tell(trial, state=self._optuna.trial.TrialState.PRUNED)

    def fail(self, trial: Any, reason: str) -> None:
        """Note that a trial failed, and why."""
        with self._writing():
            trial.set_user_attr(_REASON, reason)
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)

    @property
    def trials(self) -> list[Any]:
        """All trials (``optuna.trial.FrozenTrial``), in their order."""
        found: list[Any] = self._study.get_trials(deepcopy=False)
        return found

    @property
    def is_unfinished(self) -> bool:
        """Whether a search that is resumed has something left to do."""
        trials = self.trials
        return len(trials) < self._plan.search.trials or any(trial.state.name == "RUNNING" for trial in trials)

    @property
    def completed(self) -> list[Any]:
        """Those that went to the end, the best first; of equal ones the earlier."""
        done = [trial for trial in self.trials if trial.state.name == "COMPLETE"]
        sign = 1 if self._plan.search.direction is Direction.MAXIMIZE else -1
        return sorted(done, key=lambda trial: (-sign * trial.value, trial.number))

    def importances(self) -> dict[str, float]:
        """Return how much each range matters, all together 1, the most important first; empty if nothing tells.

        By PED-ANOVA (Watanabe et al. 2023) over the trials that went to the end.
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
        try:
            yield
        except OSError as error:
            raise RunFolderError(
                f"The study {self._path} cannot be written: {error.strerror or error}. The trials so far are kept; "
                "make room or correct the rights there, and go on with --resume."
            ) from error

    def _open(self, path: Path) -> Any:
        return self._optuna.create_study(
            storage=self._optuna.storages.JournalStorage(_journal(self._optuna, path)),
            study_name="search",
            direction=self._plan.search.direction.value,
            pruner=self._pruner(),
            load_if_exists=True,
        )

    def _check(self, path: Path) -> None:
        """Refuse trials of other settings: their values say nothing about these."""
        configuration = _flat(_compared(self._plan))
        known = self._study.user_attrs.get(_CONFIGURATION)
        if known is None:
            with self._writing():
                self._study.set_user_attr(_CONFIGURATION, configuration)
            return
        changed = [key for key in {**known, **configuration} if known.get(key) != configuration.get(key)]
        if changed:
            raise SettingsError(
                f"The search in {path.parent} has been about other settings; what differs: {', '.join(changed[:5])}"
                f"{', ...' if len(changed) > 5 else ''}. Choose another --run-id, or begin anew with --force (the "
                "trials so far are kept)."
            )

    def _sampler(self, number: int) -> Any:
        """Return what draws trial ``number``. Seeded by it, so that a search that was interrupted draws the same."""
        seed = self._plan.search.seed * 1_000_003 + number
        samplers = self._optuna.samplers
        if self._plan.search.sampler is SamplerKind.RANDOM:
            return samplers.RandomSampler(seed=seed)
        # With others under way it keeps away from where they are.
        return samplers.TPESampler(seed=seed, constant_liar=self._plan.parallel > 1)

    def _pruner(self) -> Any:
        search, pruners = self._plan.search, self._optuna.pruners
        if search.pruner is PrunerKind.MEDIAN:
            return pruners.MedianPruner(n_startup_trials=search.startup, n_warmup_steps=search.warmup)
        if search.pruner is PrunerKind.HYPERBAND:
            return pruners.HyperbandPruner(min_resource=max(1, search.warmup), max_resource=search.reports)
        return pruners.NopPruner()


def _mend(path: Path) -> None:
    """Take away half a line, which a killed search has left and which would spoil the next one."""
    with contextlib.suppress(FileNotFoundError):
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(path, whole)


class _NoLock:
    """Takes the place of Optuna's lock, a file that others wait for if it cannot be removed.

    The study's folder is locked, and Optuna lets one thread write at a time.
    """

    def acquire(self) -> bool:
        return True

    def release(self) -> None: ...


def _journal(optuna: ModuleType, path: Path) -> Any:
    """Return Optuna's journal in a file, to which lines are added whole or not at all."""

    class Journal(optuna.storages.journal.JournalFileBackend):  # type: ignore[misc,name-defined]
        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            size = path.stat().st_size
            try:
                super().append_logs(logs)
            except OSError:
                os.truncate(path, size)
                raise

    return Journal(str(path), lock_obj=_NoLock())


def _compared(plan: Plan) -> dict[str, Any]:
    search, settings = CONVERTER.unstructure(plan.search), to_mapping(plan.settings)
    return {
        "search": {key: search[key] for key in _COMPARED} | {"behavior": plan.behavior},
        "ranges": {name: CONVERTER.unstructure(each) for name, each in plan.ranges.items()},
        **{key: settings.get(key) for key in _COMPARED_SECTIONS},
    }


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping) or not value:
        return {path: json.loads(json.dumps(value))}
    return {
        key: found for name, inner in value.items() for key, found in _flat(inner, f"{path}.{name}".strip(".")).items()
    }


def _distribution(optuna: ModuleType, given: Range) -> Any:
    distributions = optuna.distributions
    if given.choices:
        return distributions.CategoricalDistribution(given.choices)
    if given.is_whole:
        step = int(given.step or 1)
        low, high = int(given.low), int(given.high)
        return distributions.IntDistribution(low, high - (high - low) % step, log=given.log, step=step)
    if given.step is None:
        return distributions.FloatDistribution(given.low, given.high, log=given.log)
    steps = math.floor((given.high - given.low) / given.step + 1e-9)
    return distributions.FloatDistribution(given.low, given.low + steps * given.step, step=given.step)


def _suggest(trial: Any, name: str, given: Range, distribution: Any) -> Value:
    """Draw a value, unless this trial has one already."""
    value: Value
    if given.choices:
        value = trial.suggest_categorical(name, given.choices)
    elif given.is_whole:
        value = trial.suggest_int(
            name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
        )
    else:
        value = trial.suggest_float(
            name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
        )
    return value
