"""Gymnasium vectorized environments: copies that step together, as the agents of one worker.

Shape legend: N copies, T copies whose episode ended in this step.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from trajtrainer.core.errors import InvalidDataError, UnsupportedError
from trajtrainer.core.steps import ActionBatch, BoolArray, EnvironmentEvent, FloatArray, ObservationArray
from trajtrainer.envs.filming import FirstPicture, Rendering, TakeFrame
from trajtrainer.envs.in_process import InProcessEnvironment
from trajtrainer.envs.protocol import Parameters
from trajtrainer.envs.python.gymnasium_agents import AgentSpaces
from trajtrainer.envs.python.gymnasium_environment import check_spaces, environment_name
from trajtrainer.envs.python.gymnasium_masks import MASK

logger = logging.getLogger(__name__)

_MODE, _FINAL = "autoreset_mode", "final_obs"
_STEPPED = "(observations, rewards, terminations, truncations, infos)"


class _Seen(NamedTuple):
    """The observations and masks of all copies, one row per copy."""

    columns: tuple[ObservationArray, ...]
    masks: BoolArray


class VectorEnvironment(InProcessEnvironment):
    """A ``gymnasium.vector.VectorEnv`` whose copies are agents of the behavior named after the environment.

    An event lists the episodes that ended, with their final observations, followed by the copies that decide. The
    autoreset mode of the environment determines which copies decide:

    - NEXT_STEP: a copy whose episode ended does not decide. The next step ignores its action and returns the first
      observation of its next episode.
    - SAME_STEP: all copies decide. The final observations are in ``infos["final_obs"]``.
    - DISABLED: all copies decide. Copies whose episode ended are reset at once, with ``options={"reset_mask": ...}``.

    Args:
        env: the environment.
        seed: seed of the first reset.
        name: name of the behavior; by default that of the environment.
        reading: see ``AgentSpaces``.

    Raises:
        UnsupportedError: a space is missing or cannot be translated, or the autoreset mode is unknown.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], *, seed: int, name: str | None = None, **reading: Any) -> None:
        super().__init__(environment_name(env) if name is None else name, num_workers=1)
        check_spaces(env, ("single_observation_space", "single_action_space"), self.name)
        self._env: Any = env
        self._number = copies_of(env, self.name)
        found = (getattr(env, "metadata", None) or {}).get(_MODE)
        if found is None:
            logger.warning(
                "%s does not say how it starts new episodes. NEXT_STEP is assumed; for another mode set "
                'metadata["%s"] = gymnasium.vector.AutoresetMode.SAME_STEP (or DISABLED).',
                self.name,
                _MODE,
            )
            found = AutoresetMode.NEXT_STEP
        try:
            self._mode = AutoresetMode(found)
        except ValueError as error:
            raise UnsupportedError(
                f'The environment {self.name} has metadata["{_MODE}"] = {found!r}. Expected one of '
                f"{', '.join(f'gymnasium.vector.{mode}' for mode in AutoresetMode)}."
            ) from error
        self._spaces = AgentSpaces(env.single_observation_space, env.single_action_space, self.name, **reading)
        self._action_space = env.single_action_space
        self._mask_method = self._spaces.masks.method_of(partial(_attribute, env))
        self._seed: int | None = seed
        # True for copies whose episode has ended, and which start a new episode in the next step.
        self._over: BoolArray = np.zeros(self._number, np.bool_)

    def film(self, take: TakeFrame) -> None:
        self._env = Rendering(FirstPicture(self._env), self.name, take)

    def set_parameters(self, parameters: Parameters) -> None:
        """Reject parameters; see ``Environment``.

        Raises:
            UnsupportedError: there are parameters.
        """
        if parameters:
            raise UnsupportedError(
                f"The vectorized environment {self.name} does not accept environment_parameters "
                f"({', '.join(parameters)}), because it starts most episodes on its own. Single environments receive "
                "them in reset()."
            )

    def _reset_worker(self, worker: int) -> EnvironmentEvent:
        seen = self._reset(seed=self._seed)
        self._seed = None
        self._over[:] = False
        none, nothing = np.zeros(self._number, np.bool_), np.zeros(self._number, np.float32)
        event = self._event(worker, seen.columns, nothing, none, none, seen, nothing)
        event.is_reset = True
        return event

    def _step_worker(self, worker: int, actions: Mapping[str, ActionBatch]) -> EnvironmentEvent:
        decided = actions[self.name]
        seen, rewards, terminated, truncated, infos = self._step(decided, ~self._over)
        ended = terminated | truncated
        self._check_begun(ended & self._over)
        final, earned = seen.columns, np.where(ended | self._over, np.float32(0), rewards)
        self._over = np.zeros(self._number, np.bool_)
        if ended.any():
            match self._mode:
                case AutoresetMode.NEXT_STEP if ended.all():  # no copy can decide, so step again
                    seen, _, terminated_at_once, truncated_at_once, _ = self._step(decided, ~ended)
                    self._check_begun(terminated_at_once | truncated_at_once)
                case AutoresetMode.NEXT_STEP:
                    self._over = ended
                case AutoresetMode.SAME_STEP:
                    final = self._final(infos, ended)
                case AutoresetMode.DISABLED:
                    begun = self._reset(options={"reset_mask": ended.copy()})
                    columns = [column.copy() for column in seen.columns]  # ``final`` keeps the originals
                    for column, first in zip(columns, begun.columns, strict=True):
                        column[ended] = first[ended]
                    seen = _Seen(tuple(columns), np.where(ended[:, None], begun.masks, seen.masks))
        return self._event(worker, final, rewards, ended, ended & ~terminated, seen, earned)

    def _reset(self, **arguments: Any) -> _Seen:
        self.call = ("reset", 0)
        begun: Any = self._env.reset(**arguments)
        if not (isinstance(begun, tuple | list) and len(begun) == 2 and isinstance(begun[1], dict)):
            raise self._mismatch("reset()", begun, "(observations, infos)")
        return self._seen("reset()", *begun)

    def _step(
        self, decided: ActionBatch, deciding: BoolArray
    ) -> tuple[_Seen, FloatArray, BoolArray, BoolArray, dict[str, Any]]:
        """Step all copies. Copies that do not decide get zeros as their action, and ignore it."""
        self.call = ("step", 0)
        if not deciding.all():
            continuous = np.zeros((self._number, decided.env_continuous.shape[1]), np.float32)
            discrete = np.zeros((self._number, decided.discrete.shape[1]), np.int32)
            if deciding.any():
                continuous[deciding], discrete[deciding] = decided.env_continuous, decided.discrete
            decided = replace(decided, env_continuous=continuous, discrete=discrete)
        rows: Any = self._spaces.actions(decided)
        empty = create_empty_array(self._action_space, self._number)
        stepped: Any = self._env.step(concatenate(self._action_space, rows, empty))  # type: ignore[arg-type]
        try:
            observations, rewards, terminated, truncated, infos = stepped
        except (TypeError, ValueError) as error:
            raise self._mismatch("step()", stepped, _STEPPED) from error
        if not isinstance(infos, dict):
            raise self._mismatch("step()", infos, "a dict for the infos")
        earned = self._rewards(rewards)
        if earned.shape != (self._number,):
            raise self._mismatch("step()", rewards, f"an array of {self._number} rewards, one for each copy")
        ends = [np.array(flags) for flags in (terminated, truncated)]
        if any(flags.shape != (self._number,) or flags.dtype.kind not in "biu" for flags in ends):
            expected = f"arrays of {self._number} True or False for terminations and truncations"
            raise self._mismatch("step()", (terminated, truncated), expected)
        if _FINAL in infos and self._mode is not AutoresetMode.SAME_STEP:
            raise InvalidDataError(
                f"The environment {self.name} returned infos[{_FINAL!r}], which exists only in the mode SAME_STEP. "
                f"{self._mode_in_words()}"
            )
        return self._seen("step()", observations, infos), earned, ends[0].astype(bool), ends[1].astype(bool), infos

    def _seen(self, call: str, observations: Any, infos: Mapping[str, Any]) -> _Seen:
        columns = self._columns(call, observations)
        if self._mask_method is not None and MASK not in infos:
            infos = {**infos, MASK: list(self._mask_method())}
        return _Seen(columns, self._spaces.masks.batch(observations, infos, self._number))

    def _columns(self, call: str, observations: Any) -> tuple[ObservationArray, ...]:
        columns = self._spaces.columns(observations, is_batch=True)
        if any(len(column) != self._number for column in columns):
            raise self._mismatch(call, observations, f"observations of {self._number} copies")
        return columns

    def _final(self, infos: Mapping[str, Any], ended: BoolArray) -> tuple[ObservationArray, ...]:
        """Return the final observations. Rows of copies whose episode has not ended are arbitrary."""
        found = infos.get(_FINAL)
        copies = np.flatnonzero(ended)
        if isinstance(found, dict):  # observations of a Dict space, with an array for each part
            return self._columns("step()", found)
        if found is None or len(found) != self._number or any(found[copy] is None for copy in copies):
            raise InvalidDataError(
                f"The environment {self.name} did not return a final observation for the copies {copies.tolist()}, "
                f"whose episodes ended: infos[{_FINAL!r}] must have one in the mode SAME_STEP. {self._mode_in_words()}"
            )
        last = self._spaces.columns([found[copy] for copy in copies])
        places = np.cumsum(ended) - 1  # each copy's row in ``last``
        return tuple(column[np.maximum(places, 0)] for column in last)

    def _check_begun(self, over: BoolArray) -> None:
        """Raise ``InvalidDataError`` for episodes that end with their first observation."""
        if over.any():
            raise InvalidDataError(
                f"The environment {self.name} ended the episodes of the copies {np.flatnonzero(over).tolist()} in the "
                f"step that started them. {self._mode_in_words()}"
            )

    def _mode_in_words(self) -> str:
        return f'Its mode is {self._mode.name} (metadata["{_MODE}"]).'

    def _event(
        self,
        worker: int,
        final: tuple[ObservationArray, ...],
        final_rewards: FloatArray,
        ended: BoolArray,
        interrupted: BoolArray,
        seen: _Seen,
        rewards: FloatArray,
    ) -> EnvironmentEvent:
        """Build an event from the T episodes that ended and the copies that decide. Each array has a row per copy."""
        copies = np.arange(self._number, dtype=np.int64)
        active = ~self._over
        pairs: Any = [(copies, copies), (final_rewards, rewards), *zip(final, seen.columns, strict=True)]
        agents, earned, *columns = (np.concatenate([last[ended], new[active]]) for last, new in pairs)
        return self._spaces.event(worker, agents, tuple(columns), earned, seen.masks[active], interrupted[ended])

    def _close(self) -> None:
        self._close_each([self._env])


def _attribute(env: VectorEnv[Any, Any, Any], name: str) -> Any:
    """Return an attribute of a vectorized environment, or a function that calls it on all copies.

    Raises:
        AttributeError: there is no such attribute.
    """
    base = env.unwrapped
    if isinstance(base, SyncVectorEnv | AsyncVectorEnv) and all(base.call("has_wrapper_attr", name)):
        return partial(base.call, name)
    return getattr(env if hasattr(env, name) else base, name)


def copies_of(env: VectorEnv[Any, Any, Any], where: str) -> int:
    """Return the number of copies in a vectorized environment.

    Raises:
        UnsupportedError: ``num_envs`` is missing or invalid.
    """
    number = getattr(env, "num_envs", None)
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
        raise UnsupportedError(
            f"The vectorized environment {where} has num_envs = {number!r}. Set num_envs to the number of copies in "
            "__init__."
        )
    return int(number)
