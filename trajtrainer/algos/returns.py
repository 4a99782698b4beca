"""Sums over the future of packed trajectories: generalised advantages, lambda-returns, V-trace.

All of them solve ``x[t] = d[t] + c * x[t + 1]`` within each trajectory, V-trace with a c of each step. Every
trajectory of a pack is solved at once by doubling: after pass k each x holds the terms of its next 2^k steps, and the
pass adds to it, times c^(2^k), the x that lies 2^k steps ahead. That is log2(longest trajectory) passes over the whole
pack, whatever the number and the lengths of its trajectories, against one Python iteration per step (or per step of the
longest trajectory of a padded pack).

Shape legend: V reward signals, B packed steps, S trajectories. Sums are kept in float64 and returned as float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.steps import FloatArray, IntArray, LongArray

DoubleArray = NDArray[np.float64]
Offsets = IntArray | LongArray


def _column(values: Sequence[float] | float) -> DoubleArray:
    """Return one coefficient per signal, as a column [V, 1]."""
    return np.atleast_1d(np.asarray(values, np.float64))[:, None]


def steps_to_end(offset: Offsets) -> LongArray:
    """Return how many steps of its trajectory follow each step.

    Args:
        offset: whole numbers [S + 1], where each trajectory begins, and B.

    Returns:
        i64 [B]; 0 for the last step of a trajectory.
    """
    ends = np.repeat(offset[1:].astype(np.int64), np.diff(offset))
    return ends - np.arange(1, len(ends) + 1)


def _solve(terms: DoubleArray, coefficient: DoubleArray, following: LongArray) -> DoubleArray:
    """Return ``x[t] = terms[t] + coefficient * x[t + 1]``, x = 0 after a trajectory's last step.

    Overwrites ``terms``.
    """
    longest = int(following.max(initial=0))
    shift, factor = 1, coefficient
    while shift <= longest:
        inside = following[:-shift] >= shift
        terms[:, :-shift] += np.where(inside, terms[:, shift:], 0.0) * factor
        shift, factor = shift * 2, factor * factor
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
    """Return generalized advantage estimates (Schulman et al. 2016).

    ``A[t] = sum over i of (gamma * lambd)^i * (r[t+i] + gamma * V[t+i+1] - V[t+i])``.

    Args:
        rewards: f32 [V, B], times strength.
        values: f32 [V, B], the value of each step's observation.
        bootstrap: f32 [V, S], the value of the observation after each trajectory; 0 after a true end.
        offset: whole numbers [S + 1], no empty trajectory.
        gamma: [V], discount of each signal.
        lambd: weight of the longer estimates.

    Returns:
        f32 [V, B].
    """
    discount = _column(gamma)
    delta = rewards + discount * _next_values(values, bootstrap, offset) - values
    return _solve(delta, discount * lambd, steps_to_end(offset)).astype(np.float32)


def lambda_return(
    rewards: FloatArray,
    values: FloatArray,
    bootstrap: FloatArray,
    offset: Offsets,
    gamma: Sequence[float],
    lambd: float,
) -> FloatArray:
    """Return lambda-returns.

    ``R[t] = r[t] + gamma * (lambd * R[t+1] + (1 - lambd) * V[t+1])``, with the bootstrap value in full after the last
    step. Arguments and result as ``gae``.
    """
    discount = _column(gamma)
    terms = rewards + discount * (1 - lambd) * _next_values(values, bootstrap, offset)
    last = offset[1:] - 1
    terms[:, last] = rewards[:, last] + discount * bootstrap
    return _solve(terms, discount * lambd, steps_to_end(offset)).astype(np.float32)


class VTrace(NamedTuple):
    """What V-trace makes of trajectories.

    Attributes:
        values: f32 [V, B], the targets of the values.
        actions: f32 [V, B], estimates of the values of the actions that were taken.
    """

    values: FloatArray
    actions: FloatArray


def v_trace(
    rewards: FloatArray,
    values: FloatArray,
    bootstrap: FloatArray,
    offset: Offsets,
    gamma: Sequence[float],
    lambd: float,
    rho: FloatArray,
    trace: FloatArray,
) -> VTrace:
    """Return the V-trace targets (Espeholt et al. 2018) of trajectories that another policy acted.

    ``v[t] = V[t] + rho[t] * (r[t] + gamma * V[t+1] - V[t]) + gamma * lambd * trace[t] * (v[t+1] - V[t+1])`` (its
    equation 1 and remark 2), and ``q[t] = r[t] + gamma * (lambd * v[t+1] + (1 - lambd) * V[t+1])``, which its section
    4.2 has with a lambda of 1. With weights of 1 both are the lambda-return, and ``q - V`` is the generalised advantage
    estimate.

    Args:
        rewards: as the other arguments up to ``lambd`` those of ``gae``.
        values: f32 [V, B].
        bootstrap: f32 [V, S].
        offset: whole numbers [S + 1].
        gamma: [V].
        lambd: weight of the longer estimates.
        rho: f32 [B], truncated importance weight of each step.
        trace: f32 [B], how much each step lets through of what comes after it.
    """
    discount = _column(gamma)
    actions = rewards + discount * _next_values(values, bootstrap, offset)
    coefficient = discount * lambd * trace
    coefficient[:, offset[1:] - 1] = 0.0
    moved = _solve_each(rho * (actions - values), coefficient, int(np.diff(offset).max()) - 1)
    actions += discount * lambd * _next_values(moved, np.zeros_like(bootstrap), offset)
    return VTrace((values + moved).astype(np.float32), actions.astype(np.float32))


def _solve_each(terms: DoubleArray, coefficient: DoubleArray, longest: int) -> DoubleArray:
    """Return ``x[t] = terms[t] + coefficient[t] * x[t + 1]``, where each trajectory's last coefficient is 0.

    Overwrites both. ``longest`` is the number of steps that follow on the first of the longest trajectory.
    """
    shift = 1
    while shift <= longest:
        terms[:, :-shift] += coefficient[:, :-shift] * terms[:, shift:]
        coefficient[:, :-shift] *= coefficient[:, shift:]
        shift *= 2
    return terms
