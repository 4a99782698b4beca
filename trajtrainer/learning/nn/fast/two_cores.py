"""Work split into halves, with one thread each, to use two cores.

torch's own threads parallelize single operations and synchronize hundreds of times per update. If another process
competes for one of their cores, everything becomes many times slower. With two halves, a busy second core costs at most
the time that it would have saved.
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

# If the forward pass of a minibatch through one network takes at least this many multiply-adds, autograd takes more
# than 2 ms for two networks, and a second thread pays off. This was measured with every image encoder at 10x10 to
# 64x84, lists of 4 and 20 entities, and goal-conditioned layers of 16 to 128 units, with 8 to 512 rows. Layers that use
# a weight several times per row, such as convolutions, take longer than estimated, so the threshold is that of the
# smallest network measured.
_TWO_THREADS_FROM = 500_000

T = TypeVar("T")

# If a minibatch takes at least this many multiply-adds (each weight of the body counted once per row), two halves take
# no more CPU time in total than the whole. This was measured with groups of 4 to 20 agents, 64 to 512 units and 64 to
# 256 rows. With 128 units, the halves take a fifth more. Images would justify a lower threshold, because convolutions
# use each weight several times.
_HALVES_FROM = 64_000_000
_PICTURES = 4  # number of dimensions of a batch of images
Half = TypeVar("Half")
Encode = Callable[[Sequence[Tensor]], Tensor]


class TwoThreads:
    """Calls a function with two sets of arguments, one of them in a second thread if there is more than one core.

    Twin of ``itertools.starmap``.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._is_alone = usable_cores() < 2

    def run(self, function: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
        """Return the results in the order of the arguments. Exceptions are raised after all calls have finished."""
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
    """Return the threads for updating this network and a similar one in parallel, or None if that does not pay off.

    The choice does not depend on the number of cores and has no effect on the results.
    """
    on_cpu = next(network.parameters()).device.type == "cpu"
    return TwoThreads() if on_cpu and multiply_adds(network, rows) >= _TWO_THREADS_FROM else None


def multiply_adds(network: nn.Module, rows: int) -> int:
    """Estimate the multiply-adds of a forward pass of ``rows`` rows. Each weight counts once per row."""
    return rows * sum(weight.numel() for weight in network.parameters() if weight.dim() > 1)


def group_encoding(critic: GroupCritic, rows: int) -> Callable[[GroupRows], Tensor]:
    """Choose how to encode the groups of ``rows`` rows. The choice affects the results by rounding errors at most."""
    return HalvedGroups(critic) if _is_much(critic.body.parameters(), rows) else critic.encode


def picture_encoding(body: NetworkBody, rows: int) -> HalvedPictures | None:
    """Return an encoder that uses two cores for ``rows`` rows with images, or None if that is not faster."""
    has_pictures = ObservationKind.VISUAL in body.encoder.kinds
    return HalvedPictures(body) if has_pictures and not body.memory and _is_much(body.parameters(), rows) else None


def _is_much(parameters: Iterable[Tensor], rows: int) -> bool:
    weights = [weight for weight in parameters if weight.dim() > 1]
    on_cpu = all(weight.device.type == "cpu" for weight in weights)
    return on_cpu and rows * sum(weight.numel() for weight in weights) >= _HALVES_FROM


class _Halved(Generic[Half]):
    """Encodes in two halves. The split, and therefore the result, does not depend on the number of cores.

    Args:
        parameters: all parameters that an encoding depends on.
        encode_half: function that encodes one half.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], encode_half: Callable[[Half], Tensor]) -> None:
        self.threads = TwoThreads()
        self.parameters = parameters
        self._encode_half = encode_half

    def together(self, halves: Sequence[Half]) -> Tensor:
        """Encode all halves. Only the parameters receive a gradient."""
        encodings: Tensor = _Halves.apply(self, halves, *self.parameters)  # type: ignore[no-untyped-call]
        return encodings

    def apart(self, half: Half) -> Tensor:
        """Encode one half with a separate autograd graph."""
        with torch.enable_grad():
            return self._encode_half(half)

    def gradient(self, made: Tensor, grad: Tensor) -> Sequence[Tensor]:
        """Return the parameters' gradients from one half."""
        return torch.autograd.grad(made, self.parameters, grad)


class HalvedGroups(_Halved[GroupRows]):
    """Encodes groups in halves. Only the critic's parameters receive a gradient.

    Twin of ``trajtrainer.learning.nn.multi_agent.GroupCritic.encode`` and its ``backward``.
    """

    def __init__(self, critic: GroupCritic) -> None:
        self._critic = critic
        memory = () if critic.body.memory is None else critic.body.memory.parameters()
        behind = {id(parameter) for parameter in memory}
        super().__init__([one for one in critic.body.parameters() if id(one) not in behind], critic.encode)

    def __call__(self, groups: GroupRows) -> Tensor:
        # Do this before splitting, so that both halves encode group sizes relative to the same largest group.
        self._critic.body.note_groups(groups.members)
        return self.together(groups.halves())


class HalvedPictures(_Halved[Sequence[Tensor]]):
    """Splits a batch in two to encode observations that include images.

    Only the parameters of the body receive a gradient. The body must not have a memory. Images are stored
    channels-last, which cuts the time of convolutions of many rows by a third.

    Twin of ``trajtrainer.learning.nn.body.NetworkBody.forward`` and its ``backward``.
    """

    def __init__(self, body: NetworkBody) -> None:
        def encode(obs: Sequence[Tensor]) -> Tensor:
            last = torch.channels_last
            laid = [sensor.contiguous(memory_format=last) if sensor.dim() == _PICTURES else sensor for sensor in obs]
            return body(laid)[0]  # type: ignore[no-any-return]

        super().__init__(list(body.parameters()), encode)

    def __call__(self, obs: Sequence[Tensor]) -> Tensor:
        """Encode the observations of each sensor [B, *O] as [B, E]."""
        return self.together(list(zip(*(sensor.chunk(2) for sensor in obs), strict=True)))


class _Halves(torch.autograd.Function):
    """Joins both halves, each of which has its own autograd graph."""

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
