"""Experts and teachers in a behavior's settings: trained policies, hand-written policies, or Python functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trajtrainer.core.errors import DemonstrationError, SettingsError, TrajtrainerError
from trajtrainer.core.plugins import resolve
from trajtrainer.core.spec import BehaviorSpec, sensors_named
from trajtrainer.core.steps import ActionBatch, BoolArray, FloatArray, ObservationArray
from trajtrainer.experience.recordings.demonstrations import load_demonstrations
from trajtrainer.learning.algos.acting import ActorPolicy, Policy
from trajtrainer.plugins.imitation.settings import BCHyperparameters, DAggerHyperparameters
from trajtrainer.policies.play.models import ActingOptions, find_models
from trajtrainer.policies.play.scripted import heuristic_policy
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import TrainerSettings

_FUNCTION, _HEURISTIC = "python:", "heuristic"
_DISTRIBUTION = (
    "Use a run or a checkpoint. To learn from another policy, record it with 'trajtrainer record' and use the "
    "recording as a dataset, without a teacher."
)


def expert(
    run: RunSettings, name: str, settings: TrainerSettings, spec: BehaviorSpec | None
) -> tuple[Policy | None, list[str]]:
    """Return a behavior's expert or teacher, and a list of its problems. See ``AlgorithmRow.expert``.

    With a data set, this also checks that the teacher and ``student_sensors`` match its agents, even without a
    ``spec``. The agents of an environment are not known before the run starts.
    """
    hyper, place = settings.hyperparameters, f"behaviors.{name}.hyperparameters"
    found: Policy | None = None
    faults = []
    assert isinstance(hyper, DAggerHyperparameters | BCHyperparameters)
    if spec is None and isinstance(hyper, BCHyperparameters) and (hyper.teacher or hyper.student_sensors):
        with contextlib.suppress(DemonstrationError):  # reported by another check
            spec = load_demonstrations(settings.dataset, max_steps=1).spec
    if spec is not None:
        try:
            sensors_named(spec, hyper.student_sensors)
        except SettingsError as error:
            faults.append(f"{place}.student_sensors: {error}")
    key, word = ("teacher", hyper.teacher) if isinstance(hyper, BCHyperparameters) else ("expert", hyper.expert)
    try:
        if word.startswith(_FUNCTION):
            reference = word.removeprefix(_FUNCTION)
            function = resolve(reference)
            if not callable(function):
                raise TypeError(f"{reference} is a {type(function).__name__}, not a function.")
            found = None if spec is None else FunctionExpert(function, word, spec)
        elif word == _HEURISTIC:
            found = None if spec is None else heuristic_policy(name, spec)
        elif word:
            found = _trained(word, Path(run.checkpoint_settings.results_dir), name, spec)
        if key == "teacher" and found is not None and not isinstance(found, ActorPolicy):
            raise SettingsError(f"{word} provides its actions, but not their probabilities. {_DISTRIBUTION}")
    except (TrajtrainerError, ImportError, AttributeError, TypeError, ValueError) as error:
        faults.append(f"{place}.{key}: {error}")
    return found, faults


def _trained(word: str, results: Path, name: str, spec: BehaviorSpec | None) -> Policy | None:
    """Load the policy of a run, a checkpoint or an ``.onnx`` file. Without a spec, only check that it exists.

    Raises:
        TrajtrainerError: the policy does not exist, or does not match the agents.
    """
    models = find_models([word], results, ActingOptions(deterministic=True, by_name=True))
    if len(models) > 1:
        raise SettingsError(f"{word} matches {len(models)} checkpoints. Specify a single one, or a run.")
    file = models[0].file(name, [name])
    return None if spec is None else file.load(spec).policy(0)


class FunctionExpert:
    """A policy that calls a Python function: ``function(observations, mask)``.

    The function's arguments are a tuple with each sensor's array, f32 or u8 [N, *O], and the masks, bool [N, D] with
    True for forbidden. It returns the continuous actions [N, C] between -1 and 1, the discrete actions [N, K], or both
    as a pair.
    """

    memory_size = 0

    def __init__(self, function: Callable[..., Any], name: str, spec: BehaviorSpec) -> None:
        self._function = function
        self._name = name
        self._sizes = spec.action_spec.continuous_size, spec.action_spec.discrete_size

    def act(self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray) -> ActionBatch:
        """Call the function, and return its actions as a batch.

        Raises:
            SettingsError: the function returned an array that is not a batch of actions.
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
                f"The expert {self._name} returned an array of shape {actions.shape} for {rows} agents; expected "
                f"finite actions of shape {(rows, size)}."
            )
        return actions
