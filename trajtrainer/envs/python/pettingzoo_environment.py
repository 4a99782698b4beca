"""PettingZoo environments: several copies, whose agents all belong to one worker."""

import itertools
from collections.abc import Collection, Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from pettingzoo.utils import conversions
from pettingzoo.utils.env import AECEnv, ParallelEnv

from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, StepBatch
from trajtrainer.envs.filming import Rendering, TakeFrame
from trajtrainer.envs.in_process import InProcessEnvironment, first_seeded, mismatch
from trajtrainer.envs.protocol import Parameters
from trajtrainer.envs.python.episode_parameters import EpisodeParameters
from trajtrainer.envs.python.gymnasium_environment import TRUTH
from trajtrainer.envs.python.pettingzoo_agents import AgentName, AgentRule, AgentTypes, alike

BASES = (ParallelEnv, AECEnv)
_NO_INFO: Mapping[str, Any] = {}
_BEGUN = "(observations, infos)"
_STEPPED = "(observations, rewards, terminations, truncations, infos)"


@dataclass(slots=True)
class AgentRecord:
    """A record of one agent that has to decide, or whose episode has ended.

    Attributes:
        agent: name of the agent.
        observation: observation as returned by the environment.
        info: info of the agent.
        reward: reward since the agent's last decision.
        interrupted: True if the episode ended without being terminated.
    """

    agent: AgentName
    observation: Any
    info: Mapping[str, Any]
    reward: float
    interrupted: bool = False


class StepRecords(NamedTuple):
    """All records of one step."""

    ended: list[AgentRecord]
    deciding: list[AgentRecord]


def as_parallel(env: Any) -> Any:
    """Return the parallel form of an environment, created by PettingZoo's converters.

    In an AEC environment that is not ``is_parallelizable`` (such as a board game), agents take turns and decide only
    when it is their turn.
    """
    if not isinstance(env, AECEnv):
        return env
    if env.metadata.get("is_parallelizable", False):
        return conversions.aec_to_parallel(env)
    return conversions.turn_based_aec_to_parallel(env)


class ParallelGame:
    """A parallel environment that is reset when it has no agents left.

    An agent that is removed from ``agents`` at the end of its episode starts a new episode when it is listed again. In
    an AEC environment, it may also stay listed, and starts a new episode when both of its flags are False again. An
    agent that disappears without being terminated or truncated counts as interrupted, with its last observation.
    Rewards between an agent's episodes are ignored.

    Args:
        env: a parallel environment.
        seed: seed of its first reset.
        name: name for error messages.

    Attributes:
        env: the parallel environment.
        seeds: seeds of its resets; None continues its random sequence.
        parameters: environment parameters, which are drawn for each episode and passed to ``reset``.
        in_turns: whether only one agent decides at a time.
    """

    def __init__(self, env: Any, seed: int, name: str) -> None:
        self.env = env
        self._name = name
        self.in_turns = isinstance(env, conversions.turn_based_aec_to_parallel_wrapper)
        # Do not look for a converter inside wrappers, because a wrapper may change the observations.
        is_converted = self.in_turns or isinstance(env, conversions.aec_to_parallel_wrapper)
        self._aec: Any = env.aec_env if is_converted else None
        self.seeds = first_seeded(seed)
        self.parameters = EpisodeParameters()
        self._earned: dict[AgentName, float] = {}
        # Maps agents whose episode continues to their latest observation.
        self._seen: dict[AgentName, Any] = {}
        # Agents whose episode has ended, but which the environment still lists.
        self._gone: set[AgentName] = set()
        # True if an agent has been listed since the reset. An episode that starts without agents is not over.
        self._has_begun = False

    def reset(self) -> StepRecords:
        """Start an episode of all agents.

        Raises:
            InvalidDataError: the environment returned something that does not follow PettingZoo's API.
        """
        seed = next(self.seeds)
        options = self.parameters.draw(seed)
        arguments: dict[str, Any] = {"options": options} if options else {}
        observations, infos = self._parts("reset()", self.env.reset(seed=seed, **arguments), _BEGUN)
        self._earned = {}
        self._seen = {}
        self._gone = set()
        self._has_begun = bool(self._agents())
        return StepRecords([], self._deciding(observations, infos))

    def step(self, actions: Mapping[AgentName, Any]) -> StepRecords:
        """Step with the actions of the agents that had to decide; reset when the last agent's episode has ended.

        Raises:
            InvalidDataError: the environment returned something that does not follow PettingZoo's API.
        """
        stepped = self.env.step(actions)
        observations, rewards, terminations, truncations, infos = self._parts("step()", stepped, _STEPPED)
        try:
            for agent in rewards.keys() & self._seen.keys():
                reward = rewards[agent]
                earned: Any = np.array(reward) if isinstance(reward, list | tuple) else reward
                self._earned[agent] = self._earned.get(agent, 0.0) + earned
        except (TypeError, ValueError) as error:
            raise mismatch(self._name, "step()", rewards, "a number for each reward") from error
        alive = set(self._agents())
        over = {agent for flags in (terminations, truncations) for agent, flag in flags.items() if flag}
        ended = []
        for agent in list(self._seen):
            if agent in over or agent not in alive:
                terminated, truncated = terminations.get(agent, False), truncations.get(agent, False)
                if not (isinstance(terminated, TRUTH) and isinstance(truncated, TRUTH)):
                    flags = (terminations, truncations)
                    raise mismatch(self._name, "step()", flags, "True or False for each termination and truncation")
                observation = observations.get(agent, self._seen.pop(agent))
                reward = self._earned.pop(agent, 0.0)
                ended.append(AgentRecord(agent, observation, _NO_INFO, reward, interrupted=not terminated))
        if self._aec is None:
            self._gone = (self._gone | over) & alive
        else:
            dead = (self._aec.terminations, self._aec.truncations)
            self._gone = {agent for agent in alive if any(flags.get(agent) for flags in dead)}
        self._has_begun |= bool(alive)
        if self._has_begun and alive <= self._gone:
            # Copy, because the reset may overwrite this array if the environment reuses it.
            for record in ended:
                record.observation = deepcopy(record.observation)
            return StepRecords(ended, self.reset().deciding)
        if self._aec is not None and over:
            # PettingZoo's converter returns observations from before it removed dead agents and selected the next
            # player.
            observations = {agent: self._aec.observe(agent) for agent in self._agents()}
            infos = self._aec.infos
        return StepRecords(ended, self._deciding(observations, infos))

    def _parts(self, call: str, found: Any, expected: str) -> Sequence[Mapping[AgentName, Any]]:
        """Check that the result of a call has a mapping from agents for each name in ``expected``, and return it."""
        fits = isinstance(found, tuple | list) and len(found) == expected.count(",") + 1
        if not (fits and all(isinstance(part, Mapping) for part in found)):
            raise mismatch(self._name, call, found, f"{expected}, each a dict with an entry for each agent")
        return found  # type: ignore[no-any-return]

    def _agents(self) -> Collection[AgentName]:
        """Return the agents that the environment lists."""
        agents = getattr(self.env, "agents", None)
        if not isinstance(agents, Collection):
            raise InvalidDataError(
                f"The environment {self._name} has no list of agents: found {agents!r}. Set self.agents in reset() to "
                "the agents of the episode, and remove agents in step() when their episode ends."
            )
        return agents

    def _deciding(self, observations: Mapping[AgentName, Any], infos: Mapping[AgentName, Any]) -> list[AgentRecord]:
        present = [agent for agent in self._agents() if agent in observations and agent not in self._gone]
        for agent in present:
            self._seen[agent] = observations[agent]
        if self.in_turns:
            present = [agent for agent in present if agent == self._aec.agent_selection]
        return [
            AgentRecord(agent, observations[agent], infos.get(agent) or _NO_INFO, self._earned.pop(agent, 0.0))
            for agent in present
        ]


def is_pettingzoo(env: object) -> bool:
    """Return whether this is a PettingZoo environment."""
    return isinstance(env, BASES)


class _Row(NamedTuple):
    """A record with the ids of its agent and group."""

    record: AgentRecord
    agent: int
    group: int


class PettingZooEnvironment(InProcessEnvironment):
    """Copies of one PettingZoo environment. Agents' names determine behaviors, teams and groups (``AgentTypes``).

    A copy is reset when it has no agents left; agents keep their ids in later episodes. An agent that dies gets a
    terminal record immediately, and starts a new episode when the environment lists it again. An agent that does not
    decide in every step gets the sum of its rewards since its last decision.

    The first reset seeds copy i with ``seed + i``. Environment parameters are drawn for each episode of a copy and
    passed to ``reset(options={name: value, ...})``.

    Args:
        envs: the copies, parallel or AEC.
        seed: seed of the run.
        name: name for error messages.
        rule: exceptions to the default rule; see ``AgentRule``.
        reading: see ``AgentSpaces``.

    Raises:
        UnsupportedError: an agent's space cannot be translated.
        InvalidDataError: the copies' spaces differ.
        SettingsError: the rule names agents that do not exist.
    """

    def __init__(
        self,
        envs: Sequence[Any],
        *,
        seed: int,
        name: str | None = None,
        rule: AgentRule | None = None,
        **reading: Any,
    ) -> None:
        super().__init__(_name(envs[0]) if name is None else name, num_workers=1, num_copies=len(envs))
        self._games = [ParallelGame(as_parallel(env), seed + copy, self.name) for copy, env in enumerate(envs)]
        first = self._games[0].env
        agents = list(getattr(first, "possible_agents", ()))
        for game in self._games[1:]:
            if not all(alike(first, game.env, agent) for agent in agents):
                raise InvalidDataError(
                    f"The copies of {self.name} have different spaces. All copies must have the same spaces."
                )
        self._types = AgentTypes(first, agents, self.name, rule, in_turns=self._games[0].in_turns, **reading)
        # Maps a copy and an agent to the ids of the agent and its group.
        self._ids: dict[tuple[int, AgentName], tuple[int, int]] = {}
        # Maps a copy and a group's key to the group's id.
        self._group_ids: dict[tuple[int, Hashable], int] = {}
        # Maps each behavior to its agents that had to decide in the last event, in order.
        self._asked: dict[str, list[tuple[int, AgentName]]] = {}
        self._announced: set[str] = set()

    def seed_episodes(self, first: int, step: int = 1) -> bool:
        for copy, game in enumerate(self._games):
            game.seeds = itertools.count(first + copy * step, len(self._games) * step)
        return True

    def film(self, take: TakeFrame) -> None:
        for game in self._games:
            game.env = Rendering(game.env, self.name, take)

    def set_parameters(self, parameters: Parameters) -> None:
        """Set parameters; they apply from each copy's next episode on."""
        for game in self._games:
            game.parameters.set(parameters)

    def _reset_worker(self, worker: int) -> EnvironmentEvent:
        turns = []
        for copy, game in enumerate(self._games):
            self.call = ("reset", copy)
            turns.append(game.reset())
        return self._event(worker, turns, is_reset=True)

    def _step_worker(self, worker: int, actions: Mapping[str, ActionBatch]) -> EnvironmentEvent:
        joint: list[dict[AgentName, Any]] = [{} for _ in self._games]
        for behavior, asked in self._asked.items():
            chosen = self._types.spaces(behavior).actions(actions[behavior])
            for (copy, agent), action in zip(asked, chosen, strict=True):
                joint[copy][agent] = action
        turns = []
        for copy, (game, one) in enumerate(zip(self._games, joint, strict=True)):
            self.call = ("step", copy)
            turns.append(game.step(one))
        return self._event(worker, turns, is_reset=False)

    def _event(self, worker: int, turns: Sequence[StepRecords], *, is_reset: bool) -> EnvironmentEvent:
        """Build an event from the step of each copy, with records grouped by behavior."""
        parts: dict[str, tuple[list[_Row], list[_Row]]] = {}
        self._asked = {}
        for copy, turn in enumerate(turns):
            for is_deciding, records in enumerate(turn):
                for record in records:
                    behavior = self._types.behavior(record.agent)
                    part = parts.setdefault(behavior, ([], []))
                    part[is_deciding].append(_Row(record, *self._id(copy, record.agent)))
                    if is_deciding:
                        self._asked.setdefault(behavior, []).append((copy, record.agent))
        steps = {behavior: self._batch(behavior, *part) for behavior, part in parts.items()}
        new_specs = {
            behavior: self._types.spaces(behavior).spec for behavior in parts if behavior not in self._announced
        }
        self._announced |= new_specs.keys()
        return EnvironmentEvent(worker, steps, new_specs, is_reset=is_reset)

    def _id(self, copy: int, agent: AgentName) -> tuple[int, int]:
        found = self._ids.get((copy, agent))
        if found is None:
            group = self._types.group(agent)
            known = self._group_ids
            number = 0 if group is None else known.setdefault((copy, group), len(known) + 1)
            found = self._ids[copy, agent] = len(self._ids), number
        return found

    def _batch(self, behavior: str, ended: list[_Row], deciding: list[_Row]) -> StepBatch:
        spaces = self._types.spaces(behavior)
        rows = ended + deciding
        asked = [row.record for row in deciding]
        return spaces.batch(
            agent=np.array([row.agent for row in rows], np.int64),
            group=np.array([row.group for row in rows], np.int32),
            obs=spaces.columns([row.record.observation for row in rows]),
            reward=self._rewards([row.record.reward for row in rows]),
            mask=spaces.masks.rows([record.observation for record in asked], [record.info for record in asked]),
            interrupted=np.array([row.record.interrupted for row in ended], np.bool_),
        )

    def _close(self) -> None:
        self._close_each([game.env for game in self._games])
        self._games = []


def _name(env: Any) -> str:
    metadata = getattr(env, "metadata", None) or {}
    return str(metadata.get("name", type(env.unwrapped).__name__))
