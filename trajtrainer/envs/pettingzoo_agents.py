"""The behaviours of PettingZoo agents: agents of one type share one."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from typing import Any, Protocol

from gymnasium import spaces

from trajtrainer.envs.gymnasium_agents import AgentSpaces
from trajtrainer.spec import BehaviorSpec

_NUMBER = re.compile(r"[_-]?\d+$")
_UNNAMED = "agent"

AgentName = Hashable


class HasSpaces(Protocol):
    """The part of PettingZoo's environments that tells of their agents."""

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        """Return the space of what an agent observes."""

    def action_space(self, agent: Any) -> spaces.Space[Any]:
        """Return the space of what an agent does."""


def agent_label(agent: AgentName) -> str:
    """Return the name as text, whatever it is: "red_3" for ("red", 3)."""
    return "_".join(map(str, agent)) if isinstance(agent, tuple) else str(agent)


def agent_type(agent: AgentName) -> str:
    """Return the name without its number: "adversary" for "adversary_0"; "agent" for agents that only have a number."""
    return _NUMBER.sub("", agent_label(agent)) or _UNNAMED


def alike(env: HasSpaces, other_env: HasSpaces, agent: AgentName, other: AgentName | None = None) -> bool:
    """Return whether two agents have the same spaces; without ``other``, one agent in two environments."""
    other = agent if other is None else other
    return env.observation_space(agent) == other_env.observation_space(other) and env.action_space(
        agent
    ) == other_env.action_space(other)


class AgentTypes:
    """The behaviours of an environment's agents.

    Agents of one type and the same spaces share a behaviour called by the type. Where the agents of a type differ in
    their spaces, each gets a behaviour under its own name. Agents that nobody announced beforehand are sorted in when
    they first appear.

    Args:
        env: asked for the agents' spaces.
        agents: those known beforehand.
        where: the environment's name, for messages.

    Raises:
        UnsupportedError: an agent's space cannot be translated.
    """

    def __init__(self, env: HasSpaces, agents: Iterable[AgentName], where: str) -> None:
        self._env = env
        self._where = where
        self._behaviors: dict[AgentName, str] = {}
        self._spaces: dict[str, AgentSpaces] = {}
        # Behaviour -> one of its agents, whose spaces all others have.
        self._models: dict[str, AgentName] = {}
        by_type: dict[str, list[AgentName]] = {}
        for agent in agents:
            by_type.setdefault(agent_type(agent), []).append(agent)
        for type_, members in by_type.items():
            same = all(alike(env, env, members[0], member) for member in members[1:])
            for member in members:
                self._join(member, type_ if same else agent_label(member))

    def behavior(self, agent: AgentName) -> str:
        """Return the behaviour's name."""
        found = self._behaviors.get(agent)
        if found is None:
            type_ = agent_type(agent)
            model = self._models.get(type_)
            # A type of unlike agents has no behaviour of its own name, unless an agent is called so.
            others = [known for known in self._behaviors if agent_type(known) == type_]
            shared = alike(self._env, self._env, model, agent) if model is not None else not others
            found = self._join(agent, type_ if shared else agent_label(agent))
        return found

    def spaces(self, behavior: str) -> AgentSpaces:
        """Return the translation of its agents' spaces."""
        return self._spaces[behavior]

    def spec(self, behavior: str) -> BehaviorSpec:
        """Return the observations and actions of a behaviour."""
        return self._spaces[behavior].spec

    def _join(self, agent: AgentName, behavior: str) -> str:
        self._behaviors[agent] = behavior
        if behavior not in self._spaces:
            env = self._env
            where = f"{self._where}, agent {agent_label(agent)}"
            self._spaces[behavior] = AgentSpaces(env.observation_space(agent), env.action_space(agent), where)
            self._models[behavior] = agent
        return behavior
