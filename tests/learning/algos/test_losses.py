"""Losses: worked numbers and what padding must not change."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from trajtrainer.learning.algos.ppo import losses
from trajtrainer.learning.nn.minibatch import masked_mean


def _rows(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_masked_mean_counts_every_column() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0], [100.0, 100.0]])
    assert masked_mean(values, torch.tensor([1.0, 1.0, 0.0])).item() == 2.5
    assert masked_mean(values[:, 0], torch.tensor([1.0, 1.0, 0.0])).item() == 2.0
    assert masked_mean(values, torch.zeros(3)).item() == 0.0
    assert masked_mean(torch.zeros(3, 0), None).item() == 0.0


def test_policy_loss_keeps_one_ratio_per_dimension() -> None:
    ratio = torch.tensor([[2.0, 1.0], [0.5, 1.1]])
    advantage = torch.tensor([1.0, -1.0])
    # Row 0: min(2, 1.2) and 1; row 1: min(-0.5, -0.8) and -1.1.
    expected = -(1.2 + 1.0 - 0.8 - 1.1) / 4
    assert losses.clipped_policy_loss(ratio, advantage, 0.2, None).item() == pytest.approx(expected, rel=1e-6)


def test_value_loss_plain_and_clipped() -> None:
    values, returns, old = torch.tensor([[2.0]]), torch.tensor([[3.0]]), torch.tensor([[1.0]])
    assert losses.value_loss(values, returns, None).item() == 1.0
    # The estimate is held at 1.2, so that its error (1.8 squared) is the larger one.
    clipped = losses.value_loss(values, returns, None, old_values=old, epsilon=0.2)
    assert clipped.item() == pytest.approx(1.8**2, rel=1e-6)


def test_clipping_with_the_returns_as_old_values_is_the_plain_error() -> None:
    values, returns = _rows(0, 2, 50), _rows(1, 2, 50)
    plain = losses.value_loss(values, returns, None)
    torch.testing.assert_close(losses.value_loss(values, returns, None, old_values=returns, epsilon=0.2), plain)


@pytest.mark.parametrize("padding", [0, 1, 7])
def test_padding_changes_nothing(padding: int) -> None:
    real, filler = 9, torch.full((padding,), 1e3)
    mask = torch.cat([torch.ones(real), torch.zeros(padding)])
    ratio, advantage = _rows(2, real, 3).exp(), _rows(3, real)
    values, returns = _rows(4, 2, real), _rows(5, 2, real)
    padded_ratio = torch.cat([ratio, filler[:, None].expand(-1, 3)])
    padded_advantage = torch.cat([advantage, filler])
    padded_values = torch.cat([values, filler.expand(2, -1)], dim=1)
    padded_returns = torch.cat([returns, -filler.expand(2, -1)], dim=1)
    pairs = [
        (
            losses.clipped_policy_loss(padded_ratio, padded_advantage, 0.2, mask),
            losses.clipped_policy_loss(ratio, advantage, 0.2, None),
        ),
        (losses.value_loss(padded_values, padded_returns, mask), losses.value_loss(values, returns, None)),
        (losses.clip_fraction(padded_ratio, 0.2, mask), losses.clip_fraction(ratio, 0.2, None)),
        (
            losses.approximate_kl(padded_ratio.log(), padded_ratio, mask),
            losses.approximate_kl(ratio.log(), ratio, None),
        ),
        (losses.normalized(padded_advantage, mask)[:real], losses.normalized(advantage, None)),
    ]
    for found, expected in pairs:
        torch.testing.assert_close(found, expected)
    assert losses.normalized(padded_advantage, mask)[real:].eq(0.0).all()


def test_normalized_has_mean_0_and_population_deviation_1() -> None:
    found = losses.normalized(5 + 3 * _rows(6, 1000), None)
    assert found.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert found.std(correction=0).item() == pytest.approx(1.0, abs=1e-5)


def test_normalized_of_a_constant_is_0() -> None:
    assert losses.normalized(torch.full((5,), 2.0), None).eq(0.0).all()


def test_explained_variance() -> None:
    returns = _rows(7, 1, 100)
    assert losses.explained_variance(returns, returns).item() == 1.0
    assert losses.explained_variance(torch.zeros(1, 100), returns).item() == pytest.approx(0.0, abs=1e-6)
    assert math.isnan(losses.explained_variance(returns, torch.ones(1, 100)).item()) is False
    assert math.isnan(losses.explained_variance(torch.ones(1, 100), torch.ones(1, 100)).item())


def test_kl_is_0_for_the_same_policy_and_positive_otherwise() -> None:
    log_ratio = _rows(8, 40, 2) * 0.1
    assert losses.approximate_kl(0 * log_ratio, torch.ones(40, 2), None).item() == 0.0
    kl = losses.approximate_kl(log_ratio, log_ratio.exp(), None)
    assert kl.item() > 0.0
    of_each = [losses.approximate_kl(one, one.exp(), None) for one in (log_ratio[:, :1], log_ratio[:, 1:])]
    torch.testing.assert_close(kl, of_each[0] + of_each[1])
