"""EnvPool environments. EnvPool's C++ threads step many copies at once, which become the agents of a single worker.

Shape legend: N copies, T copies whose episode ended in this step.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import envpool
import numpy as np
from gymnasium import spaces

from trajtrainer.core.cores import usable_cores
from trajtrainer.core.errors import SettingsError, UnsupportedError
from trajtrainer.core.spelling import closest
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, LongArray
from trajtrainer.envs.filming import FirstPicture, Rendering, TakeFrame
from trajtrainer.envs.in_process import InProcessEnvironment
from trajtrainer.envs.protocol import Parameters
from trajtrainer.envs.python.gymnasium_agents import AgentSpaces

_OURS = ("num_envs", "batch_size", "seed", "env_seed", "env_type", "gym_reset_return_info")


class EnvPoolEnvironment(InProcessEnvironment):
    """An EnvPool pool as an environment. Each copy is an agent of a behavior that is named after the EnvPool id.

    Events are the same as in ``GymnasiumEnvironment``. EnvPool resets a copy in the step after the end of its episode,
    and ignores the action of that step. Here, such copies are reset immediately with another call, so that an event
    contains both the final observation and the first decision of the next episode.

    Copy i keeps the seed ``seed + i``. If the step that reaches the time limit also terminates the episode, it is
    reported as truncated, because EnvPool does not distinguish the two cases.

    Args:
        pool: a pool made with ``env_type="gymnasium"`` that steps all copies at once.
        name: name of the behavior.
        reading: see ``AgentSpaces``.

    Raises:
        UnsupportedError: a space cannot be translated, or the environment has several players.
    """

    def __init__(self, pool: Any, name: str, **reading: Any) -> None:
        super().__init__(name, num_workers=1)
        self._pool = pool
        if isinstance(pool.action_space, spaces.Dict) or pool.config["max_num_players"] > 1:
            raise UnsupportedError(
                f"--env envpool:{name} has several players or a Dict of actions, which is only supported with "
                "PettingZoo and Gymnasium."
            )
        self._spaces = AgentSpaces(pool.observation_space, pool.action_space, name, **reading)
        self._copies: LongArray = np.arange(pool.config["num_envs"], dtype=np.int64)

    def film(self, take: TakeFrame) -> None:
        self._pool = Rendering(FirstPicture(self._pool), self.name, take)

    def set_parameters(self, parameters: Parameters) -> None:
        """See ``Environment``.

        Raises:
            UnsupportedError: ``parameters`` is not empty.
        """
        if parameters:
            raise UnsupportedError(
                f"envpool:{self.name} does not accept environment_parameters ({', '.join(parameters)}), because "
                "EnvPool has no options per episode. gym: environments receive them in reset()."
            )

    def _reset_worker(self, worker: int) -> EnvironmentEvent:
        observations, infos = self._pool.reset()
        columns = self._spaces.columns(observations, is_batch=True)
        nothing = np.zeros(len(self._copies), np.float32)
        masks = self._spaces.masks.batch(observations, infos, len(self._copies))
        event = self._spaces.event(worker, self._copies, columns, nothing, masks, np.zeros(0, np.bool_))
        event.is_reset = True
        return event

    def _step_worker(self, worker: int, actions: Mapping[str, ActionBatch]) -> EnvironmentEvent:
        chosen = np.asarray(self._spaces.actions(actions[self.name]))
        observations, rewards, terminated, truncated, infos = self._pool.step(chosen)
        columns, agents = self._spaces.columns(observations, is_batch=True), self._copies
        masks = self._spaces.masks.batch(observations, infos, len(agents))
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            first, first_infos = self._pool.reset(env_id=ended.astype(np.int32))
            masks[ended] = self._spaces.masks.batch(first, first_infos, len(ended))
            final = tuple(column[ended] for column in columns)
            for column, begun in zip(columns, self._spaces.columns(first, is_batch=True), strict=True):
                column[ended] = begun
            columns = tuple(map(np.concatenate, zip(final, columns, strict=True)))
            rewards = np.concatenate([rewards[ended], np.where(terminated | truncated, np.float32(0), rewards)])
            agents = np.concatenate([ended, self._copies])
        earned, interrupted = rewards.astype(np.float32, copy=False), ~terminated[ended].astype(np.bool_, copy=False)
        return self._spaces.event(worker, agents, columns, earned, masks, interrupted)

    def _close(self) -> None:
        self._pool = None  # garbage collection stops its threads


def make_pool(name: str, num_envs: int, seed: int, arguments: Mapping[str, Any], **reading: Any) -> EnvPoolEnvironment:
    """Create an EnvPool environment.

    Args:
        name: EnvPool's id of the environment.
        num_envs: number of copies.
        seed: seed of the first copy; the other copies get consecutive seeds.
        arguments: arguments for ``envpool.make``. The default for ``num_threads`` is the number of usable cores, but at
            most the number of copies.
        reading: see ``AgentSpaces``.

    Raises:
        SettingsError: EnvPool has no such environment, or it does not accept the arguments.
        UnsupportedError: see ``EnvPoolEnvironment``.
    """
    what = f"--env envpool:{name}"
    known = envpool.list_all_envs()
    if name not in known:
        hint = closest(name, known) or "."
        raise SettingsError(f"{what}: EnvPool {envpool.__version__} has no environment with this id{hint}")
    for option in _OURS:
        if option in arguments:
            raise SettingsError(f"--env-args {option}={arguments[option]!r}: this is set by --num-envs and --seed.")
    seeds = [seed + copy for copy in range(num_envs)]
    threads = min(num_envs, usable_cores())
    options = {"num_threads": threads, **arguments, "num_envs": num_envs, "seed": seeds}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hide Gymnasium's warnings about the bounds of EnvPool's spaces
        try:
            pool = envpool.make(name, env_type="gymnasium", **options)
        except Exception as error:
            taken = ", ".join(key for key in envpool.make_spec(name).config._fields if key not in _OURS)
            raise SettingsError(
                f"{what} could not be made with --env-args {dict(arguments)}: {type(error).__name__}: {error}. It "
                f"accepts: {taken}."
            ) from error
        return EnvPoolEnvironment(pool, name, **reading)
