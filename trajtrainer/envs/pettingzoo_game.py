"""One copy of a PettingZoo environment: whose turn it is, what each agent has earned, who has died."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pettingzoo.utils.conversions import (
    aec_to_parallel,
    turn_based_aec_to_parallel,
    turn_based_aec_to_parallel_wrapper,
)
from pettingzoo.utils.env import AECEnv, ParallelEnv

from trajtrainer.envs.in_process import first_seeded
from trajtrainer.envs.pettingzoo_agents import AgentName

BASES = (ParallelEnv, AECEnv)
_NO_INFO: Mapping[str, Any] = {}


@dataclass(slots=True)
class Record:
    """One agent's news from the environment: that it must decide, or that its episode ended.

    Attributes:
        agent: its name.
        observation: as the environment gave it.
        info: likewise.
        reward: since the agent's last decision.
        interrupted: of an end: by a limit, not by the agent's own doing.
    """

    agent: AgentName
    observation: Any
    info: Mapping[str, Any]
    reward: float
    interrupted: bool = False


@dataclass(slots=True)
class Turn:
    """All records of one step."""

    ended: list[Record]
    deciding: list[Record]


def as_parallel(env: Any) -> Any:
    """Return the parallel form of an environment, through PettingZoo's own converters.

    Agents of an AEC environment that is not ``is_parallelizable`` (a board game) act one after the other; they are
    asked only when it is their turn.
    """
    if not isinstance(env, AECEnv):
        return env
    if env.metadata.get("is_parallelizable", False):
        return aec_to_parallel(env)
    return turn_based_aec_to_parallel(env)


class Game:
    """Steps a parallel environment and begins it anew when no agent is left.

    An agent whose episode has ended does not come back before that. One that is gone without a word (neither
    terminated nor truncated) counts as interrupted, with its last observation.

    Args:
        env: a parallel environment.
        seed: of its first reset.

    Attributes:
        env: likewise.
        seeds: of its resets, None to go on with its random numbers.
        in_turns: only one agent is asked at a time.
    """

    def __init__(self, env: Any, seed: int) -> None:
        self.env = env
        self.in_turns = isinstance(env, turn_based_aec_to_parallel_wrapper)
        self.seeds = first_seeded(seed)
        self._earned: dict[AgentName, float] = {}
        # Agents whose episode goes on -> their newest observation.
        self._seen: dict[AgentName, Any] = {}
        self._gone: set[AgentName] = set()

    def reset(self, options: dict[str, float]) -> Turn:
        """Begin an episode of all agents."""
        arguments: dict[str, Any] = {"options": options} if options else {}
        observations, infos = self.env.reset(seed=next(self.seeds), **arguments)
        self._earned = {}
        self._seen = {}
        self._gone = set()
        return Turn([], self._deciding(observations, infos))

    def step(self, actions: Mapping[AgentName, Any], options: Callable[[], dict[str, float]]) -> Turn:
        """Go on with the actions of those that were asked; after the last agent's end, begin anew."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        for agent, reward in rewards.items():
            self._earned[agent] = self._earned.get(agent, 0.0) + reward
        alive = set(self.env.agents)
        ended = []
        for agent in list(self._seen):
            terminated, truncated = terminations.get(agent, False), truncations.get(agent, False)
            if terminated or truncated or agent not in alive:
                self._gone.add(agent)
                observation = observations.get(agent, self._seen.pop(agent))
                reward = self._earned.pop(agent, 0.0)
                ended.append(Record(agent, observation, _NO_INFO, reward, interrupted=not terminated))
        if alive <= self._gone:
            for record in ended:  # the environment may hand out one array again and again, which the reset overwrites
                record.observation = deepcopy(record.observation)
            return Turn(ended, self.reset(options()).deciding)
        return Turn(ended, self._deciding(observations, infos))

    def _deciding(self, observations: Mapping[AgentName, Any], infos: Mapping[AgentName, Any]) -> list[Record]:
        present = [agent for agent in self.env.agents if agent in observations and agent not in self._gone]
        for agent in present:
            self._seen[agent] = observations[agent]
        if self.in_turns:
            present = [agent for agent in present if agent == self.env.aec_env.agent_selection]
        return [
            Record(agent, observations[agent], infos.get(agent) or _NO_INFO, self._earned.pop(agent, 0.0))
            for agent in present
        ]


def is_pettingzoo(env: object) -> bool:
    """Return whether this is an environment of PettingZoo."""
    return isinstance(env, BASES)
