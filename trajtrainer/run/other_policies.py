"""Policies from outside that a behavior learns from or plays against.

Experts and teachers are trained policies, scripted ones, or Python functions. Opponents in self-play are checkpoints,
exported models, or the newest checkpoints of other runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trajtrainer.core.errors import CheckpointError, DemonstrationError, SettingsError, TrajtrainerError
from trajtrainer.core.plugins import resolve
from trajtrainer.core.seeds import derived_seeds
from trajtrainer.core.spec import BehaviorSpec, mismatches, sensors_named
from trajtrainer.core.steps import ActionBatch, BoolArray, FloatArray, ObservationArray
from trajtrainer.experience.recordings.demonstrations import load_demonstrations
from trajtrainer.learning.algos.acting import ActorPolicy, Policy
from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.algos.bc.settings import BCHyperparameters
from trajtrainer.learning.algos.dagger.settings import DAggerHyperparameters
from trajtrainer.learning.trainers.self_play import Player
from trajtrainer.policies.checkpoints.file import read_checkpoint
from trajtrainer.policies.checkpoints.recovered_policy import recover_policy
from trajtrainer.policies.checkpoints.saved_policies import SavedPolicy, find_policies
from trajtrainer.policies.play.models import ActingOptions, find_models
from trajtrainer.policies.play.scripted import heuristic_policy
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import TrainerSettings

_FUNCTION, _HEURISTIC = "python:", "heuristic"
_DISTRIBUTION = (
    "Give a run or a checkpoint. To learn from another policy, record it with 'trajtrainer record' and use the "
    "recording as a dataset, without a teacher."
)

_EXPORTED = ".onnx"


def make_expert(run: RunSettings, name: str, settings: TrainerSettings, spec: BehaviorSpec) -> Policy | None:
    """Make the expert or teacher that the settings of a behavior name; None if they name none.

    Args:
        run: settings of the run.
        name: of the behavior.
        settings: of the behavior.
        spec: of its agents, with all sensors.

    Raises:
        SettingsError: there is no such expert, it does not fit the agents, or ``student_sensors`` are missing.
    """
    expert, faults = _expert(run, name, settings, spec)
    if faults:
        raise SettingsError("\n".join(faults))
    return expert


def check_experts(settings: RunSettings) -> None:
    """Check that all experts and teachers exist, before anything is started.

    Those of a data set must fit it. The agents of an environment are not known yet.

    Raises:
        SettingsError: has a line for each problem.
    """
    faults = []
    for name, each in settings.behaviors.items():
        spec, hyper = None, each.hyperparameters
        if isinstance(hyper, BCHyperparameters) and (hyper.teacher or hyper.student_sensors):
            with contextlib.suppress(DemonstrationError):  # Another check reports it.
                spec = load_demonstrations(each.dataset, max_steps=1).spec
        faults += _expert(settings, name, each, spec)[1]
    if faults:
        raise SettingsError("\n".join(faults))


def _expert(
    run: RunSettings, name: str, settings: TrainerSettings, spec: BehaviorSpec | None
) -> tuple[Policy | None, list[str]]:
    """A behavior's expert, and what is wrong with it. Without a spec only the latter, as far as it can be checked."""
    hyper, place = settings.hyperparameters, f"behaviors.{name}.hyperparameters"
    expert: Policy | None = None
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
        if key == "teacher" and expert is not None and not isinstance(expert, ActorPolicy):
            raise SettingsError(f"{word} gives its actions, but not their probabilities. {_DISTRIBUTION}")
    except (TrajtrainerError, ImportError, AttributeError, TypeError, ValueError) as error:
        faults.append(f"{place}.{key}: {error}")
    return expert, faults


def _trained(word: str, results: Path, name: str, spec: BehaviorSpec | None) -> Policy | None:
    """Load the policy of a run, a checkpoint or an ``.onnx``. Without a spec, only check that it exists.

    Raises:
        TrajtrainerError: it does not exist, or does not fit the agents.
    """
    models = find_models([word], results, ActingOptions(deterministic=True, by_name=True))
    if len(models) > 1:
        raise SettingsError(f"{word} stands for {len(models)} checkpoints. Give a single one, or a run.")
    file = models[0].file(name, [name])
    if spec is None:
        return None
    file.check_fit(spec)
    return file.policy(0)


def _function(reference: str) -> Callable[..., Any]:
    found = resolve(reference)
    if not callable(found):
        raise TypeError(f"{reference} is a {type(found).__name__}, not a function.")
    return found


class FunctionExpert:
    """Acts by a Python function: ``function(observations, mask)``.

    Its arguments are the sensors' arrays f32 or u8 [N, *O] and the masks bool [N, D], True = forbidden. It returns the
    continuous actions [N, C] from -1 to 1, the discrete actions [N, K], or both as a pair.
    """

    memory_size = 0

    def __init__(self, function: Callable[..., Any], name: str, spec: BehaviorSpec) -> None:
        self._function = function
        self._name = name
        self._sizes = spec.action_spec.continuous_size, spec.action_spec.discrete_size

    def act(self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray) -> ActionBatch:
        """Act.

        Raises:
            SettingsError: the function does not return actions.
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


def check_opponents(settings: RunSettings, behaviors: Mapping[str, TrainerSettings]) -> None:
    """Check that the files of all opponents exist, before anything is started.

    Raises:
        CheckpointError: has a line for each file that does not exist or is not a checkpoint.
    """
    faults = []
    for name, each in behaviors.items():
        for opponent in each.self_play.opponents if each.self_play is not None else ():
            try:
                _saved_policy(opponent, settings, None if each is settings.default_settings else name)
            except CheckpointError as error:
                faults.append(str(error))
    if faults:
        raise CheckpointError("\n".join(faults))


def players_of_files(settings: RunSettings, context: LearningContext, memory_size: int) -> list[Player]:
    """Load the opponents that the settings of a behavior name. Their networks may differ from its own.

    Args:
        settings: of the run.
        context: of the behavior.
        memory_size: of its policy.

    Raises:
        CheckpointError: a file cannot be read, or its sensors, actions or memory differ.
    """
    self_play = context.settings.self_play
    if self_play is None:
        return []
    players = []
    for opponent in self_play.opponents:
        found = _saved_policy(opponent, settings, context.behavior)
        path, seed = found.checkpoint, derived_seeds(context.seed, f"{context.behavior} {opponent}")[0]
        deterministic = context.settings.network_settings.deterministic
        acts: Policy
        if path.suffix == _EXPORTED:
            # Late: no run needs onnx for anything else before its first checkpoint.
            from trajtrainer.policies.onnx.policy import OnnxPolicy

            acts = exported = OnnxPolicy(path, seed=seed, deterministic=deterministic)
            reasons = list(exported.mismatches(context.spec))
        else:
            recovered = recover_policy(read_checkpoint(path), source=str(path), models=found.models)
            acts = ActorPolicy(recovered.actor, seed=seed, deterministic=deterministic, device=context.device)
            reasons = list(mismatches(recovered.spec, context.spec))
        if acts.memory_size != memory_size:
            reasons.append(f"its memory_size is {acts.memory_size}, not {memory_size}")
        if reasons:
            raise CheckpointError(
                f"{_place(context.behavior)}: {found.checkpoint} cannot play against behavior {context.behavior!r}: "
                f"{'; '.join(reasons)}. Opponents need the same sensors, actions and memory."
            )
        players.append(Player(opponent, self_play.initial_elo, acts=acts))
    return players


def _saved_policy(opponent: str, settings: RunSettings, behavior: str | None) -> SavedPolicy:
    """The checkpoint that an entry of ``opponents`` refers to. If ``behavior`` is None, that of any behavior.

    Raises:
        CheckpointError: it does not exist.
    """
    path, results = Path(opponent), Path(settings.checkpoint_settings.results_dir)
    try:
        return find_policies(path, results, None if path.is_file() else behavior)[0]
    except CheckpointError as error:
        raise CheckpointError(f"{_place(behavior)}: {error}") from error


def _place(behavior: str | None) -> str:
    whose = "default_settings" if behavior is None else f"behaviors.{behavior}"
    return f"{whose}.self_play.opponents"
