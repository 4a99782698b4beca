"""Toy: the smallest task with any kind of observation and action, after ML-Agents' tests.

See docs/explanation/mlagents-behavior.md#built-in-tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.spec import BehaviorSpec, ObservationSpec, ObservationType
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.sim.drawing import BLUE, GRAY, GREEN, Canvas
from trajtrainer.sim.simulation import (
    Agents,
    EnvironmentParameters,
    EpisodicSimulation,
    Observations,
    SimulatedActions,
    SimulationOptions,
    action_spec,
    entities_sensor,
    option,
    picture_sensor,
    vector_sensor,
)

STEP_REWARD = -0.01
FINAL_REWARD = 1.06  # 1 and what the six decisions cost that the default step size needs
SHOWN_DECISIONS = 3


@dataclass(frozen=True, slots=True)
class ToyOptions(SimulationOptions):
    """Options of ``Toy``."""

    vectors: int = option(1, "vector sensors")
    vector_size: int = option(1, "numbers of a vector")
    pictures: int = option(0, "picture sensors")
    picture_shape: tuple[int, ...] = option((3, 20, 20), "channels,height,width of the pictures")
    lists: int = option(0, "sensors of entities in varying number")
    list_shape: tuple[int, ...] = option((10, 5), "number,size of the entities")
    goal_sensor: int = option(
        -1, "which sensor is a goal signal, counted from 0: vectors, pictures, lists; -1 for none"
    )
    continuous: int = option(1, "continuous actions")
    discrete: int = option(0, "discrete branches, each of 2")
    step_size: float = option(0.2, "how far an action goes at most")
    memory: bool = option(False, "show the goal only at the first three decisions")

    def __post_init__(self) -> None:
        SimulationOptions.__post_init__(self)
        sensors = self.vectors + self.pictures + self.lists
        if not sensors or self.goal_sensor >= sensors or self.continuous + self.discrete < 1 or self.step_size <= 0.0:
            raise ValueError(
                "Toy needs a sensor, an action, a --goal-sensor among the sensors and a --step-size above 0, found "
                f"{sensors} sensors, {self.continuous} + {self.discrete} actions, {self.goal_sensor}, {self.step_size}"
            )
        if len(self.picture_shape) != 3 or len(self.list_shape) != 2:
            raise ValueError(
                "--picture-shape takes channels,height,width and --list-shape number,size, found "
                f"{self.picture_shape} and {self.list_shape}"
            )


class Toy(EpisodicSimulation):
    """One coordinate for every action, starting at 0, and a goal of 1 or -1 with which every observation is filled.

    An action moves its coordinate by its own value, at most by the step size (a branch: 1 up, 0 down). The episode ends
    when all coordinates are 1 or -1. Every decision costs 0.01, the last one gives the mean of 1.06 * coordinate * goal
    instead. Going straight to the goal scores 1.02 with the default step size, to the other side -1.10.
    """

    def __init__(self, options: ToyOptions, random: np.random.Generator, parameters: EnvironmentParameters) -> None:
        spec = BehaviorSpec(_sensors(options), action_spec(options.continuous, (2,) * options.discrete))
        super().__init__(spec, options.agents, random, parameters)
        n = options.agents
        self._step_size = options.step_size
        self._shown = SHOWN_DECISIONS if options.memory else None
        self._place: NDArray[np.float64] = np.zeros((n, options.continuous + options.discrete))
        self._goal: FloatArray = np.zeros(n, dtype=np.float32)

    def _begin(self, agents: LongArray) -> None:
        self._place[agents] = 0.0
        self._goal[agents] = np.where(self._random.random(len(agents)) < 0.5, 1.0, -1.0)

    def _advance(self, actions: SimulatedActions) -> tuple[FloatArray, BoolArray]:
        wanted = np.concatenate((actions.continuous, 2.0 * actions.discrete - 1.0), axis=1)
        moved = self._place + np.clip(wanted, -self._step_size, self._step_size)
        # Five steps of 0.2 shall arrive, whatever the last digits say.
        self._place = np.where(np.abs(moved) > 1.0 - 1e-6, np.sign(moved), moved)
        done: BoolArray = (np.abs(self._place) == 1.0).all(axis=1)
        reward = np.where(done, FINAL_REWARD * self._place.mean(axis=1) * self._goal, STEP_REWARD)
        return reward.astype(np.float32), done

    def draw(self, number: int, canvas: Canvas) -> None:
        """A line for each coordinate, the goal at one end."""
        canvas.reach = 1.2
        for line, place in enumerate(self._place[number].tolist()):
            y = 1.0 - 2.0 * (line + 1) / (self._place.shape[1] + 1)
            canvas.line(-1.0, y, 1.0, y, GRAY)
            canvas.disc(float(self._goal[number]), y, 0.08, GREEN)
            canvas.disc(place, y, 0.06, BLUE)

    def _observe(self, agents: Agents) -> Observations:
        seen = self._goal[agents]
        if self._shown is not None:
            seen = np.where(self._decisions[agents] < self._shown, seen, np.float32(0.0))
        return tuple(
            np.broadcast_to(seen.reshape(-1, *(1,) * len(sensor.shape)), (len(seen), *sensor.shape)).copy()
            for sensor in self.spec.observation_specs
        )


def _sensors(options: ToyOptions) -> list[ObservationSpec]:
    sensors = [vector_sensor(options.vector_size, f"Vector{i}") for i in range(options.vectors)]
    channels, height, width = options.picture_shape
    sensors += [picture_sensor(channels, height, width, f"Picture{i}") for i in range(options.pictures)]
    most, size = options.list_shape
    sensors += [entities_sensor(most, size, f"List{i}") for i in range(options.lists)]
    if options.goal_sensor >= 0:
        chosen = sensors[options.goal_sensor]
        sensors[options.goal_sensor] = chosen._replace(observation_type=ObservationType.GOAL_SIGNAL)
    return sensors
