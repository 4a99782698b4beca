"""The squashed action and its log-probability, gradients written out, against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trajtrainer.algos.squashed import draw
from trajtrainer.nn.distribution import ActionDistribution, GaussianScale


def _inputs(spread: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    mu, log_sigma, noise = (torch.randn(64, 3, generator=generator, dtype=torch.float64) for _ in range(3))
    mu, log_sigma = spread * mu, (3.0 * log_sigma - 2.0).clamp(-20.0, 2.0)
    return mu.to(dtype).requires_grad_(), log_sigma.to(dtype).requires_grad_(), noise.to(dtype)


def _by_distribution(mu: Tensor, log_sigma: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    nothing = torch.zeros(0, dtype=torch.int64)
    policy = ActionDistribution(mu, GaussianScale(log_sigma), mu[:, :0], (), nothing, tanh_squash=True)
    action = policy.continuous_from_noise(noise)
    return action, policy.continuous_log_prob(action).sum(1)


@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_equals_the_distribution(spread: float) -> None:
    generator = torch.Generator().manual_seed(4)
    weights = (torch.randn(64, 3, generator=generator).double(), torch.randn(64, generator=generator).double())
    found = []
    for way in (_by_distribution, draw):
        mu, log_sigma, noise = _inputs(spread, torch.float64)
        outputs = way(mu, log_sigma, noise)
        torch.autograd.backward(outputs, weights)
        assert mu.grad is not None
        assert log_sigma.grad is not None
        found.append([*(one.detach() for one in outputs), mu.grad, log_sigma.grad])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spread", [1.0, 5.0])
def test_single_precision_is_enough(spread: float) -> None:
    exact = _by_distribution(*_inputs(spread, torch.float64))
    found = draw(*_inputs(spread, torch.float32))
    for ours, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


def test_gradients() -> None:
    mu, log_sigma, noise = _inputs(1.0, torch.float64)
    log_sigma = log_sigma.detach().clamp(-4.0, 2.0).requires_grad_()
    assert torch.autograd.gradcheck(lambda m, s: draw(m, s, noise), (mu, log_sigma))


def test_far_out_nothing_becomes_infinite() -> None:
    mu = torch.tensor([[80.0, -80.0]]).requires_grad_()
    log_sigma = torch.tensor([[2.0, -20.0]]).requires_grad_()
    action, log_prob = draw(mu, log_sigma, torch.tensor([[3.0, -3.0]]))
    (action.sum() + log_prob.sum()).backward()  # type: ignore[no-untyped-call]
    assert action.abs().max() <= 1.0
    for tensor in (log_prob, mu.grad, log_sigma.grad):
        assert tensor is not None
        assert torch.isfinite(tensor).all()
