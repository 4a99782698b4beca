"""Hierarchical timers: a tree of named blocks with total seconds and counts, one tree per thread.

A ``Timers`` object is passed to whoever measures; there is no global one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter, time
from types import TracebackType
from typing import Any


@dataclass(slots=True)
class TimerNode:
    """Seconds and calls of one block, and the blocks inside it. A context manager: one call of the block.

    An object for each call, or a generator's context manager, would make a block cost half as much again or three
    times as much.

    Attributes:
        total: seconds of the calls that have ended.
        count: how many these are.
        children: name -> block inside it.
        begun: when the call that goes on now began (``perf_counter``); 0 between calls.
        stack: blocks of its thread that are open, the innermost last; all of one thread's share it.
    """

    total: float = 0.0
    count: int = 0
    children: dict[str, TimerNode] = field(default_factory=dict)
    begun: float = 0.0
    stack: list[TimerNode] = field(default_factory=list, repr=False, compare=False)

    def __enter__(self) -> TimerNode:
        self.stack.append(self)
        self.begun = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        now, stack = perf_counter(), self.stack
        open_block = stack.pop()
        if open_block is not self:
            open_block._end(now)
            stack.pop()
        self._end(now)

    def part(self, name: str) -> None:
        """End the part of this block that is open, if there is one, and begin the one of this name.

        For blocks of consecutive parts in a loop: it costs a third of a block for each. The end of the block ends its
        last part.
        """
        now, stack = perf_counter(), self.stack
        try:
            node = self.children[name]
        except KeyError:
            node = self.children[name] = TimerNode(stack=stack)
        last = stack[-1]
        if last is self:
            stack.append(node)
        else:
            # What ``_end`` does: a call would be a third of what this costs.
            begun, last.begun = last.begun, 0.0
            last.total += now - begun
            last.count += 1
            stack[-1] = node
        node.begun = now

    def end_part(self) -> None:
        """End the part that is open, if there is one."""
        if self.stack[-1] is not self:
            self.stack.pop()._end(perf_counter())

    def _end(self, now: float) -> None:
        begun, self.begun = self.begun, 0.0  # first: who looks at this moment misses a call, and counts none twice
        self.total += now - begun
        self.count += 1

    def until(self, now: float) -> TimerNode:
        """Return a copy in which the calls that go on have ended at ``now``.

        Its thread may be adding to the original.
        """
        total, begun, count = self.total, self.begun, self.count
        if begun:
            total, count = total + max(0.0, now - begun), count + 1
        return TimerNode(total, count, {name: child.until(now) for name, child in dict(self.children).items()})

    def add_seconds(self, kind: str | None, kinds: Mapping[str, str], seconds: dict[str, float]) -> None:
        """Add this block's own seconds to those of its kind, and each inner block's to those of its own."""
        if kind is not None:
            seconds[kind] += max(0.0, self.total - sum(child.total for child in self.children.values()))
        for name, child in self.children.items():
            child.add_seconds(kinds.get(name, kind), kinds, seconds)

    def merge(self, other: TimerNode) -> None:
        """Add the times and counts of ``other``, block by block."""
        self.total += other.total
        self.count += other.count
        for name, child in other.children.items():
            self.children.setdefault(name, TimerNode()).merge(child)

    def to_dict(self, *, is_parallel: bool = False) -> dict[str, Any]:
        """Return the node as ``timers.json`` shows it; ``self`` is the time no child accounts for."""
        children = self.children
        own = max(0.0, self.total - sum(child.total for child in children.values()))
        result: dict[str, Any] = {"total": self.total, "count": self.count}
        if is_parallel:
            result["is_parallel"] = True
        result["self"] = own
        if children:
            result["children"] = {name: child.to_dict(is_parallel=is_parallel) for name, child in children.items()}
        return result


EARLIER = "earlier_sessions"
"""The key in ``timers.json`` of what a resumed run did before: how many sessions, since when, their trees added up."""
_DEEPEST = 20
_LONGEST_S = 1e12


def add_trees(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sum of two trees of ``to_dict``, block by block.

    Both may come from damaged files: numbers that make no sense count as 0, other keys are left out.
    """
    return _add_trees([first, second], _DEEPEST)


def _add_trees(trees: Sequence[Mapping[str, Any]], depth: int) -> dict[str, Any]:
    numbers = {key: sum(number_of(tree.get(key)) for tree in trees) for key in ("total", "count", "self")}
    inner: dict[str, list[Mapping[str, Any]]] = {}
    for tree in trees if depth else ():
        children = tree.get("children")
        for name, child in children.items() if isinstance(children, Mapping) else ():
            if isinstance(child, Mapping):
                inner.setdefault(name, []).append(child)
    result: dict[str, Any] = {"total": numbers["total"], "count": int(numbers["count"])}
    if any(tree.get("is_parallel") for tree in trees):
        result["is_parallel"] = True
    result["self"] = numbers["self"]
    if inner:
        result["children"] = {name: _add_trees(some, depth - 1) for name, some in inner.items()}
    return result


def number_of(value: object) -> float:
    """Return a number of ``timers.json``; 0 for what is none, is negative, or is beyond any run."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 <= value < _LONGEST_S else 0.0


class Timers:
    """The timer trees of one run. ``with timers("name"):`` nests under the block open in the same thread."""

    def __init__(self) -> None:
        self.start = time()
        self._started = perf_counter()
        self._main_thread = threading.get_ident()
        self._local = threading.local()
        self._lock = threading.Lock()
        self._main = TimerNode(count=1)
        self._parallel: list[tuple[str, TimerNode]] = []

    def __call__(self, name: str) -> TimerNode:
        """Return the block of this name within the block that is open, to be used by ``with``."""
        try:
            node: TimerNode = self._local.stack[-1].children[name]
        except (AttributeError, KeyError):  # the thread's first block, or the first of this name
            node = self._new_node(name)
        return node

    def to_dict(self) -> dict[str, Any]:
        """Return the tree of the thread that made this object, with other threads as parallel children of the root.

        Threads of one name are added up. Blocks that are open at the moment count as if they ended now.
        """
        now = perf_counter()
        tree = TimerNode(now - self._started, 1, self._main.until(now).children).to_dict()
        threads: dict[str, TimerNode] = {}
        with self._lock:
            parallel = list(self._parallel)
        for name, root in parallel:
            merged = threads.setdefault(name, TimerNode())
            merged.merge(root.until(now))
            merged.total = sum(child.total for child in merged.children.values())
        for name, merged in threads.items():
            tree.setdefault("children", {})[name] = merged.to_dict(is_parallel=True)
        return tree

    def seconds_by(self, kinds: Mapping[str, str]) -> dict[str, float]:
        """Return kind of work -> seconds so far, in all threads; those of open blocks until now.

        Args:
            kinds: name of a block -> kind. What happens in a block is of its kind, but for blocks inside it of
                another one; what is in no such block is left out.
        """
        now = perf_counter()
        seconds = dict.fromkeys(kinds.values(), 0.0)
        with self._lock:
            roots = [self._main, *(root for _, root in self._parallel)]
        for root in roots:
            root.until(now).add_seconds(None, kinds, seconds)
        return seconds

    def _new_node(self, name: str) -> TimerNode:
        stack = self._stack()
        return stack[-1].children.setdefault(name, TimerNode(stack=stack))

    def _stack(self) -> list[TimerNode]:
        stack: list[TimerNode] | None = getattr(self._local, "stack", None)
        if stack is None:
            root = self._new_root()
            stack = self._local.stack = root.stack
            stack.append(root)
        return stack

    def _new_root(self) -> TimerNode:
        if threading.get_ident() == self._main_thread:
            return self._main
        root = TimerNode(count=1)
        with self._lock:
            self._parallel.append((threading.current_thread().name, root))
        return root
