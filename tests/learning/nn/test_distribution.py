"""Distributions over actions: sampling in distribution, formulas, masks, gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from trajtrainer.core.spec import ActionSpec
from trajtrainer.learning.nn.distribution import ActionDistribution, GaussianScale
from trajtrainer.learning.nn.heads import ActionHead, ValueHeads

ROWS = 20000


def starts(branches: tuple[int, ...]) -> Tensor:
    return torch.tensor([sum(branches[:k]) for k in range(len(branches))], dtype=torch.int64)


def distribution(
    mu: Tensor, log_sigma: Tensor, logits: Tensor, branches: tuple[int, ...] = (), *, tanh: bool = False
) -> ActionDistribution:
    return ActionDistribution(mu, GaussianScale(log_sigma), logits, branches, starts(branches), tanh)


def gaussian(mu: float, sigma: float, rows: int = ROWS, *, tanh: bool = False) -> ActionDistribution:
    log_sigma = torch.full((1, 1), math.log(sigma))
    return distribution(torch.full((rows, 1), mu), log_sigma, torch.zeros(rows, 0), tanh=tanh)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_worked_numbers_of_a_gaussian() -> None:
    found = gaussian(0.3, 1.0, rows=2)
    nothing = torch.zeros(2, 0)
    assert float(found.log_prob(torch.full((2, 1), 0.3), nothing)[0]) == pytest.approx(-0.9189386, abs=1e-6)
    assert float(found.entropy()[0]) == pytest.approx(1.4189385, abs=1e-6)
    assert found.to_env(torch.tensor([[6.0], [-1.5]])).tolist() == [[1.0], [-0.5]]


def test_gaussian_samples() -> None:
    sample = gaussian(0.5, 2.0).sample(generator()).continuous
    assert float(sample.mean()) == pytest.approx(0.5, abs=0.05)
    assert float(sample.std()) == pytest.approx(2.0, abs=0.05)


def test_squashed_samples_and_their_density() -> None:
    found = gaussian(0.5, 1.5, tanh=True)
    sample = found.sample(generator()).continuous
    assert float(sample.abs().max()) <= 1
    exact = found.continuous_log_prob(sample)
    inner = sample.abs() < 0.99
    torch.testing.assert_close(exact[inner], found.continuous_log_prob(sample.clone())[inner], atol=2e-3, rtol=0)
    # A density's log-probability over a fine grid integrates to one.
    grid = torch.linspace(-0.99999, 0.99999, 200001).unsqueeze(1)
    density = gaussian(0.5, 1.5, len(grid), tanh=True).continuous_log_prob(grid).exp()
    assert float(torch.trapezoid(density[:, 0], grid[:, 0])) == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_the_edge_of_squashed_actions_is_finite(value: float) -> None:
    found = gaussian(0.0, 1.0, 1, tanh=True)
    assert bool(torch.isfinite(found.continuous_log_prob(torch.full((1, 1), value))).all())


def squashed_draw(mu: Tensor, log_sigma: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The action that the noise leads to, and its log-probability."""
    found = distribution(mu, log_sigma, mu[:, :0], tanh=True)
    action = found.continuous_from_noise(noise)
    return action, found.continuous_log_prob(action)


def test_the_gradients_of_a_squashed_draw() -> None:
    mu, log_sigma, noise = torch.randn(3, 64, 3, generator=generator(), dtype=torch.float64)
    mu, log_sigma = mu.requires_grad_(), (3.0 * log_sigma - 2.0).clamp(-4.0, 2.0).requires_grad_()
    assert torch.autograd.gradcheck(lambda m, s: squashed_draw(m, s, noise), (mu, log_sigma))


def test_the_density_of_a_draw_is_exact_where_sigma_is_small() -> None:
    mu, log_sigma, noise = torch.randn(3, 64, 3, generator=generator())
    mu, log_sigma = 5.0 * mu, (3.0 * log_sigma - 8.0).clamp(-20.0, 2.0)
    found = squashed_draw(mu, log_sigma, noise)
    exact = squashed_draw(mu.double(), log_sigma.double(), noise.double())
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-5)


def test_far_out_no_draw_becomes_infinite() -> None:
    mu = torch.tensor([[80.0, -80.0]]).requires_grad_()
    log_sigma = torch.tensor([[2.0, -20.0]]).requires_grad_()
    action, log_prob = squashed_draw(mu, log_sigma, torch.tensor([[3.0, -3.0]]))
    (action.sum() + log_prob.sum()).backward()  # type: ignore[no-untyped-call]
    assert action.abs().max() <= 1.0
    for tensor in (log_prob, mu.grad, log_sigma.grad):
        assert tensor is not None
        assert torch.isfinite(tensor).all()


def test_branches_are_sampled_by_their_probabilities() -> None:
    branches = (3, 2, 4)
    probs = torch.tensor([0.2, 0.5, 0.3, 0.9, 0.1, 0.25, 0.0, 0.25, 0.5])
    logits = probs.clamp_min(1e-30).log()
    logits[6] = -1e8
    found = distribution(torch.zeros(ROWS, 0), torch.zeros(1, 0), logits.expand(ROWS, 9), branches)
    torch.testing.assert_close(found.probs[0], probs, atol=1e-6, rtol=0)
    discrete = found.sample(generator()).discrete
    assert discrete.shape == (ROWS, 3)
    for k, (start, size) in enumerate(zip((0, 3, 5), branches, strict=True)):
        share = discrete[:, k].bincount(minlength=size) / ROWS
        torch.testing.assert_close(share, probs[start : start + size], atol=0.02, rtol=0)
    assert not bool((discrete[:, 2] == 1).any())
    assert found.deterministic().discrete[0].tolist() == [1, 0, 3]
    log_prob = found.discrete_log_prob(torch.tensor([[2, 1, 0]]).expand(ROWS, 3))
    torch.testing.assert_close(log_prob[0], torch.tensor([0.3, 0.1, 0.25]).log(), atol=1e-5, rtol=0)
    expected = -sum(p * math.log(p + 1e-7) for p in probs.tolist())
    assert float(found.entropy()[0]) == pytest.approx(expected, abs=1e-5)


def test_branches_do_not_share_their_noise() -> None:
    found = distribution(torch.zeros(ROWS, 0), torch.zeros(1, 0), torch.zeros(ROWS, 4), (2, 2))
    discrete = found.sample(generator()).discrete.double()
    assert abs(float(torch.corrcoef(discrete.t())[0, 1])) < 0.03


def test_a_branch_whose_actions_are_all_forbidden_is_uniform() -> None:
    head = ActionHead(4, ActionSpec(0, (2, 3)))
    mask = torch.tensor([[True, True, False, False, True]])
    found = head(torch.randn(1, 4), mask)
    torch.testing.assert_close(found.probs[0, :2], torch.tensor([0.5, 0.5]))
    assert float(found.probs[0, 4].detach()) == 0.0
    assert bool(torch.isfinite(found.entropy()).all())


def test_hybrid_entropy_adds_the_mean_of_the_continuous_ones() -> None:
    log_sigma = torch.tensor([[0.0, 1.0]])
    found = distribution(torch.zeros(3, 2), log_sigma, torch.zeros(3, 2), (2,))
    expected = 0.5 * math.log(2 * math.pi * math.e) + 0.5 + math.log(2)
    torch.testing.assert_close(found.entropy(), torch.full((3,), expected), atol=1e-5, rtol=0)


def test_one_seed_draws_continuous_actions_first() -> None:
    """So that a policy without branches draws the same noise as one with."""
    mu = torch.zeros(5, 2)
    plain = distribution(mu, torch.zeros(1, 2), torch.zeros(5, 0)).sample(generator())
    hybrid = distribution(mu, torch.zeros(1, 2), torch.zeros(5, 3), (3,)).sample(generator())
    assert torch.equal(plain.continuous, hybrid.continuous)


@pytest.mark.parametrize("conditional", [False, True])
def test_gradients_reach_every_parameter(conditional: bool) -> None:
    head = ActionHead(4, ActionSpec(2, (3, 2)), conditional_sigma=conditional, tanh_squash=conditional)
    found = head(torch.randn(6, 4), torch.zeros(6, 5, dtype=torch.bool))
    actions = found.sample(generator())
    given = actions.continuous.detach()
    (found.log_prob(given, actions.discrete).sum() + found.entropy().sum()).backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert bool((parameter.grad != 0).any()), name


def test_sampled_continuous_actions_are_differentiable() -> None:
    head = ActionHead(4, ActionSpec(2, ()), conditional_sigma=True, tanh_squash=True)
    found = head(torch.randn(6, 4), torch.zeros(6, 0, dtype=torch.bool))
    found.sample(generator()).continuous.sum().backward()
    assert head.mu is not None
    assert head.mu.weight.grad is not None


def test_a_state_dependent_sigma_is_limited() -> None:
    head = ActionHead(1, ActionSpec(1, ()), conditional_sigma=True)
    assert head.log_sigma_layer is not None
    with torch.no_grad():
        head.log_sigma_layer.weight.fill_(1.0)
    log_sigma = head(torch.tensor([[-100.0], [100.0]]), torch.zeros(2, 0, dtype=torch.bool)).log_sigma
    assert log_sigma.tolist() == [[-20.0], [2.0]]


def test_value_heads() -> None:
    encoding = torch.randn(5, 4)
    one = ValueHeads(4, ["extrinsic"])
    assert one(encoding).shape == (1, 5)
    two = ValueHeads(4, ["extrinsic", "rnd"])
    values = two(encoding)
    assert values.shape == (2, 5)
    torch.testing.assert_close(values[1], two.linears["rnd"](encoding)[:, 0])
    several = ValueHeads(4, ["extrinsic", "rnd"], outputs=3)
    assert several(encoding).shape == (2, 5, 3)
    torch.testing.assert_close(several(encoding)[1], several.linears["rnd"](encoding))


def test_heads_of_one_action_kind_have_no_other_parameters() -> None:
    assert {name for name, _ in ActionHead(4, ActionSpec(2, ())).named_parameters()} == {
        "log_sigma",
        "mu.weight",
        "mu.bias",
    }
    assert {name for name, _ in ActionHead(4, ActionSpec(0, (2,))).named_parameters()} == {
        "discrete.weight",
        "discrete.bias",
    }
