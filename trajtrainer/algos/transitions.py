"""The rows that one off-policy gradient step sees."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Transitions:
    """Steps and what followed them: ``b = n * L`` rows, n sequences of L steps (L is 1 without a memory).

    Attributes:
        obs: per sensor f32 or u8 [b, *O].
        next_obs: per sensor [b, *O].
        mask: bool [b, D], True = forbidden.
        continuous: f32 [b, C].
        discrete: i64 [b, K].
        rewards: f32 [V, b], times strength.
        discount: f32 [V, b], what a signal's value of the next state counts: its gamma, or 0 where the episode ended
            for good and the signal ends with it.
        noise: f32 [b, C], standard normal, for the action that the policy would take now.
        memory: f32 [n, H], the actor's memory before each sequence; None without one.
        critic_memory: f32 [n, H], the value network's; None without one.
        loss_mask: f32 [b], 0 in padding; None when no row is padding.
        sequence_length: L.
    """

    obs: tuple[Tensor, ...]
    next_obs: tuple[Tensor, ...]
    mask: Tensor
    continuous: Tensor
    discrete: Tensor
    rewards: Tensor
    discount: Tensor
    noise: Tensor
    memory: Tensor | None = None
    critic_memory: Tensor | None = None
    loss_mask: Tensor | None = None
    sequence_length: int = 1

    def __len__(self) -> int:
        return len(self.continuous)
