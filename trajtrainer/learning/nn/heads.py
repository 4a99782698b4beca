"""The output heads of actors and critics (docs/explanation/mlagents-behavior.md#body-and-heads)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trajtrainer.core.spec import ActionSpec
from trajtrainer.learning.nn.distribution import ENV_CLIP, ActionDistribution, Actions, GaussianScale
from trajtrainer.learning.nn.graph import FLOAT, INT64, Graph, to_array
from trajtrainer.learning.nn.init import initialize, kaiming_linear, xavier_linear
from trajtrainer.learning.nn.mlagents import Names
from trajtrainer.settings.network import Initialization

__all__ = ["ActionDistribution", "ActionHead", "Actions", "ValueHeads"]

FORBIDDEN_LOGIT = -1e8
_MU_GAIN, _SIGMA_GAIN, _BRANCH_GAIN = 0.2, 0.2, 0.1
_SDE_EPSILON = 1e-6  # added to the variance
_SDE_MEAN = 2.0  # limit of the mean of squashed actions before squashing, as in Stable-Baselines3
LOG_SIGMA_RANGE = (-20.0, 2.0)  # limits of a state-dependent log sigma


class ActionHead(nn.Module):
    """Maps an encoding to an :class:`ActionDistribution`.

    A single linear layer, ``discrete``, computes the logits of all branches side by side; ML-Agents has one layer per
    branch.

    Args:
        encoding_size: E.
        action_spec: the agents' actions.
        conditional_sigma: True if sigma depends on the state (SAC); otherwise it is one learned vector.
        tanh_squash: True if continuous actions are squashed with tanh (SAC).
        clip_actions: limit of raw continuous actions, 3 in ML-Agents.
        log_std_init: logarithm of the initial sigma, if sigma does not depend on the state.
        use_sde: True if the noise is linear in the encoding (Raffin et al. 2021). The learned standard deviations are
            then those of the noise matrix, [E, C] instead of [1, C].
        log_sigma_range: limits of the logarithm of a state-dependent sigma.

    Attributes:
        branch_sizes: the sizes in ``branches`` as a tensor on the device of the weights.
    """

    branch_sizes: Tensor
    branch_starts: Tensor

    def __init__(
        self,
        encoding_size: int,
        action_spec: ActionSpec,
        *,
        conditional_sigma: bool = False,
        tanh_squash: bool = False,
        clip_actions: float = ENV_CLIP,
        log_std_init: float = 0.0,
        use_sde: bool = False,
        log_sigma_range: tuple[float, float] = LOG_SIGMA_RANGE,
    ) -> None:
        super().__init__()
        size = self.continuous_size = int(action_spec.continuous_size)
        self.branches = tuple(int(size) for size in action_spec.discrete_branches)
        self.conditional_sigma = conditional_sigma
        self.tanh_squash = tanh_squash
        self.clip_actions = clip_actions
        self.use_sde = use_sde and size > 0
        self.log_sigma_range = log_sigma_range
        rows, conditional = (encoding_size, False) if self.use_sde else (1, conditional_sigma)
        # ML-Agents' order of parameters: a learned vector comes before mu, a layer after it.
        self.log_sigma = nn.Parameter(torch.full((rows, size), log_std_init)) if size and not conditional else None
        self.mu = kaiming_linear(encoding_size, size, _MU_GAIN) if size else None
        self.log_sigma_layer = kaiming_linear(encoding_size, size, _SIGMA_GAIN) if size and conditional else None
        self.discrete = kaiming_linear(encoding_size, sum(self.branches), _BRANCH_GAIN) if self.branches else None
        starts = list(accumulate(self.branches, initial=0))[:-1]
        self.register_buffer("branch_sizes", torch.tensor(self.branches, dtype=torch.int64), persistent=False)
        self.register_buffer("branch_starts", torch.tensor(starts, dtype=torch.int64), persistent=False)

    def forward(self, encoding: Tensor, mask: Tensor, scale: GaussianScale | None = None) -> ActionDistribution:
        """Compute the action distribution for encodings.

        Args:
            encoding: [B, E].
            mask: bool [B, D]; True marks a forbidden action.
            scale: result of :meth:`constant_scale` for the current weights, to avoid computing it again.
        """
        if self.mu is None:
            mu = log_sigma = encoding[:, :0]
        else:
            mu = self.mu(encoding)
            if self.use_sde and self.tanh_squash:
                mu = F.hardtanh(mu, -_SDE_MEAN, _SDE_MEAN)
            log_sigma = self._log_sigma(encoding) if scale is None else scale.log_sigma
        scale = GaussianScale(log_sigma) if scale is None else scale
        logits = encoding[:, :0] if self.discrete is None else masked(self.discrete(encoding), mask)
        return self.distribution(mu, scale, logits)

    def distribution(self, mu: Tensor, scale: GaussianScale, masked_logits: Tensor) -> ActionDistribution:
        """Build the distribution from the layers' outputs: mu [B, C] and already masked logits [B, D]."""
        return ActionDistribution(
            mu, scale, masked_logits, self.branches, self.branch_starts, self.tanh_squash, self.clip_actions
        )

    def constant_scale(self) -> GaussianScale | None:
        """Return the Gaussians' scale, which is valid until the weights change; None if it depends on the state."""
        return None if self.log_sigma is None or self.use_sde else GaussianScale(self.log_sigma)

    def to_env(self, continuous: Tensor) -> Tensor:
        """Convert raw actions [B, C] to the values the environment receives, as ``ActionDistribution.to_env`` does."""
        return (
            continuous
            if self.tanh_squash
            else continuous.clamp(-self.clip_actions, self.clip_actions) / self.clip_actions
        )

    def from_env(self, continuous: Tensor) -> Tensor:
        """Convert actions that the environment received [B, C] to raw actions."""
        return continuous if self.tanh_squash else continuous * self.clip_actions

    def _log_sigma(self, encoding: Tensor) -> Tensor:
        """Return log sigma [1, C], or [B, C] if it depends on the state."""
        if self.use_sde:
            assert self.log_sigma is not None
            # With PPO, no gradient flows from the noise to the encoding, because the encoding would learn to suppress
            # the noise. With SAC, the entropy bonus prevents that.
            features = encoding if self.tanh_squash else encoding.detach()
            variance = features.square() @ self.log_sigma.exp().square()
            return 0.5 * (variance + _SDE_EPSILON).log()
        if self.log_sigma is not None:
            return self.log_sigma
        assert self.log_sigma_layer is not None
        return self.log_sigma_layer(encoding).clamp(*self.log_sigma_range)  # type: ignore[no-any-return]

    @property
    def mlagents_names(self) -> Names:
        continuous, discrete = "_continuous_distribution", "_discrete_distribution.branches"
        return {
            "mu": f"{continuous}.mu",
            "log_sigma": f"{continuous}.log_sigma",
            "log_sigma_layer": f"{continuous}.log_sigma",
            "discrete": {f"{discrete}.{k}": size for k, size in enumerate(self.branches)},
        }

    def continuous_to_onnx(self, graph: Graph, encoding: str, sampled: str, mode: str) -> None:
        """Add nodes that compute continuous actions [batch, C] from an encoding [batch, E].

        The outputs are named ``sampled`` and ``mode``.
        """
        assert self.mu is not None
        mu = graph.linear(self.mu, encoding)
        if self.use_sde and self.tanh_squash:
            mu = graph.clip(mu, -_SDE_MEAN, _SDE_MEAN)
        if self.log_sigma_layer is not None:
            log_sigma = graph.clip(graph.linear(self.log_sigma_layer, encoding), *self.log_sigma_range)
            sigma = graph.node("Exp", log_sigma)
        elif self.use_sde:
            assert self.log_sigma is not None
            # Unity cannot keep the noise matrix between steps, so each step has independent noise with the same
            # distribution.
            variances = graph.weight("head.variances", to_array(self.log_sigma.exp().square()))
            variance = graph.node("MatMul", graph.node("Mul", encoding, encoding), variances)
            sigma = graph.node("Sqrt", graph.node("Add", variance, graph.constant(_SDE_EPSILON)))
        else:
            assert self.log_sigma is not None
            sigma = graph.weight("head.sigma", to_array(self.log_sigma.exp()))
        noise = graph.node("RandomNormalLike", mu, dtype=FLOAT)
        raw = graph.node("Add", mu, graph.node("Mul", noise, sigma))
        for name, value in ((sampled, raw), (mode, mu)):
            if self.tanh_squash:
                graph.node("Tanh", value, output=name)
            else:
                limited = graph.clip(value, -self.clip_actions, self.clip_actions)
                graph.node("Div", limited, graph.constant(self.clip_actions), output=name)

    def discrete_to_onnx(self, graph: Graph, encoding: str, allowed: str, sampled: str, mode: str) -> None:
        """Add nodes that compute discrete actions [batch, K] from an encoding [batch, E].

        The outputs are named ``sampled`` and ``mode``. ``allowed`` [batch, D] is 1 for allowed actions, the opposite of
        the masks elsewhere.
        """
        assert self.discrete is not None
        logits = graph.linear(self.discrete, encoding)
        choices_to_onnx(graph, logits, allowed, self.branches, sampled, mode)


def choices_to_onnx(graph: Graph, logits: str, allowed: str, branches: Sequence[int], sampled: str, mode: str) -> None:
    """Add nodes that compute discrete actions [batch, K] from logits [batch, D].

    The other arguments are those of ``ActionHead.discrete_to_onnx``.
    """
    masked_logits = masked_to_onnx(graph, logits, allowed)
    samples, best = [], []
    start = 0
    for size in branches:
        one = len(branches) == 1
        branch = masked_logits if one else graph.slice(masked_logits, axis=1, start=start, end=start + size)
        start += size
        probabilities = graph.node("Softmax", branch, axis=1)
        logarithms = graph.node("Log", probabilities)
        samples.append(graph.node("Multinomial", logarithms, dtype=INT64, sample_size=1))
        best.append(graph.node("ArgMax", probabilities, axis=1, keepdims=1))
    graph.node("Concat", *samples, axis=1, output=sampled)
    graph.node("Concat", *best, axis=1, output=mode)


def masked_to_onnx(graph: Graph, logits: str, allowed: str) -> str:
    """Add nodes that set the logits [batch, D] to -1e8 where ``allowed`` [batch, D] is 0."""
    forbidden = graph.node("Sub", graph.constant(1.0), allowed)
    penalty = graph.node("Mul", forbidden, graph.constant(-FORBIDDEN_LOGIT))
    return graph.node("Sub", graph.node("Mul", logits, allowed), penalty)


def masked(logits: Tensor, mask: Tensor) -> Tensor:
    """Set the logits [B, D] to -1e8 where ``mask`` is True."""
    return logits.masked_fill(mask, FORBIDDEN_LOGIT)


class ValueHeads(nn.Module):
    """One linear head per reward signal.

    Args:
        encoding_size: E.
        signals: names of the reward signals, in order.
        outputs: number of outputs per signal; 1 for values, the sum of the branch sizes for Q networks with discrete
            actions.
        initialization: how to initialize the weights.
    """

    def __init__(
        self,
        encoding_size: int,
        signals: Sequence[str],
        outputs: int = 1,
        *,
        initialization: Initialization = Initialization.MLAGENTS,
    ) -> None:
        super().__init__()
        self.signals = tuple(signals)
        self.outputs = outputs
        self.linears = nn.ModuleDict({signal: xavier_linear(encoding_size, outputs) for signal in self.signals})
        initialize(self.linears, initialization, 1.0)

    def forward(self, encoding: Tensor) -> Tensor:
        """Return the values [V, B], or [V, B, outputs] with several outputs."""
        values = [head(encoding) for head in self.linears.values()]
        if self.outputs == 1:
            return (values[0] if len(values) == 1 else torch.cat(values, 1)).t()
        return torch.stack(values)

    @property
    def mlagents_names(self) -> Names:
        return {f"linears.{signal}": f"value_heads.{signal}" for signal in self.signals}
