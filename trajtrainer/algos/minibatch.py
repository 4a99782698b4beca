"""The rows that one gradient step sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor


class Rows(Protocol):
    """What reward signals need of the rows that a trainer learns from, on-policy or off-policy. See ``Minibatch``."""

    @property
    def obs(self) -> tuple[Tensor, ...]: ...

    @property
    def mask(self) -> Tensor: ...

    @property
    def continuous(self) -> Tensor: ...

    @property
    def discrete(self) -> Tensor: ...

    @property
    def loss_mask(self) -> Tensor | None: ...

    @property
    def sequence_length(self) -> int: ...


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the type in which a column of ``dtype`` is learnt from: torch looks up by int64 only."""
    return torch.int64 if dtype.kind == "i" else torch.from_numpy(np.empty(0, dtype)).dtype


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Rows in the order of their sequences: ``b = Q * L`` rows, Q sequences of L steps (L is 1 without a memory).

    Attributes:
        obs: per sensor f32 or u8 [b, *O].
        mask: bool [b, D], True = forbidden.
        continuous: f32 [b, C], raw as sampled.
        discrete: i64 [b, K].
        log_prob: f32 [b, C + K], at collection time.
        returns: f32 [V, b].
        old_values: f32 [V, b], the value estimates at collection time.
        advantage: f32 [b], normalised.
        memory: f32 [Q, H], the actor's memory before each sequence; None without one.
        critic_memory: f32 [Q, H], the critic's; None without one or where the critic shares the actor's body.
        loss_mask: f32 [b], 0 in padding; None when no row is padding.
        sequence_length: L.
        encoded: f32 [b, in], what ``PPO.encoded`` made of the observations; None if it did nothing.
    """

    obs: tuple[Tensor, ...]
    mask: Tensor
    continuous: Tensor
    discrete: Tensor
    log_prob: Tensor
    returns: Tensor
    old_values: Tensor
    advantage: Tensor
    memory: Tensor | None = None
    critic_memory: Tensor | None = None
    loss_mask: Tensor | None = None
    sequence_length: int = 1
    encoded: Tensor | None = None

    def __len__(self) -> int:
        return len(self.advantage)
