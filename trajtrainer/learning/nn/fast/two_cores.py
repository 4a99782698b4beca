"""Work on two cores: a thread for each half of it.

torch's threads within each operation wait for each other hundreds of times per update. As soon as something else wants
a core that one of them occupies, everything slows down many times over. Here a busy second core costs at most the time
that it would have saved.
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
from trajtrainer.learning.nn.body import NetworkBody
from trajtrainer.learning.nn.multi_agent import GroupCritic, GroupRows

# From this many multiply-adds of one network's forward pass of a minibatch, autograd takes more than 2 ms for two
# networks, and a second thread pays off: measured with every picture encoder at 10x10 to 64x84, lists of 4 and 20
# entities and goal-conditioned layers of 16 to 128 units, 8 to 512 rows. Layers that use a weight several times per
# row, such as convolutions, take longer than estimated; the number comes from the smallest of those networks.
_TWO_THREADS_FROM = 500_000

T = TypeVar("T")

# From this many multiply-adds of a minibatch (each weight of the body once per row), two halves take no more time in
# total than the whole: measured with groups of 4 to 20, 64 to 512 units, 64 to 256 rows. With 128 units they take a
# fifth more. Pictures need fewer, because convolutions use a weight several times.
_HALVES_FROM = 64_000_000
_PICTURES = 4  # dimensions
Half = TypeVar("Half")
Encode = Callable[[Sequence[Tensor]], Tensor]


class TwoThreads:
    """Calls a function with two sets of arguments: one in this thread and, on more than one core, one in another.

    Twin of ``itertools.starmap``.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._is_alone = usable_cores() < 2

    def run(self, function: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
        """The results in the order of the arguments. Exceptions are raised after all calls have ended."""
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
    """For updating this network and a similar one at the same time; None if that does not pay.

    The choice does not depend on the machine and changes no number.
    """
    on_cpu = next(network.parameters()).device.type == "cpu"
    return TwoThreads() if on_cpu and multiply_adds(network, rows) >= _TWO_THREADS_FROM else None


def multiply_adds(network: nn.Module, rows: int) -> int:
    """Estimate the multiply-adds of a forward pass of this many rows: each weight counts once per row."""
    return rows * sum(weight.numel() for weight in network.parameters() if weight.dim() > 1)


def group_encoding(critic: GroupCritic, rows: int) -> Callable[[GroupRows], Tensor]:
    """Choose how to encode the groups of ``rows`` rows. The choice changes numbers by rounding at most."""
    return HalvedGroups(critic) if _is_much(critic.body.parameters(), rows) else critic.encode


def picture_encoding(body: NetworkBody, rows: int) -> HalvedPictures | None:
    """For encoding ``rows`` rows with pictures on two cores; None if that is not faster."""
    has_pictures = ObservationKind.VISUAL in body.encoder.kinds
    return HalvedPictures(body) if has_pictures and not body.memory and _is_much(body.parameters(), rows) else None


def _is_much(parameters: Iterable[Tensor], rows: int) -> bool:
    weights = [weight for weight in parameters if weight.dim() > 1]
    on_cpu = all(weight.device.type == "cpu" for weight in weights)
    return on_cpu and rows * sum(weight.numel() for weight in weights) >= _HALVES_FROM


class _Halved(Generic[Half]):
    """Encodes in halves, which do not depend on the number of cores, and neither do the numbers.

    Args:
        parameters: all parameters that an encoding depends on.
        encode_half: encodes a half.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], encode_half: Callable[[Half], Tensor]) -> None:
        self.threads = TwoThreads()
        self.parameters = parameters
        self._encode_half = encode_half

    def together(self, halves: Sequence[Half]) -> Tensor:
        """Encode all halves. Only the parameters get a gradient."""
        encodings: Tensor = _Halves.apply(self, halves, *self.parameters)  # type: ignore[no-untyped-call]
        return encodings

    def apart(self, half: Half) -> Tensor:
        """Encode one half with a graph of its own."""
        with torch.enable_grad():
            return self._encode_half(half)

    def gradient(self, made: Tensor, grad: Tensor) -> Sequence[Tensor]:
        """The parameters' gradients from one half."""
        return torch.autograd.grad(made, self.parameters, grad)


class HalvedGroups(_Halved[GroupRows]):
    """Encodes groups in halves. Only the critic's parameters get a gradient.

    Twin of ``trajtrainer.learning.nn.multi_agent.GroupCritic.encode`` and its ``backward``.
    """

    def __init__(self, critic: GroupCritic) -> None:
        self._critic = critic
        memory = () if critic.body.memory is None else critic.body.memory.parameters()
        behind = {id(parameter) for parameter in memory}
        super().__init__([one for one in critic.body.parameters() if id(one) not in behind], critic.encode)

    def __call__(self, groups: GroupRows) -> Tensor:
        # Before the halves, so that both measure group sizes by the same largest group.
        self._critic.body.note_groups(groups.members)
        return self.together(groups.halves())


class HalvedPictures(_Halved[Sequence[Tensor]]):
    """Encodes observations with pictures in halves, with a body without memory. Only its parameters get a gradient.

    Twin of ``trajtrainer.learning.nn.body.NetworkBody.forward`` and its ``backward``. Pictures are stored with their
    channels last, which cuts the time of convolutions of many rows by a third.
    """

    def __init__(self, body: NetworkBody) -> None:
        def encode(obs: Sequence[Tensor]) -> Tensor:
            last = torch.channels_last
            laid = [sensor.contiguous(memory_format=last) if sensor.dim() == _PICTURES else sensor for sensor in obs]
            return body(laid)[0]  # type: ignore[no-any-return]

        super().__init__(list(body.parameters()), encode)

    def __call__(self, obs: Sequence[Tensor]) -> Tensor:
        """Encode observations, per sensor [B, *O], as [B, E]."""
        return self.together(list(zip(*(sensor.chunk(2) for sensor in obs), strict=True)))


class _Halves(torch.autograd.Function):
    """Joins both halves, each of which has a graph of its own."""

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
