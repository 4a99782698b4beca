"""One copy of a PettingZoo environment: whose turn it is, what each agent has earned, who has died."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pettingzoo.utils.conversions import (
    aec_to_parallel,
    turn_based_aec_to_parallel,
    turn_based_aec_to_parallel_wrapper,
)
from pettingzoo.utils.env import AECEnv, ParallelEnv

from trajtrainer.core.errors import InvalidDataError
from trajtrainer.envs.gymnasium_environment import TRUTH
from trajtrainer.envs.in_process import first_seeded, misfit
from trajtrainer.envs.pettingzoo_agents import AgentName

BASES = (ParallelEnv, AECEnv)
_NO_INFO: Mapping[str, Any] = {}
_BEGUN = "(observations, infos)"
_STEPPED = "(observations, rewards, terminations, truncations, infos)"


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
        name: for messages.

    Attributes:
        env: likewise.
        seeds: of its resets, None to go on with its random numbers.
        in_turns: only one agent is asked at a time.
    """

    def __init__(self, env: Any, seed: int, name: str) -> None:
        self.env = env
        self._name = name
        self.in_turns = isinstance(env, turn_based_aec_to_parallel_wrapper)
        self.seeds = first_seeded(seed)
        self._earned: dict[AgentName, float] = {}
        # Agents whose episode goes on -> their newest observation.
        self._seen: dict[AgentName, Any] = {}
        self._gone: set[AgentName] = set()

    def reset(self, options: dict[str, float]) -> Turn:
        """Begin an episode of all agents.

        Raises:
            InvalidDataError: the environment returned something else than PettingZoo's do.
        """
        arguments: dict[str, Any] = {"options": options} if options else {}
        observations, infos = self._parts("reset()", self.env.reset(seed=next(self.seeds), **arguments), _BEGUN)
        self._earned = {}
        self._seen = {}
        self._gone = set()
        return Turn([], self._deciding(observations, infos))

    def step(self, actions: Mapping[AgentName, Any], options: Callable[[], dict[str, float]]) -> Turn:
        """Go on with the actions of those that were asked; after the last agent's end, begin anew.

        Raises:
            InvalidDataError: the environment returned something else than PettingZoo's do.
        """
        stepped = self.env.step(actions)
        observations, rewards, terminations, truncations, infos = self._parts("step()", stepped, _STEPPED)
        try:
            for agent, reward in rewards.items():
                self._earned[agent] = self._earned.get(agent, 0.0) + reward
        except TypeError as error:
            raise misfit(self._name, "step()", rewards, "a number for each reward") from error
        alive = set(self._agents())
        ended = []
        for agent in list(self._seen):
            terminated, truncated = terminations.get(agent, False), truncations.get(agent, False)
            if terminated or truncated or agent not in alive:
                if not (isinstance(terminated, TRUTH) and isinstance(truncated, TRUTH)):
                    flags = (terminations, truncations)
                    raise misfit(self._name, "step()", flags, "True or False for each termination and truncation")
                self._gone.add(agent)
                observation = observations.get(agent, self._seen.pop(agent))
                reward = self._earned.pop(agent, 0.0)
                ended.append(Record(agent, observation, _NO_INFO, reward, interrupted=not terminated))
        if alive <= self._gone:
            for record in ended:  # the environment may hand out one array again and again, which the reset overwrites
                record.observation = deepcopy(record.observation)
            return Turn(ended, self.reset(options()).deciding)
        return Turn(ended, self._deciding(observations, infos))

    def _parts(self, call: str, found: Any, expected: str) -> Sequence[Mapping[AgentName, Any]]:
        """Return what a call returned, if it is a mapping from agents for each name in ``expected``."""
        fits = isinstance(found, tuple | list) and len(found) == expected.count(",") + 1
        if not (fits and all(isinstance(part, Mapping) for part in found)):
            raise misfit(self._name, call, found, f"{expected}, each a dict with an entry for each agent")
        return found  # type: ignore[no-any-return]

    def _agents(self) -> Collection[AgentName]:
        """Return the agents whose episode goes on."""
        agents = getattr(self.env, "agents", None)
        if not isinstance(agents, Collection):
            raise InvalidDataError(
                f"The environment {self._name} has no list of agents: found {agents!r}. Set self.agents in reset() to "
                "those that take part, and take out of it in step() those whose episode ended."
            )
        return agents

    def _deciding(self, observations: Mapping[AgentName, Any], infos: Mapping[AgentName, Any]) -> list[Record]:
        present = [agent for agent in self._agents() if agent in observations and agent not in self._gone]
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
