"""Action distributions with ML-Agents' formulas (docs/explanation/mlagents-behavior.md#actions).

``torch.distributions`` creates new objects on every call. The classes here need only a few small tensor operations to
act.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-7  # ML-Agents adds this inside every logarithm and to variances
LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
ENV_CLIP = 3.0  # ML-Agents clips raw continuous actions to this limit and divides by it
_BELOW_ONE = 1.0 - 2.0**-24


class Actions(NamedTuple):
    """Actions of B agents: raw continuous actions [B, C], as drawn from the distribution, and discrete int64 [B, K]."""

    continuous: Tensor
    discrete: Tensor


class GaussianScale:
    """The standard deviation of Gaussians and all values that depend only on it, each computed at most once.

    If the standard deviation does not depend on the state, a policy reuses one instance for all steps. Unless stated
    otherwise, the values have the shape [1 or B, C].

    Attributes:
        log_sigma: [1, C], or [B, C] if it depends on the state.
    """

    def __init__(self, log_sigma: Tensor) -> None:
        self.log_sigma = log_sigma

    @cached_property
    def sigma(self) -> Tensor:
        return self.log_sigma.exp()

    @cached_property
    def double_variance(self) -> Tensor:
        return 2.0 * self.sigma.square() + EPSILON

    @cached_property
    def log_normalizer(self) -> Tensor:
        """The log-probability of the mean [1 or B, C]."""
        return -(self.sigma + EPSILON).log() - LOG_ROOT_TWO_PI

    @cached_property
    def entropy(self) -> Tensor:
        """The mean over the dimensions of ``ln(2 pi e sigma^2 + 1e-7) / 2``: [1 or B]."""
        return 0.5 * (2.0 * math.pi * math.e * self.sigma.square() + EPSILON).log().mean(1)

    def log_prob(self, difference: Tensor) -> Tensor:
        """Return the log-probability of values that differ from the mean by ``difference`` [B, C]."""
        return torch.addcdiv(self.log_normalizer, difference.square(), self.double_variance, value=-1.0)


class ActionDistribution:
    """Action distributions in B states: a Gaussian per continuous action and a categorical distribution per branch.

    Attributes:
        mu: means of the Gaussians [B, C]; C may be 0.
        scale: standard deviation of the Gaussians.
        masked_logits: logits of all branches side by side [B, D], -1e8 for forbidden actions; D may be 0.
        branches: sizes of the K branches.
        branch_starts: index of each branch's first column among the D columns, int64 [K].
        tanh_squash: True if continuous actions are the tanh of the Gaussian samples (SAC).
        clip_actions: limit of raw continuous actions without ``tanh_squash``.
    """

    def __init__(
        self,
        mu: Tensor,
        scale: GaussianScale,
        masked_logits: Tensor,
        branches: tuple[int, ...],
        branch_starts: Tensor,
        tanh_squash: bool = False,
        clip_actions: float = ENV_CLIP,
    ) -> None:
        self.mu = mu
        self.scale = scale
        self.masked_logits = masked_logits
        self.branches = branches
        self.branch_starts = branch_starts
        self.tanh_squash = tanh_squash
        self.clip_actions = clip_actions
        # The last squashed sample, its value before squashing, and the difference between that value and the mean.
        self._squashed: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def log_sigma(self) -> Tensor:
        return self.scale.log_sigma

    @property
    def sigma(self) -> Tensor:
        return self.scale.sigma

    @property
    def logits(self) -> tuple[Tensor, ...]:
        """The masked logits of each branch [B, size]."""
        return self.masked_logits.split_with_sizes(self.branches, 1) if self.branches else ()

    @cached_property
    def probs(self) -> Tensor:
        """The probabilities within each branch, side by side [B, D]."""
        if len(self.branches) > 1:
            return torch.cat([logits.softmax(1) for logits in self.logits], 1)
        return self.masked_logits.softmax(1) if self.branches else self.masked_logits

    @cached_property
    def all_log_probs(self) -> Tensor:
        """The log-probability ``ln(p + 1e-7)`` of every discrete action [B, D]."""
        return (self.probs + EPSILON).log()

    def sample(self, generator: torch.Generator | None = None, normal: Tensor | None = None) -> Actions:
        """Sample actions: first the continuous ones, which are differentiable, then the discrete ones.

        Args:
            generator: random generator; None for torch's global generator.
            normal: standard normal noise for the continuous actions [B, C]; sampled if None.
        """
        continuous = self.mu
        if normal is not None:
            continuous = self.continuous_from_noise(normal)
        elif self.mu.shape[1]:
            noise = torch.empty_like(self.mu, requires_grad=False).normal_(generator=generator)
            continuous = self.continuous_from_noise(noise)
        if not self.branches:
            return Actions(continuous, self._no_discrete())
        # argmax(p / e) with e ~ Exp(1) is i with probability p_i. A forbidden action, with p = 0, is never chosen.
        probs = self.probs.detach()
        return Actions(continuous, self._best(probs / torch.empty_like(probs).exponential_(generator=generator)))

    def _no_discrete(self) -> Tensor:
        return self.branch_starts.expand(self.mu.shape[0], 0)

    def _best(self, values: Tensor) -> Tensor:
        """Return the argmax within each branch [B, K]."""
        if len(self.branches) == 1:
            return values.argmax(1, keepdim=True)
        return torch.stack([part.argmax(1) for part in values.split_with_sizes(self.branches, 1)], 1)

    def continuous_from_noise(self, normal: Tensor) -> Tensor:
        """Compute continuous actions from standard normal noise [B, C]. They are differentiable in mu and sigma."""
        raw = torch.addcmul(self.mu, self.sigma, normal)
        if not self.tanh_squash:
            return raw
        squashed = raw.tanh()
        # Computing the difference as raw - mu would lose precision if sigma is small.
        self._squashed = (squashed, raw, self.sigma * normal)
        return squashed

    def deterministic(self) -> Actions:
        """Return the means of the continuous actions and the modes of the branches.

        SAC's means are squashed, unlike in ML-Agents (docs/explanation/mlagents-behavior.md#actions).
        """
        continuous = self.mu.tanh() if self.tanh_squash else self.mu
        return Actions(continuous, self._best(self.probs) if self.branches else self._no_discrete())

    def log_prob(self, continuous: Tensor, discrete: Tensor) -> Tensor:
        """Return the log-probabilities of actions, one per continuous action and branch [B, C + K].

        Args:
            continuous: raw continuous actions [B, C].
            discrete: discrete actions, integers [B, K].
        """
        if not self.branches:
            return self.continuous_log_prob(continuous)
        if not self.mu.shape[1]:
            return self.discrete_log_prob(discrete)
        return torch.cat((self.continuous_log_prob(continuous), self.discrete_log_prob(discrete)), 1)

    def continuous_log_prob(self, continuous: Tensor) -> Tensor:
        """Return the log-probabilities of continuous actions [B, C].

        For the most recently sampled tensor, they are exact even if tanh saturates.
        """
        if not self.tanh_squash:
            return self.scale.log_prob(continuous - self.mu)
        if self._squashed is not None and self._squashed[0] is continuous:
            _, raw, difference = self._squashed
        else:
            raw = continuous.clamp(-_BELOW_ONE, _BELOW_ONE).atanh()
            difference = raw - self.mu
        return self.scale.log_prob(difference) - _log_det_tanh(raw)

    def discrete_log_prob(self, discrete: Tensor) -> Tensor:
        index = discrete.to(torch.int64)
        return self.all_log_probs.gather(1, index if len(self.branches) == 1 else index + self.branch_starts)

    def entropy(self, *, joint: bool = False) -> Tensor:
        """Return the entropy in each state [B]: the mean over the continuous actions plus the sum over the branches.

        With ``joint``, the entropies of the continuous actions are summed instead of averaged.
        """
        continuous = self.scale.entropy
        if joint:
            continuous = continuous * self.mu.shape[1]
        if not self.branches:
            return continuous.expand(self.mu.shape[0])
        discrete = -(self.probs * self.all_log_probs).sum(1)
        return discrete + continuous if self.mu.shape[1] else discrete

    def to_env(self, continuous_raw: Tensor) -> Tensor:
        """Convert raw continuous actions to the values that the environment receives [B, C], within [-1, 1]."""
        if self.tanh_squash:
            return continuous_raw
        return continuous_raw.clamp(-self.clip_actions, self.clip_actions) / self.clip_actions


def _log_det_tanh(raw: Tensor) -> Tensor:
    """Compute ln |d tanh(x) / dx| in a form that is accurate in the tails."""
    return 2.0 * (math.log(2.0) - raw - F.softplus(-2.0 * raw))
