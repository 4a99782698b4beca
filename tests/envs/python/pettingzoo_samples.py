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


class Visits(ParallelEnv):  # type: ignore[misc]
    """Agents that come and go. They observe (own number, episode, step); number n earns 100 n + step in every step.

    Args:
        listed: for the reset and each step, the numbers of the agents listed after it.
        ended: step -> numbers of the agents that terminate in it.
        hidden: numbers of agents without observations.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "visits", "render_modes": []}

    def __init__(self, listed: list[str], ended: dict[int, str], hidden: str = "") -> None:
        self.possible_agents = sorted({f"a_{number}" for numbers in listed for number in numbers})
        self.agents: list[str] = []
        self.listed = [[f"a_{number}" for number in numbers] for numbers in listed]
        self.ended = {step: [f"a_{number}" for number in numbers] for step, numbers in ended.items()}
        self.hidden = [f"a_{number}" for number in hidden]
        self.received: list[dict[str, Any]] = []
        self.episode = 0
        self.steps = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1000, 1000, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.episode += 1
        self.steps = 0
        self.agents = list(self.listed[0])
        return self._observations(self.agents), {}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.received.append(dict(actions))
        self.steps += 1
        self.agents = list(self.listed[self.steps])
        over = self.ended.get(self.steps, [])
        rewards = {agent: 100.0 * self._number(agent) + self.steps for agent in self.possible_agents}
        terminations = dict.fromkeys(self.agents, False) | dict.fromkeys(over, True)
        truncations = dict.fromkeys(terminations, False)
        return self._observations(list(terminations)), rewards, terminations, truncations, {}

    def _observations(self, agents: list[str]) -> dict[str, Any]:
        seen = [agent for agent in agents if agent not in self.hidden]
        return {agent: np.array([self._number(agent), self.episode, self.steps], np.float32) for agent in seen}

    def _number(self, agent: str) -> int:
        return int(agent[-1])


class Circle(AECEnv):  # type: ignore[misc]
    """Players act in turns, and may be out before the last one is. They observe (own number, turn).

    The mask allows the choice ``turn % 3`` to the player whose turn it is, and nothing to the others.

    Args:
        dies: turn -> numbers of the players that are out after it.
        comes: turn -> numbers of the players that join after it, or are no longer out.
        waits: a player who is out is removed only when it would be its turn; otherwise at once.
        at_once: may be converted to parallel: all act in every round.
    """

    render_mode = None

    def __init__(
        self, dies: dict[int, str], comes: dict[int, str] | None = None, *, waits: bool, at_once: bool = False
    ):
        super().__init__()
        self.metadata = {"name": "circle", "render_modes": [], "is_parallelizable": at_once}
        self.possible_agents = [f"p_{number}" for number in range(4)]
        self.dies = dies
        self.comes = comes or {}
        self.waits = waits
        self.at_once = at_once
        self.num_resets = 0
        self.moves: list[tuple[str, bool]] = []
        """(player, whether it was allowed) of each move."""

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Dict(
            {"observation": spaces.Box(0, 99, (2,), np.float32), "action_mask": spaces.Box(0, 1, (3,), np.int8)}
        )

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def observe(self, agent: str) -> dict[str, Any]:
        mask = np.zeros(3, np.int8)
        mask[self.turn % 3] = agent == self.agent_selection or self.at_once
        return {
            "observation": np.array([self.possible_agents.index(agent), self.turn], np.float32),
            "action_mask": mask,
        }

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.num_resets += 1
        self.turn = 0
        self.agents: list[str] = []
        self.rewards: dict[str, float] = {}
        self._cumulative_rewards: dict[str, float] = {}
        self.terminations: dict[str, bool] = {}
        self.truncations: dict[str, bool] = {}
        self.infos: dict[str, dict[str, Any]] = {}
        for agent in self.possible_agents[:3]:
            self._join(agent)
        self.agent_selection = self.agents[0]

    def step(self, action: int | None) -> None:
        mover = self.agent_selection
        following = self.agents[self.agents.index(mover) + 1 :] + self.agents[: self.agents.index(mover) + 1]
        if self.terminations[mover]:
            self._was_dead_step(action)
            if self.waits and self.agents:
                self.agent_selection = following[0]
            return
        self.moves.append((mover, action == self.turn % 3))
        if not self.at_once or mover == self.agents[-1]:
            self.turn += 1
            for number in self.comes.get(self.turn, ""):
                self._join(f"p_{number}")
            for number in self.dies.get(self.turn, ""):
                self.terminations[f"p_{number}"] = True
        if self.waits:
            self.agent_selection = following[0]
        else:
            self.agent_selection = next((agent for agent in following if not self.terminations[agent]), mover)
            self._deads_step_first()

    def _join(self, agent: str) -> None:
        if agent not in self.agents:
            self.agents = [*self.agents, agent]
        self.rewards[agent] = self._cumulative_rewards[agent] = 0.0
        self.terminations[agent] = self.truncations[agent] = False
        self.infos[agent] = {}


parallel_env = Arena
