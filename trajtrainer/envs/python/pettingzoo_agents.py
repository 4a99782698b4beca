"""The behaviors, teams and groups of PettingZoo agents, from their names.

The rule: ``adversary_1`` is number 1 of the type ``adversary``. A type is a behavior. Where agents act in turns, as at
board games, each agent is a team of its own, numbered as the environment lists them; where all act at once, there are
no teams. Agents of one behavior and one team in one copy are a group. ``AgentRule`` changes each part.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

from gymnasium import spaces

from trajtrainer.core.errors import SettingsError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.envs.python.gymnasium_agents import AgentSpaces
from trajtrainer.envs.python.gymnasium_observations import SMALLEST_PICTURE, MaxItems

_NUMBER = re.compile(r"[_-]?\d+$")
_UNNAMED = "agent"

AgentName = Hashable


class HasSpaces(Protocol):
    """The part of PettingZoo's environments that describes their agents."""

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        """The space of what an agent observes."""

    def action_space(self, agent: Any) -> spaces.Space[Any]:
        """The space of what an agent does."""


def agent_label(agent: AgentName) -> str:
    """The name as text, whatever it is: "red_3" for ("red", 3)."""
    return "_".join(map(str, agent)) if isinstance(agent, tuple) else str(agent)


def agent_type(agent: AgentName) -> str:
    """The name without its number: "adversary" for "adversary_0"; "agent" for agents that only have a number."""
    return _NUMBER.sub("", agent_label(agent)) or _UNNAMED


def alike(env: HasSpaces, other_env: HasSpaces, agent: AgentName, other: AgentName | None = None) -> bool:
    """Whether two agents have the same spaces; without ``other``, one agent in two environments."""
    other = agent if other is None else other
    return env.observation_space(agent) == other_env.observation_space(other) and env.action_space(
        agent
    ) == other_env.action_space(other)


@dataclass(frozen=True, slots=True)
class AgentRule:
    """What is not as the rule has it. Mappings are from an agent's name or type.

    Attributes:
        behaviors: a name for all agents, or a mapping to names; what it does not name is called by its type.
        teams: "none", "each" (agent), "type", or a mapping to numbers; what it does not name is team 0.
        groups: "none", "team" (agents of one behavior and team), or a mapping to numbers; what it does not name, and
            what is 0, has no group.
    """

    behaviors: str | Mapping[str, str] | None = None
    teams: str | Mapping[str, int] | None = None
    groups: str | Mapping[str, int] | None = None

    @classmethod
    def parse(cls, arguments: Mapping[str, Any]) -> Self:
        """Read keyword arguments of the same names.

        Raises:
            SettingsError: a value that is none of those above.
        """
        _check("behaviors", arguments, (), str, "a name, or a mapping such as {black: player, white: player}")
        _check("teams", arguments, ("none", "each", "type"), int, "none, each, type, or a mapping such as {red: 0}")
        _check("groups", arguments, ("none", "team"), int, "none, team, or a mapping such as {red: 1}")
        return cls(**arguments)

    def check(self, agents: Iterable[AgentName]) -> None:
        """Reject names that no agent has.

        Raises:
            SettingsError: there are such.
        """
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
    """The behaviors of an environment's agents, their teams and their groups.

    Agents of one behavior have the same spaces. Where those that the rule gives one name differ in them, each gets a
    behavior under its own name. Agents that were not announced before are sorted in when they first appear.

    Args:
        env: asked for the agents' spaces.
        agents: those known before the first step.
        where: the environment's name, for messages.
        rule: what is not as the rule has it.
        in_turns: agents act one after the other.
        smallest_picture, max_items: see ``ObservationLayout``.

    Raises:
        UnsupportedError: an agent's space cannot be translated.
        SettingsError: the rule names agents that there are not.
    """

    def __init__(
        self,
        env: HasSpaces,
        agents: Iterable[AgentName],
        where: str,
        rule: AgentRule | None = None,
        *,
        in_turns: bool = False,
        smallest_picture: int = SMALLEST_PICTURE,
        max_items: MaxItems = None,
    ) -> None:
        agents = list(agents)
        self._env = env
        self._where = where
        self._smallest_picture = smallest_picture
        self._max_items = max_items
        self._rule = rule or AgentRule()
        self._rule.check(agents)
        teams = self._rule.teams
        self._teams = ("each" if in_turns else "none") if teams is None else teams
        self._numbers: dict[Hashable, int] = {}
        self._ids: dict[AgentName, str] = {}
        self._spaces: dict[str, AgentSpaces] = {}
        # Behavior's name -> one of its agents, whose spaces all others have.
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
        """The behavior id, with a team where there are teams."""
        found = self._ids.get(agent)
        if found is None:
            name = self._name(agent)
            model = self._models.get(name)
            # Unlike agents of one name have no behavior of this name, unless an agent is called so.
            others = [known for known in self._ids if self._name(known) == name]
            shared = alike(self._env, self._env, model, agent) if model is not None else not others
            found = self._join(agent, name if shared else agent_label(agent))
        return found

    def group(self, agent: AgentName) -> Hashable:
        """A key of an agent's group within its copy; None for an agent without mates.

        An agent without mates is alone in its behavior and team among those announced before.
        """
        groups = self._rule.groups
        behavior_id = self.behavior(agent)
        if isinstance(groups, Mapping):
            number = _find(groups, agent, 0)
            return (behavior_id, number) if number else None
        return behavior_id if groups != "none" and self._members[behavior_id] > 1 else None

    def spaces(self, behavior_id: str) -> AgentSpaces:
        """The translation of its agents' spaces."""
        return self._spaces[behavior_id]

    def spec(self, behavior_id: str) -> BehaviorSpec:
        """The observations and actions of a behavior."""
        return self._spaces[behavior_id].spec

    def _name(self, agent: AgentName) -> str:
        """The name of the behavior that an agent has if its spaces are those of the others."""
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
                env.observation_space(agent), env.action_space(agent), where, self._smallest_picture, self._max_items
            )
        return behavior_id
