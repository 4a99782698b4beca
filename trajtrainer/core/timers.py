"""Hierarchical timers: a tree of named blocks with total seconds and counts, one tree per thread.

There is no global instance; a ``Timers`` object is passed to the code that it measures.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter, time
from typing import Any

EARLIER = "earlier_sessions"
"""Key in ``timers.json`` for the sessions before a resume: their number, start time, and the sum of their trees."""
_DEEPEST = 20
_LONGEST_S = 1e12


@dataclass(slots=True)
class TimerNode:
    """Seconds and number of calls of one block, and its inner blocks. Use it as a context manager to time a call.

    The node itself is the context manager, because creating an object per call would make a block 50% more expensive,
    and ``contextlib.contextmanager`` would triple its cost.

    Attributes:
        total: total seconds of all completed calls.
        count: number of completed calls.
        children: name -> inner block.
        begun: start of the current call (``perf_counter``); 0 between calls.
        stack: open blocks of the thread, innermost last. All blocks of a thread share it.
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

    def __exit__(self, *_: object) -> None:
        now, stack = perf_counter(), self.stack
        open_block = stack.pop()
        if open_block is not self:
            open_block._end(now)
            stack.pop()
        self._end(now)

    def part(self, name: str) -> None:
        """End the current part of this block, if any, and start the part with this name.

        For consecutive parts in a loop, this takes a third of the time that nested blocks take. The last part ends when
        the block ends.
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
            # This is ``_end``, inlined: the call would make this method 50% slower.
            begun, last.begun = last.begun, 0.0
            last.total += now - begun
            last.count += 1
            stack[-1] = node
        node.begun = now

    def _end(self, now: float) -> None:
        # Reset ``begun`` first. Then another thread that reads the node right now misses this call instead of counting
        # it twice.
        begun, self.begun = self.begun, 0.0
        self.total += now - begun
        self.count += 1

    def until(self, now: float) -> TimerNode:
        """Copy the node as if its current calls had ended at ``now``. The node's thread may change it concurrently."""
        total, begun, count = self.total, self.begun, self.count
        if begun:
            total, count = total + max(0.0, now - begun), count + 1
        return TimerNode(total, count, {name: child.until(now) for name, child in dict(self.children).items()})

    def add_seconds(self, kind: str | None, kinds: Mapping[str, str], seconds: dict[str, float]) -> None:
        """Add the seconds of this block and its inner blocks to ``seconds``, by kind.

        A block without an entry in ``kinds`` has the kind of the enclosing block.
        """
        if kind is not None:
            seconds[kind] += max(0.0, self.total - sum(child.total for child in self.children.values()))
        for name, child in self.children.items():
            child.add_seconds(kinds.get(name, kind), kinds, seconds)

    def merge(self, other: TimerNode) -> None:
        """Add the times and counts of ``other`` and its inner blocks."""
        self.total += other.total
        self.count += other.count
        for name, child in other.children.items():
            self.children.setdefault(name, TimerNode()).merge(child)

    def to_dict(self, *, is_parallel: bool = False) -> dict[str, Any]:
        """Return the node in the form of ``timers.json``, where ``self`` is the time outside of all children."""
        children = self.children
        own = max(0.0, self.total - sum(child.total for child in children.values()))
        result: dict[str, Any] = {"total": self.total, "count": self.count}
        if is_parallel:
            result["is_parallel"] = True
        result["self"] = own
        if children:
            result["children"] = {name: child.to_dict(is_parallel=is_parallel) for name, child in children.items()}
        return result


def add_trees(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Add up two trees from ``to_dict``, block by block.

    The trees may come from damaged files: invalid numbers count as 0, and unknown keys are dropped.
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
    """Read a number from ``timers.json``. Values that are negative, not numbers or impossibly large are read as 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 <= value < _LONGEST_S else 0.0


class Timers:
    """The timer trees of one run. ``with timers("name"):`` nests under the current block of the same thread."""

    def __init__(self) -> None:
        self.start = time()
        self._started = perf_counter()
        self._main_thread = threading.get_ident()
        self._local = threading.local()
        self._lock = threading.Lock()
        self._main = TimerNode(count=1)
        self._parallel: list[tuple[str, TimerNode]] = []

    def __call__(self, name: str) -> TimerNode:
        """Return the block with this name inside the current block, for use in ``with``."""
        try:
            node: TimerNode = self._local.stack[-1].children[name]
        except AttributeError:  # the thread's first block
            stack = self._root_of_thread().stack
            node = stack[-1].children.setdefault(name, TimerNode(stack=stack))
        except KeyError:
            stack = self._local.stack
            node = stack[-1].children[name] = TimerNode(stack=stack)
        return node

    def to_dict(self) -> dict[str, Any]:
        """Return the tree of the thread that created this object, with other threads as parallel children of the root.

        Threads with the same name are added up. Open blocks are counted up to now.
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
        """Return the seconds so far per kind of work, over all threads, including open blocks.

        Args:
            kinds: name of a block -> kind, which also applies to inner blocks without an entry. Time outside of all
                these blocks is not counted.
        """
        now = perf_counter()
        seconds = dict.fromkeys(kinds.values(), 0.0)
        with self._lock:
            roots = [self._main, *(root for _, root in self._parallel)]
        for root in roots:
            root.until(now).add_seconds(None, kinds, seconds)
        return seconds

    def _root_of_thread(self) -> TimerNode:
        """Start the tree of this thread."""
        root = self._main
        if threading.get_ident() != self._main_thread:
            root = TimerNode(count=1)
            with self._lock:
                self._parallel.append((threading.current_thread().name, root))
        self._local.stack = root.stack
        root.stack.append(root)
        return root
