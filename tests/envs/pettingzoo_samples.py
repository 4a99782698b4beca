"""Small PettingZoo environments whose every number can be told apart."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo.utils.env import AECEnv, ParallelEnv


class Arena(ParallelEnv):  # type: ignore[misc]
    """Agents observe (own number, episode, step) and live as long as ``lives`` says.

    Args:
        lives: agent -> the step at which it dies; positive: terminated, negative: truncated.
        actions: agent -> number of choices, where it is not 3.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "arena", "render_modes": []}

    def __init__(self, lives: dict[str, int], actions: dict[str, int] | None = None) -> None:
        self.possible_agents = list(lives)
        self.lives = lives
        self.agents: list[str] = []
        self.choices = actions or {}
        self.received: list[dict[str, Any]] = []
        self.seeds: list[int | None] = []
        self.options: list[Any] = []
        self.episode = 0
        self.steps = 0
        self.closed = False

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1000, 1000, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(self.choices.get(agent, 3))

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.seeds.append(seed)
        self.options.append(options)
        self.episode += 1
        self.steps = 0
        self.agents = list(self.possible_agents)
        return self._observations(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert set(actions) == set(self.agents)
        self.received.append(dict(actions))
        self.steps += 1
        alive = self.agents
        terminations = {agent: self.steps == self.lives[agent] for agent in alive}
        truncations = {agent: self.steps == -self.lives[agent] for agent in alive}
        self.agents = [agent for agent in alive if not (terminations[agent] or truncations[agent])]
        rewards = {agent: 100.0 * self.episode + 10.0 * self._number(agent) + self.steps for agent in alive}
        return self._observations(alive), rewards, terminations, truncations, {agent: {} for agent in alive}

    def close(self) -> None:
        self.closed = True

    def _observations(self, agents: list[str]) -> dict[str, Any]:
        return {agent: np.array([self._number(agent), self.episode, self.steps], np.float32) for agent in agents}

    def _number(self, agent: str) -> int:
        return self.possible_agents.index(agent)


class Nim(AECEnv):  # type: ignore[misc]
    """Two players take 1 or 2 of five sticks in turns; who takes the last one wins. The mask forbids taking 2 of 1.

    Observes (own number, sticks left).
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "nim", "render_modes": [], "is_parallelizable": False}
    render_mode = None

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["player_0", "player_1"]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Dict(
            {"observation": spaces.Box(0, 5, (2,), np.float32), "action_mask": spaces.Box(0, 1, (2,), np.int8)}
        )

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def observe(self, agent: str) -> dict[str, Any]:
        own = np.array([self.possible_agents.index(agent), self.sticks], np.float32)
        return {"observation": own, "action_mask": np.array([1, self.sticks > 1], np.int8)}

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.sticks = 5
        self.agents = list(self.possible_agents)
        self.agent_selection = self.agents[0]
        self.rewards: dict[str, float] = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards: dict[str, float] = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}

    def step(self, action: int | None) -> None:
        mover = self.agent_selection
        if self.terminations[mover] or self.truncations[mover]:
            self._was_dead_step(action)
            return
        assert action is not None
        assert action + 1 <= self.sticks
        self._cumulative_rewards[mover] = 0
        self.sticks -= action + 1
        other = self.possible_agents[1 - self.possible_agents.index(mover)]
        self.rewards = {mover: 1.0, other: -1.0} if self.sticks == 0 else {mover: 0.25, other: 0.5}
        self.terminations = dict.fromkeys(self.agents, self.sticks == 0)
        self.agent_selection = other
        self._accumulate_rewards()


class Relay(Nim):
    """Both move before anything counts: may be converted to parallel."""

    metadata: ClassVar[dict[str, Any]] = {"name": "relay", "render_modes": [], "is_parallelizable": True}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 100, (2,), np.float32)

    def observe(self, agent: str) -> Any:
        return np.array([self.possible_agents.index(agent), self.rounds], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed, options)
        self.rounds = 0

    def step(self, action: int | None) -> None:
        mover = self.agent_selection
        if self.terminations[mover] or self.truncations[mover]:
            self._was_dead_step(action)
            return
        assert action is not None
        self._cumulative_rewards[mover] = 0
        last = mover == self.agents[-1]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        if last:
            self.rounds += 1
            self.rewards = {"player_0": 1.0, "player_1": 2.0}
            self.truncations = dict.fromkeys(self.agents, self.rounds == 2)
        self.agent_selection = self.agents[0] if last else self.agents[1]
        self._accumulate_rewards()


parallel_env = Arena
