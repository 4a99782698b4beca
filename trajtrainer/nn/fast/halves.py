"""Minibatches encoded half and half on two cores, where one body takes most of the time.

Shapes: K moments, n agents of the largest group, e hidden units; B rows, E of an encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trajtrainer.core.spec import ObservationKind
from trajtrainer.nn.body import NetworkBody
from trajtrainer.nn.fast.side_by_side import SideBySide
from trajtrainer.nn.multi_agent import GroupCritic, GroupRows

# Multiply-adds of the body's weights for a minibatch, each once per row, from which both halves together take as little
# time as the whole: measured with groups of 4 to 20, 64 to 512 units, 64 to 256 rows. With 128 units they take a fifth
# more. Pictures need fewer, as convolutions use a weight several times.
_HALVES_FROM = 64_000_000
_PICTURES = 4  # dimensions

Half = TypeVar("Half")
Encode = Callable[[Sequence[Tensor]], Tensor]


def group_encoding(critic: GroupCritic, rows: int) -> Callable[[GroupRows], Tensor]:
    """Return the fastest way to encode the groups of so many rows. The choice changes numbers by rounding at most."""
    return HalvedGroups(critic) if _is_much(critic.body.parameters(), rows) else critic.encode


def picture_encoding(body: NetworkBody, rows: int) -> HalvedPictures | None:
    """Return the way to encode so many rows with pictures among them on two cores; None where it is not faster."""
    has_pictures = ObservationKind.VISUAL in body.encoder.kinds
    return HalvedPictures(body) if has_pictures and not body.memory and _is_much(body.parameters(), rows) else None


def _is_much(parameters: Iterable[Tensor], rows: int) -> bool:
    weights = [weight for weight in parameters if weight.dim() > 1]
    on_cpu = all(weight.device.type == "cpu" for weight in weights)
    return on_cpu and rows * sum(weight.numel() for weight in weights) >= _HALVES_FROM


class _Halved(Generic[Half]):
    """Encodes halves, which are the same however many cores there are, and so are the numbers.

    Args:
        parameters: of what encodes, all of which an encoding depends on.
        encode_half: gives the encodings of a half.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], encode_half: Callable[[Half], Tensor]) -> None:
        self.threads = SideBySide()
        self.parameters = parameters
        self._encode_half = encode_half

    def together(self, halves: Sequence[Half]) -> Tensor:
        """Encode all halves; only the parameters get a gradient."""
        encodings: Tensor = _Halves.apply(self, halves, *self.parameters)  # type: ignore[no-untyped-call]
        return encodings

    def apart(self, half: Half) -> Tensor:
        """Encode one half, whether or not the whole is to have a gradient."""
        with torch.enable_grad():
            return self._encode_half(half)

    def gradient(self, made: Tensor, grad: Tensor) -> Sequence[Tensor]:
        """Return the parameters' gradients that belong to a half."""
        return torch.autograd.grad(made, self.parameters, grad)


class HalvedGroups(_Halved[GroupRows]):
    """Encode groups; only the critic's parameters get a gradient.

    Twin of ``trajtrainer.nn.multi_agent.GroupCritic.encode`` and its ``backward``.
    """

    def __init__(self, critic: GroupCritic) -> None:
        """Take the critic as it is, on the CPU."""
        self._critic = critic
        memory = () if critic.body.memory is None else critic.body.memory.parameters()
        behind = {id(parameter) for parameter in memory}
        super().__init__([one for one in critic.body.parameters() if id(one) not in behind], critic.encode)

    def __call__(self, groups: GroupRows) -> Tensor:
        """Return the encodings [K, n + 1, e + 1]."""
        self._critic.body.note_groups(groups.members)  # before the halves, which are to see the same
        return self.together(groups.halves())


class HalvedPictures(_Halved[Sequence[Tensor]]):
    """Encode observations with pictures among them, by a body without a memory; only its parameters get a gradient.

    Twin of ``trajtrainer.nn.body.NetworkBody.forward`` and its ``backward``. Pictures are laid out with their channels
    last, for which convolutions of many rows take two thirds of the time.
    """

    def __init__(self, body: NetworkBody) -> None:
        """Take the body as it is, on the CPU."""
        super().__init__(list(body.parameters()), lambda half: body(_channels_last(half))[0])

    def __call__(self, obs: Sequence[Tensor]) -> Tensor:
        """Return the encodings [B, E] of observations, per sensor [B, *O]."""
        return self.together(list(zip(*(sensor.chunk(2) for sensor in obs), strict=True)))


def _channels_last(obs: Sequence[Tensor]) -> list[Tensor]:
    last = torch.channels_last
    return [sensor.contiguous(memory_format=last) if sensor.dim() == _PICTURES else sensor for sensor in obs]


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
