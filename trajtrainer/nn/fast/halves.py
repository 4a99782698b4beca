"""Minibatches encoded half and half on two cores, where one body takes most of the time.

Shapes: K moments, n agents of the largest group, e hidden units; B rows, E of an encoding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trajtrainer.core.spec import ObservationKind
from trajtrainer.nn.body import NetworkBody
from trajtrainer.nn.fast.side_by_side import SideBySide
from trajtrainer.nn.multi_agent import GroupCritic, GroupRows

# Multiply-adds of the body's weights for a minibatch, each once per row, from which halves take as little time in all
# as the whole: measured with groups of 4 to 20, 64 to 512 units, 64 to 256 rows. With 128 units they take a fifth more.
# Pictures need less, as convolutions use a weight several times; nature_cnn is far above, simple with 128 units below.
_HALVES_FROM = 64_000_000
_PICTURES = 4  # dimensions

Half = TypeVar("Half")
Encode = Callable[[Sequence[Tensor]], Tensor]


def group_encoding(critic: GroupCritic, rows: int) -> Callable[[GroupRows], Tensor]:
    """Return the fastest way to encode the groups of so many rows. The choice changes numbers by rounding at most."""
    return HalvedGroups(critic) if _is_much(critic.body.parameters(), rows) else critic.encode


def picture_encoding(body: NetworkBody, rows: int) -> HalvedPictures | None:
    """Return the faster way to encode so many rows with pictures among them; None where there is none."""
    has_pictures = ObservationKind.VISUAL in body.encoder.kinds
    return HalvedPictures(body) if has_pictures and not body.memory and _is_much(body.parameters(), rows) else None


def _is_much(parameters: Iterable[Tensor], rows: int) -> bool:
    weights = [weight for weight in parameters if weight.dim() > 1]
    on_cpu = all(weight.device.type == "cpu" for weight in weights)
    return on_cpu and rows * sum(weight.numel() for weight in weights) >= _HALVES_FROM


class _Halved(ABC, Generic[Half]):
    """Encodes halves, which are the same however many cores there are, and so are the numbers.

    Args:
        parameters: of what encodes, all of which an encoding depends on.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.threads = SideBySide()
        self.parameters = parameters

    @abstractmethod
    def encode_half(self, half: Half) -> Tensor:
        """Return the encodings of a half."""

    def apart(self, half: Half) -> Tensor:
        """Encode one half, whether or not the whole is to have a gradient."""
        with torch.enable_grad():
            return self.encode_half(half)

    def gradient(self, made: Tensor, grad: Tensor) -> Sequence[Tensor]:
        """Return the parameters' gradients that belong to a half."""
        return torch.autograd.grad(made, self.parameters, grad)

    def together(self, halves: Sequence[Half]) -> Tensor:
        """Return the encodings of all halves; only those of the parameters have a gradient."""
        encodings: Tensor = _Halves.apply(self, halves, *self.parameters)  # type: ignore[no-untyped-call]
        return encodings


class HalvedGroups(_Halved[GroupRows]):
    """Encode groups.

    Twin of ``trajtrainer.nn.multi_agent.GroupCritic.encode`` and its ``backward``.
    """

    def __init__(self, critic: GroupCritic) -> None:
        """Take the critic as it is, on the CPU."""
        self.critic = critic
        memory = () if critic.body.memory is None else critic.body.memory.parameters()
        behind = {id(parameter) for parameter in memory}
        super().__init__([one for one in critic.body.parameters() if id(one) not in behind])

    def __call__(self, groups: GroupRows) -> Tensor:
        """Return the encodings [K, n + 1, e + 1]; only those of the critic's parameters have a gradient."""
        self.critic.body.note_groups(groups.members)  # ahead of the halves, which are to see the same
        return self.together(groups.halves())

    def encode_half(self, half: GroupRows) -> Tensor:
        """See ``_Halved``."""
        return self.critic.encode(half)


class HalvedPictures(_Halved[Sequence[Tensor]]):
    """Encode observations with pictures among them, by a body without a memory.

    Twin of ``trajtrainer.nn.body.NetworkBody.forward`` and its ``backward``. Pictures lie with their channels last, for
    which convolutions of many rows take two thirds of the time.
    """

    def __init__(self, body: NetworkBody) -> None:
        """Take the body as it is, on the CPU."""
        self.body = body
        super().__init__(list(body.parameters()))

    def __call__(self, obs: Sequence[Tensor]) -> Tensor:
        """Return the encodings [B, E] of observations, per sensor [B, *O]; only those of the body have a gradient."""
        return self.together(list(zip(*(sensor.chunk(2) for sensor in obs), strict=True)))

    def encode_half(self, half: Sequence[Tensor]) -> Tensor:
        """See ``_Halved``."""
        lying = [
            sensor.contiguous(memory_format=torch.channels_last) if sensor.dim() == _PICTURES else sensor
            for sensor in half
        ]
        encodings: Tensor = self.body(lying)[0]
        return encodings


class _Halves(torch.autograd.Function):
    """Both halves, each with a graph of its own."""

    @staticmethod
    def forward(ctx: Any, halved: _Halved[Any], halves: Sequence[Any], *_: Tensor) -> Tensor:
        ctx.halved = halved
        ctx.made = halved.threads.run(halved.apart, [(half,) for half in halves])
        return torch.cat([made.detach() for made in ctx.made])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        parts = torch.split(grad, [len(made) for made in ctx.made])
        found = ctx.halved.threads.run(ctx.halved.gradient, list(zip(ctx.made, parts, strict=True)))
        return None, None, *(sum(more, first) for first, *more in zip(*found, strict=True))
