"""Base class for reward signals with networks, and scaling and episodic bonuses for novelty rewards.

Shape legend: B packed steps, S trajectories, b rows, E encoding size, O an observation's own shape.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import evolve
from numpy.typing import NDArray
from torch import Tensor, nn

from trajtrainer.core.columns import Columns
from trajtrainer.core.steps import FloatArray, LongArray, ObservationArray
from trajtrainer.experience.trajectory import PackedSteps, PerAgent
from trajtrainer.learning.nn.fast.adam import Adam
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.rewards.settings import CuriositySettings, GailSettings, RndSettings
from trajtrainer.learning.rewards.signal import MAX_REWARD, RewardSignal
from trajtrainer.settings.network import NetworkSettings

# Maximum number of agents, and of states per episode, to keep track of. The oldest are dropped.
_MAX_AGENTS, _MAX_STATES = 1 << 12, 1 << 16
# Maximum number of observation values to round at once (8 MB).
_MAX_COMPARED = 1 << 20

# Maximum number of observation values in one pass through a network (16 MB of float32). It bounds the memory that the
# layers need.
_MAX_NUMBERS = 1 << 22
TrainedSettings = CuriositySettings | GailSettings | RndSettings


class Novelty:
    """Scales novelty rewards, multiplies them by an episodic bonus, and limits them.

    Scaling and the bonus are optional.

    Args:
        settings: the signal's settings.
        most: maximum reward.
    """

    def __init__(self, settings: CuriositySettings | RndSettings, most: float = math.inf) -> None:
        self._most = most
        self._returns = RunningReturns(settings.gamma) if settings.normalize else None
        self._visits = None if settings.episodic_bonus is None else EpisodicVisits(settings.episodic_bonus)

    def collected(self, packed: PackedSteps, reward: FloatArray) -> FloatArray:
        """Convert the rewards of new steps [B], and update the scale and the visit counts."""
        if self._returns is not None:
            self._returns.add(packed, np.minimum(reward, np.float32(MAX_REWARD)))
        reward = self.evaluated(reward)
        return reward if self._visits is None else reward * self._visits.bonus(packed)

    def evaluated(self, reward: FloatArray) -> FloatArray:
        """Convert the rewards of any steps [B], without the episodic bonus and without updating any statistics."""
        if self._returns is not None:
            reward = reward * np.float32(1.0 / self._returns.deviation)
        return reward if math.isinf(self._most) else np.minimum(reward, np.float32(self._most))

    def reset_worker(self, worker: int | None) -> None:
        """Drop the state of unfinished episodes of one worker's agents, or of all agents (None)."""
        for memory in (self._returns, self._visits):
            if memory is not None:
                memory.of_agent.reset_worker(worker)

    def state(self) -> dict[str, Any]:
        """Return the scale as plain data; empty if rewards are not scaled."""
        return {} if self._returns is None else {"returns": self._returns.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by ``state``."""
        if self._returns is not None and "returns" in state:
            self._returns.load_state(state["returns"])


class OfAgents(PerAgent[Any]):
    """A value for each of the ``_MAX_AGENTS`` most recently updated agents."""

    def keep(self, agent: int, value: Any) -> None:
        self.pop(agent, None)
        self[agent] = value
        if len(self) > _MAX_AGENTS:
            del self[next(iter(self))]


class RunningReturns:
    """The running standard deviation of the agents' discounted sums of past rewards (Burda et al. 2018, section 2.4).

    Args:
        gamma: the discount factor.
        episodic: True to reset an agent's sum at the end of an episode. Novelty rewards do not do this.

    Attributes:
        of_agent: the current sum of each agent.
        gamma: the discount factor, which may be changed.
    """

    def __init__(self, gamma: float, *, episodic: bool = False) -> None:
        self.of_agent = OfAgents()
        self.gamma = gamma
        self._episodic = episodic
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation; 1 until it becomes positive."""
        return math.sqrt(self._squares / self._count) if self._squares > 0.0 else 1.0

    def add(self, packed: PackedSteps, reward: FloatArray) -> None:
        """Add the rewards of new steps [B]."""
        discounted: list[float] = []
        rewards, bounds, over = reward.tolist(), packed.offset.tolist(), (packed.ended & self._episodic).tolist()
        for number, agent in enumerate(packed.agent.tolist()):
            total = self.of_agent.get(agent, 0.0)
            for one in rewards[bounds[number] : bounds[number + 1]]:
                total = total * self.gamma + one
                discounted.append(total)
            self.of_agent.keep(agent, 0.0 if over[number] else total)
        sums = np.array(discounted)
        count = self._count + len(sums)
        difference = sums.mean() - self._mean
        # Combine the means and sums of squares of both sets (Chan et al. 1979).
        self._squares += float(np.square(sums - sums.mean()).sum() + difference**2 * self._count * len(sums) / count)
        self._mean += float(difference * len(sums) / count)
        self._count = count

    def state(self) -> list[float]:
        """Return the count, the mean, and the sum of squared differences from the mean."""
        return [float(self._count), self._mean, self._squares]

    def load_state(self, state: Sequence[float]) -> None:
        """Restore the state returned by ``state``."""
        count, self._mean, self._squares = (float(one) for one in state)
        self._count = int(count)


class EpisodicVisits:
    """Counts how often each agent has visited a state in the current episode.

    Henaff et al. (2023) multiply lifelong novelty by the bonus 1 / sqrt(N) on the N-th visit. States are considered
    equal if their values round to the same multiples of ``cell``.

    Attributes:
        of_agent: the number of visits to each state (its hash), for each agent.
    """

    def __init__(self, cell: float) -> None:
        self.of_agent = OfAgents()
        self._cell = cell

    def bonus(self, packed: PackedSteps) -> FloatArray:
        """Return 1 / sqrt(N) for the state after each step, f32 [B], and update the counts."""
        sensors = [np.concatenate(pair) for pair in zip(packed.obs, packed.bootstrap.obs, strict=True)]
        states = rounded_hash(sensors, self._cell)
        after, first = states[packed.following()].tolist(), states[packed.offset[:-1]].tolist()
        bounds = packed.offset.tolist()
        visits: list[int] = []
        for number, agent in enumerate(packed.agent.tolist()):
            seen: dict[int, int] = self.of_agent.get(agent) or {first[number]: 1}
            for state in after[bounds[number] : bounds[number + 1]]:
                visits.append(seen.pop(state, 0) + 1)
                seen[state] = visits[-1]
                if len(seen) > _MAX_STATES:
                    del seen[next(iter(seen))]
            if packed.ended[number]:
                self.of_agent.pop(agent, None)
            else:
                self.of_agent.keep(agent, seen)
        bonus: FloatArray = np.reciprocal(np.sqrt(np.array(visits, np.float32)))
        return bonus


def rounded_hash(sensors: Sequence[ObservationArray], cell: float) -> LongArray:
    """Hash rows of observations [R, *O] to i64 [R] after rounding to multiples of ``cell``.

    A hash is the sum of the rounded values times random odd numbers, so different rows collide with a probability of
    2^-63. Bytes in images are treated as values from 0 to 1.
    """
    total = np.zeros(len(sensors[0]), np.uint64)
    random = np.random.default_rng(0)
    for sensor in sensors:
        rows = sensor.reshape(len(sensor), -1)
        factors = random.integers(1 << 63, size=rows.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        scale = cell * (255.0 if sensor.dtype == np.uint8 else 1.0)
        step = max(1, _MAX_COMPARED // max(1, rows.shape[1]))
        for start in range(0, len(rows), step):
            with np.errstate(over="ignore", invalid="ignore"):  # values that are too large count as equal
                whole = np.rint(rows[start : start + step] / scale).astype(np.int64).view(np.uint64)
            total[start : start + step] += (whole * factors).sum(1, dtype=np.uint64)
    return total.view(np.int64)


def encoder_settings(settings: TrainedSettings) -> NetworkSettings:
    """Return the encoder's settings, where the deprecated ``encoding_size`` overrides ``hidden_units``."""
    network = settings.network_settings
    return network if settings.encoding_size is None else evolve(network, hidden_units=settings.encoding_size)


class TrainedReward(RewardSignal):
    """A reward signal with networks that are trained by its own Adam optimizer."""

    def __init__(
        self,
        name: str,
        settings: TrainedSettings,
        modules: Mapping[str, nn.Module],
        device: torch.device,
        novelty: Novelty | None = None,
    ) -> None:
        """Move the networks to ``device``.

        Args:
            name: name of the signal.
            settings: the signal's settings.
            modules: the networks by their names in the checkpoint. Parameters that require gradients are trained.
            device: the device of the networks.
            novelty: converts the rewards, if the signal rewards novelty.
        """
        super().__init__(name, gamma=settings.gamma, strength=settings.strength)
        self._modules = {key: module.to(device) for key, module in modules.items()}
        self._device = device
        self._novelty = novelty
        parameters = [one for module in self._modules.values() for one in module.parameters()]
        self._parameters = [one for one in parameters if one.requires_grad]
        self._optimizer = Adam(self._parameters, settings.learning_rate)

    @property
    def has_updated(self) -> bool:
        """True if the networks have been updated, in this process or before the run was resumed."""
        return bool(self._optimizer.state)

    @abstractmethod
    def _reward(self, packed: PackedSteps) -> FloatArray:
        """Compute the networks' reward for each step, f32 [B]."""

    def evaluate(self, packed: PackedSteps) -> FloatArray:
        reward = self._reward(packed)
        return reward if self._novelty is None else self._novelty.evaluated(reward)

    def collect(self, packed: PackedSteps) -> FloatArray:
        reward = self._reward(packed)
        return reward if self._novelty is None else self._novelty.collected(packed, reward)

    def reset_worker(self, worker: int | None) -> None:
        if self._novelty is not None:
            self._novelty.reset_worker(worker)

    def modules(self) -> dict[str, nn.Module]:
        return self._modules

    def optimizer_state(self) -> dict[str, Any] | None:
        adam = self._optimizer.state_dict()
        return adam | ({} if self._novelty is None else self._novelty.state())

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state)
        if self._novelty is not None:
            self._novelty.load_state(state)

    def _tensors(self, columns: Sequence[NDArray[Any]]) -> list[Tensor]:
        return [torch.from_numpy(column).to(self._device) for column in columns]


def real_rows(minibatch: Minibatch) -> Columns[Tensor]:
    """Return the rows of a minibatch without padding."""
    mask = minibatch.loss_mask
    return minibatch.rows if mask is None else minibatch.rows.take(mask.nonzero().squeeze(1))


def in_parts(function: Callable[[Sequence[Tensor]], Tensor], columns: Sequence[Tensor]) -> Tensor:
    """Apply ``function`` to columns [b, ...] in parts of limited size."""
    rows = max(1, _MAX_NUMBERS // max(1, sum(column[0].numel() for column in columns)))
    if rows >= len(columns[0]):
        return function(columns)
    starts = range(0, len(columns[0]), rows)
    return torch.cat([function([column[start : start + rows] for column in columns]) for start in starts])
