"""The trials of a search in a file that outlives it: Optuna's journal, lines of JSON to which lines are only added."""

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
from trajtrainer.settings.search import Direction, Plan, PrunerKind, Range, SamplerKind
from trajtrainer.settings.yaml.convert import to_mapping
from trajtrainer.settings.yaml.structuring import CONVERTER

_CONFIGURATION = "configuration"
# What decides what the values of trials mean. The rest, such as the number of trials, may change from start to start.
_COMPARED = ("metric", "direction", "value", "seeds", "combined", "seed", "reports")
_COMPARED_SECTIONS = ("default_settings", "behaviors", "environment_parameters", "evaluation")
_REASON = "reason"


def import_optuna() -> ModuleType:
    """Import Optuna and limit its log to errors.

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
        path: the journal; its folder exists and is locked for this search.

    Raises:
        SettingsError: Optuna is not installed, or the trials in the journal used other settings.
        RunFolderError: the journal is damaged or cannot be written. All methods that write raise the latter, too.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        self._optuna = import_optuna()
        self._path = path
        self._plan = plan
        self._distributions = {name: _distribution(self._optuna, each) for name, each in plan.ranges.items()}
        try:
            with self._writing():
                with contextlib.suppress(FileNotFoundError):
                    # A killed search may have left half a line, which would spoil the next one.
                    content = path.read_bytes()
                    whole = content.rfind(b"\n") + 1
                    if whole < len(content):
                        os.truncate(path, whole)
                search, pruners = plan.search, self._optuna.pruners
                pruner = pruners.NopPruner()
                if search.pruner is PrunerKind.MEDIAN:
                    pruner = pruners.MedianPruner(n_startup_trials=search.startup, n_warmup_steps=search.warmup)
                elif search.pruner is PrunerKind.HYPERBAND:
                    pruner = pruners.HyperbandPruner(min_resource=max(1, search.warmup), max_resource=search.reports)
                self._study = self._optuna.create_study(
                    storage=self._optuna.storages.JournalStorage(_journal(self._optuna, path)),
                    study_name="search",
                    direction=search.direction.value,
                    pruner=pruner,
                    load_if_exists=True,
                )
        except RunFolderError:
            raise
        except Exception as error:  # Optuna trusts every line of its journal, and may raise anything
            raise RunFolderError(
                f"The study {path} is damaged: {str(error) or type(error).__name__}. Repair the line, or start over "
                "with --force (the trials so far are kept)."
            ) from error
        self._check_settings(path)
        states = self._optuna.trial.TrialState
        self._interrupted: list[Any] = self._study.get_trials(deepcopy=False, states=[states.RUNNING])

    def next(self) -> Any | None:
        """The next trial with its values (``params``), interrupted ones first; None if there are enough."""
        with self._writing():
            if self._interrupted:
                known = self._interrupted.pop(0)
                self._study.sampler = sampler = self._sampler(known.number)
                trial = self._optuna.trial.Trial(self._study, known._trial_id)
                # The search may have ended before all values of this trial were drawn. If the earlier ones are drawn
                # again, the rest are those of an uninterrupted search.
                for name in known.params:
                    sampler.sample_independent(self._study, known, name, self._distributions[name])
            elif len(self.trials) < self._plan.search.trials:
                self._study.sampler = self._sampler(len(self.trials))
                trial = self._study.ask()
            else:
                return None
            for name, drawn in self._distributions.items():
                given = self._plan.ranges[name]
                if given.choices:
                    trial.suggest_categorical(name, given.choices)
                    continue
                suggest = trial.suggest_int if given.is_whole else trial.suggest_float
                suggest(name, drawn.low, drawn.high, step=drawn.step, log=drawn.log)
        return trial

    def report(self, trial: Any, number: int, value: float) -> bool:
        """Record an intermediate value; whether the trial should be pruned. May be called from any thread."""
        last = trial.study._storage.get_trial(trial._trial_id).last_step
        if math.isfinite(value) and (last is None or number > last):
            with self._writing():
                trial.report(value, number)
        return bool(trial.should_prune())

    def complete(self, trial: Any, value: float) -> None:
        """Record the final value of a trial."""
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
        """All trials (``optuna.trial.FrozenTrial``) by their number."""
        found: list[Any] = self._study.get_trials(deepcopy=False)
        return found

    @property
    def is_unfinished(self) -> bool:
        """Whether a resumed search has something left to do."""
        trials = self.trials
        return len(trials) < self._plan.search.trials or any(trial.state.name == "RUNNING" for trial in trials)

    @property
    def completed(self) -> list[Any]:
        """The trials that ran to their end, the best first, and the earlier first among equals."""
        done = [trial for trial in self.trials if trial.state.name == "COMPLETE"]
        sign = 1 if self._plan.search.direction is Direction.MAXIMIZE else -1
        return sorted(done, key=lambda trial: (-sign * trial.value, trial.number))

    def importances(self) -> dict[str, float]:
        """How much each range matters, the most important first; they add up to 1. Empty with too few trials.

        PED-ANOVA (Watanabe et al. 2023) over the trials that ran to their end.
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
                f"The study {self._path} cannot be written: {error.strerror or error}. The trials so far are kept. "
                "Free some space or fix the permissions, and continue with --resume."
            ) from error

    def _check_settings(self, path: Path) -> None:
        """Reject trials with other settings, because their values cannot be compared with new ones."""
        search, settings = CONVERTER.unstructure(self._plan.search), to_mapping(self._plan.settings)
        configuration = _flat(
            {
                "search": {key: search[key] for key in _COMPARED} | {"behavior": self._plan.behavior},
                "ranges": {name: CONVERTER.unstructure(each) for name, each in self._plan.ranges.items()},
                **{key: settings.get(key) for key in _COMPARED_SECTIONS},
            }
        )
        known = self._study.user_attrs.get(_CONFIGURATION)
        if known is None:
            with self._writing():
                self._study.set_user_attr(_CONFIGURATION, configuration)
            return
        changed = [key for key in {**known, **configuration} if known.get(key) != configuration.get(key)]
        if changed:
            raise SettingsError(
                f"The search in {path.parent} used other settings. Different are: {', '.join(changed[:5])}"
                f"{', ...' if len(changed) > 5 else ''}. Choose another --run-id, or start over with --force (the "
                "trials so far are kept)."
            )

    def _sampler(self, number: int) -> Any:
        """The sampler of trial ``number``, seeded by the number, so that a resumed search draws the same values."""
        seed = self._plan.search.seed * 1_000_003 + number
        samplers = self._optuna.samplers
        if self._plan.search.sampler is SamplerKind.RANDOM:
            return samplers.RandomSampler(seed=seed)
        # With other trials running, it avoids their surroundings.
        return samplers.TPESampler(seed=seed, constant_liar=self._plan.parallel > 1)


class _NoLock:
    """Replaces Optuna's lock, a file that would block everyone if it could not be removed.

    No lock is needed: the study's folder is locked, and Optuna lets one thread write at a time.
    """

    def acquire(self) -> bool:
        return True

    def release(self) -> None: ...


def _journal(optuna: ModuleType, path: Path) -> Any:
    """Optuna's journal in a file, to which lines are added completely or not at all."""

    class Journal(optuna.storages.journal.JournalFileBackend):  # type: ignore[misc,name-defined]
        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            size = path.stat().st_size
            try:
                super().append_logs(logs)
            except OSError:
                os.truncate(path, size)
                raise

    return Journal(str(path), lock_obj=_NoLock())


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
