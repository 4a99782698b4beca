"""PettingZoo environments: several copies, whose agents are the agents of one worker."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, StepBatch
from trajtrainer.envs.episode_parameters import EpisodeParameters
from trajtrainer.envs.gymnasium_environment import check_rewards
from trajtrainer.envs.gymnasium_observations import SMALLEST_PICTURE, MaxItems
from trajtrainer.envs.in_process import InProcessEnvironment
from trajtrainer.envs.pettingzoo_agents import AgentName, AgentRule, AgentTypes, alike
from trajtrainer.envs.pettingzoo_game import Game, Record, as_parallel
from trajtrainer.envs.protocol import Parameters
from trajtrainer.envs.rendering import Rendering, TakeFrame


class _Ids(NamedTuple):
    agent: int
    group: int


@dataclass(slots=True)
class _Part:
    """Records of one behaviour, from all copies, with the ids of agents and groups."""

    ended: list[Record] = field(default_factory=list)
    ended_ids: list[_Ids] = field(default_factory=list)
    deciding: list[Record] = field(default_factory=list)
    deciding_ids: list[_Ids] = field(default_factory=list)


class PettingZooEnvironment(InProcessEnvironment):
    """Copies of one PettingZoo environment. Names of agents tell their behaviours, teams and groups (``AgentTypes``).

    A copy begins anew when its last agent is gone; an agent keeps its id over its episodes. Agents that die have a
    terminal record at once and come back with the next episode of their copy. An agent that is asked only now and then
    is told the sum of its rewards since it was last asked.

    The first reset seeds copy i with ``seed + i``. Environment parameters are drawn for each episode of a copy and
    handed to ``reset(options={name: value, ...})``.

    Args:
        envs: the copies, parallel or AEC.
        seed: of the run.
        name: for messages.
        rule: where behaviours, teams and groups are not what the names tell.
        smallest_picture, max_items: see ``ObservationLayout``.

    Raises:
        UnsupportedError: an agent's space cannot be translated.
        InvalidDataError: the copies' spaces differ.
        SettingsError: the rule names agents that there are not.
    """

    def __init__(
        self,
        envs: Sequence[Any],
        *,
        seed: int,
        name: str | None = None,
        rule: AgentRule | None = None,
        smallest_picture: int = SMALLEST_PICTURE,
        max_items: MaxItems = None,
    ) -> None:
        super().__init__(_name(envs[0]) if name is None else name, num_workers=1, num_copies=len(envs))
        self._games = [Game(as_parallel(env), seed + copy, self.name) for copy, env in enumerate(envs)]
        first = self._games[0].env
        agents = list(getattr(first, "possible_agents", ()))
        for game in self._games[1:]:
            if not all(alike(first, game.env, agent) for agent in agents):
                raise InvalidDataError(f"The copies of {self.name} have different spaces; they must be alike.")
        in_turns = self._games[0].in_turns
        self._types = AgentTypes(
            first, agents, self.name, rule, in_turns=in_turns, smallest_picture=smallest_picture, max_items=max_items
        )
        self._parameters = EpisodeParameters()
        self._ids: dict[tuple[int, AgentName], _Ids] = {}
        # Copy and what tells a group within it -> its id.
        self._group_ids: dict[tuple[int, Hashable], int] = {}
        # Behaviour -> who was asked in the last event, in the order of its decisions.
        self._asked: dict[str, list[tuple[int, AgentName]]] = {}
        self._announced: set[str] = set()

    def seed_episodes(self, first: int, step: int = 1) -> bool:
        """See ``InProcessEnvironment``."""
        for copy, game in enumerate(self._games):
            game.seeds = itertools.count(first + copy * step, len(self._games) * step)
        return True

    def film(self, take: TakeFrame) -> None:
        """See ``InProcessEnvironment``."""
        for game in self._games:
            game.env = Rendering(game.env, self.name, take)

    def set_parameters(self, parameters: Parameters) -> None:
        """See ``Environment``. They count from each copy's next episode on."""
        self._parameters.set(parameters)

    def _begin(self, worker: int) -> EnvironmentEvent:
        parts: dict[str, _Part] = {}
        self._asked = {}
        for copy, game in enumerate(self._games):
            self.call = ("reset", copy)
            self._sort(copy, [], game.reset(self._parameters.draw()).deciding, parts)
        return self._event(worker, parts, is_reset=True)

    def _go_on(self, worker: int, actions: Mapping[str, ActionBatch]) -> EnvironmentEvent:
        joint: list[dict[AgentName, Any]] = [{} for _ in self._games]
        for behavior, asked in self._asked.items():
            chosen = self._types.spaces(behavior).actions(actions[behavior])
            for (copy, agent), action in zip(asked, chosen, strict=True):
                joint[copy][agent] = action
        parts: dict[str, _Part] = {}
        self._asked = {}
        for copy, (game, one) in enumerate(zip(self._games, joint, strict=True)):
            self.call = ("step", copy)
            turn = game.step(one, self._parameters.draw)
            self._sort(copy, turn.ended, turn.deciding, parts)
        return self._event(worker, parts, is_reset=False)

    def _sort(self, copy: int, ended: list[Record], deciding: list[Record], parts: dict[str, _Part]) -> None:
        """Put one copy's records with those of their behaviours."""
        for record in ended:
            part = parts.setdefault(self._types.behavior(record.agent), _Part())
            part.ended.append(record)
            part.ended_ids.append(self._id(copy, record.agent))
        for record in deciding:
            behavior = self._types.behavior(record.agent)
            part = parts.setdefault(behavior, _Part())
            part.deciding.append(record)
            part.deciding_ids.append(self._id(copy, record.agent))
            self._asked.setdefault(behavior, []).append((copy, record.agent))

    def _id(self, copy: int, agent: AgentName) -> _Ids:
        found = self._ids.get((copy, agent))
        if found is None:
            group = self._types.group(agent)
            known = self._group_ids
            number = 0 if group is None else known.setdefault((copy, group), len(known) + 1)
            found = self._ids[copy, agent] = _Ids(len(self._ids), number)
        return found

    def _event(self, worker: int, parts: Mapping[str, _Part], *, is_reset: bool) -> EnvironmentEvent:
        event = EnvironmentEvent(worker, {}, is_reset=is_reset)
        for behavior, part in parts.items():
            event.steps[behavior] = self._batch(behavior, part)
        event.new_specs = self._announce(parts)
        return event

    def _announce(self, behaviors: Iterable[str]) -> dict[str, BehaviorSpec]:
        new = {behavior: self._types.spec(behavior) for behavior in behaviors if behavior not in self._announced}
        self._announced.update(new)
        return new

    def _batch(self, behavior: str, part: _Part) -> StepBatch:
        spaces = self._types.spaces(behavior)
        records = part.ended + part.deciding
        ids = np.array(part.ended_ids + part.deciding_ids, np.int64)
        decisions = spaces.masks([r.observation for r in part.deciding], [r.info for r in part.deciding])
        try:
            rewards = np.array([record.reward for record in records], np.float32)
        except (TypeError, ValueError) as error:
            found = [record.reward for record in records]
            raise self._misfit("step()", found, "a number for each reward") from error
        check_rewards(rewards, f"{self.name}, {behavior}")
        return StepBatch(
            agent=ids[:, 0],
            obs=spaces.columns([record.observation for record in records]),
            reward=rewards,
            group=ids[:, 1].astype(np.int32),
            group_reward=np.zeros(len(records), np.float32),
            mask=np.concatenate([np.zeros((len(part.ended), decisions.shape[1]), np.bool_), decisions]),
            interrupted=np.array([record.interrupted for record in part.ended], np.bool_),
            num_terminal=len(part.ended),
        )

    def _close(self) -> None:
        for copy, game in enumerate(self._games):
            self.call = ("close", copy)
            with contextlib.suppress(Exception):
                game.env.close()
        self._games = []


def _name(env: Any) -> str:
    metadata = getattr(env, "metadata", None) or {}
    return str(metadata.get("name", type(env.unwrapped).__name__))
