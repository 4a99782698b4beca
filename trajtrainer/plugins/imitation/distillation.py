"""Labels the states in trajectories with an expert's actions, for a student that may see fewer sensors.

If the expert has a policy network, labels are its action distributions (Hinton et al. 2015, Rusu et al. 2016),
otherwise only its actions.

Shape legend: B packed steps, S trajectories, N rows that are labeled together, H memory size, C continuous actions, D
sum of branch sizes.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trajtrainer.core.columns import (
    OBSERVATIONS,
    TEACHER_MEAN,
    TEACHER_PROBS,
    TEACHER_STD,
    Columns,
    sensor_name,
    teacher_entries,
    zeros,
)
from trajtrainer.core.steps import FloatArray, LongArray
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.acting import ActorPolicy, Policy
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.distribution import ActionDistribution

# Number of steps that the expert labels at once.
_ROWS = 4096
# The smallest standard deviation of a label. Errors of actions that are more certain, such as actions that are always
# clipped, would dominate the loss.
_LEAST_STD = 0.01
# tanh(2): the label for clipped actions of the teacher if the student's actions are squashed. Labels closer to 1 have
# such large inputs to tanh that they widen the student's distribution (reward in 3DBall with sampled actions: 88 of 100
# with 0.999, 99.8 with this value).
_EDGE = 0.964
# Quadrature nodes for integrals over a Gaussian, in standard deviations. Equidistant, because clipping makes the
# integrand non-smooth.
_NODES = torch.linspace(-4.0, 4.0, 65)


def labels(
    expert: Policy, packed: PackedSteps, memories: MutableMapping[int, FloatArray], student: Actor
) -> dict[str, NDArray[Any]]:
    """Return the expert's actions [B, ...]: ``continuous`` in the environment's range, and ``discrete``.

    For an ``ActorPolicy``, the actions are the modes of its distributions, and the result also has the columns of
    ``teacher_entries``.

    Args:
        expert: the policy to imitate, which sees all sensors of the agents.
        packed: the trajectories, with all sensors.
        memories: agent -> the expert's memory in the agent's unfinished episode, f32 [H]; updated here.
        student: the network that learns the labels.
    """
    found = {name: np.zeros_like(packed[name]) for name in ("continuous", "discrete")}
    if isinstance(expert, ActorPolicy):
        found |= zeros(teacher_entries(student.spec), len(packed)).items()

    def decide(rows: LongArray, memory: FloatArray) -> FloatArray:
        obs, mask = [column.take(rows, axis=0) for column in packed.obs], packed["mask"][rows]
        if isinstance(expert, ActorPolicy):
            distribution, after = expert.distribution(obs, mask, memory)
            mode = distribution.deterministic()
            mean, std = moments(distribution, student)
            answer = {
                "continuous": distribution.to_env(mode.continuous).cpu().numpy(),
                "discrete": mode.discrete.cpu().numpy(),
                TEACHER_MEAN: mean.cpu().numpy(),
                TEACHER_STD: std.cpu().numpy(),
                TEACHER_PROBS: distribution.probs.cpu().numpy(),
            }
        else:
            actions = expert.act(obs, mask, memory)
            answer, after = {"continuous": actions.env_continuous, "discrete": actions.discrete}, actions.memory
        for name, values in answer.items():
            found[name][rows] = values
        return after

    if expert.memory_size:
        _in_turn(expert.memory_size, packed, memories, decide)
    else:
        for start in range(0, len(packed), _ROWS):
            rows = np.arange(start, min(start + _ROWS, len(packed)))
            decide(rows, np.zeros((len(rows), 0), np.float32))
    return found


def moments(teacher: ActionDistribution, student: Actor) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation [N, C] of a teacher's actions, in the space where the student is Gaussian.

    The cross-entropy with the student's Gaussian depends only on these two, whatever the teacher's distribution is.
    They are exact if teacher and student are of the same kind, and computed by quadrature if one is a squashed and the
    other a clipped Gaussian.
    """
    head, mean, std = student.head, teacher.mu, teacher.sigma.expand_as(teacher.mu)
    if teacher.tanh_squash == head.tanh_squash:
        scale = 1.0 if head.tanh_squash else head.clip_actions / teacher.clip_actions
        return mean * scale, (std * scale).clamp(min=_LEAST_STD)
    nodes = _NODES.to(mean)[:, None, None]
    weights = (-0.5 * nodes.square()).softmax(0)
    drawn = head.from_env(teacher.to_env(teacher.continuous_from_noise(nodes)))
    drawn = drawn.clamp(-_EDGE, _EDGE).atanh() if head.tanh_squash else drawn
    mean = (weights * drawn).sum(0)
    return mean, (weights * (drawn - mean).square()).sum(0).sqrt().clamp(min=_LEAST_STD)


def _in_turn(
    size: int,
    packed: PackedSteps,
    memories: MutableMapping[int, FloatArray],
    decide: Callable[[LongArray, FloatArray], FloatArray],
) -> None:
    """Label the first steps of all agents' trajectories together, then the second steps, and so on.

    An expert with a memory needs each agent's steps in order. In this way, it still labels many steps at once. If an
    agent has several trajectories, they are labeled one after another.
    """
    remaining = list(range(packed.num_trajectories))
    while remaining:
        turn: dict[int, int] = {}
        for number in remaining:
            turn.setdefault(int(packed.agent[number]), number)
        some = np.array(sorted(turn.values()))
        remaining = [number for number in remaining if number not in set(some.tolist())]
        agents, lengths = packed.agent[some].tolist(), packed.lengths[some]
        memory = np.stack([memories.pop(agent, np.zeros(size, np.float32)) for agent in agents])
        for step in range(int(lengths.max())):
            alive = np.flatnonzero(lengths > step)
            memory[alive] = decide(packed.offset[some[alive]].astype(np.int64) + step, memory[alive])
        for agent, ended, kept in zip(agents, packed.ended[some].tolist(), memory, strict=True):
            if not ended:
                memories[agent] = kept


def as_seen(packed: PackedSteps, student: Actor) -> PackedSteps:
    """Return the same steps, restricted to the sensors that the student sees."""
    sees = student.sees
    if sees is None:
        return packed

    def seen(columns: Columns[NDArray[Any]]) -> Columns[NDArray[Any]]:
        chosen = {sensor_name(place): columns.obs[number] for place, number in enumerate(sees)}
        return columns.without_sensors(OBSERVATIONS).with_columns(chosen)

    return replace(packed, steps=seen(packed.steps), bootstrap=seen(packed.bootstrap))
