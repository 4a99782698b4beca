"""``trajtrainer.load_policy``: a trained policy that acts in a program of one's own (docs/evaluation.md#in-python).

Shape legend: N agents, O an observation's own shape, D sum of branch sizes, H memory size.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from trajtrainer.algos.acting import Acts
from trajtrainer.core.errors import CheckpointError, InvalidDataError, SettingsError
from trajtrainer.core.steps import FloatArray
from trajtrainer.play.forms import ColumnsForm, Form
from trajtrainer.play.models import ActingOptions, PolicyFile, find_models
from trajtrainer.settings.checks import closest
from trajtrainer.settings.flags import python_names

_PICTURE_RANK, _LIST_RANK = 3, 2


class Acted(NamedTuple):
    """A decision.

    Attributes:
        action: for one agent or N, as the environment takes it.
        memory: f32 [H] or [N, H], to be given with the next observation; H is 0 without a memory.
    """

    action: Any
    memory: FloatArray


class LoadedPolicy:
    """A trained policy that acts. Made by :func:`load_policy`.

    Attributes:
        behavior: name.
        path: of the file.
        spec: the observations that it expects and the actions that it gives.
    """

    def __init__(self, file: PolicyFile, behavior: str, form: Form, seed: int) -> None:
        self.behavior = behavior
        self.path = file.path
        self.spec = form.spec
        self._file = file
        self._form = form
        self._seed = seed
        self._policies: dict[bool, Acts] = {}

    @property
    def memory_size(self) -> int:
        """H; 0 without a memory."""
        return self._policy(deterministic=False).memory_size

    def for_spaces(self, observation_space: Any, action_space: Any) -> LoadedPolicy:
        """Return the policy for agents with these Gymnasium spaces.

        Raises:
            CheckpointError: it is of agents that see or do something else.
            UnsupportedError: a space that has no translation.
        """
        form = _spaces_form(self._file, observation_space, action_space)
        return LoadedPolicy(self._file, self.behavior, form, self._seed)

    def act(
        self, observations: Any, *, deterministic: bool = False, memory: FloatArray | None = None, mask: Any = None
    ) -> Acted:
        """Decide for one agent, or for N.

        With the spaces of an environment, observations and actions are as it has them, N of them as a vectorised
        environment has them, and masks are its own (1 = allowed; taken from the observation where PettingZoo puts them
        there). Without, observations are an array for each sensor, [*O] or [N, *O] (a single one may stand by itself),
        the action is an ``ActionTuple`` of N, which ``mlagents_envs`` takes, and masks are as there: bool [N, D] or an
        array per branch, True = forbidden.

        Args:
            observations: of one agent or several.
            deterministic: take the mean and the likeliest branch instead of sampling.
            memory: what the last decision of this episode returned; None at its beginning.
            mask: of discrete actions; None if all are allowed.

        Raises:
            InvalidDataError: observations, memory or mask do not fit.
            PolicyDivergedError: the policy gives NaN.
        """
        policy = self._policy(deterministic=deterministic)
        asked = self._form.ask(observations, mask)
        wanted = (len(asked.mask), policy.memory_size)
        kept = np.zeros(wanted, np.float32) if memory is None else np.asarray(memory, np.float32)
        if kept.shape not in (wanted, wanted[1:] if asked.is_single else wanted):
            raise InvalidDataError(f"The memory has the shape {kept.shape}, expected {wanted} as it was returned.")
        actions = policy.act(asked.obs, asked.mask, kept.reshape(wanted))
        left = actions.memory[0] if asked.is_single else actions.memory
        return Acted(self._form.answer(actions, is_single=asked.is_single), left)

    def predict(
        self,
        observation: Any,
        state: FloatArray | None = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[Any, FloatArray]:
        """Decide as ``act`` does, with the arguments of Stable-Baselines3, so that its tools take the policy.

        Args:
            observation: of one agent or several.
            state: the memory.
            episode_start: bool [N], whose memories begin anew.
            deterministic: see ``act``.
        """
        if state is not None and episode_start is not None:
            state = np.where(np.asarray(episode_start, np.bool_)[..., None], np.float32(0), state)
        return self.act(observation, deterministic=deterministic, memory=state)

    def _policy(self, *, deterministic: bool) -> Acts:
        if deterministic not in self._policies:
            with python_names(("deterministic",)):
                self._policies[deterministic] = self._file.policy(self._seed, deterministic=deterministic)
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
    """Return a trained policy that acts.

    >>> import trajtrainer  # doctest: +SKIP
    >>> policy = trajtrainer.load_policy("results/pole", env=env)
    >>> action, memory = policy.act(observation, deterministic=True)

    Args:
        path: a run id, the folder of a run or of one of its behaviors (the newest checkpoint; with ``@best`` behind it
            the best), a ``.pt`` file of ours or of ML-Agents, or an ``.onnx`` (which needs the extra ``onnx``).
        env: a Gymnasium environment, also a vectorised one, whose spaces observations and actions are of. None for
            columns; see ``LoadedPolicy.act`` and ``LoadedPolicy.for_spaces``.
        behavior: of a run that has several.
        seed: of what is drawn.
        device: where checkpoints compute.
        results_dir: where run ids are looked for.

    Raises:
        SettingsError: there is no such run, checkpoint or model, or a package for it is missing.
        CheckpointError: it is damaged, does not tell what its agents see, or is of other agents than those of ``env``.
    """
    with python_names(inspect.signature(load_policy).parameters):
        models = find_models([os.fspath(path)], Path(results_dir), ActingOptions(device=device))
    if len(models) > 1:
        raise SettingsError(f"{path} is {len(models)} checkpoints. Give one of them, or a run.")
    policies = models[0].policies
    name = next(iter(policies)) if behavior is None else behavior
    if name not in policies or (behavior is None and len(policies) > 1):
        found = f"no behavior {behavior!r}{closest(name, policies)}" if behavior else "several behaviors"
        raise SettingsError(f"{path} has {found}. Choose with behavior= one of {', '.join(map(repr, policies))}.")
    file = policies[name]
    form = ColumnsForm(file.spec()) if env is None else _spaces_form(file, *_spaces_of(env))
    return LoadedPolicy(file, name, form, seed)


def _spaces_of(env: Any) -> list[Any]:
    single = "single_" if hasattr(env, "single_observation_space") else ""
    spaces = [getattr(env, f"{single}{kind}_space", None) for kind in ("observation", "action")]
    if not all(hasattr(space, "sample") for space in spaces):
        raise SettingsError(
            f"load_policy(): env is a {type(env).__name__} without spaces. Expected a Gymnasium environment. "
            "For PettingZoo: load_policy(...).for_spaces(env.observation_space(agent), env.action_space(agent))."
        )
    return spaces


def _spaces_form(file: PolicyFile, observation_space: Any, action_space: Any) -> Form:
    from trajtrainer.play.forms import SpacesForm  # late: not everybody has Gymnasium

    form = SpacesForm(observation_space, action_space, str(file.path), _smallest_picture(file), _max_items(file))
    file.check_fit(form.spec)
    return form


def _smallest_picture(file: PolicyFile) -> int | None:
    """Return the smallest side of the pictures that a policy sees: a board may have been one to it."""
    try:
        sensors = file.spec().observation_specs
    except CheckpointError:  # it does not tell
        return None
    sides = [min(sensor.shape[1:]) for sensor in sensors if len(sensor.shape) == _PICTURE_RANK]
    return min(sides, default=None)


def _max_items(file: PolicyFile) -> int | dict[str, int] | None:
    """Return the lengths of the lists that a policy sees: one for all where they are alike, else by name."""
    try:
        sensors = file.spec().observation_specs
    except CheckpointError:  # it does not tell
        return None
    lengths = {sensor.name: int(sensor.shape[0]) for sensor in sensors if len(sensor.shape) == _LIST_RANK}
    return next(iter(lengths.values())) if len(set(lengths.values())) == 1 else lengths or None
