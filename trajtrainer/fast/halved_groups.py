"""The moments of a minibatch encoded half and half on two cores, where the critic of groups takes most of the time.

Shapes: K moments, n agents of the largest group, e hidden units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trajtrainer.fast.side_by_side import SideBySide
from trajtrainer.nn.multi_agent import GroupCritic, GroupRows

# Multiply-adds of the body's weights for a minibatch, each once per row, from which halves take as little time in all
# as the whole: measured with 64 to 512 units, groups of 4 to 20, 64 to 256 rows. With 128 units they take a fifth more.
_HALVES_FROM = 64_000_000


def group_encoding(critic: GroupCritic, rows: int) -> Callable[[GroupRows], Tensor]:
    """Return the fastest way to encode the groups of so many rows. The choice changes numbers by rounding at most."""
    weights = [weight for weight in critic.body.parameters() if weight.dim() > 1]
    on_cpu = all(weight.device.type == "cpu" for weight in weights)
    work = rows * sum(weight.numel() for weight in weights)
    return HalvedGroups(critic) if on_cpu and work >= _HALVES_FROM else critic.encode


class HalvedGroups:
    """Encode groups.

    Twin of ``trajtrainer.nn.multi_agent.GroupCritic.encode`` and its ``backward``. The halves are the same however many
    cores there are, and so are the numbers.
    """

    def __init__(self, critic: GroupCritic) -> None:
        """Take the critic as it is, on the CPU."""
        self.critic = critic
        self.threads = SideBySide()
        memory = () if critic.body.memory is None else critic.body.memory.parameters()
        behind = {id(parameter) for parameter in memory}
        self.parameters = [one for one in critic.body.parameters() if id(one) not in behind]

    def __call__(self, groups: GroupRows) -> Tensor:
        """Return the encodings [K, n + 1, e + 1]; only those of the critic's parameters have a gradient."""
        self.critic.body.note_groups(groups.members)  # ahead of the halves, which are to see the same
        encodings: Tensor = _Halves.apply(self, groups.halves(), *self.parameters)  # type: ignore[no-untyped-call]
        return encodings

    def encode(self, half: GroupRows) -> Tensor:
        """Encode one half, whether or not the whole is to have a gradient."""
        with torch.enable_grad():
            return self.critic.encode(half)

    def gradient(self, made: Tensor, grad: Tensor) -> Sequence[Tensor]:
        """Return the parameters' gradients that belong to a half."""
        return torch.autograd.grad(made, self.parameters, grad)


class _Halves(torch.autograd.Function):
    """Both halves, each with a graph of its own."""

    @staticmethod
    def forward(ctx: Any, groups: HalvedGroups, halves: Sequence[GroupRows], *_: Tensor) -> Tensor:
        ctx.groups = groups
        ctx.made = groups.threads.run(groups.encode, [(half,) for half in halves])
        return torch.cat([made.detach() for made in ctx.made])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        parts = torch.split(grad, [len(made) for made in ctx.made])
        found = ctx.groups.threads.run(ctx.groups.gradient, list(zip(ctx.made, parts, strict=True)))
        return None, None, *(sum(more, first) for first, *more in zip(*found, strict=True))
