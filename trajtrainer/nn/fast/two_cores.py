"""Two pieces of work on two cores.

A thread per piece, not torch's threads within each operation: those wait for each other hundreds of times per update,
and when anything else wants the core one of them sits on, all of it slows down many times over. Here a busy second core
costs at most what it would have saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trajtrainer.core.cores import usable_cores
from trajtrainer.core.spec import ObservationKind
from trajtrainer.nn.body import NetworkBody
from trajtrainer.nn.multi_agent import GroupCritic, GroupRows

# Multiply-adds of one network's forward pass of a minibatch from which on autograd takes more than 2 ms for two, for
# which it is worth handing one of them to a second thread: measured with every picture encoder at 10x10 to 64x84, lists
# of 4 and 20 entities and goal-conditioned layers of 16 to 128 units, 8 to 512 rows. What uses a weight several times
# per row, as convolutions do, takes longer than estimated; the smallest of those networks is where the number is.
_TWO_THREADS_FROM = 500_000

T = TypeVar("T")


class TwoThreads:
    """Call a function with several sets of arguments.

    The first here, the others in threads of their own, if the process may use more than one core.

    Twin of ``itertools.starmap``.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._is_alone = usable_cores() < 2

    def run(self, function: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
        """The results in the order of the arguments. Raises what the function raises, once all have ended."""
        if self._is_alone or len(arguments) == 1:
            return [function(*each) for each in arguments]
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "side-by-side")
        others = [self._executor.submit(function, *each) for each in arguments[1:]]
        try:
            first = function(*arguments[0])
        finally:
            results = [other.result() for other in others]
        return [first, *results]


def two_threads(network: nn.Module, rows: int) -> TwoThreads | None:
    """What runs this network's update and that of another one on two cores; None where that does not pay.

    The choice does not depend on the machine, and changes no number.
    """
    on_cpu = next(network.parameters()).device.type == "cpu"
    return TwoThreads() if on_cpu and multiply_adds(network, rows) >= _TWO_THREADS_FROM else None


def multiply_adds(network: nn.Module, rows: int) -> int:
    """Estimate the multiply-adds of a forward pass of so many rows: each weight counts once per row."""
    return rows * sum(weight.numel() for weight in network.parameters() if weight.dim() > 1)


# Multiply-adds of the body's weights for a minibatch, each once per row, from which both halves together take as little
# time as the whole: measured with groups of 4 to 20, 64 to 512 units, 64 to 256 rows. With 128 units they take a fifth
# more. Pictures need fewer, as convolutions use a weight several times.
_HALVES_FROM = 64_000_000
_PICTURES = 4  # dimensions

Half = TypeVar("Half")
Encode = Callable[[Sequence[Tensor]], Tensor]


def group_encoding(critic: GroupCritic, rows: int) -> Callable[[GroupRows], Tensor]:
    """The fastest way to encode the groups of so many rows. The choice changes numbers by rounding at most."""
    return HalvedGroups(critic) if _is_much(critic.body.parameters(), rows) else critic.encode


def picture_encoding(body: NetworkBody, rows: int) -> HalvedPictures | None:
    """The way to encode so many rows with pictures among them on two cores; None where it is not faster."""
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
        self.threads = TwoThreads()
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
        """The parameters' gradients that belong to a half."""
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
        """The encodings [K, n + 1, e + 1]."""
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
        """The encodings [B, E] of observations, per sensor [B, *O]."""
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
