"""Shared by algorithms that learn from a replay: how many gradient steps are due, and their minibatches.

Shape legend: b rows of a batch, V reward signals, C continuous actions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trajtrainer.core.columns import NEXT_MASK, NEXT_OBSERVATIONS, Columns
from trajtrainer.core.numeric import count_in
from trajtrainer.core.steps import FloatArray, LongArray
from trajtrainer.experience.replay import Replay, Sample
from trajtrainer.learning.nn.encoders import to_float
from trajtrainer.learning.nn.minibatch import Minibatch, split, torch_dtype
from trajtrainer.learning.rewards.signal import RewardSignal
from trajtrainer.settings.checks import AUTO, AutoOrNumber

# Batches are drawn in blocks, so that index operations and rewards cost little per batch. Blocks are small, because a
# learner in a thread of its own shows its progress between two of them.
_MAX_BATCHES = 32
_MAX_BYTES = 1 << 25
# With ``auto``: at most so many gradient steps per agent step.
_MOST_PER_STEP = 2
# Agent steps arrive in whole trajectories. The gradient steps for this many agent steps may wait for spare time, or
# those for one arrival if that is larger. The limit keeps an environment that pauses from starting endless updates.
_MOST_SAVED = 1000
# How many times as often as one of the agents' steps a recorded step is drawn at most. In GridWorld, half of each batch
# from 21 recorded steps cost a third of the reward.
_MOST_OFTEN = 50
# With ``auto`` the lead is that of this many agent steps per gradient step: the number of agents is not known yet.
_AUTO_LEAD = 20.0


def lead_of(steps_per_update: AutoOrNumber, gradient_steps: int) -> float:
    """Rows of experience for so many gradient steps, by which acting may be ahead."""
    return gradient_steps * (_AUTO_LEAD if steps_per_update == AUTO else steps_per_update)


class Pace:
    """One gradient step per ``steps_per_update`` agent steps on average, after the first ``first_step`` ones.

    Counts as ML-Agents does (docs/explanation/mlagents-behavior.md#pace): another step is due while
    ``(step - first_step) / count > steps_per_update``, where ``count`` starts at 1. Gradient steps may come in bursts,
    as experience does; their total does not depend on how experience was drained.

    Attributes:
        count: 1 plus the gradient steps made so far.
    """

    def __init__(self, steps_per_update: float, first_step: int) -> None:
        self._steps_per_update = steps_per_update
        self._first_step = first_step
        self.count = 1

    def due(self, step: int) -> int:
        """How many gradient steps to make at trainer step ``step``."""
        steps = step - self._first_step
        # The divisions below decide. Rounding may make this estimate wrong by one.
        due = max(0, math.ceil(steps / self._steps_per_update) - self.count)
        while steps / (self.count + due) > self._steps_per_update:
            due += 1
        while due and steps / (self.count + due - 1) <= self._steps_per_update:
            due -= 1
        return due

    def made(self, count: int) -> None:
        """Count ``count`` gradient steps as made."""
        self.count += count

    def state(self) -> dict[str, float]:
        """Plain data for a checkpoint."""
        return {"count": self.count, "steps_per_update": self._steps_per_update, "first_step": self._first_step}

    def load(self, state: Mapping[str, Any] | None, step: int) -> None:
        """Continue from ``state``.

        If there is none (a checkpoint of ML-Agents) or the settings have changed since, everything due until ``step``
        counts as made.
        """
        if state is not None and self.state() == {**state, "count": self.count}:
            self.count = count_in(state["count"])
        else:
            self.count = max(1, int((step - self._first_step) / self._steps_per_update))


class AutoPace:
    """The pace ``auto``: gradient steps whenever there is time, at most two per agent step, and one per message.

    The loop asks again and again while environments compute, and gets one gradient step each time. Messages that have
    arrived since the last one are owed a gradient step each, in one go: several may arrive at once from actors in
    other processes, which wait until the learner has caught up.

    Args:
        first_step: agent steps before the first gradient step, which allow none.
        messages: returns the number of messages of all environments in this session.

    Attributes:
        count: 1 plus the gradient steps made so far.
        allowed: gradient steps that the agent steps so far still allow.
    """

    def __init__(self, first_step: int, messages: Callable[[], int]) -> None:
        self._first_step = first_step
        self._messages = messages
        self._seen = 0  # messages that are not owed anything any more
        self._step = 0  # whose gradient steps are part of ``allowed``
        self.count = 1
        self.allowed = 0

    def due(self, step: int) -> int:
        """How many gradient steps to make at trainer step ``step``. Call it even if none can be made yet."""
        new = step - max(self._step, self._first_step)
        if new > 0:
            saved = max(new, _MOST_SAVED)
            self.allowed = min(self.allowed + _MOST_PER_STEP * new, _MOST_PER_STEP * saved)
        self._step = max(self._step, step)
        messages = self._messages()
        if not self.allowed:
            self._seen = messages
        return min(self.allowed, max(1, messages - self._seen))

    def made(self, count: int) -> None:
        """Count ``count`` gradient steps as made."""
        self.count += count
        self.allowed -= count
        self._seen = min(self._messages(), self._seen + count)

    def state(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        settings = {"steps_per_update": AUTO, "first_step": self._first_step}
        return {"count": self.count, **settings, "allowed": self.allowed, "step": self._step}

    def load(self, state: Mapping[str, Any] | None, step: int) -> None:
        """Continue from ``state``. If it is of another pace, the steps until ``step`` allow no gradient steps."""
        self.count, self.allowed, self._step = 1, 0, step
        if state is not None:
            self.count = count_in(state["count"])
            if (state["steps_per_update"], state["first_step"]) == (AUTO, self._first_step):
                self.allowed, self._step = count_in(state["allowed"]), count_in(state["step"])


def pace_of(steps_per_update: AutoOrNumber, first_step: int, messages: Callable[[], int]) -> Pace | AutoPace:
    """The pace of this setting; see the classes for the other arguments."""
    if steps_per_update == AUTO:
        return AutoPace(first_step, messages)
    return Pace(steps_per_update, first_step)


class ReplayBatches:
    """Draws steps or, with a memory, whole sequences from a replay, uniformly with replacement.

    The reward signals evaluate steps when these are drawn.
    """

    def __init__(
        self,
        replay: Replay,
        signals: Sequence[RewardSignal],
        *,
        batch_size: int,
        action_size: int,
        seed: int,
        device: torch.device,
        n_step: int = 1,
        decides_next: bool = False,
        recorded: Replay | None = None,
        ratio: float = 0.0,
    ) -> None:
        """Draw from ``replay``.

        Args:
            replay: of the algorithm.
            signals: in the order of the value heads.
            batch_size: rows; rounded down to whole sequences, at least one.
            action_size: C.
            seed: of the draws and the policy's noise.
            device: of the networks.
            n_step: how many steps' rewards are summed; fewer before the end of a trajectory.
            decides_next: whether the policy also acts in the next state, with noise from the column ``next_noise``.
            recorded: demonstrations, without a memory.
            ratio: their fraction of each batch, rounded to rows: at least one, and less than all. There are fewer rows
                once a recorded step would be drawn more than 50 times as often as another.
        """
        self._n_step = n_step
        self._decides_next = decides_next
        self._replay = replay
        self._signals = signals
        self._per_batch = max(1, batch_size // replay.sequence_length)
        self._recorded = recorded
        self._most_recorded = min(max(1, round(ratio * self._per_batch)), self._per_batch - 1)
        self._action_size = action_size
        self._device = device
        self._draws = torch.Generator().manual_seed(seed)
        self._noise = torch.Generator(device).manual_seed(seed ^ 1)
        self._ends = np.array([[not signal.ignore_done] for signal in signals])

    @property
    def _gamma(self) -> FloatArray:
        """The discounts [V, 1]. Not constant: XQC may still be choosing one."""
        return np.array([[signal.gamma] for signal in self._signals], np.float32)

    @property
    def num_recorded(self) -> int:
        """Recorded rows of each batch now."""
        if self._recorded is None:
            return 0
        often = _MOST_OFTEN * self._recorded.num_steps
        return min(self._most_recorded, self._per_batch * often // (often + self._replay.num_steps))

    def blocks(self, count: int, *, with_recorded: bool = True) -> Iterator[list[Minibatch]]:
        """Yield ``count`` batches in blocks. Without recorded rows, rows of the replay take their places."""
        num_recorded, block = self.num_recorded if with_recorded else 0, self.block_size
        for start in range(0, count, block):
            yield self._draw(min(block, count - start), num_recorded)

    @property
    def block_size(self) -> int:
        """The most batches of a block."""
        rows = self._per_batch * self._replay.sequence_length
        return min(_MAX_BATCHES, max(1, _MAX_BYTES // (rows * self._replay.row_bytes)))

    def _draw(self, count: int, num_recorded: int = 0) -> list[Minibatch]:
        numbers = self._numbers(count)
        if self._recorded is None or not num_recorded:
            rows, sequences = self._steps(self._replay, numbers)
        else:
            of_recorded = torch.randint(self._recorded.num_sequences, (count * num_recorded,), generator=self._draws)
            recorded, _ = self._steps(self._recorded, of_recorded.numpy())
            numbers = numbers.reshape(count, -1)[:, num_recorded:].reshape(-1)
            rows, sequences = self._steps(self._replay, numbers)
            rows = _interleaved(rows, recorded, count)
        columns = {"noise": self._normal(len(rows))}
        if self._decides_next:
            columns["next_noise"] = self._normal(len(rows))
        return list(split(rows.with_columns(columns), sequences, count, self._replay.sequence_length))

    def _steps(self, replay: Replay, numbers: LongArray) -> tuple[Columns[Tensor], Columns[Tensor]]:
        """Rows of steps or sequences, and the memories before them."""
        sample = replay.sample(numbers)
        columns = {
            "rewards": self._tensor(self._rewards(replay, sample)).t(),
            "discount": self._tensor(self._gamma * self._goes_on(sample)).t(),
        }
        if any("done" in signal.needs for signal in self._signals):
            columns["done"] = self._tensor(sample.rows["terminated"] | sample.rows["interrupted"])
        if sample.real is not None:
            columns["loss_mask"] = self._tensor(sample.real).float()
        if self._n_step > 1:
            columns |= self._several_steps_later(replay, numbers, sample)
        sequences = {name: self._tensor(one) for name, one in sample.sequences.items() if one.shape[1]}
        return sample.rows.map(self._tensor).with_columns(columns), Columns(sequences)

    def _several_steps_later(self, replay: Replay, numbers: LongArray, sample: Sample) -> dict[str, Tensor]:
        """Columns for targets ``n_step`` steps ahead instead of one."""
        ahead = replay.steps_ahead(numbers, self._n_step)
        rewards = np.zeros((len(self._signals), len(sample)), np.float32)
        last = sample
        for step in range(self._n_step):
            # After the end of a trajectory its last step is repeated, with weight 0.
            last = replay.sample(numbers + np.minimum(step, ahead - 1))
            rewards += self._rewards(replay, last) * (step < ahead) * self._gamma**step
        columns = {n: self._tensor(last.rows[n]) for n in last.rows if n.startswith((NEXT_OBSERVATIONS, NEXT_MASK))}
        columns["rewards"] = self._tensor(rewards).t()
        columns["discount"] = self._tensor((self._gamma**ahead * self._goes_on(last)).astype(np.float32)).t()
        return columns

    def _goes_on(self, sample: Sample) -> NDArray[np.bool_]:
        """Whether rewards after the step count, per signal, bool [V, rows]."""
        goes_on: NDArray[np.bool_] = ~(sample.rows["terminated"] & self._ends)
        return goes_on

    def _rewards(self, replay: Replay, sample: Sample) -> FloatArray:
        packed = sample.packed()
        rewards = np.zeros((len(self._signals), len(sample)), np.float32)
        places: Any = slice(None) if sample.real is None else np.flatnonzero(sample.real)
        for row, signal in zip(rewards, self._signals, strict=True):
            evaluate = signal.evaluate if replay is self._replay else signal.evaluate_recorded
            row[places] = evaluate(packed) * np.float32(signal.strength)
        return rewards

    def _numbers(self, count: int) -> LongArray:
        """The numbers of the steps or sequences of ``count`` batches, i64."""
        size = (count * self._per_batch,)
        numbers: LongArray = torch.randint(self._replay.num_sequences, size, generator=self._draws).numpy()
        return numbers

    def _normal(self, rows: int) -> Tensor:
        return torch.randn(rows, self._action_size, generator=self._noise, device=self._device)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device, torch_dtype(array.dtype))

    def generators(self) -> dict[str, torch.Generator]:
        """Name in the checkpoint -> random generator."""
        return {"replay": self._draws, "noise": self._noise}


def _interleaved(rows: Columns[Tensor], others: Columns[Tensor], count: int) -> Columns[Tensor]:
    """Join both into ``count`` batches with a share of each. Pictures become floats if only one of both has bytes."""
    found = {}
    for name, one in rows.items():
        pair = one, others[name]
        if pair[0].dtype != pair[1].dtype:
            pair = to_float(pair[0]), to_float(pair[1])
        parts = [each.view(count, len(each) // count, *each.shape[1:]) for each in pair]
        found[name] = torch.cat(parts, 1).flatten(0, 1)
    return Columns(found)
