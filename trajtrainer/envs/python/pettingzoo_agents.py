"""The behaviors, teams and groups of PettingZoo agents, derived from their names.

The default rule: ``adversary_1`` is agent 1 of the type ``adversary``, and each type is a behavior. If agents take
turns, as in board games, each agent is a separate team, numbered in the order in which the environment lists them; if
all agents act simultaneously, there are no teams. Agents with the same behavior and team in one copy form a group.
``AgentRule`` can change each part.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

from gymnasium import spaces

from trajtrainer.core.errors import SettingsError
from trajtrainer.envs.python.gymnasium_agents import AgentSpaces

_NUMBER = re.compile(r"[_-]?\d+$")
_UNNAMED = "agent"

AgentName = Hashable


class HasSpaces(Protocol):
    """The part of PettingZoo's environments that describes their agents."""

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        """Return the observation space of an agent."""

    def action_space(self, agent: Any) -> spaces.Space[Any]:
        """Return the action space of an agent."""


def agent_label(agent: AgentName) -> str:
    """Return the name of an agent as text: "red_3" for ("red", 3)."""
    return "_".join(map(str, agent)) if isinstance(agent, tuple) else str(agent)


def agent_type(agent: AgentName) -> str:
    """Return the name without its number: "adversary" for "adversary_0"; "agent" if the name is only a number."""
    return _NUMBER.sub("", agent_label(agent)) or _UNNAMED


def alike(env: HasSpaces, other_env: HasSpaces, agent: AgentName, other: AgentName | None = None) -> bool:
    """Return whether two agents have the same spaces; without ``other``, compare one agent in two environments."""
    other = agent if other is None else other
    return env.observation_space(agent) == other_env.observation_space(other) and env.action_space(
        agent
    ) == other_env.action_space(other)


@dataclass(frozen=True, slots=True)
class AgentRule:
    """Exceptions to the default rule. The keys of mappings are names or types of agents.

    Attributes:
        behaviors: a name for all agents, or a mapping to names; agents without an entry are named after their type.
        teams: "none", "each" (one team per agent), "type" (one team per type), or a mapping to numbers; agents without
            an entry are in team 0.
        groups: "none", "team" (agents with the same behavior and team), or a mapping to numbers; agents without an
            entry or with 0 have no group.
    """

    behaviors: str | Mapping[str, str] | None = None
    teams: str | Mapping[str, int] | None = None
    groups: str | Mapping[str, int] | None = None

    @classmethod
    def parse(cls, arguments: Mapping[str, Any]) -> Self:
        """Create a rule from keyword arguments with the names of the attributes.

        Raises:
            SettingsError: a value is not one of those listed above.
        """
        _check("behaviors", arguments, (), str, "a name, or a mapping such as {black: player, white: player}")
        _check("teams", arguments, ("none", "each", "type"), int, "none, each, type, or a mapping such as {red: 0}")
        _check("groups", arguments, ("none", "team"), int, "none, team, or a mapping such as {red: 1}")
        return cls(**arguments)

    def check(self, agents: Iterable[AgentName]) -> None:
        """Raise ``SettingsError`` if a mapping contains a name that no agent or type has."""
        labels = [agent_label(agent) for agent in agents]
        known = {*labels, *map(agent_type, labels)}
        for field in fields(self):
            value = getattr(self, field.name)
            unknown = [name for name in value if name not in known] if isinstance(value, Mapping) else []
            if known and unknown:
                raise SettingsError(
                    f"--env-args {field.name}: there is no agent or type {unknown[0]!r}. The environment has the "
                    f"agents {', '.join(labels)}."
                )


def _check(name: str, arguments: Mapping[str, Any], words: tuple[str, ...], kind: type, expected: str) -> None:
    value = arguments.get(name)
    if isinstance(value, Mapping):
        fits = all(isinstance(key, str) and type(one) is kind for key, one in value.items())
    else:
        fits = value is None or (isinstance(value, str) and value != "" and (value in words or not words))
    if not fits:
        raise SettingsError(f"--env-args {name}={value!r}: expected {expected}.")


def _find(mapping: Mapping[str, Any], agent: AgentName, default: Any) -> Any:
    return mapping.get(agent_label(agent), mapping.get(agent_type(agent), default))


class AgentTypes:
    """The behaviors, teams and groups of an environment's agents.

    Agents of one behavior have the same spaces. If agents that would share a behavior have different spaces, each of
    them gets a behavior under its own name. Agents that were not announced are assigned to a behavior when they first
    appear.

    Args:
        env: the environment, which returns the agents' spaces.
        agents: the agents that are known before the first step.
        where: the environment's name, for error messages.
        rule: exceptions to the default rule.
        in_turns: whether the agents take turns.
        reading: see ``AgentSpaces``.

    Raises:
        UnsupportedError: an agent's space cannot be translated.
        SettingsError: the rule names agents that do not exist.
    """

    def __init__(
        self,
        env: HasSpaces,
        agents: Iterable[AgentName],
        where: str,
        rule: AgentRule | None = None,
        *,
        in_turns: bool = False,
        **reading: Any,
    ) -> None:
        agents = list(agents)
        self._env = env
        self._where = where
        self._reading = reading
        self._rule = rule or AgentRule()
        self._rule.check(agents)
        teams = self._rule.teams
        self._teams = ("each" if in_turns else "none") if teams is None else teams
        self._numbers: dict[Hashable, int] = {}
        self._ids: dict[AgentName, str] = {}
        self._spaces: dict[str, AgentSpaces] = {}
        # Maps each behavior to one of its agents, which all have the same spaces.
        self._models: dict[str, AgentName] = {}
        by_name: dict[str, list[AgentName]] = {}
        for agent in agents:
            by_name.setdefault(self._name(agent), []).append(agent)
            self._team(agent)
        for name, members in by_name.items():
            same = all(alike(env, env, members[0], member) for member in members[1:])
            for member in members:
                self._join(member, name if same else agent_label(member))
        self._members = Counter(self._ids.values())

    def behavior(self, agent: AgentName) -> str:
        """Return the behavior id of an agent, including the team if there are teams."""
        found = self._ids.get(agent)
        if found is None:
            name = self._name(agent)
            model = self._models.get(name)
            # If agents with this name have different spaces, no behavior has the name, unless it is also an agent's
            # label.
            others = [known for known in self._ids if self._name(known) == name]
            shared = alike(self._env, self._env, model, agent) if model is not None else not others
            found = self._join(agent, name if shared else agent_label(agent))
        return found

    def group(self, agent: AgentName) -> Hashable:
        """Return a key for an agent's group within its copy, or None if it has no group.

        By default, an agent has no group if no other announced agent has the same behavior and team.
        """
        groups = self._rule.groups
        behavior_id = self.behavior(agent)
        if isinstance(groups, Mapping):
            number = _find(groups, agent, 0)
            return (behavior_id, number) if number else None
        return behavior_id if groups != "none" and self._members[behavior_id] > 1 else None

    def spaces(self, behavior_id: str) -> AgentSpaces:
        """Return the translated spaces of a behavior's agents."""
        return self._spaces[behavior_id]

    def _name(self, agent: AgentName) -> str:
        """Return the name of an agent's behavior, assuming that all agents of the behavior have the same spaces."""
        behaviors = self._rule.behaviors
        if isinstance(behaviors, str):
            return behaviors
        return str(_find(behaviors or {}, agent, agent_type(agent)))

    def _team(self, agent: AgentName) -> int:
        if isinstance(self._teams, Mapping):
            return int(_find(self._teams, agent, 0))
        unit = agent if self._teams == "each" else agent_type(agent)
        return self._numbers.setdefault(unit, len(self._numbers))

    def _join(self, agent: AgentName, name: str) -> str:
        behavior_id = name if self._teams == "none" else f"{name}?team={self._team(agent)}"
        self._ids[agent] = behavior_id
        if name not in self._models:
            self._models[name] = agent
        if behavior_id not in self._spaces:
            env = self._env
            where = f"{self._where}, agent {agent_label(agent)}"
            self._spaces[behavior_id] = AgentSpaces(
                env.observation_space(agent), env.action_space(agent), where, **self._reading
            )
        return behavior_id
