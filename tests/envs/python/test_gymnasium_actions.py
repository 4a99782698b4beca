"""Actions of a space are what the trainer's actions become, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from trajtrainer.core.steps import ActionBatch
from trajtrainer.envs.python.gymnasium_agents import ActionLayout

SPACES: dict[str, spaces.Space[Any]] = {
    "bounded": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32)),
    "whole": spaces.Box(0, 9, (3,), dtype=np.int64),
    "choice": spaces.Discrete(4, start=-1),
    "choices": spaces.MultiDiscrete([3, 5]),
    "buttons": spaces.MultiBinary(3),
    "all": spaces.Dict(
        {"a": spaces.Discrete(3, start=1), "b": spaces.Tuple([spaces.Box(-3.0, 1.0, (2,)), spaces.MultiBinary(2)])}
    ),
}


@pytest.mark.parametrize("name", sorted(SPACES))
def test_decisions_lead_to_the_same_actions(name: str) -> None:
    space = SPACES[name]
    space.seed(1)
    layout = ActionLayout(space, "here")
    actions = [space.sample() for _ in range(20)]
    continuous, discrete = layout.decisions(actions)
    assert continuous.dtype == np.float32
    assert discrete.dtype == np.int32
    assert np.abs(continuous).max(initial=0) <= 1
    nothing = np.zeros((20, 0), np.float32)
    batch = ActionBatch(continuous, discrete, continuous, nothing, nothing[:, :1], nothing, 0)
    for found, expected in zip(layout.actions(batch), actions, strict=True):
        _check(found, expected)


def _check(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            _check(found[key], expected[key])
    elif isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            _check(one, other)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
