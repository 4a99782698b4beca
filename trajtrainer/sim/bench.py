"""Bench: a player of any size that costs almost nothing, to measure the trainer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trajtrainer.core.spec import BehaviorSpec, ObservationSpec
from trajtrainer.core.steps import LongArray, ObservationArray
from trajtrainer.sim.drawing import BLUE, GRAY, Canvas
from trajtrainer.sim.simulation import (
    EnvironmentParameters,
    Observations,
    SimulatedActions,
    SimulationOptions,
    SimulationStep,
    action_spec,
    entities_sensor,
    no_endings,
    option,
    picture_sensor,
    vector_sensor,
)

VARIANTS = 16  # different observations that take turns
REWARD = 0.1


@dataclass(frozen=True, slots=True)
class BenchOptions(SimulationOptions):
    """Options of ``Bench``."""

    agents: int = option(12, "number of agents")
    observation_size: int = option(8, "numbers in the vector; 0 for no vector")
    picture: tuple[int, ...] = option((), "channels,height,width of a picture; none without it")
    entities: tuple[int, ...] = option((), "number,size of a list of entities; none without it")
    continuous: int = option(2, "continuous actions")
    branches: tuple[int, ...] = option((), "sizes of the discrete branches, such as 3,2")
    episode_length: int = option(1000, "decisions in an episode")
    group_size: int = option(0, "agents of a group, which is rewarded, too; 0 for none")

    def __post_init__(self) -> None:
        SimulationOptions.__post_init__(self)
        if len(self.picture) not in (0, 3):
            raise ValueError(f"--picture takes channels,height,width, found {self.picture}")
        if len(self.entities) not in (0, 2):
            raise ValueError(f"--entities takes number,size, found {self.entities}")
        if self.group_size < 0 or (self.group_size and self.agents % self.group_size):
            raise ValueError(f"--group-size must divide --agents {self.agents}, found {self.group_size}")
        if self.episode_length < 1:
            raise ValueError(f"--episode-length must be at least 1, found {self.episode_length}")


class Bench:
    """Observes numbers drawn in advance and gets 0.1 for every decision, whatever it does.

    Episodes have equal lengths and end at different times, spread evenly over the agents, or over the groups, whose
    agents end together; each agent of a group gets 0.1 for the group, too. No environment parameters.
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
        self.spec = BehaviorSpec(sensors, action_spec(options.continuous, options.branches))
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

    def draw(self, number: int, canvas: Canvas) -> None:
        """The part of its episode that is over."""
        age = float(self._age[number]) / self._length
        canvas.box(0.0, 0.0, 1.8, 0.3, GRAY)
        canvas.box(-0.9 + 0.9 * age, 0.0, 1.8 * age, 0.3, BLUE)

    def reset(self) -> SimulationStep:
        """Begin new episodes, of which all but the first agent's are shorter, so that they end at different times."""
        units = np.arange(self.num_agents) if self.groups is None else self.groups
        self._age = units * self._length // (units[-1] + 1)
        return SimulationStep(self._next(), np.zeros(self.num_agents, dtype=np.float32), None, *self._no_endings)

    def step(self, actions: SimulatedActions) -> SimulationStep:  # noqa: ARG002
        """Count a decision of every agent, whatever it does."""
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
