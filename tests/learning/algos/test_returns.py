"""Sums over the future: golden numbers, the plain recursion, and independence of how trajectories are packed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from trajtrainer.learning.algos.values import gae, lambda_return

Floats = NDArray[np.float32]
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=8)


def _pack(lengths: list[int], signals: int, seed: int) -> tuple[Floats, Floats, Floats, NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    offset = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rewards = rng.standard_normal((signals, offset[-1])).astype(np.float32)
    values = rng.standard_normal((signals, offset[-1])).astype(np.float32)
    bootstrap = rng.standard_normal((signals, len(lengths))).astype(np.float32)
    return rewards, values, bootstrap, offset


def _recursion(terms: NDArray[np.float64], coefficient: float, after: float = 0.0) -> NDArray[np.float64]:
    result = np.empty_like(terms)
    for t in reversed(range(len(terms))):
        after = result[t] = terms[t] + coefficient * after
    return result


def test_golden_formulas(shared_data: Path) -> None:
    folder = shared_data / "golden" / "trajectories"
    arrays = np.load(folder / "formulas.npz")
    for case in json.loads((folder / "formulas.json").read_text())["cases"]:
        name, gamma, lambd = f"case_{case['case']}", [case["gamma"]], case["lambd"]
        rewards, values = arrays[f"{name}_rewards"][None], arrays[f"{name}_values"][None]
        bootstrap = np.array([[case["value_next"]]], np.float32)
        offset = np.array([0, case["length"]])
        found = {
            "gae": gae(rewards, values, bootstrap, offset, gamma, lambd),
            "lambda_return": lambda_return(rewards, values, bootstrap, offset, gamma, lambd),
        }
        for formula, result in found.items():
            expected = arrays[f"{name}_{formula}"]
            np.testing.assert_allclose(result[0], expected, rtol=2e-6, atol=2e-6, err_msg=f"{name} {formula}")


def test_worked_numbers() -> None:
    one, zero = np.ones((1, 2), np.float32), np.zeros((1, 1), np.float32)
    offset = np.array([0, 2])
    np.testing.assert_allclose(gae(one, 0 * one, zero, offset, [0.99], 0.95)[0], [1.9405, 1.0], rtol=1e-6)
    found = lambda_return(one, 0.5 * one, zero, offset, [0.99], 0.95)
    np.testing.assert_allclose(found[0], [1.96525, 1.0], rtol=1e-6)


@given(LENGTHS, st.integers(0, 1000), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_equals_the_plain_recursion(lengths: list[int], seed: int, gamma: float, lambd: float) -> None:
    gammas = [gamma, 0.9]
    rewards, values, bootstrap, offset = _pack(lengths, 2, seed)
    found = gae(rewards, values, bootstrap, offset, gammas, lambd)
    found_lambda = lambda_return(rewards, values, bootstrap, offset, gammas, lambd)
    for s, v in np.ndindex(len(lengths), 2):
        rows = slice(offset[s], offset[s + 1])
        r, value = rewards[v, rows].astype(np.float64), values[v, rows].astype(np.float64)
        after, g = float(bootstrap[v, s]), gammas[v]
        following = np.append(value[1:], after)
        advantage = _recursion(r + g * following - value, g * lambd)
        np.testing.assert_allclose(found[v, rows], advantage, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found_lambda[v, rows], advantage + value, rtol=1e-5, atol=1e-5)


@given(LENGTHS, st.integers(0, 1000))
def test_a_trajectory_does_not_see_its_neighbours(lengths: list[int], seed: int) -> None:
    rewards, values, bootstrap, offset = _pack(lengths, 1, seed)
    together = gae(rewards, values, bootstrap, offset, [0.99], 0.95)
    for s, length in enumerate(lengths):
        rows = slice(offset[s], offset[s + 1])
        alone = gae(rewards[:, rows], values[:, rows], bootstrap[:, s : s + 1], np.array([0, length]), [0.99], 0.95)
        np.testing.assert_array_equal(together[:, rows], alone)


def test_inputs_are_left_alone() -> None:
    rewards, values, bootstrap, offset = _pack([3, 5], 2, 0)
    before = [a.copy() for a in (rewards, values, bootstrap)]
    gae(rewards, values, bootstrap, offset, [0.99, 0.9], 0.95)
    lambda_return(rewards, values, bootstrap, offset, [0.99, 0.9], 0.95)
    for array, copy in zip((rewards, values, bootstrap), before, strict=True):
        np.testing.assert_array_equal(array, copy)
