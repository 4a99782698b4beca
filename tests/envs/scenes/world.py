"""A scene in this process, whose every agent, observation, action and reward can be told from any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import numpy as np

from trajtrainer.core.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from trajtrainer.core.steps import EnvironmentEvent, StepBatch
from trajtrainer.envs.scenes.scene import Decisions
from trajtrainer.envs.unity.environment import UnityEnvironment

SPEC = BehaviorSpec(
    [ObservationSpec((2,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "Eye")], ActionSpec(1, ())
)


@dataclass
class Episode:
    """What one agent lived through: an observation and an action for each decision, and how it ended."""

    agent: int
    seen: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)  # after each decision
    final: float = 0.0
    interrupted: bool = False


@dataclass
class Agent:
    """One that may be asked. ``team`` is the behavior it belongs to."""

    id: int
    team: int
    episode: Episode | None = None  # None: between two
    earned: float = 0.0  # since its last decision


class World(UnityEnvironment):
    """Agents that end, come back, perhaps under another id, and skip decisions, as a seed has it.

    Args:
        seed: of all that happens.
        agents: how many there are.
        teams: over how many behaviors they are spread.
        lockstep: all that are in an episode decide in every message that anyone decides in.
        alive: they begin the next episode as soon as one ends.
        names: of the behaviors of the teams.

    Attributes:
        episodes: all that have come to their end.
    """

    def __init__(
        self,
        seed: int,
        *,
        agents: int = 3,
        teams: int = 1,
        lockstep: bool = False,
        alive: bool = False,
        names: tuple[str, ...] = ("Walker",),
    ) -> None:
        self.timeout_wait = 5.0
        self._random = Random(seed)
        self._lockstep, self._stay = lockstep, alive
        self._agents = [Agent(10 * number, number % teams) for number in range(agents)]
        self._next_id = 1000
        self._tick = 0
        self._asked: dict[str, list[Agent]] = {}
        self._behaviors = [f"{names[team % len(names)]}?team={team}" for team in range(teams)]
        self._new = dict.fromkeys(self._behaviors, SPEC)
        self._is_reset = False
        self.episodes: list[Episode] = []
        self.is_closed = False

    def start_reset(self) -> None:
        self._is_reset = True
        for agent in self._agents:
            agent.episode = None

    def send(self, actions: Mapping[str, Decisions]) -> None:
        for name, agents in self._asked.items():
            continuous = actions[name][0] if name in actions else np.zeros((len(agents), 1), np.float32)
            assert len(continuous) == len(agents)
            for agent, action in zip(agents, continuous[:, 0].tolist(), strict=True):
                assert agent.episode is not None
                agent.episode.done.append(action)
                agent.episode.reward.append(0.0)
        assert actions.keys() <= self._asked.keys() | {name for name in actions if not len(actions[name][0])}

    def receive(self) -> EnvironmentEvent:
        reset, self._is_reset = self._is_reset, False
        ended = [] if reset else [self._end(agent) for agent in self._agents if self._ends(agent)]
        for agent in self._agents:
            begins = agent.episode is None and (reset or self._stay or self._random.random() < 0.6)
            if begins:
                self._begin(agent, renew=not reset and not self._stay and self._random.random() < 0.3)
        asked = [agent for agent in self._agents if self._asks(agent, reset)]
        event = EnvironmentEvent(0, {}, self._new, is_reset=reset)
        self._new, self._asked = {}, {}
        for team, name in enumerate(self._behaviors):
            last = [each for each in ended if each[0].team == team]
            now = [agent for agent in asked if agent.team == team]
            if last or now:
                self._asked[name] = now
                event.steps[name] = self._batch(last, now)
        return event

    def _ends(self, agent: Agent) -> bool:
        """Whether its episode ends now: only of those that have acted, as a rule."""
        return agent.episode is not None and bool(agent.episode.done) and self._random.random() < 0.25

    def _asks(self, agent: Agent, reset: bool) -> bool:
        return agent.episode is not None and (reset or self._stay or self._lockstep or self._random.random() < 0.7)

    def _earn(self, agent: Agent) -> float:
        reward = float(self._random.randrange(1, 1000))
        assert agent.episode is not None
        if agent.episode.reward:  # what is there before the first decision belongs to none
            agent.episode.reward[-1] += reward
        return reward

    def _end(self, agent: Agent) -> tuple[Agent, float, float, bool]:
        episode, reward = agent.episode, self._earn(agent)
        assert episode is not None
        episode.final, episode.interrupted = self._look(), self._random.random() < 0.5
        self.episodes.append(episode)
        agent.episode = None
        return Agent(agent.id, agent.team), reward, episode.final, episode.interrupted

    def _begin(self, agent: Agent, *, renew: bool) -> None:
        if renew:
            agent.id, self._next_id = self._next_id, self._next_id + 1
        agent.episode = Episode(agent.id)

    def _look(self) -> float:
        self._tick += 1
        return float(self._tick)

    def _batch(self, ended: list[tuple[Agent, float, float, bool]], asked: list[Agent]) -> StepBatch:
        seen = []
        rewards = [reward for _, reward, _, _ in ended]
        for agent in asked:
            rewards.append(self._earn(agent))
            seen.append(self._look())
            assert agent.episode is not None
            agent.episode.seen.append(seen[-1])
        ids = [agent.id for agent, *_ in ended] + [agent.id for agent in asked]
        looks = [final for _, _, final, _ in ended] + seen
        count = len(ids)
        return StepBatch(
            agent=np.array(ids, np.int64),
            obs=(np.stack([np.array(ids, np.float32), np.array(looks, np.float32)], axis=1),),
            reward=np.array(rewards, np.float32),
            group=np.zeros(count, np.int32),
            group_reward=np.zeros(count, np.float32),
            mask=np.zeros((count, 0), np.bool_),
            interrupted=np.array([interrupted for *_, interrupted in ended], np.bool_),
            num_terminal=len(ended),
        )

    def close(self) -> None:
        self.is_closed = True
