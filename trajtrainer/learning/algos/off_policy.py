"""Components shared by off-policy algorithms: when gradient steps are due, and minibatches from the replay buffer.

Shape legend: b rows of a minibatch, V reward signals, C continuous actions.
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

# Minibatches are sampled in blocks, so that indexing and evaluating rewards cost little per minibatch. Blocks are
# small, because progress is reported between blocks.
_MAX_BATCHES = 32
_MAX_BYTES = 1 << 25
# Upper bound on gradient steps per agent step with ``auto``.
_MOST_PER_STEP = 2
# With ``auto``, gradient steps for at most this many agent steps can wait for spare time (more only if more agent steps
# arrive at once). Without this limit, a pause in the environment could lead to an endless series of updates.
_MOST_SAVED = 1000
# Upper bound on how often a recorded step is sampled relative to an agent's own step. In GridWorld, filling half of
# each minibatch from 21 recorded steps cost a third of the reward.
_MOST_OFTEN = 50
# The assumed number of agent steps per gradient step with ``auto``, because the number of agents is not known yet.
_AUTO_LEAD = 20.0


def lead_of(steps_per_update: AutoOrNumber, gradient_steps: int) -> float:
    """Convert a lead of acting over learning from gradient steps to rows."""
    return gradient_steps * (_AUTO_LEAD if steps_per_update == AUTO else steps_per_update)


class Pace:
    """One gradient step per ``steps_per_update`` agent steps on average, starting after ``first_step`` agent steps.

    As in ML-Agents (docs/explanation/mlagents-behavior.md#pace), another gradient step is due while
    ``(step - first_step) / count > steps_per_update``, where ``count`` starts at 1. Like experience, gradient steps may
    come in bursts. Their total does not depend on how the experience was batched.

    Attributes:
        count: 1 plus the number of gradient steps so far.
    """

    def __init__(self, steps_per_update: float, first_step: int) -> None:
        self._steps_per_update = steps_per_update
        self._first_step = first_step
        self.count = 1

    def due(self, step: int) -> int:
        """Return how many gradient steps to make at trainer step ``step``."""
        steps = step - self._first_step
        # Rounding can make this estimate wrong by one, so the divisions below decide.
        due = max(0, math.ceil(steps / self._steps_per_update) - self.count)
        while steps / (self.count + due) > self._steps_per_update:
            due += 1
        while due and steps / (self.count + due - 1) <= self._steps_per_update:
            due -= 1
        return due

    def made(self, count: int) -> None:
        """Record that ``count`` gradient steps were made."""
        self.count += count

    def state(self) -> dict[str, float]:
        """Return the state as plain data for a checkpoint."""
        return {"count": self.count, "steps_per_update": self._steps_per_update, "first_step": self._first_step}

    def load(self, state: Mapping[str, Any] | None, step: int) -> None:
        """Continue from ``state``.

        Without a state (ML-Agents' checkpoints have none), or with a state that was saved with different settings, all
        gradient steps that were due up to ``step`` count as made.
        """
        if state is not None and self.state() == {**state, "count": self.count}:
            self.count = count_in(state["count"])
        else:
            self.count = max(1, int((step - self._first_step) / self._steps_per_update))


class AutoPace:
    """The pace ``auto``: one gradient step per message, and more in spare time, but at most two per agent step.

    The training loop calls ``due`` repeatedly while the environments are busy, and each call allows one gradient step.
    Several messages can arrive at once from actors in other processes, which wait until the learner has caught up.
    ``due`` then returns one gradient step for each of them.

    Args:
        first_step: number of agent steps before the first gradient step. They do not add to ``allowed``.
        messages: returns the number of messages that all environments have sent in this session.

    Attributes:
        count: 1 plus the number of gradient steps so far.
        allowed: number of gradient steps that the agent steps so far still allow.
    """

    def __init__(self, first_step: int, messages: Callable[[], int]) -> None:
        self._first_step = first_step
        self._messages = messages
        self._seen = 0  # messages whose gradient steps were already made
        self._step = 0  # agent steps that ``allowed`` accounts for
        self.count = 1
        self.allowed = 0

    def due(self, step: int) -> int:
        """Return how many gradient steps are due at trainer step ``step``. Call this even if no update is possible."""
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
        """Record that ``count`` gradient steps were made."""
        self.count += count
        self.allowed -= count
        self._seen = min(self._messages(), self._seen + count)

    def state(self) -> dict[str, Any]:
        """Return the state as plain data for a checkpoint."""
        settings = {"steps_per_update": AUTO, "first_step": self._first_step}
        return {"count": self.count, **settings, "allowed": self.allowed, "step": self._step}

    def load(self, state: Mapping[str, Any] | None, step: int) -> None:
        """Continue from ``state``. If the settings changed, agent steps before ``step`` allow no gradient steps."""
        self.count, self.allowed, self._step = 1, 0, step
        if state is not None:
            self.count = count_in(state["count"])
            if (state["steps_per_update"], state["first_step"]) == (AUTO, self._first_step):
                self.allowed, self._step = count_in(state["allowed"]), count_in(state["step"])


def pace_of(steps_per_update: AutoOrNumber, first_step: int, messages: Callable[[], int]) -> Pace | AutoPace:
    """Create the pace for this setting; see the classes for the other arguments."""
    if steps_per_update == AUTO:
        return AutoPace(first_step, messages)
    return Pace(steps_per_update, first_step)


class ReplayBatches:
    """Samples minibatches from a replay buffer, uniformly with replacement: single steps, or sequences with a memory.

    The reward signals evaluate the steps each time they are sampled.
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
        """Prepare sampling from ``replay``.

        Args:
            replay: the algorithm's replay buffer.
            signals: the reward signals in the order of the value heads.
            batch_size: rows per minibatch, rounded down to whole sequences, but at least one sequence.
            action_size: C.
            seed: seed for sampling and for the policy's noise.
            device: the device of the networks.
            n_step: number of steps whose rewards are summed; fewer near the end of a trajectory.
            decides_next: True if the policy also acts in the next state, with noise from the column ``next_noise``.
            recorded: replay buffer with demonstrations; not supported with a memory.
            ratio: fraction of recorded rows in each minibatch, rounded to at least one row and less than all. The
                fraction is reduced if recorded steps would otherwise be sampled more than 50 times as often as others.
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
        """The discount factors [V, 1], read on every access because an algorithm may change them during training."""
        return np.array([[signal.gamma] for signal in self._signals], np.float32)

    @property
    def num_recorded(self) -> int:
        """The current number of recorded rows in each minibatch."""
        if self._recorded is None:
            return 0
        often = _MOST_OFTEN * self._recorded.num_steps
        return min(self._most_recorded, self._per_batch * often // (often + self._replay.num_steps))

    def blocks(self, count: int, *, with_recorded: bool = True) -> Iterator[list[Minibatch]]:
        """Yield ``count`` minibatches in blocks. Without recorded rows, the agents' replay buffer provides all rows."""
        num_recorded, block = self.num_recorded if with_recorded else 0, self.block_size
        for start in range(0, count, block):
            yield self._draw(min(block, count - start), num_recorded)

    @property
    def block_size(self) -> int:
        """The maximum number of minibatches in a block."""
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
        """Return the rows of steps or sequences, and the memories before them."""
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
        """Return the columns for ``n_step`` targets, to be used instead of those for one-step targets."""
        ahead = replay.steps_ahead(numbers, self._n_step)
        rewards = np.zeros((len(self._signals), len(sample)), np.float32)
        last = sample
        for step in range(self._n_step):
            # After the end of a trajectory, its last step is repeated with weight 0.
            last = replay.sample(numbers + np.minimum(step, ahead - 1))
            rewards += self._rewards(replay, last) * (step < ahead) * self._gamma**step
        columns = {n: self._tensor(last.rows[n]) for n in last.rows if n.startswith((NEXT_OBSERVATIONS, NEXT_MASK))}
        columns["rewards"] = self._tensor(rewards).t()
        columns["discount"] = self._tensor((self._gamma**ahead * self._goes_on(last)).astype(np.float32)).t()
        return columns

    def _goes_on(self, sample: Sample) -> NDArray[np.bool_]:
        """Return whether each signal's return continues after a step, bool [V, rows]."""
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
        """Sample the indices of the steps or sequences for ``count`` minibatches, i64."""
        size = (count * self._per_batch,)
        numbers: LongArray = torch.randint(self._replay.num_sequences, size, generator=self._draws).numpy()
        return numbers

    def _normal(self, rows: int) -> Tensor:
        return torch.randn(rows, self._action_size, generator=self._noise, device=self._device)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device, torch_dtype(array.dtype))

    def generators(self) -> dict[str, torch.Generator]:
        """Return the random generators by their names in the checkpoint."""
        return {"replay": self._draws, "noise": self._noise}


def _interleaved(rows: Columns[Tensor], others: Columns[Tensor], count: int) -> Columns[Tensor]:
    """Split both sets of rows into ``count`` parts and join the parts pairwise.

    Images become floats if only one of the two sets has bytes.
    """
    found = {}
    for name, one in rows.items():
        pair = one, others[name]
        if pair[0].dtype != pair[1].dtype:
            pair = to_float(pair[0]), to_float(pair[1])
        parts = [each.view(count, len(each) // count, *each.shape[1:]) for each in pair]
        found[name] = torch.cat(parts, 1).flatten(0, 1)
    return Columns(found)
