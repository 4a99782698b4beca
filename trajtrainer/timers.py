"""Hierarchical timers: a tree of named blocks with total seconds and counts, one tree per thread.

A ``Timers`` object is passed to whoever measures; there is no global one.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any


@dataclass(slots=True)
class TimerNode:
    """Seconds and calls of one block, and the blocks inside it."""

    total: float = 0.0
    count: int = 0
    children: dict[str, TimerNode] = field(default_factory=dict)

    def merge(self, other: TimerNode) -> None:
        """Adds the times and counts of ``other``, block by block."""
        self.total += other.total
        self.count += other.count
        for name, child in list(other.children.items()):
            self.children.setdefault(name, TimerNode()).merge(child)

    def to_dict(self, *, is_parallel: bool = False) -> dict[str, Any]:
        """The node as ``timers.json`` shows it; ``self`` is the time no child accounts for."""
        children = dict(self.children)  # another thread may add to the original meanwhile
        own = max(0.0, self.total - sum(child.total for child in children.values()))
        result: dict[str, Any] = {"total": self.total, "count": self.count}
        if is_parallel:
            result["is_parallel"] = True
        result["self"] = own
        if children:
            result["children"] = {name: child.to_dict(is_parallel=is_parallel) for name, child in children.items()}
        return result


class _Block:
    """One measured block. A class, because a generator's context manager costs three times as much."""

    __slots__ = ("_begin", "_name", "_node", "_stack")

    def __init__(self, stack: list[TimerNode], name: str) -> None:
        self._stack = stack
        self._name = name

    def __enter__(self) -> TimerNode:
        children = self._stack[-1].children
        node = children.get(self._name)
        if node is None:
            node = children[self._name] = TimerNode()
        self._node = node
        self._stack.append(node)
        self._begin = time.perf_counter()
        return node

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._node.total += time.perf_counter() - self._begin
        self._node.count += 1
        self._stack.pop()


class Timers:
    """The timer trees of one run. ``with timers("name"):`` nests under the block open in the same thread."""

    def __init__(self) -> None:
        self.start = time.time()
        self._started = time.perf_counter()
        self._main_thread = threading.get_ident()
        self._local = threading.local()
        self._lock = threading.Lock()
        self._main = TimerNode(count=1)
        self._parallel: list[tuple[str, TimerNode]] = []

    def __call__(self, name: str) -> _Block:
        stack: list[TimerNode] | None = getattr(self._local, "stack", None)
        return _Block(self._new_stack() if stack is None else stack, name)

    def to_dict(self) -> dict[str, Any]:
        """The tree of the thread that made this object, with other threads as parallel children of the root.

        Threads of one name are added up. Blocks that are open at the moment count up to their last end.
        """
        tree = TimerNode(time.perf_counter() - self._started, 1, self._main.children).to_dict()
        threads: dict[str, TimerNode] = {}
        with self._lock:
            parallel = list(self._parallel)
        for name, root in parallel:
            merged = threads.setdefault(name, TimerNode())
            merged.merge(root)
            merged.total = sum(child.total for child in merged.children.values())
        for name, merged in threads.items():
            tree.setdefault("children", {})[name] = merged.to_dict(is_parallel=True)
        return tree

    def _new_stack(self) -> list[TimerNode]:
        if threading.get_ident() == self._main_thread:
            root = self._main
        else:
            root = TimerNode(count=1)
            with self._lock:
                self._parallel.append((threading.current_thread().name, root))
        stack = self._local.stack = [root]
        return stack
