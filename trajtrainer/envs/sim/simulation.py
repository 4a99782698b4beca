"""Protocols and base classes of the built-in simulations: seeded numpy tasks for several agents.

The module also contains the environment parameters of a player, which the trainer sets and simulations draw from
(docs/explanation/mlagents-behavior.md#side-channels).

Shape legend: N agents that decide, T agents whose episode ended, D sum of branch sizes, C continuous actions,
K discrete branches, O shape of one observation.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.spec import BehaviorSpec, ObservationSpec, usual_sensor
from trajtrainer.core.steps import BoolArray, FloatArray, IntArray, LongArray, ObservationArray
from trajtrainer.envs.sim.canvas import Canvas

FloatColumn = NDArray[np.float64]

# A selection of agents: their indices or, to avoid a copy, a slice that selects all agents.
Agents = LongArray | slice
ALL = slice(None)
Observations = tuple[ObservationArray, ...]


class ParameterSource(Protocol):
    """The source of one parameter's values."""

    def draw(self, count: int) -> FloatColumn:
        """Draw ``count`` values, f64 [count]."""


class Constant:
    """A source that always returns the same value."""

    def __init__(self, value: float) -> None:
        self.value = value

    def draw(self, count: int) -> FloatColumn:
        return np.full(count, self.value)


class Uniform:
    """Uniform distribution over [low, high)."""

    def __init__(self, generator: np.random.Generator, low: float, high: float) -> None:
        self._generator = generator
        self._low = low
        self._high = high

    def draw(self, count: int) -> FloatColumn:
        return self._low + (self._high - self._low) * self._generator.random(count)


class Gaussian:
    """Normal distribution with the given mean and standard deviation."""

    def __init__(self, generator: np.random.Generator, mean: float, standard_deviation: float) -> None:
        self._generator = generator
        self._mean = mean
        self._standard_deviation = standard_deviation

    def draw(self, count: int) -> FloatColumn:
        return self._mean + self._standard_deviation * self._generator.standard_normal(count)


class MultiRange:
    """Uniform distribution over several intervals, each chosen with probability proportional to its width.

    Args:
        generator: random generator of this source.
        bounds: low and high of each interval, as a flat sequence.
    """

    def __init__(self, generator: np.random.Generator, bounds: Sequence[float]) -> None:
        self._generator = generator
        self._low = np.asarray(bounds[0::2], dtype=np.float64)
        widths = np.asarray(bounds[1::2], dtype=np.float64) - self._low
        self._ends = np.cumsum(widths)
        self._starts = self._ends - widths

    def draw(self, count: int) -> FloatColumn:
        place = self._generator.random(count) * self._ends[-1]
        interval = np.minimum(np.searchsorted(self._ends, place, side="right"), len(self._ends) - 1)
        drawn: FloatColumn = self._low[interval] + (place - self._starts[interval])
        return drawn


def seeded_generator(seed: int, *stream: int) -> np.random.Generator:
    """Return the random generator for a ``seed`` (an int32 from the wire, possibly negative) and a stream."""
    return np.random.default_rng((seed & 0xFFFFFFFF, *stream))


class EnvironmentParameters:
    """The current source of every parameter that the trainer has set, shared by all simulations of a player."""

    def __init__(self) -> None:
        self._sources: dict[str, ParameterSource] = {}

    def set(self, key: str, source: ParameterSource) -> None:
        """Replace the source of ``key``; agents see the change when their next episode starts."""
        self._sources[key] = source

    def draw(self, key: str, default: float, count: int) -> FloatColumn:
        """Draw values for ``count`` agents; a parameter that has not been set always has the value ``default``."""
        source = self._sources.get(key)
        return np.full(count, default) if source is None else source.draw(count)


def option(default: Any, text: str) -> Any:
    """Return a dataclass field for a simulation option with a help text."""
    return dataclasses.field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Options of a simulation. Every field is also a command line option: ``vector_size`` is ``--vector-size``.

    Raises:
        ValueError: an option has an invalid value.
    """

    agents: int = option(1, "number of agents")

    def __post_init__(self) -> None:
        if self.agents < 1:
            raise ValueError(f"--agents must be at least 1, found {self.agents}")


class SimulatedActions(NamedTuple):
    """The agents' actions: continuous f32 [N, C], which simulations clip to [-1, 1], and discrete i32 [N, K]."""

    continuous: FloatArray
    discrete: IntArray


@dataclass(slots=True)
class SimulationStep:
    """The result of a step: the agents' observations for their next decision, and the episodes that just ended.

    Attributes:
        observations: one array per sensor, f32 [N, *O]; pictures are u8 or f32 (channels, height, width). If an agent's
            episode ended, its row is the first observation of its next episode.
        reward: f32 [N], since the last decision; 0 if an episode ended, because its reward is in ``ended_reward``.
        mask: bool [N, D], True = forbidden; None if the simulation does not mask actions.
        ended: i64 [T], agents whose episode ended, ascending.
        ended_observations: one array per sensor, [T, *O]: the final observation of each ended episode.
        ended_reward: f32 [T], rewards since the last decision in the ended episodes.
        interrupted: bool [T], True if the episode ended because it reached the decision limit.
        deciding: i64 [N], the agents that decide, ascending; None for all.
        group_reward: f32 [N], reward of each agent's group; None if there are no group rewards.
        ended_group_reward: f32 [T], the same for the ended episodes.
    """

    observations: Observations
    reward: FloatArray
    mask: BoolArray | None
    ended: LongArray
    ended_observations: Observations
    ended_reward: FloatArray
    interrupted: BoolArray
    deciding: LongArray | None = None
    group_reward: FloatArray | None = None
    ended_group_reward: FloatArray | None = None


class Role(Protocol):
    """The agents of one behavior: their number, observations, actions and groups."""

    spec: BehaviorSpec
    num_agents: int
    masked: bool  # True if steps have action masks; otherwise, ``mask`` is None
    groups: LongArray | None  # i64 [num_agents], index of each agent's group; None without groups


class Simulation(Role, Protocol):
    """A task for the agents of one behavior.

    Every agent decides at every step. An agent whose episode ended starts its next episode in the same step and keeps
    its index.
    """

    def reset(self) -> SimulationStep:
        """Start new episodes for all agents.

        Unfinished episodes are not reported, as in Unity (docs/explanation/mlagents-behavior.md#steps).
        """

    def step(self, actions: SimulatedActions) -> SimulationStep:
        """Apply one decision of every agent."""


class Game(Protocol):
    """A task in which agents of several behaviors interact.

    Agents may leave before the others; ``deciding`` in each step lists the agents that decide.
    """

    roles: Mapping[str, Role]  # the agents of each behavior, by behavior id
    ids: Mapping[str, LongArray]  # agent ids of each behavior, i64 [num_agents], from 0 and unique across roles

    def reset(self) -> list[SimulationStep]:
        """Start new episodes; return a step for each role."""

    def step(self, actions: Sequence[SimulatedActions]) -> list[SimulationStep]:
        """Apply the actions of each role's deciding agents; return a step for each role."""


@runtime_checkable
class Pictured(Protocol):
    """A simulation or game that can be painted for humans to watch."""

    @property
    def num_pictures(self) -> int:
        """Number of pictures, one per agent or training area."""

    def paint(self, number: int, canvas: Canvas) -> None:
        """Paint one agent or training area and its surroundings."""


class EpisodicSimulation(ABC):
    """Base class of most simulations: it manages the episodes, and the subclass implements the task.

    Args:
        spec: observations and actions of the agents.
        num_agents: N.
        random: generator for all random numbers of the task.
        parameters: environment parameters that the trainer may set.
        max_decisions: length at which an episode is interrupted; 0 for no limit.
    """

    masked = False
    groups: LongArray | None = None

    def __init__(
        self,
        spec: BehaviorSpec,
        num_agents: int,
        random: np.random.Generator,
        parameters: EnvironmentParameters,
        *,
        max_decisions: int = 0,
    ) -> None:
        self.spec = spec
        self.num_agents = num_agents
        self._random = random
        self._parameters = parameters
        self._max_decisions = max_decisions
        self._decisions = np.zeros(num_agents, dtype=np.int64)
        self._no_endings = no_endings(spec)

    @abstractmethod
    def _begin(self, agents: LongArray) -> None:
        """Start a new episode for ``agents``.

        Implementations draw the random numbers of all agents in a single call, with one row per agent. The numbers are
        then the same as if they were drawn agent by agent.
        """

    @abstractmethod
    def _advance(self, actions: SimulatedActions) -> tuple[FloatArray, BoolArray]:
        """Apply the actions; return the rewards, f32 [N], and whether each episode is over, bool [N]."""

    @abstractmethod
    def _observe(self, agents: Agents) -> Observations:
        """Return the current observations of ``agents``, in arrays that the caller may keep and modify."""

    @property
    def num_pictures(self) -> int:
        return self.num_agents

    @abstractmethod
    def paint(self, number: int, canvas: Canvas) -> None: ...

    def _mask(self) -> BoolArray | None:
        """Return which actions are currently forbidden, bool [N, D], or None if the simulation is not ``masked``."""
        return None

    def reset(self) -> SimulationStep:
        """Start new episodes for all agents."""
        self._decisions[:] = 0
        self._begin(np.arange(self.num_agents))
        return self._decision_step(np.zeros(self.num_agents, dtype=np.float32))

    def step(self, actions: SimulatedActions) -> SimulationStep:
        """Apply one decision of every agent; if an episode is over or too long, start the next one."""
        reward, over = self._advance(actions)
        self._decisions += 1
        is_ending = over
        if self._max_decisions:
            is_ending = over | (self._decisions >= self._max_decisions)
        if not np.count_nonzero(is_ending):
            return self._decision_step(reward)
        ended = np.flatnonzero(is_ending)
        observations = self._observe(ALL)
        last = tuple(column[ended] for column in observations)
        last_reward = reward[ended]
        reward[ended] = 0.0
        self._decisions[ended] = 0
        self._begin(ended)
        for column, first in zip(observations, self._observe(ended), strict=True):
            column[ended] = first
        return SimulationStep(observations, reward, self._mask(), ended, last, last_reward, ~over[ended])

    def _decision_step(self, reward: FloatArray) -> SimulationStep:
        return SimulationStep(self._observe(ALL), reward, self._mask(), *self._no_endings)


def no_endings(spec: BehaviorSpec) -> tuple[LongArray, Observations, FloatArray, BoolArray]:
    """Return the fields ``ended`` to ``interrupted`` of a step in which no episode ended."""
    return (
        np.zeros(0, dtype=np.int64),
        tuple(np.zeros((0, *sensor.shape), dtype=np.float32) for sensor in spec.observation_specs),
        np.zeros(0, dtype=np.float32),
        np.zeros(0, dtype=np.bool_),
    )


def vector_sensor(size: int, name: str | None = None, *, stack: int = 1, goal: bool = False) -> ObservationSpec:
    """Return a sensor for ``size`` numbers, or for the last ``stack`` vectors, oldest first, named as in Unity."""
    label = name or f"VectorSensor_size{size}"
    if stack > 1:
        label = f"StackingSensor_size{stack}_{label}"
    return usual_sensor((size * stack,), label, goal=goal)


def picture_sensor(channels: int, height: int, width: int, name: str) -> ObservationSpec:
    """Return a sensor for a picture (channels, height, width)."""
    return usual_sensor((channels, height, width), name)


def entities_sensor(maximum: int, size: int, name: str) -> ObservationSpec:
    """Return a sensor for a list of up to ``maximum`` entities of ``size`` numbers; unused rows are zero."""
    return usual_sensor((maximum, size), name)


def one_hot(values: NDArray[np.int64], size: int) -> FloatArray:
    """Return the one-hot encoding of ``values``, f32 [..., size]."""
    return np.eye(size, dtype=np.float32)[values]
