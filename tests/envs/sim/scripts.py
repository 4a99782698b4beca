"""Policies that tests play by, and what they score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.envs.sim.registry import GameKind, SimulationKind, simulation_kind
from trajtrainer.envs.sim.simulation import (
    EnvironmentParameters,
    Game,
    Role,
    SimulatedActions,
    Simulation,
    SimulationStep,
    seeded_generator,
)

Policy = Callable[[SimulationStep], SimulatedActions]


def make(name: str, seed: int = 0, parameters: EnvironmentParameters | None = None, **options: Any) -> Simulation:
    """A simulation by its name."""
    kind = simulation_kind(name)
    assert isinstance(kind, SimulationKind)
    return kind.create(kind.options(**options), seeded_generator(seed), parameters or EnvironmentParameters())


def make_game(name: str, seed: int = 0, parameters: EnvironmentParameters | None = None, **options: Any) -> Game:
    """A game by its name."""
    kind = simulation_kind(name)
    assert isinstance(kind, GameKind)
    return kind.create(kind.options(**options), seeded_generator(seed), parameters or EnvironmentParameters())


def random_policy(simulation: Role, seed: int = 0) -> Policy:
    """Continuous actions uniform in [-1, 1], discrete ones uniform over those that are allowed."""
    generator = np.random.default_rng(seed)
    spec = simulation.spec.action_spec

    def act(step: SimulationStep) -> SimulatedActions:
        n = len(step.reward)
        continuous = generator.uniform(-1.0, 1.0, (n, spec.continuous_size)).astype(np.float32)
        discrete = np.zeros((n, spec.discrete_size), dtype=np.int32)
        first = 0
        for branch, size in enumerate(spec.discrete_branches):
            lot = generator.random((n, size))
            if step.mask is not None:
                lot[step.mask[:, first : first + size]] = -1.0
            discrete[:, branch] = lot.argmax(axis=1)
            first += size
        return SimulatedActions(continuous, discrete)

    return act


def play(simulation: Simulation, policy: Policy, steps: int) -> list[float]:
    """Plays ``steps`` decisions; returns the scores of the episodes that ended."""
    totals: NDArray[np.float64] = np.zeros(simulation.num_agents)
    scores: list[float] = []
    step = simulation.reset()
    for _ in range(steps):
        step = simulation.step(policy(step))
        totals += step.reward
        scores += (totals[step.ended] + step.ended_reward).tolist()
        totals[step.ended] = 0.0
    return scores


def play_game(game: Game, policies: Sequence[Policy], steps: int) -> list[list[float]]:
    """Plays ``steps`` decisions; returns for each role the scores of the groups whose last agent ended.

    A score is what the agents earned themselves and what the group earned, counted once.
    """
    totals = [_GroupTotals(role) for role in game.roles.values()]
    seen = game.reset()
    for _ in range(steps):
        seen = game.step([policy(step) for policy, step in zip(policies, seen, strict=True)])
        for total, step in zip(totals, seen, strict=True):
            total.add(step)
    return [total.scores for total in totals]


class _GroupTotals:
    def __init__(self, role: Role) -> None:
        self.scores: list[float] = []
        self._groups = np.arange(role.num_agents) if role.groups is None else role.groups
        self._own = np.zeros(self._groups.max() + 1)
        self._ended = np.zeros(role.num_agents, dtype=np.bool_)

    def add(self, step: SimulationStep) -> None:
        deciding = np.arange(len(self._groups)) if step.deciding is None else step.deciding
        shared = np.zeros_like(self._own)
        parts = [
            (step.ended, step.ended_reward, step.ended_group_reward),
            (deciding, step.reward, step.group_reward),
        ]
        for agents, reward, group_reward in parts:
            np.add.at(self._own, self._groups[agents], reward)
            if group_reward is not None:
                shared[self._groups[agents[group_reward != 0.0]]] = group_reward[group_reward != 0.0]
        self._own += shared
        self._ended[step.ended] = True
        for group in np.unique(self._groups[step.ended]):
            members = self._groups == group
            if self._ended[members].all():
                self.scores.append(float(self._own[group]))
                self._own[group] = 0.0
                self._ended[members] = False


def steps_equal(a: SimulationStep, b: SimulationStep) -> bool:
    """Whether two steps are the same, bit for bit."""
    pairs: list[tuple[NDArray[Any], NDArray[Any]]] = [
        (a.reward, b.reward),
        (a.ended, b.ended),
        (a.ended_reward, b.ended_reward),
        (a.interrupted, b.interrupted),
        *((x, y) for x, y in zip(_groups(a), _groups(b), strict=True) if x is not None and y is not None),
        *zip(a.observations, b.observations, strict=True),
        *zip(a.ended_observations, b.ended_observations, strict=True),
    ]
    if a.mask is not None and b.mask is not None:
        pairs.append((a.mask, b.mask))
    return all(np.array_equal(x, y) for x, y in pairs)


def _groups(step: SimulationStep) -> list[NDArray[Any] | None]:
    return [step.deciding, step.group_reward, step.ended_group_reward]
