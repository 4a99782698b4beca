"""Gymnasium environments: several copies, each of which is an agent of one worker.

Shape legend: N copies, T copies whose episode ended in this step.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np

from trajtrainer.core.errors import InvalidDataError, UnsupportedError
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, LongArray
from trajtrainer.envs.filming import Rendering, TakeFrame
from trajtrainer.envs.in_process import InProcessEnvironment, first_seeded
from trajtrainer.envs.protocol import Parameters
from trajtrainer.envs.python.episode_parameters import EpisodeParameters
from trajtrainer.envs.python.gymnasium_agents import AgentSpaces
from trajtrainer.envs.python.gymnasium_masks import MASK

Env = gymnasium.Env[Any, Any]
# Accepted types of ``terminated`` and ``truncated``.
TRUTH = (bool, np.bool_, int, np.integer, np.ndarray)


class GymnasiumEnvironment(InProcessEnvironment):
    """Copies of one Gymnasium environment, each an agent of the behavior named after the environment.

    Every event contains a decision of every copy. When an episode ends, its copy starts the next episode immediately,
    so the copy's terminal record (with the final observation) and its first decision are in the same event, with the
    same id. Truncated episodes are ``interrupted``; an episode that is both terminated and truncated counts as
    terminated.

    The first reset seeds copy i with ``seed + i``; later resets continue each copy's random sequence. Environment
    parameters are drawn at the start of each episode and passed as ``reset(options={name: value, ...})``; without
    parameters, ``options`` is None.

    The copies run in a loop instead of in ``gymnasium.vector``: the loop is as fast (measured with CartPole) and
    returns final observations directly instead of in the infos.

    Args:
        envs: the copies, all with the same spaces.
        seed: seed of the run.
        name: name of the behavior; by default that of the environment.
        reading: see ``AgentSpaces``.

    Raises:
        UnsupportedError: a space is missing or cannot be translated.
        InvalidDataError: the copies' spaces differ.
    """

    def __init__(self, envs: Sequence[Env], *, seed: int, name: str | None = None, **reading: Any) -> None:
        super().__init__(environment_name(envs[0]) if name is None else name, num_workers=1, num_copies=len(envs))
        self._envs = list(envs)
        first = self._envs[0]
        check_spaces(first, ("observation_space", "action_space"), self.name)
        for env in self._envs[1:]:
            if env.observation_space != first.observation_space or env.action_space != first.action_space:
                raise InvalidDataError(
                    f"The copies of {self.name} have different spaces. All copies must have the same spaces."
                )
        self._spaces = AgentSpaces(first.observation_space, first.action_space, self.name, **reading)
        self._mask_methods = [self._spaces.masks.method_of(env.get_wrapper_attr) for env in self._envs]
        self._seeds = [first_seeded(seed + copy) for copy in range(len(envs))]
        self._parameters = [EpisodeParameters() for _ in envs]
        self._copies: LongArray = np.arange(len(envs), dtype=np.int64)

    def seed_episodes(self, first: int, step: int = 1) -> bool:
        copies = len(self._envs)
        self._seeds = [itertools.count(first + copy * step, copies * step) for copy in range(copies)]
        return True

    def film(self, take: TakeFrame) -> None:
        rendering: list[Any] = [Rendering(env, self.name, take) for env in self._envs]
        self._envs = rendering

    def set_parameters(self, parameters: Parameters) -> None:
        """Set parameters; they apply from each copy's next episode on."""
        for own in self._parameters:
            own.set(parameters)

    def _reset_worker(self, worker: int) -> EnvironmentEvent:
        begun = [self._reset(copy) for copy in range(len(self._envs))]
        observations = [observation for observation, _ in begun]
        infos = [self._with_mask(copy, info) for copy, (_, info) in enumerate(begun)]
        event = self._event(worker, observations, infos, [0.0] * len(begun), np.zeros(0, np.int64), [])
        event.is_reset = True
        return event

    def _step_worker(self, worker: int, actions: Mapping[str, ActionBatch]) -> EnvironmentEvent:
        observations, infos, rewards = [], [], []
        final: list[Any] = []
        final_rewards: list[float] = []
        interrupted: list[bool] = []
        ended: list[int] = []
        for copy, action in enumerate(self._spaces.actions(actions[self.name])):
            self.call = ("step", copy)
            stepped: Any = self._envs[copy].step(action)
            try:
                observation, reward, terminated, truncated, info = stepped
            except (TypeError, ValueError) as error:
                raise self._mismatch("step()", stepped, "(observation, reward, terminated, truncated, info)") from error
            if terminated or truncated:
                if not (isinstance(terminated, TRUTH) and isinstance(truncated, TRUTH)):
                    flags = (terminated, truncated)
                    raise self._mismatch("step()", flags, "True or False for terminated and truncated")
                ended.append(copy)
                # Copy, because the reset may overwrite this array if the environment reuses it.
                final.append(deepcopy(observation))
                final_rewards.append(reward)
                interrupted.append(not terminated)
                reward = 0.0
                observation, info = self._reset(copy)
            observations.append(observation)
            infos.append(self._with_mask(copy, info))
            rewards.append(reward)
        rewards = final_rewards + rewards
        return self._event(worker, final + observations, infos, rewards, np.array(ended, np.int64), interrupted)

    def _reset(self, copy: int) -> tuple[Any, dict[str, Any]]:
        self.call = ("reset", copy)
        seed = next(self._seeds[copy])
        options = self._parameters[copy].draw(seed) or None
        begun: Any
        try:
            begun = self._envs[copy].reset(seed=seed, options=options)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:  # raised inside reset()
                raise
            raise InvalidDataError(
                f"The environment {self.name}: reset() does not accept seed and options ({error}). Declare it as "
                "Gymnasium does: def reset(self, *, seed=None, options=None)."
            ) from error
        if not (isinstance(begun, tuple | list) and len(begun) == 2 and isinstance(begun[1], dict)):
            raise self._mismatch("reset()", begun, "(observation, info)")
        return begun[0], begun[1]

    def _with_mask(self, copy: int, info: dict[str, Any]) -> dict[str, Any]:
        """If an info has no mask, add the mask that the environment's method returns."""
        method = self._mask_methods[copy]
        return info if method is None or MASK in info else {**info, MASK: method()}

    def _event(
        self,
        worker: int,
        observations: list[Any],
        infos: list[dict[str, Any]],
        rewards: Sequence[Any],
        ended: LongArray,
        interrupted: list[bool],
    ) -> EnvironmentEvent:
        """Build an event from T final and N other observations and rewards, and the N infos."""
        earned = self._rewards(rewards, "a number for the reward")
        masks = self._spaces.masks.rows(observations[len(ended) :], infos)
        agents = np.concatenate([ended, self._copies]) if len(ended) else self._copies
        columns = self._spaces.columns(observations)
        return self._spaces.event(worker, agents, columns, earned, masks, np.array(interrupted, np.bool_))

    def _close(self) -> None:
        self._close_each(self._envs)
        self._envs = []


def check_spaces(env: Any, attributes: Iterable[str], where: str) -> None:
    """Raise ``UnsupportedError`` if an environment lacks one of its spaces."""
    for attribute in attributes:
        space = getattr(env, attribute, None)
        if not isinstance(space, gymnasium.Space):
            raise UnsupportedError(
                f"The environment {where} has no {attribute}: found {type(space).__name__}, expected a space of "
                "gymnasium.spaces. Set it in __init__ or as a class attribute."
            )


def environment_name(env: Any) -> str:
    """Return the ID with its version ("CartPole-v1"), or the class name of an environment that is not registered."""
    bare = env.unwrapped  # A wrapper's spec is a copy that also describes the wrapper.
    return type(bare).__name__ if bare.spec is None else bare.spec.id
