"""Chase: walk to a target on a plane. Small enough to be written as a game in any engine (docs/guides/godot.md)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.sim.drawing import BLUE, GREEN, Canvas
from trajtrainer.sim.simulation import (
    Agents,
    EnvironmentParameters,
    EpisodicSimulation,
    Observations,
    SimulatedActions,
    SimulationOptions,
    action_spec,
    option,
    vector_sensor,
)

STEP = 0.1  # how far an action goes along each axis
REACH = 0.1  # at this distance the target is reached
MAX_DECISIONS = 200


@dataclass(frozen=True, slots=True)
class ChaseOptions(SimulationOptions):
    """Options of ``Chase``."""

    agents: int = option(4, "number of agents")


class Chase(EpisodicSimulation):
    """An agent and its target begin anywhere in [-1, 1]². It earns the distance that it gains, and 1 at the target.

    Observes both places. An episode ends at the target, or is interrupted after 200 decisions. Going straight to the
    target earns 1.99 on average. The environment parameter ``reach`` is the distance at which a target is reached.
    """

    def __init__(self, options: ChaseOptions, random: np.random.Generator, parameters: EnvironmentParameters) -> None:
        spec = BehaviorSpec([vector_sensor(4)], action_spec(2))
        super().__init__(spec, options.agents, random, parameters, max_decisions=MAX_DECISIONS)
        self._places: NDArray[np.float64] = np.zeros((options.agents, 4))
        self._reach = np.full(options.agents, REACH)

    def _begin(self, agents: LongArray) -> None:
        self._places[agents] = self._random.uniform(-1.0, 1.0, (len(agents), 4))
        self._reach[agents] = self._parameters.draw("reach", REACH, len(agents))

    def _advance(self, actions: SimulatedActions) -> tuple[FloatArray, BoolArray]:
        before = self._distances()
        self._places[:, :2] += STEP * np.clip(actions.continuous, -1.0, 1.0)
        now = self._distances()
        reached: BoolArray = now < self._reach
        return (before - now + reached).astype(np.float32), reached

    def _distances(self) -> NDArray[np.float64]:
        distances: NDArray[np.float64] = np.linalg.norm(self._places[:, :2] - self._places[:, 2:], axis=1)
        return distances

    def draw(self, number: int, canvas: Canvas) -> None:
        """See ``Pictured``."""
        canvas.reach = 1.5
        x, y, target_x, target_y = self._places[number].tolist()
        canvas.disc(target_x, target_y, float(self._reach[number]), GREEN)
        canvas.disc(x, y, 0.06, BLUE)

    def _observe(self, agents: Agents) -> Observations:
        return (self._places[agents].astype(np.float32),)
