"""Where hand-written formulas could fail: far out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trajtrainer.learning.nn.fast import lstm


@pytest.mark.parametrize("value", [-1000.0, 1000.0])
def test_gates_far_off_saturate_without_a_warning(value: float) -> None:
    units = 6
    memory = np.random.default_rng(0).normal(size=(2, 3, 2 * units)).astype(np.float32)
    (step,) = lstm.run(np.full((1, 2, 3, 4 * units), value, np.float32), torch.zeros(2, 4 * units, units), memory)
    assert set(np.unique(step.gates[..., : 2 * units])) == {float(value > 0)}
    assert np.isfinite(step.hidden).all()
