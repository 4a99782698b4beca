"""Acting with an MLP on vectors, optionally with a memory, in as few operations as possible.

Deciding for a dozen agents with small layers takes little arithmetic, so the number of calls dominates the cost. The
layers are therefore called as functions, the head is a single matrix product, and everything else uses numpy, whose
operations on so few numbers take a third of the time of torch operations.

Shapes: N agents, O observation size, E encoding size, H memory size, C continuous actions, K branches, D sum of
branches, W size of the largest branch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from trajtrainer.core.steps import BoolArray, FloatArray, IntArray, LongArray, ObservationArray
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.conditioning import Mlp, activated_layers, weights
from trajtrainer.learning.nn.fast.distribution import GaussianScale, log_of, softmax
from trajtrainer.learning.nn.fast.lstm import end_step, gate_scale
from trajtrainer.learning.nn.heads import FORBIDDEN_LOGIT, ActionHead
from trajtrainer.learning.nn.memory import Memory
from trajtrainer.learning.nn.normalization import MAX_INPUT, NormalizedMlp
from trajtrainer.settings.network import Activation

S = TypeVar("S", np.float32, np.bool_)
_ENCODER = "body.encoder."  # prefix of the normalizers, the only tensors in the encoder


def is_mlp(actor: Actor) -> bool:
    """Return whether an actor is an MLP on vectors, optionally with a memory, without state-dependent exploration."""
    return actor.body.is_mlp and _decides(actor)


def acts_as_mlp(actor: Actor) -> bool:
    """Return whether an actor is an MLP (``is_mlp``) or can act as one after its normalized layers are folded."""
    body = actor.body
    is_normalized = isinstance(body.layers, NormalizedMlp) and body.encoder.is_plain
    return (body.is_mlp or is_normalized) and _decides(actor)


def _decides(actor: Actor) -> bool:
    head = actor.head
    return not head.use_sde and (head.mu is not None or head.discrete is not None)


class InferenceActor:
    """Acts with the weights of an actor, without copying them. Call ``weights_changed`` whenever they change.

    Twin of ``trajtrainer.learning.nn.actor.Actor``: it computes the same values up to rounding and draws the same
    samples.
    """

    def __init__(self, actor: Actor) -> None:
        assert acts_as_mlp(actor)
        body = actor.body
        self._normalized = body.layers if isinstance(body.layers, NormalizedMlp) else None
        if self._normalized is None:
            assert isinstance(body.layers, Mlp)
            self._layers = [(weight.detach(), bias.detach()) for weight, bias in map(weights, body.layers.linears)]
            self._activation = body.layers.activation
        else:
            self._activation = Activation.RELU
            self._fold()
        self._memory = None if body.memory is None else _OneStep(body.memory)
        self._head = InferenceHead(actor.head)
        sees_all = len(body.encoder.seen) == len(body.encoder.sensors)
        self._seen = None if sees_all else body.encoder.seen
        self._normalizers = [*body.encoder.normalizers().values()]
        self._normalizers_changed()

    def weights_changed(self, names: Collection[str]) -> None:
        """Recompute everything that depends on the named entries of the actor's ``state_dict``."""
        self._normalizers_changed()
        if all(name.startswith(_ENCODER) for name in names):
            return
        self._fold()
        self._head.weights_changed()
        if self._memory is not None:
            self._memory.weights_changed()

    def _fold(self) -> None:
        if self._normalized is not None:
            self._layers = [(weight.detach(), bias.detach()) for weight, bias in self._normalized.folded()]

    def _normalizers_changed(self) -> None:
        if self._normalizers:
            self._clip = self._normalizers[0].clip
            self._mean: FloatArray = np.concatenate([one.mean.numpy() for one in self._normalizers])
            self._scale: FloatArray = np.concatenate([one.standard_deviation().numpy() for one in self._normalizers])

    def __call__(
        self,
        obs: Sequence[ObservationArray],
        mask: BoolArray,
        memory: FloatArray,
        generator: torch.Generator | None,
    ) -> tuple[HeadActions, FloatArray]:
        """Decide for N agents.

        Args:
            obs: observations of each sensor, f32 [N, O].
            mask: [N, D]; True marks a forbidden action.
            memory: memory before the step [N, H].
            generator: random generator for sampling actions; None to take the mode.

        Returns:
            The actions, and the memory after the step [N, H].
        """
        if self._seen is not None:
            obs = [obs[i] for i in self._seen]
        rows: FloatArray = np.concatenate(obs, 1, dtype=np.float32)  # a copy, because observations are read-only
        if self._normalizers:
            rows -= self._mean
            rows /= self._scale
            np.maximum(rows, -self._clip, out=rows)
            np.minimum(rows, self._clip, out=rows)
        elif self._normalized is not None:
            np.clip(rows, -MAX_INPUT, MAX_INPUT, out=rows)
        x = activated_layers(torch.from_numpy(rows), self._layers, activation=self._activation)
        if self._memory is not None:
            x, memory = self._memory(x, memory)
        return self._head(x, mask, generator), memory


class _OneStep:
    """Computes one step of an LSTM with a copy of the weights of a ``Memory``."""

    def __init__(self, memory: Memory) -> None:
        self._lstm = memory.lstm
        self._units = memory.hidden_size
        self.weights_changed()

    def weights_changed(self) -> None:
        """Copy the weights into one layer, which takes the features and the last output, scaled for ``end_step``."""
        scale = torch.from_numpy(gate_scale(self._units))
        by_input, by_hidden, *biases = (one.detach() for one in self._lstm.all_weights[0])
        self._weight = torch.cat((by_input, by_hidden), 1).mul_(scale[:, None])
        self._bias = torch.add(*biases).mul_(scale)

    def __call__(self, x: Tensor, memory: FloatArray) -> tuple[Tensor, FloatArray]:
        """Return the output [N, H / 2] and the next memory [N, H] for features [N, hidden_units] and a memory."""
        hidden, cells = memory[:, : self._units], memory[:, self._units :]
        known = torch.from_numpy(np.concatenate((x.numpy(), hidden), 1))
        step = end_step(F.linear(known, self._weight, self._bias).numpy(), cells)
        return torch.from_numpy(step.hidden), np.concatenate((step.hidden, step.cells), 1)


class HeadActions(NamedTuple):
    """Actions with the fields of ``ActionBatch``: [N, C], [N, K], [N, C], [N, C + K] and [N]."""

    continuous: FloatArray
    discrete: IntArray
    env_continuous: FloatArray
    log_prob: FloatArray
    entropy: FloatArray


class InferenceHead:
    """Computes decisions with a copy of an action head's weights.

    Twin of ``trajtrainer.learning.nn.heads.ActionHead`` and its ``ActionDistribution``: it computes the same values up
    to rounding and draws the same samples in the same order.
    """

    def __init__(self, head: ActionHead) -> None:
        self._gaussians = None if head.mu is None else _Gaussians(head)
        self._branches = None if head.discrete is None else _Branches(head.discrete, head.branches)
        self.weights_changed()

    def weights_changed(self) -> None:
        layers = []
        if self._gaussians is not None:
            self._gaussians.weights_changed()
            layers += [(layer.weight.detach(), layer.bias.detach()) for layer in self._gaussians.layers]
        if self._branches is not None:
            layers.append(self._branches.padded_layer())
        weights, biases = zip(*layers, strict=True)
        self._weight, self._bias = torch.cat(weights), torch.cat(biases)

    def __call__(self, encoding: Tensor, mask: BoolArray, generator: torch.Generator | None) -> HeadActions:
        """Decide for encodings [N, E] and masks [N, D], where True marks a forbidden action.

        Without a generator, take the mode.
        """
        outputs: FloatArray = F.linear(encoding, self._weight, self._bias).numpy()
        if self._branches is None:
            assert self._gaussians is not None
            chosen = self._gaussians(outputs, generator)
            return HeadActions(
                chosen.raw,
                np.empty((len(outputs), 0), np.int32),
                chosen.to_env,
                chosen.log_prob,
                np.full(len(outputs), chosen.entropy),
            )
        if self._gaussians is None:
            discrete, log_prob, entropy = self._branches(outputs, mask, generator)
            nothing = outputs[:, :0]
            return HeadActions(nothing, discrete, nothing, log_prob, entropy)
        chosen = self._gaussians(outputs, generator)
        discrete, log_prob, entropy = self._branches(outputs[:, self._gaussians.width :], mask, generator)
        entropy += chosen.entropy
        return HeadActions(chosen.raw, discrete, chosen.to_env, np.concatenate((chosen.log_prob, log_prob), 1), entropy)


class _ContinuousActions(NamedTuple):
    """Continuous actions with the fields of ``ActionBatch``: [N, C] each, except for the entropy [1 or N]."""

    raw: FloatArray
    to_env: FloatArray
    log_prob: FloatArray
    entropy: FloatArray


class _Gaussians:
    """The continuous part of an ``InferenceHead``.

    Attributes:
        layers: linear layers that compute the inputs, whose outputs are placed side by side.
        width: number of outputs of these layers per agent.
    """

    def __init__(self, head: ActionHead) -> None:
        assert head.mu is not None
        self._size = head.continuous_size
        self._squash = head.tanh_squash
        self._limit = head.clip_actions
        self._log_sigma = head.log_sigma
        self._log_sigma_range = head.log_sigma_range
        self.layers: Sequence[nn.Linear] = (
            (head.mu,) if head.log_sigma_layer is None else (head.mu, head.log_sigma_layer)
        )
        self.width = self._size * len(self.layers)
        self.weights_changed()

    def weights_changed(self) -> None:
        self._constant = None
        if self._log_sigma is not None:
            scale = GaussianScale.of(self._log_sigma.detach().numpy())
            self._constant = scale, scale.entropy()

    def __call__(self, outputs: FloatArray, generator: torch.Generator | None) -> _ContinuousActions:
        """Compute actions from the first ``width`` outputs of each agent."""
        mu = raw = outputs[:, : self._size]
        if self._constant is not None:
            scale, entropy = self._constant
        else:
            low, high = self._log_sigma_range
            log_sigma: FloatArray = np.maximum(outputs[:, self._size : self.width], low)
            scale = GaussianScale.of(np.minimum(log_sigma, high, out=log_sigma))
            entropy = scale.entropy()
        off_mean: FloatArray = np.zeros(mu.shape, np.float32)
        if generator is not None:
            torch.from_numpy(off_mean).normal_(generator=generator)
            off_mean *= scale.sigma
            raw = mu + off_mean
        if not self._squash:
            clipped: FloatArray = np.maximum(raw, -self._limit)
            np.minimum(clipped, self._limit, out=clipped)
            clipped /= self._limit
            return _ContinuousActions(raw, clipped, scale.log_prob(raw - mu), entropy)
        log_prob = scale.log_prob(off_mean)
        # ln |d tanh(x) / dx|, in a form that is accurate in the tails.
        log_det: FloatArray = np.logaddexp(raw * -2.0, np.float32(0.0))
        log_det += raw
        log_det -= math.log(2.0)
        log_det *= -2.0
        log_prob -= log_det
        squashed: FloatArray = np.tanh(raw)
        return _ContinuousActions(squashed, squashed, log_prob, entropy)


class _Branches:
    """The discrete part of an ``InferenceHead``.

    Smaller branches are padded to the size of the largest one with actions of probability 0, so that a single operation
    handles all branches.
    """

    def __init__(self, layer: nn.Linear, sizes: Sequence[int]) -> None:
        self._layer = layer
        self._count, self._width = len(sizes), max(sizes)
        self._is_padded = min(sizes) < self._width
        # The column of each of the D actions among the K * W columns.
        starts = range(0, self._count * self._width, self._width)
        columns = [start + i for start, size in zip(starts, sizes, strict=True) for i in range(size)]
        self._columns: LongArray = np.array(columns, np.int64)

    def padded_layer(self) -> tuple[Tensor, Tensor]:
        """Return the weight and bias of the layer for all K * W actions."""
        weight, bias = self._layer.weight.detach(), self._layer.bias.detach()
        if not self._is_padded:
            return weight, bias
        size, columns = self._count * self._width, torch.from_numpy(self._columns)
        padded_weight = weight.new_zeros((size, weight.shape[1]))
        padded_weight[columns] = weight
        padded_bias = bias.new_full((size,), -math.inf)
        padded_bias[columns] = bias
        return padded_weight, padded_bias

    def __call__(
        self, outputs: FloatArray, mask: BoolArray, generator: torch.Generator | None
    ) -> tuple[IntArray, FloatArray, FloatArray]:
        """Return actions and log_prob [N, K] and entropy [N] for masks and logits [N, K * W], which are overwritten."""
        shape = (len(outputs), self._count, self._width)
        logits = outputs.reshape(shape)
        np.copyto(logits, FORBIDDEN_LOGIT, where=self._padded(mask, False).reshape(shape))
        probs = softmax(logits, _over_the_last_axis)
        weighted = probs
        if generator is not None:
            # argmax(p / e) with e ~ Exp(1) is a sample from p.
            noise: FloatArray = np.empty(mask.shape, np.float32)
            torch.from_numpy(noise).exponential_(generator=generator)
            weighted = probs / self._padded(noise, 1.0).reshape(shape)
        best = weighted.argmax(2)
        log_probs = log_of(probs)
        first = np.arange(0, probs.size, self._width).reshape(shape[:2])
        log_prob: FloatArray = log_probs.take(best + first)
        log_probs *= probs
        entropy: FloatArray = np.add.reduce(log_probs.reshape(outputs.shape), 1)
        return best.astype(np.int32), log_prob, np.negative(entropy, out=entropy)

    def _padded(self, values: NDArray[S], filling: float | bool) -> NDArray[S]:
        """Pad values [N, D] to [N, K * W]."""
        if not self._is_padded:
            return values
        padded = np.full((len(values), self._count * self._width), filling, values.dtype)
        padded[:, self._columns] = values
        return padded


def _over_the_last_axis(reduction: np.ufunc, values: FloatArray) -> FloatArray:
    reduced: FloatArray = reduction.reduce(values, -1, keepdims=True)
    return reduced
