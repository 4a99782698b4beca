"""Toy and Bench: tasks with any kind of observation and action, for tests and benchmarks of the trainer.

See docs/explanation/mlagents-behavior.md#built-in-tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.spec import ActionSpec, BehaviorSpec, ObservationSpec, ObservationType
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray, ObservationArray
from trajtrainer.envs.sim.canvas import BLUE, GRAY, GREEN, Canvas
from trajtrainer.envs.sim.simulation import (
    Agents,
    EnvironmentParameters,
    EpisodicSimulation,
    Observations,
    SimulatedActions,
    SimulationOptions,
    SimulationStep,
    entities_sensor,
    no_endings,
    option,
    picture_sensor,
    vector_sensor,
)

# Toy
STEP_REWARD = -0.01
FINAL_REWARD = 1.06  # 1, plus 0.06 that compensates for six decisions
SHOWN_DECISIONS = 3
# Bench
VARIANTS = 16  # number of different observations, which are used in turn
REWARD = 0.1


@dataclass(frozen=True, slots=True)
class ToyOptions(SimulationOptions):
    """Options of ``Toy``."""

    vectors: int = option(1, "number of vector sensors")
    vector_size: int = option(1, "numbers in each vector")
    pictures: int = option(0, "number of picture sensors")
    picture_shape: tuple[int, ...] = option((3, 20, 20), "channels,height,width of the pictures")
    lists: int = option(0, "number of sensors with lists of entities")
    list_shape: tuple[int, ...] = option((10, 5), "number,size of the entities")
    goal_sensor: int = option(-1, "index of the goal signal among the sensors (vectors, pictures, lists); -1 for none")
    continuous: int = option(1, "number of continuous actions")
    discrete: int = option(0, "number of discrete branches, each of size 2")
    step_size: float = option(0.2, "maximum distance of an action")
    memory: bool = option(False, "show the goal only for the first three decisions")

    def __post_init__(self) -> None:
        SimulationOptions.__post_init__(self)
        sensors = self.vectors + self.pictures + self.lists
        if not sensors or self.goal_sensor >= sensors or self.continuous + self.discrete < 1 or self.step_size <= 0.0:
            raise ValueError(
                "Toy needs a sensor, an action, a --goal-sensor among the sensors and a --step-size above 0; found "
                f"{sensors} sensors, {self.continuous} + {self.discrete} actions, --goal-sensor {self.goal_sensor} and "
                f"--step-size {self.step_size}"
            )
        if len(self.picture_shape) != 3 or len(self.list_shape) != 2:
            raise ValueError(
                "--picture-shape must be channels,height,width and --list-shape number,size, found "
                f"{self.picture_shape} and {self.list_shape}"
            )


class Toy(EpisodicSimulation):
    """Move one coordinate per action from 0 to a goal of 1 or -1. Every observation is filled with the goal.

    An action moves its coordinate by its value, clipped to the step size (for a branch, 1 moves up and 0 down). The
    episode ends when all coordinates are 1 or -1. Every decision costs 0.01, except for the last one, which gives the
    mean of 1.06 * coordinate * goal. With the default step size, going straight to the goal scores 1.02, and going to
    the opposite side -1.10.
    """

    def __init__(self, options: ToyOptions, random: np.random.Generator, parameters: EnvironmentParameters) -> None:
        sensors = [vector_sensor(options.vector_size, f"Vector{i}") for i in range(options.vectors)]
        channels, height, width = options.picture_shape
        sensors += [picture_sensor(channels, height, width, f"Picture{i}") for i in range(options.pictures)]
        most, size = options.list_shape
        sensors += [entities_sensor(most, size, f"List{i}") for i in range(options.lists)]
        if options.goal_sensor >= 0:
            chosen = sensors[options.goal_sensor]
            sensors[options.goal_sensor] = chosen._replace(observation_type=ObservationType.GOAL_SIGNAL)
        spec = BehaviorSpec(sensors, ActionSpec(options.continuous, (2,) * options.discrete))
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
        # Round to 1, because five steps of 0.2 must reach 1 despite rounding errors.
        self._place = np.where(np.abs(moved) > 1.0 - 1e-6, np.sign(moved), moved)
        done: BoolArray = (np.abs(self._place) == 1.0).all(axis=1)
        reward = np.where(done, FINAL_REWARD * self._place.mean(axis=1) * self._goal, STEP_REWARD)
        return reward.astype(np.float32), done

    def paint(self, number: int, canvas: Canvas) -> None:
        """Paint a line for each coordinate, with the goal at one end."""
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


@dataclass(frozen=True, slots=True)
class BenchOptions(SimulationOptions):
    """Options of ``Bench``."""

    agents: int = option(12, "number of agents")
    observation_size: int = option(8, "numbers in the vector; 0 for no vector")
    picture: tuple[int, ...] = option((), "channels,height,width of a picture")
    entities: tuple[int, ...] = option((), "number,size of a list of entities")
    continuous: int = option(2, "number of continuous actions")
    branches: tuple[int, ...] = option((), "sizes of the discrete branches, such as 3,2")
    episode_length: int = option(1000, "decisions per episode")
    group_size: int = option(0, "agents per group; groups get rewards, too; 0 for no groups")

    def __post_init__(self) -> None:
        SimulationOptions.__post_init__(self)
        if len(self.picture) not in (0, 3):
            raise ValueError(f"--picture must be channels,height,width, found {self.picture}")
        if len(self.entities) not in (0, 2):
            raise ValueError(f"--entities must be number,size, found {self.entities}")
        if self.group_size < 0 or (self.group_size and self.agents % self.group_size):
            raise ValueError(f"--group-size must divide --agents {self.agents}, found {self.group_size}")
        if self.episode_length < 1:
            raise ValueError(f"--episode-length must be at least 1, found {self.episode_length}")


class Bench:
    """A task that costs almost no time: observations are drawn in advance, and every decision gives 0.1.

    All episodes have the same length and end at different times, spread evenly over the agents, or over the groups,
    whose agents end together. Agents in a group also get a group reward of 0.1. There are no environment parameters.
    """

    masked = False

    def __init__(
        self,
        options: BenchOptions,
        random: np.random.Generator,
        parameters: EnvironmentParameters,  # noqa: ARG002
    ) -> None:
        sensors: list[ObservationSpec] = []
        if options.observation_size:
            sensors.append(vector_sensor(options.observation_size))
        if options.picture:
            channels, height, width = options.picture
            sensors.append(picture_sensor(channels, height, width, "CameraSensor"))
        if options.entities:
            most, size = options.entities
            sensors.append(entities_sensor(most, size, "BufferSensor"))
        self.spec = BehaviorSpec(sensors, ActionSpec(options.continuous, options.branches))
        self.num_agents = options.agents
        size = options.group_size
        self.groups: LongArray | None = np.arange(options.agents) // size if size else None
        self._length = options.episode_length
        self._age: LongArray = np.zeros(options.agents, dtype=np.int64)
        self._tick = 0
        self._reward = np.full(options.agents, REWARD, dtype=np.float32)
        self._no_endings = no_endings(self.spec)
        self._variants: list[Observations] = []
        for _ in range(VARIANTS):
            columns: list[ObservationArray] = []
            for shape in ((options.agents, *sensor.shape) for sensor in sensors):
                if len(shape) == 4:
                    columns.append(random.integers(0, 256, shape, dtype=np.uint8))
                else:
                    columns.append(random.standard_normal(shape, dtype=np.float32))
            self._variants.append(tuple(columns))

    @property
    def num_pictures(self) -> int:
        return self.num_agents

    def paint(self, number: int, canvas: Canvas) -> None:
        """Paint the elapsed fraction of the agent's episode."""
        age = float(self._age[number]) / self._length
        canvas.box(0.0, 0.0, 1.8, 0.3, GRAY)
        canvas.box(-0.9 + 0.9 * age, 0.0, 1.8 * age, 0.3, BLUE)

    def reset(self) -> SimulationStep:
        """Start new episodes at different ages, so that they end at different times."""
        units = np.arange(self.num_agents) if self.groups is None else self.groups
        self._age = units * self._length // (units[-1] + 1)
        return SimulationStep(self._next(), np.zeros(self.num_agents, dtype=np.float32), None, *self._no_endings)

    def step(self, actions: SimulatedActions) -> SimulationStep:  # noqa: ARG002
        """Count one decision of every agent; actions have no effect."""
        self._age += 1
        ended = np.flatnonzero(self._age >= self._length)
        if not len(ended):
            return self._rewarded(SimulationStep(self._next(), self._reward, None, *self._no_endings))
        self._age[ended] = 0
        last = tuple(column[ended] for column in self._next())
        reward = self._reward.copy()
        reward[ended] = 0.0
        interrupted = np.zeros(len(ended), dtype=np.bool_)
        return self._rewarded(SimulationStep(self._next(), reward, None, ended, last, self._reward[ended], interrupted))

    def _rewarded(self, step: SimulationStep) -> SimulationStep:
        if self.groups is not None:
            step.group_reward, step.ended_group_reward = step.reward, step.ended_reward
        return step

    def _next(self) -> Observations:
        self._tick += 1
        return self._variants[self._tick % VARIANTS]
