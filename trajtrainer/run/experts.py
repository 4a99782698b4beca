"""The experts that DAgger asks: trained policies, written ones, and functions of Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trajtrainer.algos.acting import Acts
from trajtrainer.algos.dagger.settings import DAggerHyperparameters
from trajtrainer.core.errors import SettingsError, TrajtrainerError
from trajtrainer.core.plugins import resolve
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import ActionBatch, BoolArray, FloatArray, ObservationArray
from trajtrainer.evaluation.models import ActingOptions, find_models
from trajtrainer.evaluation.scripted import heuristic_policy
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import TrainerSettings

_FUNCTION, _HEURISTIC = "python:", "heuristic"


def make_expert(run: RunSettings, name: str, settings: TrainerSettings, spec: BehaviorSpec) -> Acts | None:
    """Return the expert that a behaviour's settings name; None where they name none.

    Raises:
        SettingsError: there is no such expert, or it is of other agents.
    """
    hyper = settings.hyperparameters
    if not isinstance(hyper, DAggerHyperparameters):
        return None
    place = f"behaviors.{name}.hyperparameters.expert"
    try:
        if hyper.expert.startswith(_FUNCTION):
            return FunctionExpert(_function(hyper.expert.removeprefix(_FUNCTION)), hyper.expert, spec)
        if hyper.expert == _HEURISTIC:
            return heuristic_policy(name, spec)
        (model,) = find_models(
            [hyper.expert], Path(run.checkpoint_settings.results_dir), ActingOptions(deterministic=True)
        )
        file = model.file(name, [name])
        file.check_fit(spec)
        return file.policy(0)
    except (TrajtrainerError, ImportError, AttributeError, TypeError, ValueError) as error:
        raise SettingsError(
            f"{place}: {error} Expected a run, a checkpoint or an .onnx file of the same agents, "
            "heuristic, or python:MODULE:FUNCTION."
        ) from error


def check_experts(settings: RunSettings) -> None:
    """Look whether the experts are there, before anything is started.

    Raises:
        SettingsError: one is not; the message names all of them.
    """
    faults = []
    for name, each in settings.behaviors.items():
        hyper = each.hyperparameters
        if not isinstance(hyper, DAggerHyperparameters):
            continue
        try:
            if hyper.expert.startswith(_FUNCTION):
                _function(hyper.expert.removeprefix(_FUNCTION))
            elif hyper.expert != _HEURISTIC:
                find_models([hyper.expert], Path(settings.checkpoint_settings.results_dir), ActingOptions())
        except (TrajtrainerError, ImportError, AttributeError, TypeError, ValueError) as error:
            faults.append(f"behaviors.{name}.hyperparameters.expert: {error}")
    if faults:
        raise SettingsError("\n".join(faults))


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
