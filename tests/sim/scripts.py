"""Policies that tests play by, and what they score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.sim.parameters import EnvironmentParameters, seeded_generator
from trajtrainer.sim.registry import simulation_kind
from trajtrainer.sim.simulation import Actions, Simulation, SimulationStep

Policy = Callable[[SimulationStep], Actions]


def make(name: str, seed: int = 0, parameters: EnvironmentParameters | None = None, **options: Any) -> Simulation:
    """A simulation by its name."""
    kind = simulation_kind(name)
    chosen = kind.options(**options)
    return kind.create(chosen, seeded_generator(seed), parameters or EnvironmentParameters())


def random_policy(simulation: Simulation, seed: int = 0) -> Policy:
    """Continuous actions uniform in [-1, 1], discrete ones uniform over those that are allowed."""
    generator = np.random.default_rng(seed)
    spec = simulation.spec.action_spec
    n = simulation.num_agents

    def act(step: SimulationStep) -> Actions:
        continuous = generator.uniform(-1.0, 1.0, (n, spec.continuous_size)).astype(np.float32)
        discrete = np.zeros((n, spec.discrete_size), dtype=np.int32)
        first = 0
        for branch, size in enumerate(spec.discrete_branches):
            lot = generator.random((n, size))
            if step.mask is not None:
                lot[step.mask[:, first : first + size]] = -1.0
            discrete[:, branch] = lot.argmax(axis=1)
            first += size
        return Actions(continuous, discrete)

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


def steps_equal(a: SimulationStep, b: SimulationStep) -> bool:
    """Whether two steps are the same, bit for bit."""
    pairs: list[tuple[NDArray[Any], NDArray[Any]]] = [
        (a.reward, b.reward),
        (a.ended, b.ended),
        (a.ended_reward, b.ended_reward),
        (a.interrupted, b.interrupted),
        *zip(a.observations, b.observations, strict=True),
        *zip(a.ended_observations, b.ended_observations, strict=True),
    ]
    if a.mask is not None and b.mask is not None:
        pairs.append((a.mask, b.mask))
    return all(np.array_equal(x, y) for x, y in pairs)
