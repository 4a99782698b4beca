"""Untrained policies: random ones, and hand-written ones for some built-in simulations and classic tasks.

Shape legend: N agents, C continuous actions, D sum of branch sizes, K discrete branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.errors import SettingsError
from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.core.steps import ActionBatch, BoolArray, FloatArray, IntArray, ObservationArray

Observed = Sequence[ObservationArray]
_Decide = Callable[[Observed, BoolArray], tuple[FloatArray, IntArray]]

_GRID, _NEVER = 5, 1000
# Change of row and column for each action: none, up, down, left, right.
_MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]])


class ScriptedPolicy:
    """A policy without a memory.

    Args:
        decide: function that maps the observations and mask of N agents to continuous actions, f32 [N, C] within
            [-1, 1], and discrete actions, i32 [N, K].
    """

    memory_size = 0

    def __init__(self, decide: _Decide) -> None:
        self._decide = decide

    def act(self, obs: Observed, mask: BoolArray, memory: FloatArray) -> ActionBatch:
        continuous, discrete = self._decide(obs, mask)
        count = len(mask)
        log_prob = np.zeros((count, continuous.shape[1] + discrete.shape[1]), np.float32)
        return ActionBatch(continuous, discrete, continuous, log_prob, log_prob[:, :0].sum(1), memory, 0)


def random_policy(spec: BehaviorSpec, seed: int) -> ScriptedPolicy:
    """Create a policy that chooses uniformly among the allowed actions."""
    random, actions = np.random.default_rng(seed), spec.action_spec

    def decide(_: Observed, mask: BoolArray) -> tuple[FloatArray, IntArray]:
        continuous = random.uniform(-1, 1, (len(mask), actions.continuous_size)).astype(np.float32)
        bounds = np.cumsum([0, *actions.discrete_branches])
        drawn = random.random(mask.shape) - mask  # Forbidden actions get lower values than all others.
        columns = [drawn[:, a:b].argmax(axis=1) for a, b in pairwise(bounds)]
        return continuous, _branches(len(mask), columns)

    return ScriptedPolicy(decide)


def heuristic_policy(behavior: str, spec: BehaviorSpec) -> ScriptedPolicy:
    """Create the hand-written policy for a behavior.

    Args:
        behavior: name of the behavior without the team.
        spec: the behavior's spec, which must be that of the default task.

    Raises:
        SettingsError: there is no hand-written policy for this behavior.
    """
    found = _HEURISTICS.get(behavior)
    shapes = tuple(tuple(sensor.shape) for sensor in spec.observation_specs)
    if found is None or not _fits(shapes, found.shapes) or spec.action_spec != found.actions:
        raise SettingsError(
            f"There is no heuristic for the behavior {behavior!r}, only for {', '.join(_HEURISTICS)} with their "
            "default observations and actions. To record the heuristic of a Unity game, set Behavior Type to Heuristic "
            "Only and add a Demonstration Recorder."
        )
    return ScriptedPolicy(found.decide)


class _Heuristic(NamedTuple):
    shapes: tuple[tuple[int | None, ...], ...]  # None means any size.
    actions: ActionSpec
    decide: _Decide


def _fits(shapes: tuple[tuple[int, ...], ...], expected: tuple[tuple[int | None, ...], ...]) -> bool:
    return [len(shape) for shape in shapes] == [len(shape) for shape in expected] and all(
        wanted in (size, None)
        for shape, sizes in zip(shapes, expected, strict=True)
        for size, wanted in zip(shape, sizes, strict=True)
    )


def _branches(count: int, columns: Sequence[NDArray[np.int64]]) -> IntArray:
    return np.stack(columns, axis=1).astype(np.int32) if columns else np.zeros((count, 0), np.int32)


def _nothing(obs: Observed) -> FloatArray:
    return np.zeros((len(obs[0]), 0), np.float32)


def _basic(obs: Observed, _: BoolArray) -> tuple[FloatArray, IntArray]:
    return _nothing(obs), np.full((len(obs[0]), 1), 2, np.int32)


def _balance_ball(obs: Observed, _: BoolArray) -> tuple[FloatArray, IntArray]:
    """Tilt against the ball's position and velocity, critically damped: it accelerates by 7 m/s² per radian of tilt."""
    tilt, place, velocity = 2 * obs[0][:, :2], obs[0][:, [2, 4]], obs[0][:, [5, 7]]
    wanted = (0.25 * place + 0.38 * velocity) * np.array([1, -1])
    turned = np.radians(10)  # rotation caused by an action of 1
    return np.clip((wanted - tilt) / turned, -1, 1).astype(np.float32), _branches(len(tilt), [])


def _hybrid(obs: Observed, _: BoolArray) -> tuple[FloatArray, IntArray]:
    motion, task = obs
    speed = 0.2
    drive = np.clip(motion[:, 2:] / speed, -1, 1).astype(np.float32)
    return drive, _branches(len(task), [task[:, :3].argmax(axis=1), (task[:, 6] > 0).astype(np.int64)])


def _grid_world(obs: Observed, mask: BoolArray) -> tuple[FloatArray, IntArray]:
    """Step toward the goal, but never onto the wrong one. The agent and both goals are recognized by their colors."""
    goal, picture = obs
    bright = 200 if picture.dtype == np.uint8 else 200 / 255
    cross, plus, agent = (_cells(picture[:, channel] > bright) for channel in range(3))
    is_plus = goal[:, :1] > 0
    right, wrong = np.where(is_plus, plus, cross), np.where(is_plus, cross, plus)
    places = agent[:, None] + _MOVES  # [N, moves, 2]
    way, past = right[:, None] - places, wrong[:, None] - places
    distance = np.abs(way).sum(axis=2)
    # Take a detour around the wrong goal if it is in the way.
    distance += 2 * ((way == 0) & (past == 0)).any(axis=2) * ((way * past).sum(axis=2) > (past**2).sum(axis=2))
    distance[(past == 0).all(axis=2) | mask] = _NEVER
    return _nothing(obs), distance.argmin(axis=1).astype(np.int32)[:, None]


def _cells(mark: BoolArray) -> NDArray[np.int64]:
    """Return the row and column of the cell with the most marked pixels, i64 [N, 2]."""
    size_of_cell = min(mark.shape[1:]) // _GRID
    side = size_of_cell * _GRID
    top, left = ((size - side) // 2 for size in mark.shape[1:])
    inside = mark[:, top : top + side, left : left + side].reshape(-1, _GRID, size_of_cell, _GRID, size_of_cell)
    cell = inside.sum(axis=(2, 4)).reshape(len(mark), -1).argmax(axis=1)
    return np.stack([cell // _GRID, cell % _GRID], axis=1)


def _cart_pole(obs: Observed, _: BoolArray) -> tuple[FloatArray, IntArray]:
    lean = obs[0] @ np.array([0.1, 0.3, 1.5, 1.0])
    return _nothing(obs), (lean > 0).astype(np.int32)[:, None]


def _pendulum(obs: Observed, _: BoolArray) -> tuple[FloatArray, IntArray]:
    """Swing up by controlling the energy, then balance (Åström and Furuta 2000)."""
    cosine, sine, speed = obs[0].T.astype(np.float64)
    angle = np.arctan2(sine, cosine)
    energy = speed**2 / 2 + 15 * (cosine - 1)
    swing = np.where(speed >= 0, 1.0, -1.0) * np.clip(-energy, -1, 1)
    hold = -(6 * angle + 1.5 * speed)
    action = np.where(cosine > 0.85, hold, swing)
    return np.clip(action, -1, 1).astype(np.float32)[:, None], _branches(len(action), [])


_HEURISTICS = {
    "3DBall": _Heuristic(((8,),), ActionSpec(2, ()), _balance_ball),
    "Basic": _Heuristic(((20,),), ActionSpec(0, (3,)), _basic),
    "GridWorld": _Heuristic(((2,), (3, None, None)), ActionSpec(0, (5,)), _grid_world),
    "Hybrid": _Heuristic(((4,), (7,)), ActionSpec(2, (3, 2)), _hybrid),
    "CartPole-v1": _Heuristic(((4,),), ActionSpec(0, (2,)), _cart_pole),
    "Pendulum-v1": _Heuristic(((3,),), ActionSpec(1, ()), _pendulum),
}
