"""``trajtrainer.load_policy``: a trained policy that acts in your own program (docs/measure/evaluation.md#in-python).

Shape legend: N agents, O shape of an observation, D sum of branch sizes, H memory size.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from trajtrainer.core.errors import CheckpointError, InvalidDataError, SettingsError
from trajtrainer.core.spec import ActionTuple, BehaviorSpec
from trajtrainer.core.spelling import closest
from trajtrainer.core.steps import ActionBatch, BoolArray, FloatArray, ObservationArray
from trajtrainer.learning.algos.acting import Policy
from trajtrainer.policies.play.models import ActingOptions, Loaded, PolicyFile, find_models
from trajtrainer.settings.flags import python_names

if TYPE_CHECKING:
    from trajtrainer.policies.play.gymnasium_form import SpacesForm

_PICTURE_RANK, _LIST_RANK = 3, 2


class Acted(NamedTuple):
    """A decision.

    Attributes:
        action: action of one agent or actions of N agents, in the format of the environment.
        memory: f32 [H] or [N, H], to be passed with the next observation; H is 0 without a memory.
    """

    action: Any
    memory: FloatArray


class LoadedPolicy:
    """A trained policy that acts. It is created by :func:`load_policy`.

    Attributes:
        behavior: name of the behavior.
        path: path of the file.
        spec: the observations that the policy expects and the actions that it returns.
    """

    def __init__(
        self, file: PolicyFile, behavior: str, form: ColumnsForm | SpacesForm, loaded: Loaded, seed: int
    ) -> None:
        self.behavior = behavior
        self.path = file.path
        self.spec = form.spec
        self._file = file
        self._loaded = loaded
        self._form = form
        self._seed = seed
        self._policies: dict[bool, Policy] = {}

    @property
    def memory_size(self) -> int:
        """H, the size of each agent's memory; 0 without a memory."""
        return self._policy(deterministic=False).memory_size

    def for_spaces(self, observation_space: Any, action_space: Any) -> LoadedPolicy:
        """Return the same policy for agents with the given Gymnasium spaces.

        Raises:
            CheckpointError: the policy has different observations or actions.
            UnsupportedError: a space is not supported.
        """
        return _for_spaces(self._file, self.behavior, self._seed, observation_space, action_space)

    def act(
        self, observations: Any, *, deterministic: bool = False, memory: FloatArray | None = None, mask: Any = None
    ) -> Acted:
        """Decide for one agent or for N agents.

        If the policy was loaded with the spaces of an environment, observations and actions have the environment's
        format, and those of N agents have the format of a vectorized environment. Masks also have the environment's
        format (1 = allowed) and are read from ``action_mask`` if a Dict observation has this key.

        Otherwise, the observations are one array per sensor, [*O] or [N, *O] (a single sensor needs no list). The
        action is an ``ActionTuple`` for N agents, which ``mlagents_envs`` accepts. Masks have the same format as in
        ``mlagents_envs``: bool [N, D] or an array per branch, where True marks a forbidden action.

        Args:
            observations: observations of one or several agents.
            deterministic: use the mean and the most likely discrete actions instead of sampling.
            memory: memory returned by the previous decision in this episode; None at the start of an episode.
            mask: mask of the discrete actions; None if all actions are allowed.

        Raises:
            InvalidDataError: the observations, the memory or the mask have the wrong format.
            PolicyDivergedError: the policy returns NaN.
        """
        policy = self._policy(deterministic=deterministic)
        obs, forbidden, is_single = self._form.ask(observations, mask)
        wanted = (len(forbidden), policy.memory_size)
        kept = np.zeros(wanted, np.float32) if memory is None else np.asarray(memory, np.float32)
        if kept.shape not in (wanted, wanted[1:] if is_single else wanted):
            raise InvalidDataError(
                f"The memory has the shape {kept.shape}, expected {wanted}. Pass the memory from the previous call."
            )
        actions = policy.act(obs, forbidden, kept.reshape(wanted))
        left = actions.memory[0] if is_single else actions.memory
        return Acted(self._form.answer(actions, is_single=is_single), left)

    def predict(
        self, observation: Any, state: FloatArray | None = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, FloatArray]:
        """Like ``act``, but with the arguments of Stable-Baselines3's ``predict``, so that its tools accept the policy.

        Args:
            observation: observations of one or several agents.
            state: the memory.
            episode_start: bool [N]; True resets the memory of an agent.
            deterministic: see ``act``.
        """
        if state is not None and episode_start is not None:
            state = np.where(np.asarray(episode_start, np.bool_)[..., None], np.float32(0), state)
        return self.act(observation, deterministic=deterministic, memory=state)

    def _policy(self, *, deterministic: bool) -> Policy:
        if deterministic not in self._policies:
            with python_names(("deterministic",)):
                self._policies[deterministic] = self._loaded.policy(self._seed, deterministic=deterministic)
        return self._policies[deterministic]


def load_policy(
    path: str | os.PathLike[str],
    *,
    env: Any = None,
    behavior: str | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    results_dir: str | os.PathLike[str] = "results",
) -> LoadedPolicy:
    """Load a trained policy that is ready to act.

    >>> import trajtrainer  # doctest: +SKIP
    >>> policy = trajtrainer.load_policy("results/pole", env=env)
    >>> action, memory = policy.act(observation, deterministic=True)

    Args:
        path: a run id or the folder of a run or of one of its behaviors (the newest checkpoint, or the best one if
            followed by ``@best``), a ``.pt`` file from trajtrainer or ML-Agents, or an ``.onnx`` file (which needs the
            extra ``onnx``).
        env: a Gymnasium environment, optionally vectorized, whose spaces determine the format of observations and
            actions. Without one, the policy uses arrays per sensor; see ``LoadedPolicy.act`` and
            ``LoadedPolicy.for_spaces``.
        behavior: name of the behavior, if the run has several.
        seed: random seed for sampling actions.
        device: device on which policies from checkpoints run.
        results_dir: the folder that contains the runs.

    Raises:
        SettingsError: the run, checkpoint or model does not exist, or a required package is missing.
        CheckpointError: the file is damaged, does not describe its agents' observations, or was trained for agents that
            differ from those of ``env``.
    """
    with python_names(inspect.signature(load_policy).parameters):
        models = find_models([os.fspath(path)], Path(results_dir), ActingOptions(device=device))
    if len(models) > 1:
        raise SettingsError(f"{path} matches {len(models)} checkpoints. Pass one of them, or a run.")
    policies = models[0].policies
    name = next(iter(policies)) if behavior is None else behavior
    if name not in policies or (behavior is None and len(policies) > 1):
        found = f"no behavior {behavior!r}" if behavior else "several behaviors"
        hint = (closest(name, policies) if behavior else "") or "."
        raise SettingsError(f"{path} has {found}. Pass behavior= with one of {', '.join(map(repr, policies))}{hint}")
    file = policies[name]
    if env is None:
        loaded = file.load()
        return LoadedPolicy(file, name, ColumnsForm(loaded.spec), loaded, seed)
    single = "single_" if hasattr(env, "single_observation_space") else ""
    spaces = [getattr(env, f"{single}{kind}_space", None) for kind in ("observation", "action")]
    if not all(hasattr(space, "sample") for space in spaces):
        raise SettingsError(
            f"load_policy(): env is a {type(env).__name__} without spaces. Expected a Gymnasium environment. "
            "For PettingZoo: load_policy(...).for_spaces(env.observation_space(agent), env.action_space(agent))."
        )
    return _for_spaces(file, name, seed, *spaces)


def _for_spaces(file: PolicyFile, name: str, seed: int, observation_space: Any, action_space: Any) -> LoadedPolicy:
    from trajtrainer.policies.play.gymnasium_form import SpacesForm  # Gymnasium is optional

    smallest_picture: int | None = None
    max_items: int | dict[str, int] | None = None
    with contextlib.suppress(CheckpointError):  # The file may not describe the observations.
        sensors = file.load().spec.observation_specs
        # The policy may have been trained on small boards as images, so accept images as small as its smallest one.
        sides = [min(sensor.shape[1:]) for sensor in sensors if len(sensor.shape) == _PICTURE_RANK]
        smallest_picture = min(sides, default=None)
        # Maximum lengths of the policy's lists: a single number if they are all equal, otherwise by sensor name.
        lengths = {sensor.name: int(sensor.shape[0]) for sensor in sensors if len(sensor.shape) == _LIST_RANK}
        max_items = next(iter(lengths.values())) if len(set(lengths.values())) == 1 else lengths or None
    form = SpacesForm(observation_space, action_space, str(file.path), smallest_picture, max_items)
    return LoadedPolicy(file, name, form, file.load(form.spec), seed)


class ColumnsForm:
    """Observations as one array per sensor, and actions in the format of ``mlagents_envs``.

    The alternative is ``SpacesForm``.

    Args:
        spec: the behavior's spec.
    """

    def __init__(self, spec: BehaviorSpec) -> None:
        self.spec = spec

    def ask(self, observations: Any, mask: Any) -> tuple[Sequence[ObservationArray], BoolArray, bool]:
        """Convert the observations of one or several agents to columns.

        Returns:
            The observations of each sensor [N, *O]; the mask, bool [N, D], where True marks a forbidden action; and
            whether the observations are those of a single agent.

        Raises:
            InvalidDataError: the observations or the mask do not match the spec.
        """
        sensors = self.spec.observation_specs
        given = [observations] if len(sensors) == 1 and not isinstance(observations, list | tuple) else observations
        if len(given) != len(sensors):
            raise InvalidDataError(
                f"There are {len(given)} observations, expected one for each of the sensors "
                f"{', '.join(f'{sensor.name} {tuple(sensor.shape)}' for sensor in sensors)}."
            )
        columns = [np.asarray(values) for values in given]
        columns = [each if each.dtype == np.uint8 else each.astype(np.float32, copy=False) for each in columns]
        is_single = columns[0].ndim == len(sensors[0].shape)
        columns = [column[None] for column in columns] if is_single else columns
        number = len(columns[0]) if columns[0].ndim else 0
        for sensor, column in zip(sensors, columns, strict=True):
            if column.shape != (number, *sensor.shape):
                found = column.shape[1:] if is_single else column.shape
                raise InvalidDataError(
                    f"The observation of sensor {sensor.name!r} has the shape {found}, expected {tuple(sensor.shape)}, "
                    f"or {('N', *sensor.shape)} for N agents."
                )
        choices = sum(self.spec.action_spec.discrete_branches)
        if mask is None or not choices:
            return columns, np.zeros((number, choices), np.bool_), is_single
        if isinstance(mask, list | tuple):  # one mask for each branch
            mask = np.concatenate([np.atleast_2d(branch) for branch in mask], axis=1)
        if np.size(mask) != number * choices:
            raise InvalidDataError(f"The mask has {np.size(mask)} entries, expected {number} x {choices}.")
        return columns, np.asarray(mask, np.bool_).reshape(number, choices), is_single

    def answer(self, actions: ActionBatch, *, is_single: bool) -> ActionTuple:  # noqa: ARG002
        """Return the actions of all agents, with one row even for a single agent, as ``mlagents_envs`` requires."""
        return ActionTuple(continuous=actions.env_continuous, discrete=actions.discrete)
