"""Where hand-written formulas could fail: far out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trajtrainer.fast import lstm
from trajtrainer.fast.squashed import draw


def test_the_gradients_of_a_squashed_draw() -> None:
    generator = torch.Generator().manual_seed(3)
    mu, log_sigma, noise = torch.randn(3, 64, 3, generator=generator, dtype=torch.float64)
    mu, log_sigma = mu.requires_grad_(), (3.0 * log_sigma - 2.0).clamp(-4.0, 2.0).requires_grad_()
    assert torch.autograd.gradcheck(lambda m, s: draw(m, s, noise), (mu, log_sigma))


def test_far_out_no_draw_becomes_infinite() -> None:
    mu = torch.tensor([[80.0, -80.0]]).requires_grad_()
    log_sigma = torch.tensor([[2.0, -20.0]]).requires_grad_()
    action, log_prob = draw(mu, log_sigma, torch.tensor([[3.0, -3.0]]))
    (action.sum() + log_prob.sum()).backward()  # type: ignore[no-untyped-call]
    assert action.abs().max() <= 1.0
    for tensor in (log_prob, mu.grad, log_sigma.grad):
        assert tensor is not None
        assert torch.isfinite(tensor).all()


@pytest.mark.parametrize("value", [-1000.0, 1000.0])
def test_gates_far_off_saturate_without_a_warning(value: float) -> None:
    units = 6
    memory = np.random.default_rng(0).normal(size=(2, 3, 2 * units)).astype(np.float32)
    (step,) = lstm.run(np.full((1, 2, 3, 4 * units), value, np.float32), torch.zeros(2, 4 * units, units), memory)
    assert set(np.unique(step.gates[..., : 2 * units])) == {float(value > 0)}
    assert np.isfinite(step.hidden).all()
