"""The loss of MA-POCA's critic, as a pure function of tensors.

Shape legend: b rows of a minibatch, V reward signals.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from trajtrainer.algos.ppo.losses import value_loss


class CriticLoss(NamedTuple):
    """The critic's loss, and its two parts."""

    total: Tensor
    value: Tensor
    baseline: Tensor


def critic_loss(
    values: Tensor,
    baselines: Tensor,
    returns: Tensor,
    mask: Tensor | None,
    *,
    old_values: Tensor | None,
    old_baselines: Tensor,
    baseline_returns: Tensor | None = None,
    epsilon: float,
    vf_coef: float = 0.5,
) -> CriticLoss:
    """Return the squared errors of values and baselines, the baselines' counting half as much.

    Baselines are always clipped to within ``epsilon`` of those at collection time, values where ``old_values`` is given
    (docs/mlagents-behavior.md#poca).

    Args:
        values: [V, b].
        baselines: [V, b].
        returns: [V, b], the target of both.
        mask: [b], or None when every row is real.
        old_values: [V, b] or None.
        old_baselines: [V, b].
        baseline_returns: [V, b], the target of the baselines where it is not that of the values.
        epsilon: half width of the clipping range.
        vf_coef: weight of the whole.
    """
    of_values = value_loss(values, returns, mask, old_values=old_values, epsilon=epsilon)
    target = returns if baseline_returns is None else baseline_returns
    of_baselines = value_loss(baselines, target, mask, old_values=old_baselines, epsilon=epsilon)
    return CriticLoss(vf_coef * (of_values + 0.5 * of_baselines), of_values, of_baselines)
