"""Two pieces of work on two cores.

A thread per piece, not torch's threads within each operation: those wait for each other hundreds of times per update,
and when anything else wants the core one of them sits on, all of it slows down many times over. Here a busy second core
costs at most what it would have saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from torch import nn

from trajtrainer.core.cores import usable_cores

# Multiply-adds of one network's forward pass of a minibatch from which on autograd takes more than 2 ms for two, for
# which it is worth handing one of them to a second thread: measured with every picture encoder at 10x10 to 64x84, lists
# of 4 and 20 entities and goal-conditioned layers of 16 to 128 units, 8 to 512 rows. What uses a weight several times
# per row, as convolutions do, takes longer than estimated; the smallest of those networks is where the number is.
_TWO_THREADS_FROM = 500_000

T = TypeVar("T")


class SideBySide:
    """Call a function with several sets of arguments.

    The first here, the others in threads of their own, if the process may use more than one core.

    Twin of ``itertools.starmap``.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._is_alone = usable_cores() < 2

    def run(self, function: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
        """Return the results in the order of the arguments. Raises what the function raises, once all have ended."""
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


def two_threads(network: nn.Module, rows: int) -> SideBySide | None:
    """Return what runs this network's update and that of another one on two cores; None where that does not pay.

    The choice does not depend on the machine, and changes no number.
    """
    on_cpu = next(network.parameters()).device.type == "cpu"
    return SideBySide() if on_cpu and multiply_adds(network, rows) >= _TWO_THREADS_FROM else None


def multiply_adds(network: nn.Module, rows: int) -> int:
    """Estimate the multiply-adds of a forward pass of so many rows: each weight counts once per row."""
    return rows * sum(weight.numel() for weight in network.parameters() if weight.dim() > 1)
