"""Acting with plain layers on vectors and continuous actions, in as few operations as it takes.

The same numbers to rounding, and the same draws, as the ``Actor`` gives. A dozen agents' decision by small layers is
hardly any arithmetic: what it costs is the number of calls. So the layers are called as functions and everything
around them is numpy, whose operations on so few numbers cost a third of torch's.

Letters: N agents, C continuous actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trajtrainer.nn.actor import Actor
from trajtrainer.nn.conditioning import Mlp
from trajtrainer.nn.distribution import ENV_CLIP, GaussianScale
from trajtrainer.nn.normalizer import CLIP
from trajtrainer.steps import FloatArray, ObservationArray


def is_plain(actor: Actor) -> bool:
    """Whether ``PlainPolicy`` can act for this actor."""
    head = actor.head
    return (
        actor.body.is_plain
        and not actor.memory_size
        and head.log_sigma is not None
        and not head.branches
        and not head.tanh_squash
    )


class PlainActions(NamedTuple):
    """As in ``ActionBatch``: [N, C] each, the entropy [N]."""

    continuous: FloatArray
    env_continuous: FloatArray
    log_prob: FloatArray
    entropy: FloatArray


class PlainPolicy:
    """Acts by an actor's weights, which it shares; what it computed of some of them is to be told when they change."""

    def __init__(self, actor: Actor) -> None:
        assert is_plain(actor)
        assert isinstance(actor.body.layers, Mlp)
        assert actor.head.mu is not None
        assert actor.head.log_sigma is not None
        linears = [layer for layer in actor.body.layers.layers if isinstance(layer, nn.Linear)]
        *self._layers, self._mu = [(one.weight.detach(), one.bias.detach()) for one in [*linears, actor.head.mu]]
        self._log_sigma = actor.head.log_sigma.detach()
        self._normalizers = [*actor.body.encoder.normalizers().values()]
        self.scale_changed()
        self.normalizers_changed()

    def scale_changed(self) -> None:
        """Computes anew what follows from the actions' deviation alone."""
        scale = GaussianScale(self._log_sigma)
        self._sigma: FloatArray = scale.sigma.numpy()
        self._log_prob_of_mu: FloatArray = scale.log_normalizer.numpy()
        self._double_variance: FloatArray = scale.double_variance.numpy()
        self._entropy = np.float32(scale.entropy().item())

    def normalizers_changed(self) -> None:
        """Computes anew what follows from the normalisers alone."""
        if self._normalizers:
            self._mean: FloatArray = np.concatenate([one.mean.numpy() for one in self._normalizers])
            self._deviation: FloatArray = np.concatenate([one.deviation().numpy() for one in self._normalizers])

    def __call__(
        self, obs: Sequence[ObservationArray], generator: torch.Generator, *, deterministic: bool
    ) -> PlainActions:
        """Actions for N agents, from observations f32 per sensor [N, O]."""
        mu = self._means(obs)
        noise = None if deterministic else torch.empty(mu.shape).normal_(generator=generator).numpy()
        continuous: FloatArray = mu if noise is None else mu + self._sigma * noise
        env_continuous: FloatArray = np.maximum(continuous, np.float32(-ENV_CLIP))
        np.minimum(env_continuous, ENV_CLIP, out=env_continuous)
        env_continuous /= ENV_CLIP
        log_prob: FloatArray = continuous - mu
        log_prob *= log_prob
        log_prob /= self._double_variance
        np.subtract(self._log_prob_of_mu, log_prob, out=log_prob)
        return PlainActions(continuous, env_continuous, log_prob, np.full(len(mu), self._entropy))

    def _means(self, obs: Sequence[ObservationArray]) -> FloatArray:
        rows: FloatArray = np.concatenate(obs, 1, dtype=np.float32)  # a copy, since what was received is read-only
        if self._normalizers:
            rows -= self._mean
            rows /= self._deviation
            np.maximum(rows, -CLIP, out=rows)
            np.minimum(rows, CLIP, out=rows)
        x: Tensor = torch.from_numpy(rows)
        for weight, bias in self._layers:
            x = F.silu(F.linear(x, weight, bias), inplace=True)
        means: FloatArray = F.linear(x, *self._mu).numpy()
        return means
