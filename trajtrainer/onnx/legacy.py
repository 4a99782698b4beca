"""What models of ML-Agents 1.x (version 2) leave to their reader: find the branches, feed the sensors, draw actions.

Shape legend: N agents, D sum of branch sizes, O an observation's own shape.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.onnx import contract
from trajtrainer.onnx.evaluate import Evaluator, trial_inputs
from trajtrainer.onnx.report import Report

_MAX_ACTIONS = 1000


def sensor_shapes(report: Report) -> dict[str, tuple[int | str, ...]]:
    """Return input -> [*O] of all sensors of a model: first the vectors, then pictures and lists in their order."""
    kinds = contract.LEGACY_VECTOR, contract.LEGACY_VISUAL_PREFIX, contract.OBSERVATION_PREFIX
    shapes = {tensor.name: tensor.shape[1:] for tensor in report.inputs if tensor.name.startswith(kinds)}
    return {
        name: shapes[name]
        for kind in kinds
        for name in sorted((name for name in shapes if name.startswith(kind)), key=lambda name: (len(name), name))
    }


def name_sensors(obs: Sequence[NDArray[Any]], inputs: Collection[str]) -> dict[str, NDArray[Any]]:
    """Return the inputs of a model: all vectors side by side, pictures and lists by themselves.

    Args:
        obs: per sensor [N, *O].
        inputs: names, in the order of ``sensor_shapes``.
    """
    vectors = [each for each in obs if each.ndim == 2]
    pictures = [each for each in obs if each.ndim == 4]
    lists = [each for each in obs if each.ndim == 3]
    named = {contract.LEGACY_VECTOR: np.concatenate(vectors, axis=1)} if vectors else {}
    for prefix, sensors in ((contract.LEGACY_VISUAL_PREFIX, pictures), (contract.OBSERVATION_PREFIX, lists)):
        named.update(zip((name for name in inputs if name.startswith(prefix)), sensors, strict=False))
    return named


def continuous_output(report: Report) -> str:
    """Return the name of the output with continuous actions."""
    return _either(contract.CONTINUOUS_ACTIONS, report)


def discrete_output(report: Report) -> str:
    """Return the name of the output with the log-probabilities of discrete actions."""
    return _either(contract.DISCRETE_ACTIONS, report)


def _either(name: str, report: Report) -> str:
    return name if any(tensor.name == name for tensor in report.outputs) else contract.LEGACY_ACTION


def find_branches(evaluator: Evaluator, report: Report) -> tuple[int, ...]:
    """Return the sizes of a model's discrete branches, of which the file only has the sum.

    With two actions allowed in all, their probabilities add up to 1 if they are alternatives, and to 2 if each is the
    only one left of its branch. A row of the batch asks this for each pair of neighbors.

    Args:
        evaluator: of the model.
        report: on it, complete but for them.

    Returns:
        Their sizes; all in one where the model does not give probabilities by which branches could be told.
    """
    total = sum(report.discrete_branches)
    if not 1 < total <= _MAX_ACTIONS:
        return (total,)
    inputs = trial_inputs(evaluator.model, total)
    if inputs.get(contract.ACTION_MASKS, np.zeros(0)).shape != (total, total):
        return (total,)
    pairs = np.eye(total, dtype=np.float32) + np.eye(total, k=1, dtype=np.float32)
    pairs[-1] = 1.0  # the last has no neighbor: there all are allowed
    try:
        log_probs = evaluator.run({**inputs, contract.ACTION_MASKS: pairs})[discrete_output(report)]
    except Exception:  # every operator raises its own class, and too many agents for the budget are one
        return (total,)
    probability = np.exp(log_probs)
    first = np.arange(total - 1)
    ends = np.flatnonzero(probability[first, first] + probability[first, first + 1] > 1.5) + 1
    sums = [branch.sum() for branch in np.split(probability[-1], ends)]
    return tuple(np.diff([0, *ends, total]).tolist()) if np.allclose(sums, 1.0, atol=0.01) else (total,)


def choose(
    log_probs: FloatArray,
    mask: BoolArray,
    branches: Sequence[int],
    random: np.random.Generator,
    *,
    deterministic: bool,
) -> LongArray:
    """Return one action per branch, drawn or the most likely: int64 [N, branches].

    Args:
        log_probs: f32 [N, D], also unnormalized.
        mask: bool [N, D], True = forbidden. A model leaves forbidden actions a probability of about 1e-7.
        branches: their sizes.
        random: what is drawn with.
        deterministic: take the most likely instead of drawing.
    """
    chosen: list[NDArray[np.int64]] = []
    for branch in np.split(np.where(mask, -np.inf, log_probs), np.cumsum(branches)[:-1], axis=1):
        # Noise of this distribution makes the maximum a draw from the softmax (the Gumbel-max trick).
        noise = 0.0 if deterministic else random.gumbel(size=branch.shape)
        chosen.append(np.argmax(branch + noise, axis=1))
    return np.stack(chosen, axis=1)
