"""Shared code of algorithms that learn from a data set: minibatches, imitation losses and the base class ``Offline``.

Shape legend: B packed steps, S trajectories, L sequence length, Q sequences, b rows of a minibatch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trajtrainer.core.columns import (
    NEXT_OBSERVATIONS,
    TEACHER_MEAN,
    TEACHER_PROBS,
    TEACHER_STD,
    Columns,
    sensor_name,
)
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import FloatArray, LongArray
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.algorithm import Algorithm, LearningContext, Statistics
from trajtrainer.learning.algos.schedules import MIN_LEARNING_RATE, decayed
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import ValueNetwork
from trajtrainer.learning.nn.distribution import ActionDistribution
from trajtrainer.learning.nn.minibatch import Minibatch, split, torch_dtype
from trajtrainer.learning.rewards.signal import RewardSignal
from trajtrainer.plugins.imitation.settings import CloningHyperparameters, OfflineHyperparameters, PolicyKind
from trajtrainer.settings.network import NetworkSettings

_LEARNED_FROM = ("mask", "continuous", "discrete", TEACHER_MEAN, TEACHER_STD, TEACHER_PROBS)
# Minibatches are gathered in blocks of up to this size, which is faster than one at a time.
_MAX_BYTES = 1 << 25
_MIX = 0x9E3779B97F4A7C15

# The inverse of tanh would be infinite for recorded actions at the ends of the range.
_BELOW_ONE = 0.999
# Maximum number of gradient steps in an update. The rest of the run has to wait during an update.
_BLOCK = 16
# Number of held-out steps that are predicted at once.
_ROWS = 4096


class TrajectoryParts(NamedTuple):
    """Parts of trajectories: the rows from each ``start`` to its ``stop``, i64."""

    start: LongArray
    stop: LongArray


class DatasetRows:
    """A selection of a data set's steps, cut into sequences of L steps. Only minibatches are copies.

    Attributes:
        num_steps: number of steps, not counting padding.
        num_sequences: number of sequences Q. Without a memory (L = 1), this equals ``num_steps``.
    """

    def __init__(
        self,
        packed: PackedSteps,
        parts: TrajectoryParts,
        *,
        sequence_length: int,
        device: torch.device,
        more: Mapping[str, FloatArray] | None = None,
    ) -> None:
        """Cut the trajectories into sequences.

        Args:
            packed: the data set, with labels if there is a teacher.
            parts: the parts of its trajectories to use.
            sequence_length: the sequence length L.
            device: device of the networks.
            more: additional columns, f32 [B, ...]. If given, minibatches also have next observations.
        """
        self._packed = packed
        self._length = sequence_length
        self._device = device
        self._more = more
        self._names = [name for name in _LEARNED_FROM if name in packed.steps]
        lengths = parts.stop - parts.start
        counts = -(-lengths // sequence_length)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        self._starts: LongArray = np.repeat(parts.start, counts) + within * sequence_length
        self._stops: LongArray = np.repeat(parts.stop, counts)
        self.num_steps = int(lengths.sum())
        self.num_sequences = len(self._starts)

    @property
    def row_bytes(self) -> int:
        """Size of a row in bytes, including next observations if minibatches have them."""
        sensors = sum(column[:1].nbytes for column in self._packed.obs)
        return sensors * (1 + (self._more is not None)) + sum(self._packed[name][:1].nbytes for name in self._names)

    def observations(self) -> Iterator[list[Tensor]]:
        """Yield the observations of all steps in blocks of limited size, per sensor [b, *O]."""
        count = max(1, _MAX_BYTES // max(1, self.row_bytes * self._length))
        for start in range(0, self.num_sequences, count):
            rows, real = self._rows(np.arange(start, min(start + count, self.num_sequences)))
            rows = rows if real is None else rows[real]
            yield [self._tensor(column.take(rows, axis=0)) for column in self._packed.obs]

    def minibatches(self, numbers: LongArray, count: int) -> Iterator[Minibatch]:
        """Yield the sequences with the given numbers as ``count`` minibatches of equal size."""
        per_minibatch = len(numbers) // count
        block = max(1, _MAX_BYTES // max(1, per_minibatch * self._length * self.row_bytes))
        for start in range(0, count, block):
            some = min(block, count - start)
            part = numbers[start * per_minibatch : (start + some) * per_minibatch]
            yield from split(self._gather(part), Columns({}), some, self._length)

    def _gather(self, numbers: LongArray) -> Columns[Tensor]:
        rows, real = self._rows(numbers)
        packed = self._packed
        columns: dict[str, NDArray[Any]] = {
            sensor_name(i): column.take(rows, axis=0) for i, column in enumerate(packed.obs)
        }
        columns |= {name: _taken(packed[name], rows) for name in self._names}
        if self._more is not None:
            following = enumerate(self._next_observations(rows))
            columns |= {sensor_name(i, NEXT_OBSERVATIONS): seen for i, seen in following}
            columns |= {name: column.take(rows, axis=0) for name, column in self._more.items()}
        if real is not None:
            columns["loss_mask"] = real.astype(np.float32)
        return Columns({name: self._tensor(column) for name, column in columns.items()})

    def _rows(self, numbers: LongArray) -> tuple[LongArray, NDArray[np.bool_] | None]:
        """Return the rows of sequences, padded by repeating a sequence's last row, and a mask of the real rows.

        The mask is None if there is no padding.
        """
        first = self._starts.take(numbers)
        if self._length == 1:
            return first, None
        rows, stops = first[:, None] + np.arange(self._length), self._stops.take(numbers)[:, None]
        real = (rows < stops).reshape(-1)
        return np.minimum(rows, stops - 1).reshape(-1), None if real.all() else real

    def _next_observations(self, rows: LongArray) -> list[NDArray[Any]]:
        packed = self._packed
        trajectory = np.searchsorted(packed.offset, rows, side="right") - 1
        last = np.flatnonzero(rows + 1 == packed.offset[trajectory + 1])
        after = np.minimum(rows + 1, len(packed) - 1)
        found = []
        for column, bootstrap in zip(packed.obs, packed.bootstrap.obs, strict=True):
            seen = column.take(after, axis=0)
            seen[last] = bootstrap.take(trajectory[last], axis=0)
            found.append(seen)
        return found

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device, torch_dtype(array.dtype))


class Shuffled:
    """An endless stream of the numbers below ``size``. Each occurs once per epoch, in random order.

    A number depends only on the seed and its position in the stream, so a resumed run only needs to know its gradient
    step.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self._seed = seed
        self._epoch = -1
        self._order: LongArray = np.zeros(0, np.int64)

    def __call__(self, start: int, stop: int) -> LongArray:
        """Return the numbers at the positions from ``start`` to ``stop`` (exclusive) of the stream."""
        parts = []
        while start < stop:
            epoch, place = divmod(start, self.size)
            end = min(self.size, place + stop - start)
            if epoch != self._epoch:
                generator = torch.Generator().manual_seed((self._seed + epoch * _MIX) % (1 << 63))
                self._order = torch.randperm(self.size, generator=generator).numpy()
                self._epoch = epoch
            parts.append(self._order[place:end])
            start += end - place
        return np.concatenate(parts)


def held_out(packed: PackedSteps, fraction: float, seed: int) -> tuple[TrajectoryParts, TrajectoryParts]:
    """Split a data set into steps to learn from and held-out steps.

    Random whole trajectories are held out, just enough to reach the fraction of the steps. If the fraction is less than
    one trajectory, the ends of all trajectories are held out instead.
    """
    start, stop = packed.offset[:-1].astype(np.int64), packed.offset[1:].astype(np.int64)
    if 0 < fraction * packed.num_trajectories < 1:
        cut = stop - np.ceil(fraction * (stop - start)).astype(np.int64)
        return TrajectoryParts(start, cut), TrajectoryParts(cut, stop)
    order = torch.randperm(packed.num_trajectories, generator=torch.Generator().manual_seed(seed)).numpy()
    steps = np.cumsum(packed.lengths[order], dtype=np.int64)
    count = int(np.searchsorted(steps, fraction * len(packed), side="left")) + 1 if fraction > 0 else 0
    learned, apart = np.sort(order[count:]), np.sort(order[:count])
    return TrajectoryParts(start[learned], stop[learned]), TrajectoryParts(start[apart], stop[apart])


def _taken(column: NDArray[Any], rows: LongArray) -> NDArray[Any]:
    """Return ``column[rows]``. numpy's ``take`` is faster, but does not support columns of width 0."""
    return column.take(rows, axis=0) if column[:1].size else np.zeros((len(rows), *column.shape[1:]), column.dtype)


def tensors(found: Sequence[dict[str, Tensor]]) -> dict[str, NDArray[np.floating]]:
    """Return each statistic of all gradient steps as an array, read back from the device in one transfer per tag."""
    return {tag: torch.stack([one[tag] for one in found]).float().cpu().numpy() for tag in found[0]} if found else {}


def make_actor(spec: BehaviorSpec, network: NetworkSettings, hyper: CloningHyperparameters) -> Actor:
    """Create a policy of the kind ``hyper.policy``, with initial weights from torch's global generator.

    Raises:
        UnsupportedError: no encoder can handle a sensor.
    """
    is_sac = hyper.policy is PolicyKind.SAC
    return Actor(spec, network, conditional_sigma=is_sac, tanh_squash=is_sac)


def log_likelihood(actor: Actor, distribution: ActionDistribution, batch: Minibatch) -> Tensor:
    """Return the log-probability of the recorded actions [b], summed over actions and branches."""
    # Convert the actions from the environment's range to that of the distribution.
    raw = actor.head.from_env(batch["continuous"])
    raw = raw.clamp(-_BELOW_ONE, _BELOW_ONE) if actor.head.tanh_squash else raw
    return distribution.log_prob(raw, batch["discrete"]).sum(1)


def divergence(distribution: ActionDistribution, batch: Minibatch) -> Tensor:
    """Return KL(teacher || policy) [b], summed over actions and branches.

    If one of them is a squashed and the other a clipped Gaussian, this is the divergence from a Gaussian with the
    teacher's ``moments``. It differs from the true divergence by a term that does not depend on the policy.
    """
    found = distribution.mu.new_zeros(len(batch))
    if distribution.mu.shape[1]:
        mean, std, sigma = batch[TEACHER_MEAN], batch[TEACHER_STD], distribution.sigma
        squares = (std.square() + (mean - distribution.mu).square()) / (2.0 * sigma.square())
        found = found + ((sigma / std).log() + squares - 0.5).sum(1)
    if distribution.branches:
        probs = batch[TEACHER_PROBS]
        log_probs = torch.cat([logits.log_softmax(1) for logits in distribution.logits], 1)
        found = found + (torch.xlogy(probs, probs) - probs * log_probs).sum(1)
    return found


def imitation_losses(actor: Actor, distribution: ActionDistribution, batch: Minibatch) -> Tensor:
    """Return the loss of each row [b]: the divergence from the teacher, if any, otherwise -ln pi(a | s)."""
    if TEACHER_MEAN in batch.rows:
        return divergence(distribution, batch)
    return -log_likelihood(actor, distribution, batch)


@torch.no_grad()
def limit_sigma(actor: Actor, min_std: float) -> None:
    """Keep a state-independent standard deviation from falling below ``min_std``."""
    if actor.head.log_sigma is not None:
        actor.head.log_sigma.clamp_(min=math.log(actor.head.clip_actions * min_std))


@torch.no_grad()
def prediction(actor: Actor, batch: Minibatch) -> dict[str, Tensor]:
    """Measure how well the modes of the policy predict the recorded actions.

    Returns:
        Sums over the real rows: ``rows``, their number, and by tag: the loss, see ``imitation_losses``; the squared
        error, averaged over the continuous actions, in the environment's units; the fraction of branches predicted
        correctly. The last two are only included if the agents have such actions.
    """
    distribution, _ = actor(batch.obs, batch["mask"], batch.memory, batch.sequence_length)
    mode = distribution.deterministic()
    weight = torch.ones(len(batch), device=batch["mask"].device) if batch.loss_mask is None else batch.loss_mask
    sums = {"rows": weight.sum(), "Losses/Validation Loss": weight @ imitation_losses(actor, distribution, batch)}
    if actor.head.continuous_size:
        error = distribution.to_env(mode.continuous) - batch["continuous"]
        sums["Policy/Validation Error"] = weight @ error.square().mean(1)
    if actor.head.branches:
        sums["Policy/Validation Accuracy"] = weight @ (mode.discrete == batch["discrete"]).float().mean(1)
    return sums


class Offline(Algorithm):
    """Base class of algorithms that learn from a data set. ``add`` is called only once, with the whole data set.

    Each step of the trainer is a gradient step. The rows of a minibatch depend only on the seed and the step, so a
    resumed run continues exactly as without the interruption.

    Attributes:
        needs_next: True if minibatches need next observations, ``rewards`` and ``discount``.
        timer: name of the timer for a gradient step.
        hyper: the hyperparameters.
    """

    counts_group_rewards = True
    needs_next: ClassVar[bool] = False
    timer: ClassVar[str]

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        super().__init__(context, networks, signals)
        hyper = context.settings.hyperparameters
        assert isinstance(hyper, OfflineHyperparameters)
        self.hyper = hyper

    @abstractmethod
    def gradient_step(self, batch: Minibatch, step: int) -> dict[str, Tensor]:
        """Perform gradient step ``step``, and return statistics as detached 0-d tensors on the device."""

    def decayed(self, initial: float, step: int) -> float:
        """Return the learning rate at gradient step ``step``, for a schedule that starts at ``initial``."""
        schedule, last = self.hyper.learning_rate_schedule, self.context.settings.max_steps
        return decayed(schedule, initial, MIN_LEARNING_RATE, last, step)

    def add(self, packed: PackedSteps, rewards: FloatArray) -> Statistics:
        """Receive the whole data set. Called once.

        Raises:
            SettingsError: all steps are held out, so there are no steps to learn from.
        """
        context, hyper = self.context, self.hyper
        memory = context.settings.network_settings.memory
        length = self._length = 1 if memory is None else memory.sequence_length
        learned, apart = held_out(packed, hyper.validation_fraction, context.draws_seed)
        more = None
        if self.needs_next:
            (signal,) = self.signals
            terminated = packed["done"] & ~packed["interrupted"]
            discount = (np.float32(signal.gamma) * ~terminated).astype(np.float32)
            more = {"rewards": rewards[0], "discount": discount}
        self._rows = DatasetRows(packed, learned, sequence_length=length, device=context.device, more=more)
        self._apart = DatasetRows(packed, apart, sequence_length=length, device=context.device)
        if not self._rows.num_steps:
            raise SettingsError(
                f"Behavior {context.behavior!r}: validation_fraction {hyper.validation_fraction} leaves none of the "
                f"data set's {len(packed)} steps to learn from. Set it to 0, or record more steps."
            )
        self._per_batch = max(1, hyper.batch_size // length)
        self._shuffled = Shuffled(self._rows.num_sequences, context.draws_seed)
        if context.settings.network_settings.normalize:
            for obs in self._rows.observations():
                self.actor.update_normalization(obs)
        return {}

    def is_ready(self, step: int) -> bool:  # noqa: ARG002
        return True

    def update(self, step: int, show_progress: Callable[[float], None]) -> Statistics:  # noqa: ARG002
        """Perform up to ``_BLOCK`` gradient steps, but stop at the next summary, checkpoint or evaluation."""
        for network in self.networks.values():
            if isinstance(network, ValueNetwork):  # the policy's normalizers may come from another run
                network.body.copy_normalization(self.actor.body)
        settings = self.context.settings
        intervals = settings.summary_freq, settings.checkpoint_interval, self.context.evaluation_interval
        due = [interval - step % interval for interval in intervals if interval is not None]
        count = max(1, min(_BLOCK, settings.max_steps - step, *due))
        size = self._per_batch
        numbers = self._shuffled(step * size, (step + count) * size)
        found: list[dict[str, Tensor]] = []
        for batch in self.until_stop(self._rows.minibatches(numbers, count)):
            with self.context.timers(self.timer):
                found.append(self.gradient_step(batch, step + len(found)))
        if not found:
            return {}
        self.gradient_steps += len(found)
        after = step + len(found)
        once = {"Policy/Learning Rate": self.decayed(self.hyper.learning_rate, after)}
        if after % settings.summary_freq == 0:
            once |= {"Policy/Epoch": after * size / self._rows.num_sequences, **self.validate()}
        return {**tensors(found), **{tag: np.array([value]) for tag, value in once.items()}}

    def validate(self) -> dict[str, float]:
        """Return statistics of how well the policy predicts the held-out steps; empty if there are none.

        ``Losses/Validation Loss`` is the mean of -ln pi(a | s), or of the divergence from a teacher;
        ``Policy/Validation Error`` is the mean squared error of continuous actions, in the environment's range from -1
        to 1; ``Policy/Validation Accuracy`` is the fraction of discrete actions predicted correctly.
        """
        sums: defaultdict[str, float] = defaultdict(float)
        size = max(1, _ROWS // self._length)
        for start in range(0, self._apart.num_sequences, size):
            numbers = np.arange(start, min(start + size, self._apart.num_sequences))
            for batch in self._apart.minibatches(numbers, 1):
                for name, value in prediction(self.actor, batch).items():
                    sums[name] += float(value)
        rows = sums.pop("rows", 0.0)
        return {tag: value / rows for tag, value in sums.items()}
