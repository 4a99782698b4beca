"""Learning targets from whole trajectories: value estimates, advantages and returns.

``gae``, ``lambda_return`` and ``v_trace`` solve the recursion ``x[t] = d[t] + c * x[t + 1]`` within each trajectory;
in V-trace, c depends on the step. All packed trajectories are solved at once by doubling: pass k adds c^(2^k) times the
x that is 2^k steps ahead to each x, which then covers 2^(k+1) steps. This takes log2(longest trajectory) passes over
the packed steps, no matter how many trajectories there are, instead of one Python iteration per step. Sums are computed
in float64 and returned as float32.

Shape legend: V reward signals, B packed steps, S trajectories, L sequence length, Q sequences of up to L steps (each
trajectory is cut into sequences from its start), H memory size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trajtrainer.core.steps import BoolArray, FloatArray, IntArray, LongArray
from trajtrainer.experience.trajectory import PackedSteps, PerAgent, offsets
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import AnyCritic, SharedCritic, unroll_values

DoubleArray = NDArray[np.float64]
Offsets = IntArray | LongArray

# Maximum number of observation values in one pass through the critic (64 MB of float32). It bounds the memory that the
# layers need.
_MAX_NUMBERS = 1 << 24


class ValueEstimates(NamedTuple):
    """The critic's estimates for packed steps.

    Attributes:
        values: f32 [V, B], the value of each step's observation.
        bootstrap: f32 [V, S], the value of the observation after each trajectory, even if the episode ended there.
        memory: f32 [Q, H], the critic's own memory before each sequence, if it has one.
    """

    values: FloatArray
    bootstrap: FloatArray
    memory: Tensor | None


class AgentMemories(PerAgent[Tensor]):
    """The memory [H] of each agent that is in an unfinished episode. All other agents have a memory of zeros."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def of(self, agent: LongArray, device: torch.device) -> Tensor:
        """Return the memories of the given agents, f32 [S, H]."""
        nothing = torch.zeros(self._size, device=device)
        return torch.stack([self.get(one, nothing) for one in agent.tolist()])

    def keep(self, agent: LongArray, ended: BoolArray, after: Tensor) -> None:
        """Store the memories [S, H] of the given agents, except those whose episodes have ended."""
        for one, is_end, memory in zip(agent.tolist(), ended.tolist(), after, strict=True):
            if is_end:
                self.pop(one, None)
            else:
                self[one] = memory.clone()


class ValueEstimator:
    """Estimates the values of all trajectories in one pass through the critic.

    For a recurrent critic, the estimator carries one memory per agent from one trajectory to the next and clears it
    when an episode ends; ML-Agents has a single memory for all agents (docs/explanation/mlagents-behavior.md#memory). A
    critic on the actor's body needs no memory of its own: the rows contain the actor's memory, which was computed by
    the same body from the same steps.
    """

    def __init__(self, critic: AnyCritic, sequence_length: int) -> None:
        self._critic = critic
        self._length = sequence_length
        self._memories = AgentMemories(critic.memory_size)

    @torch.no_grad()
    def estimate(self, packed: PackedSteps, obs: Sequence[Tensor], bootstrap_obs: Sequence[Tensor]) -> ValueEstimates:
        """Estimate the values of ``packed``, whose observations on the critic's device are given separately."""
        if not self._critic.memory_size:
            everything = [torch.cat(pair) for pair in zip(obs, bootstrap_obs, strict=True)]
            values = numpy_of(torch.cat([self._critic(part)[0] for part in in_parts(everything)], 1))
            return ValueEstimates(values[:, : len(packed)], values[:, len(packed) :], None)
        if isinstance(self._critic, SharedCritic):
            return self._with_stored_memory(packed, obs, bootstrap_obs)
        return self._with_own_memory(packed, obs, bootstrap_obs)

    def reset_worker(self, worker: int | None) -> None:
        self._memories.reset_worker(worker)

    def _with_stored_memory(
        self, packed: PackedSteps, obs: Sequence[Tensor], bootstrap_obs: Sequence[Tensor]
    ) -> ValueEstimates:
        # The memory before each step is stored, so steps can be evaluated in any order.
        device = obs[0].device
        everything = [torch.cat(pair) for pair in zip(obs, bootstrap_obs, strict=True)]
        memory = torch.from_numpy(np.concatenate([packed["memory"], packed.bootstrap["memory"]])).to(device)
        parts = [self._critic(part[:-1], part[-1])[0] for part in in_parts([*everything, memory])]
        values = numpy_of(torch.cat(parts, 1))
        return ValueEstimates(values[:, : len(packed)], values[:, len(packed) :], None)

    def _with_own_memory(
        self, packed: PackedSteps, obs: Sequence[Tensor], bootstrap_obs: Sequence[Tensor]
    ) -> ValueEstimates:
        critic, device = self._critic, obs[0].device
        first_sequence = sequence_offsets(packed.lengths, self._length)
        num_signals = len(critic.signals)
        values = torch.empty(num_signals, len(packed), device=device)
        bootstrap = torch.empty(num_signals, packed.num_trajectories, device=device)
        before = torch.empty(int(first_sequence[-1]), critic.memory_size, device=device)
        rows_at_once = max(1, _MAX_NUMBERS // max(1, sum(column[0].numel() for column in obs)))
        for turn in turns(packed.agent):
            # Split the turn into parts whose trajectories have about ``rows_at_once`` steps in total.
            total = np.cumsum(packed.lengths[turn], dtype=np.int64)
            for some in np.split(turn, np.flatnonzero(np.diff((total - 1) // rows_at_once)) + 1):
                memory = self._memories.of(packed.agent[some], device)
                lengths = packed.lengths[some]
                steps = torch.from_numpy(ranges(packed.offset[some], lengths)).to(device)
                sequences = ranges(first_sequence[some], np.diff(first_sequence)[some])
                found = unroll_values(
                    critic, [o[steps] for o in obs], torch.from_numpy(offsets(lengths)), memory, self._length
                )
                values[:, steps], before[torch.from_numpy(sequences)], memory = found
                index = torch.from_numpy(some).to(device)
                bootstrap[:, index] = critic([o[index] for o in bootstrap_obs], memory)[0]
                self._memories.keep(packed.agent[some], packed.ended[some], memory)
        return ValueEstimates(numpy_of(values), numpy_of(bootstrap), before)


@torch.no_grad()
def log_probabilities(actor: Actor, packed: PackedSteps, obs: Sequence[Tensor], sequence_length: int) -> FloatArray:
    """Return the log-probabilities of the actions taken under the current policy, f32 [B, C + K].

    A recurrent policy starts each sequence with the stored memory, as in gradient steps.

    Args:
        actor: the current policy.
        packed: B steps.
        obs: their observations for each sensor [B, *O], on the actor's device.
        sequence_length: L.
    """
    device, body = obs[0].device, actor.body
    given = [torch.from_numpy(packed[name]).to(device) for name in ("mask", "continuous", "discrete")]
    if body.memory is not None:
        begins = sequence_begins(packed, sequence_length)
        memory = torch.from_numpy(packed["memory"][begins]).to(device)
        features = torch.cat([body.features(part) for part in in_parts(obs)])
        offset = torch.from_numpy(np.append(begins, len(packed)))
        obs = [body.memory.unroll(features, offset, memory, sequence_length).out]
    found = []
    for mask, continuous, discrete, *seen in in_parts([*given, *obs]):
        encoding = seen[0] if body.memory is not None else body(seen)[0]
        found.append(actor.head(encoding, mask).log_prob(continuous, discrete))
    return numpy_of(torch.cat(found))


def mean_values(values: FloatArray, packed: PackedSteps) -> NDArray[np.float64]:
    """Return the mean of estimates [V, B] over each trajectory, f64 [V, S]."""
    means: NDArray[np.float64] = np.add.reduceat(values, packed.offset[:-1], axis=1) / packed.lengths
    return means


def sequence_offsets(lengths: IntArray, sequence_length: int) -> LongArray:
    """Return the index of each trajectory's first sequence, followed by Q, i64 [S + 1]."""
    offset = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(-(-lengths // sequence_length), out=offset[1:])
    return offset


def sequence_begins(packed: PackedSteps, sequence_length: int) -> LongArray:
    """Return the index of each sequence's first step, i64 [Q]."""
    within = np.arange(len(packed)) - np.repeat(packed.offset[:-1], packed.lengths)
    return np.flatnonzero(within % sequence_length == 0)


def turns(agent: LongArray) -> Iterator[LongArray]:
    """Yield indices of trajectories, one array per turn. Turn n contains the n-th trajectory of each agent."""
    order = np.argsort(agent, kind="stable")
    begins = np.flatnonzero(np.diff(agent[order], prepend=agent[order[0]] - 1))
    counts = np.diff(begins, append=len(agent))
    occurrence = np.empty(len(agent), np.int64)
    occurrence[order] = np.arange(len(agent)) - np.repeat(begins, counts)
    for number in range(int(counts.max())):
        yield np.flatnonzero(occurrence == number)


def ranges(begin: IntArray | LongArray, lengths: IntArray | LongArray) -> LongArray:
    """Return the concatenation of ``arange(begin, begin + length)`` for all pairs."""
    ends = np.cumsum(lengths, dtype=np.int64)
    ranges: LongArray = np.arange(ends[-1]) + np.repeat(begin - ends + lengths, lengths)
    return ranges


def in_parts(columns: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the columns in parts of limited size."""
    rows = max(1, _MAX_NUMBERS // max(1, sum(column[0].numel() for column in columns)))
    for start in range(0, len(columns[0]), rows):
        yield [column[start : start + rows] for column in columns]


def numpy_of(tensor: Tensor) -> FloatArray:
    """Return a tensor on any device as a numpy array."""
    array: FloatArray = tensor.cpu().numpy()
    return array


def _per_signal(values: Sequence[float] | float) -> DoubleArray:
    """Return the values as a column [V, 1]."""
    return np.atleast_1d(np.asarray(values, np.float64))[:, None]


def _solve(terms: DoubleArray, coefficient: DoubleArray, offset: Offsets) -> DoubleArray:
    """Solve ``x[t] = terms[t] + coefficient[t] * x[t + 1]`` [V, B] by doubling, with x = 0 after each trajectory.

    Overwrites ``terms``. ``coefficient`` is [V, B], or [V, 1] if it is the same for all steps.
    """
    coefficient = np.broadcast_to(coefficient, terms.shape).copy()
    coefficient[:, offset[1:] - 1] = 0.0
    shift, longest = 1, int(np.diff(offset).max())
    while shift < longest:
        terms[:, :-shift] += coefficient[:, :-shift] * terms[:, shift:]
        coefficient[:, :-shift] *= coefficient[:, shift:]
        shift *= 2
    return terms


def _next_values(values: FloatArray | DoubleArray, bootstrap: FloatArray, offset: Offsets) -> DoubleArray:
    following = np.empty(values.shape, np.float64)
    following[:, :-1] = values[:, 1:]
    following[:, offset[1:] - 1] = bootstrap
    return following


def gae(
    rewards: FloatArray,
    values: FloatArray,
    bootstrap: FloatArray,
    offset: Offsets,
    gamma: Sequence[float],
    lambd: float,
) -> FloatArray:
    """Generalized advantage estimation (Schulman et al. 2016).

    ``A[t] = sum over i of (gamma * lambd)^i * (r[t+i] + gamma * V[t+i+1] - V[t+i])``.

    Args:
        rewards: f32 [V, B], multiplied by the signals' strength.
        values: f32 [V, B], the value of each step's observation.
        bootstrap: f32 [V, S], the value of the observation after each trajectory; 0 after a terminal state.
        offset: integers [S + 1], the start of each trajectory, followed by B. Trajectories must not be empty.
        gamma: [V], the discount factor of each signal.
        lambd: the parameter lambda, from 0 (TD error) to 1 (full return).

    Returns:
        Advantages f32 [V, B].
    """
    discount = _per_signal(gamma)
    delta = rewards + discount * _next_values(values, bootstrap, offset) - values
    return _solve(delta, discount * lambd, offset).astype(np.float32)


def lambda_return(
    rewards: FloatArray,
    values: FloatArray,
    bootstrap: FloatArray,
    offset: Offsets,
    gamma: Sequence[float],
    lambd: float,
) -> FloatArray:
    """Return lambda-returns ``R[t] = r[t] + gamma * (lambd * R[t+1] + (1 - lambd) * V[t+1])``, f32 [V, B].

    After the last step of a trajectory, R is the bootstrap value. The arguments are those of ``gae``.
    """
    discount = _per_signal(gamma)
    terms = rewards + discount * (1 - lambd) * _next_values(values, bootstrap, offset)
    last = offset[1:] - 1
    terms[:, last] = rewards[:, last] + discount * bootstrap
    return _solve(terms, discount * lambd, offset).astype(np.float32)


def v_trace(
    rewards: FloatArray,
    values: FloatArray,
    bootstrap: FloatArray,
    offset: Offsets,
    gamma: Sequence[float],
    lambd: float,
    rho: FloatArray,
    trace: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Compute V-trace targets (Espeholt et al. 2018) for trajectories collected by another policy.

    ``v[t] = V[t] + rho[t] * (r[t] + gamma * V[t+1] - V[t]) + gamma * lambd * trace[t] * (v[t+1] - V[t+1])`` (equation 1
    and remark 2), and ``q[t] = r[t] + gamma * (lambd * v[t+1] + (1 - lambd) * V[t+1])`` (section 4.2, where lambda is
    1). If all importance weights are 1, both are the lambda-return, and ``q - V`` is the generalized advantage
    estimate.

    Args:
        rewards: f32 [V, B]; see ``gae`` for this and the arguments up to ``lambd``.
        values: f32 [V, B].
        bootstrap: f32 [V, S].
        offset: integers [S + 1].
        gamma: [V].
        lambd: the parameter lambda.
        rho: f32 [B], the truncated importance weight of each step.
        trace: f32 [B], the trace-cutting coefficients (c in the paper): how strongly later temporal differences affect
            each step's target.

    Returns:
        v, the value targets, and q, the estimated values of the actions taken, both f32 [V, B].
    """
    discount = _per_signal(gamma)
    q = rewards + discount * _next_values(values, bootstrap, offset)
    moved = _solve(rho * (q - values), discount * lambd * trace, offset)
    q += discount * lambd * _next_values(moved, np.zeros_like(bootstrap), offset)
    return (values + moved).astype(np.float32), q.astype(np.float32)
