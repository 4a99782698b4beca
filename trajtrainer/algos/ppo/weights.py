"""Importance weights: how likely the policy as it is now would act as those did that are learnt from.

Shape legend: A continuous actions and discrete branches together, B packed steps, Q sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trajtrainer.algos.ppo.settings import OnPolicy
from trajtrainer.algos.values import in_parts, sequence_begins
from trajtrainer.core.steps import FloatArray
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.nn.actor import Actor

WEIGHT_TAG = "Policy/Importance Weight"


class Weights(NamedTuple):
    """Weights of packed steps.

    Attributes:
        log_prob: f32 [B, A], of the actions by the policy as it is now.
        rho: f32 [B], its probability of the whole action over that with which it was chosen, truncated.
        trace: f32 [B], the same, truncated for traces.
    """

    log_prob: FloatArray
    rho: FloatArray
    trace: FloatArray


class ImportanceWeights:
    """Weights of steps by one pass through the actor, which changes in updates only (and its normalisers before).

    A recurrent one begins each sequence with the memory that was stored, as gradient steps do.
    """

    def __init__(self, actor: Actor, hyper: OnPolicy, sequence_length: int) -> None:
        self._actor = actor
        self._length = sequence_length
        self._rho_bar, self._c_bar = np.float32(hyper.rho_bar), np.float32(hyper.c_bar)

    @torch.no_grad()
    def of(self, packed: PackedSteps, obs: Sequence[Tensor]) -> Weights:
        """Return the weights of ``packed``, whose observations are given as tensors on the actor's device."""
        device = obs[0].device
        given = [torch.from_numpy(packed[name]).to(device) for name in ("mask", "continuous", "discrete")]
        encoding = self._remembered(packed, obs) if self._actor.memory_size else None
        columns = [*given, *(obs if encoding is None else [encoding])]
        log_prob = torch.cat([self._log_prob(*part) for part in in_parts(columns)]).cpu().numpy()
        with np.errstate(over="ignore"):  # infinity is truncated, too
            ratio = np.exp((log_prob - packed["log_prob"]).sum(1))
        return Weights(log_prob, np.minimum(ratio, self._rho_bar), np.minimum(ratio, self._c_bar))

    def _remembered(self, packed: PackedSteps, obs: Sequence[Tensor]) -> Tensor:
        begins = sequence_begins(packed, self._length)
        memory = torch.from_numpy(packed["memory"][begins]).to(obs[0].device)
        offset = torch.from_numpy(np.append(begins, len(packed)))
        body = self._actor.body
        assert body.memory is not None
        features = torch.cat([body.features(part) for part in in_parts(obs)])
        out: Tensor = body.memory.unroll(features, offset, memory, self._length).out
        return out

    def _log_prob(self, mask: Tensor, continuous: Tensor, discrete: Tensor, *seen: Tensor) -> Tensor:
        encoding = seen[0] if self._actor.memory_size else self._actor.body(seen)[0]
        log_prob: Tensor = self._actor.head(encoding, mask).log_prob(continuous, discrete)
        return log_prob
