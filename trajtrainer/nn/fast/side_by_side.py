"""Two pieces of work on two cores.

A thread per piece, not torch's threads within each operation: those wait for each other hundreds of times per update,
and when anything else wants the core one of them sits on, all of it slows down many times over. Here a busy second core
costs at most what it would have saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from trajtrainer.core.cores import usable_cores

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
