"""Hierarchical timers: a tree of named blocks with total seconds and counts, one tree per thread.

A ``Timers`` object is passed to whoever measures; there is no global one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class TimerNode:
    total: float = 0.0
    count: int = 0
    children: dict[str, TimerNode] = field(default_factory=dict)

    def to_dict(self, *, is_parallel: bool = False) -> dict[str, Any]:
        """The node as ``timers.json`` shows it; ``self`` is the time no child accounts for."""
        own = max(0.0, self.total - sum(child.total for child in self.children.values()))
        result: dict[str, Any] = {"total": self.total, "count": self.count}
        if is_parallel:
            result["is_parallel"] = True
        result["self"] = own
        if self.children:
            result["children"] = {name: child.to_dict(is_parallel=is_parallel) for name, child in self.children.items()}
        return result


class Timers:
    """The timer trees of one run. ``with timers("name"):`` nests under the block open in the same thread."""

    def __init__(self) -> None:
        self.start = time.time()
        self._started = time.perf_counter()
        self._main_thread = threading.get_ident()
        self._local = threading.local()
        self._lock = threading.Lock()
        self._roots: dict[int, tuple[str, TimerNode]] = {}

    def _stack(self) -> list[TimerNode]:
        stack: list[TimerNode] | None = getattr(self._local, "stack", None)
        if stack is None:
            root = TimerNode(count=1)
            stack = self._local.stack = [root]
            with self._lock:
                self._roots[threading.get_ident()] = (threading.current_thread().name, root)
        return stack

    @contextmanager
    def __call__(self, name: str) -> Iterator[TimerNode]:
        stack = self._stack()
        node = stack[-1].children.setdefault(name, TimerNode())
        stack.append(node)
        begin = time.perf_counter()
        try:
            yield node
        finally:
            node.total += time.perf_counter() - begin
            node.count += 1
            stack.pop()

    def to_dict(self) -> dict[str, Any]:
        """The tree of the thread that made this object, with other threads as parallel children of the root."""
        with self._lock:
            roots = dict(self._roots)
        _, main = roots.pop(self._main_thread, ("root", TimerNode(count=1)))
        main.total = time.perf_counter() - self._started
        tree = main.to_dict()
        for name, root in roots.values():
            root.total = sum(child.total for child in root.children.values())
            tree.setdefault("children", {})[name] = root.to_dict(is_parallel=True)
        return tree
