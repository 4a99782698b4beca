"""The experts and teachers that are imitated: trained policies, written ones, and functions of Python."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve

from trajtrainer.algos.acting import Acts, Policy
from trajtrainer.algos.bc.settings import BCHyperparameters
from trajtrainer.algos.dagger.settings import DAggerHyperparameters
from trajtrainer.core.errors import DemonstrationError, SettingsError, TrajtrainerError
from trajtrainer.core.plugins import resolve
from trajtrainer.core.spec import BehaviorSpec, sensors_named
from trajtrainer.core.steps import ActionBatch, BoolArray, FloatArray, ObservationArray
from trajtrainer.demos.demonstrations import Demonstrations, load_demonstrations
from trajtrainer.play.models import ActingOptions, find_models
from trajtrainer.play.scripted import heuristic_policy
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import TrainerSettings

_FUNCTION, _HEURISTIC = "python:", "heuristic"
_DISTRIBUTION = (
    "Give a run or a checkpoint; what others do is recorded with 'trajtrainer record', for a dataset without a teacher."
)


def make_expert(run: RunSettings, name: str, settings: TrainerSettings, spec: BehaviorSpec) -> Acts | None:
    """Return the expert or teacher that a behavior's settings name; None where they name none.

    Args:
        run: settings of the run.
        name: of the behavior.
        settings: of the behavior.
        spec: of its agents, with all sensors.

    Raises:
        SettingsError: there is no such expert, or it is of other agents; or ``student_sensors`` are missing.
    """
    expert, faults = _find(run, name, settings, spec)
    if faults:
        raise SettingsError("\n".join(faults))
    return expert


def check_experts(settings: RunSettings) -> None:
    """Look whether experts and teachers are there, before anything is started.

    Those of a data set must fit it. What the agents of an environment see and do is not known yet.

    Raises:
        SettingsError: something is wrong; the message names all of it.
    """
    faults = []
    for name, each in settings.behaviors.items():
        spec, hyper = None, each.hyperparameters
        if isinstance(hyper, BCHyperparameters) and (hyper.teacher or hyper.student_sensors):
            with contextlib.suppress(DemonstrationError):  # which is reported as such
                spec = load_demonstrations(each.dataset, max_steps=1).spec
        faults += _find(settings, name, each, spec)[1]
    if faults:
        raise SettingsError("\n".join(faults))


def _find(
    run: RunSettings, name: str, settings: TrainerSettings, spec: BehaviorSpec | None
) -> tuple[Acts | None, list[str]]:
    """Return a behavior's expert and what is wrong with it; without a spec only the latter, as far as it shows."""
    hyper, place = settings.hyperparameters, f"behaviors.{name}.hyperparameters"
    expert: Acts | None = None
    faults = []
    if not isinstance(hyper, DAggerHyperparameters | BCHyperparameters):
        return None, []
    if spec is not None:
        try:
            sensors_named(spec, hyper.student_sensors)
        except SettingsError as error:
            faults.append(f"{place}.student_sensors: {error}")
    key, word = ("teacher", hyper.teacher) if isinstance(hyper, BCHyperparameters) else ("expert", hyper.expert)
    try:
        if word.startswith(_FUNCTION):
            function = _function(word.removeprefix(_FUNCTION))
            expert = None if spec is None else FunctionExpert(function, word, spec)
        elif word == _HEURISTIC:
            expert = None if spec is None else heuristic_policy(name, spec)
        elif word:
            expert = _trained(word, Path(run.checkpoint_settings.results_dir), name, spec)
        if key == "teacher" and expert is not None and not isinstance(expert, Policy):
            raise SettingsError(f"{word} tells its actions and not how likely they are. {_DISTRIBUTION}")
    except (TrajtrainerError, ImportError, AttributeError, TypeError, ValueError) as error:
        faults.append(f"{place}.{key}: {error}")
    return expert, faults


def _trained(word: str, results: Path, name: str, spec: BehaviorSpec | None) -> Acts | None:
    """Return the policy of a run, a checkpoint or an ``.onnx``; without a spec None, if there is one.

    Raises:
        TrajtrainerError: there is none, or it is of other agents.
    """
    models = find_models([word], results, ActingOptions(deterministic=True, by_name=True))
    if len(models) > 1:
        raise SettingsError(f"{word} is {len(models)} checkpoints. Give one of them, or a run.")
    file = models[0].file(name, [name])
    if spec is None:
        return None
    file.check_fit(spec)
    return file.policy(0)


def _function(reference: str) -> Callable[..., Any]:
    found = resolve(reference)
    if not callable(found):
        raise TypeError(f"{reference} is a {type(found).__name__}, no function.")
    return found


class FunctionExpert:
    """Acts by a function of Python: ``function(observations, mask)``.

    It is given the sensors' arrays f32 or u8 [N, *O] and the masks bool [N, D], True = forbidden, and returns the
    continuous actions [N, C] from -1 to 1, the discrete ones [N, K], or both as a pair.
    """

    memory_size = 0

    def __init__(self, function: Callable[..., Any], name: str, spec: BehaviorSpec) -> None:
        self._function = function
        self._name = name
        self._sizes = spec.action_spec.continuous_size, spec.action_spec.discrete_size

    def act(self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray) -> ActionBatch:
        """See ``Acts``.

        Raises:
            SettingsError: the function returns something else than actions.
        """
        given = self._function(tuple(obs), mask)
        continuous_size, discrete_size = self._sizes
        pair = given if continuous_size and discrete_size else (given, None) if continuous_size else (None, given)
        continuous = self._checked(pair[0], len(mask), continuous_size, np.float32)
        discrete = self._checked(pair[1], len(mask), discrete_size, np.int32)
        nothing = np.zeros((len(mask), continuous_size + discrete_size), np.float32)
        return ActionBatch(continuous, discrete, continuous, nothing, nothing[:, 0], memory, 0)

    def _checked(self, given: Any, rows: int, size: int, dtype: Any) -> Any:
        if not size:
            return np.zeros((rows, 0), dtype)
        actions = np.asarray(given, dtype)
        actions = actions[:, None] if actions.shape == (rows,) and size == 1 else actions
        if actions.shape != (rows, size) or not np.isfinite(actions).all():
            raise SettingsError(
                f"The expert {self._name} returned an array of shape {actions.shape} for {rows} agents, expected "
                f"finite actions of shape {(rows, size)}."
            )
        return actions


def with_recorded_names(settings: RunSettings) -> RunSettings:
    """Return settings in which the behaviour of a data set that ``default_settings`` has is listed by its own name.

    Only where no behaviour is listed: then the recordings tell what there is.

    Raises:
        DemonstrationError: the recordings cannot be read.
    """
    default = settings.default_settings
    if settings.behaviors or default is None or not default.is_offline:
        return settings
    name = load_demonstrations(default.dataset, max_steps=1).name.partition("?")[0]
    return evolve(settings, behaviors={name: default})


def load_datasets(settings: RunSettings, max_steps: int | None = None) -> dict[str, Demonstrations]:
    """Return the data set of each behaviour that is learnt from one; nothing for a run that does not learn.

    Args:
        settings: of the run.
        max_steps: how much to read of each, to see whether it is there and fits together; None for all.

    Raises:
        DemonstrationError: files are missing, damaged or do not fit together; the message names all behaviours.
    """
    found: dict[str, Demonstrations] = {}
    faults = []
    if settings.checkpoint_settings.inference:
        return found
    for name, behavior in settings.behaviors.items():
        if behavior.is_offline:
            try:
                found[name] = load_demonstrations(behavior.dataset, max_steps=max_steps)
            except DemonstrationError as error:
                faults.append(f"Behavior {name!r}, dataset: {error}")
    if faults:
        raise DemonstrationError("\n".join(faults))
    return found
