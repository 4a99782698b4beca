"""Translates nodes of an ONNX graph to statements: values and their places in arrays, loops, and matrix products.

A value has one row per agent, and a program is for one agent, so the agents' axis has size 1 in all shapes here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.errors import ExportError
from trajtrainer.learning.nn.graph import Node
from trajtrainer.tools.source.program import Array, ArrayRole, For, Let, Program, Set, Statement, with_point

Body = list[Statement]

LOWEST: Final = float(np.finfo(np.float32).min)
# Number of products computed together. A processor can compute independent sums in parallel.
_UNROLLED: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor of the graph.

    Attributes:
        shape: the shape, with size 1 on the axis ``agents``.
        agents: the agents' axis; None if the value does not depend on the agent.
        place: the place of the first element; the others follow in row-major order. None for constants, which get a
            place when they need one.
        constant: the elements of a constant.
    """

    shape: tuple[int, ...]
    agents: int | None = None
    place: Place | None = None
    constant: NDArray[Any] | None = None

    @property
    def size(self) -> int:
        """Number of elements per agent."""
        return int(np.prod(self.shape))


class Place(NamedTuple):
    """The location of a number: an array and an index in it, or only an index.

    The index is ``offset`` plus the sum of variable * stride over all terms.
    """

    array: int | None = None
    offset: int = 0
    terms: tuple[tuple[str, int], ...] = ()

    def plus(self, offset: int, *terms: tuple[str, int]) -> Place:
        """Return the place with this offset and these terms added."""
        return Place(self.array, self.offset + offset, self.terms + terms)

    def __str__(self) -> str:
        parts = [name if stride == 1 else f"{name} * {stride}" for name, stride in self.terms if stride]
        if self.offset or not parts:
            parts.append(str(self.offset))
        index = " + ".join(parts)
        return index if self.array is None else f"@{self.array}[{index}]"


def number(value: float) -> str:
    """Return the shortest text for a float32, with a decimal point, and in parentheses if it is negative."""
    text = with_point(str(np.float32(value)))
    return f"({text})" if text.startswith("-") else text


def row_major(shape: Sequence[int]) -> list[int]:
    """Return the stride of each axis."""
    return [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]


class Lowering:
    """Builds a program from the nodes of a graph.

    Args:
        program: the program to extend.
        columns: how to compute matrix products. If True, add one column of the weights after another to all outputs,
            which compilers turn into vector instructions. Otherwise, sum up four outputs at a time in local variables,
            which is faster with just-in-time compilers.
    """

    def __init__(self, program: Program, *, columns: bool) -> None:
        self.program = program
        self.values: dict[str, Value] = {}
        self._random = program.add(Array(ArrayRole.RANDOM, 0))
        self._columns = columns
        self._constants: dict[int, Place] = {}  # id of a constant value -> its place
        self._locals = itertools.count()
        self._loops = itertools.count()

    # -- values

    def constant(self, name: str) -> NDArray[Any] | None:
        """Return the numbers of a constant, or None if the value is not constant or is a missing input (``""``)."""
        return self.values[name].constant if name else None

    def define(self, name: str, shape: Sequence[int], agents: int | None) -> Place:
        """Create a value with a new array in the workspace, and return its place."""
        shape = tuple(int(size) for size in shape)
        place = self.scratch(int(np.prod(shape)))
        self.values[name] = Value(shape, agents, place)
        return place

    def scratch(self, size: int) -> Place:
        """Create a place for numbers in the workspace."""
        return Place(self.program.add(Array(ArrayRole.SCRATCH, size)))

    def random(self, size: int) -> Place:
        """Reserve uniform random numbers that no other operator reads, and return their place."""
        begin = self.program.random_size
        self.program.random_size += size
        self.program.arrays[self._random] = Array(ArrayRole.RANDOM, self.program.random_size)
        return Place(self._random, begin)

    def weights(self, values: NDArray[Any], name: str) -> Place:
        """Create a place for constant numbers."""
        flat = np.ascontiguousarray(values, np.float32).ravel()
        return Place(self.program.add(Array(ArrayRole.WEIGHTS, flat.size, name, flat)))

    def place(self, value: Value) -> Place:
        """Return the place of a value's first element. A constant without a place gets one."""
        if value.constant is None:
            assert value.place is not None
            return value.place
        if id(value) not in self._constants:
            name = next(name for name, other in self.values.items() if other is value)
            self._constants[id(value)] = self.weights(value.constant, name)
        return self._constants[id(value)]

    def read(self, value: Value, at: Place) -> str:
        """Return an expression for an element; a literal if the value is a constant with a single element."""
        if value.constant is not None and value.size == 1:
            return number(value.constant.item())
        return str(self.place(value).plus(at.offset, *at.terms))

    def local(self, prefix: str = "x") -> str:
        """Return a new name for a local variable."""
        return f"{prefix}{next(self._locals)}"

    def loop(self) -> str:
        """Return a new name for a loop variable."""
        return f"i{next(self._loops)}"

    def next_step(self) -> None:
        """Start a new step, in which the names of loop variables may be reused."""
        self._loops = itertools.count()

    # -- axes and shapes of nodes

    def axis(self, node: Node, value: Value, axis: int) -> int:
        """Return the index of an axis, counted from the front. Raise ``ExportError`` if it is the agents' axis."""
        axis = axis % len(value.shape)
        if axis == value.agents:
            self.unsupported(node, " across agents")
        return axis

    def broadcast(self, node: Node, values: Sequence[Value]) -> tuple[tuple[int, ...], int | None, list[list[int]]]:
        """Broadcast values. Return the common shape, its agents' axis, and the strides of each value."""
        rank = max(len(value.shape) for value in values)
        shapes = [(1,) * (rank - len(value.shape)) + value.shape for value in values]
        axes = {value.agents + rank - len(value.shape) for value in values if value.agents is not None}
        shape = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        agents = axes.pop() if axes else None
        if axes or (agents is not None and shape[agents] != 1):
            self.unsupported(node, " across agents")
        strides = [
            [0 if size == 1 else stride for size, stride in zip(own, row_major(own), strict=True)] for own in shapes
        ]
        return shape, agents, strides

    # -- loops

    def nest(
        self,
        shape: Sequence[int],
        operands: Sequence[tuple[Place, Sequence[int]]],
        make: Callable[[list[Place]], Body],
    ) -> Body:
        """Return loops over all elements of a shape. Axes are merged into one loop if all operands are contiguous.

        Args:
            shape: the shape to loop over.
            operands: start and stride along each axis, for each operand.
            make: returns the innermost statements, given the operands' places.
        """
        merged: list[tuple[int, list[int]]] = []
        for size, *strides in zip(shape, *(steps for _, steps in operands), strict=True):
            if size == 1:
                continue
            if merged and all(outer == size * inner for outer, inner in zip(merged[-1][1], strides, strict=True)):
                merged[-1] = (merged[-1][0] * size, strides)
            else:
                merged.append((size, strides))
        variables = [self.loop() for _ in merged]
        places = [
            start.plus(0, *((name, strides[k]) for name, (_, strides) in zip(variables, merged, strict=True)))
            for k, (start, _) in enumerate(operands)
        ]
        body = make(places)
        for name, (size, _) in zip(reversed(variables), reversed(merged), strict=True):
            body = [For(name, size, body)]
        return body

    def copy(
        self,
        shape: Sequence[int],
        source: Place,
        from_strides: Sequence[int],
        target: Place,
        to_strides: Sequence[int],
    ) -> Body:
        """Copy all elements of a shape."""
        operands = [(source, from_strides), (target, to_strides)]
        return self.nest(shape, operands, lambda at: [Set(str(at[1]), str(at[0]))])

    # -- matrix products

    def linear(
        self,
        x: Place,
        y: Place,
        matrix: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
        *,
        name: str,
        adds: bool = False,
    ) -> Body:
        """Apply a layer to one row: ``y = x @ matrix + bias``, or ``y += x @ matrix`` if ``adds`` is set.

        Args:
            x: place of the row [n].
            y: place of the result [m].
            matrix: weights [n, m].
            bias: bias [m], or None.
            name: name of the weights.
            adds: whether to add the result to ``y`` instead of replacing ``y``.
        """
        n, m = matrix.shape
        start = y if adds else None if bias is None else self.weights(bias, f"bias of {name}")
        if self._columns and m >= _UNROLLED:
            weights = self.weights(matrix, name)
            body = self.zeros(y, m) if start is None else [] if adds else self.copy((m,), start, (1,), y, (1,))
            return body + self.add_columns(x, y, n, m, weights)

        blocks = m // _UNROLLED * _UNROLLED
        # Store the weights in the order in which they are read: blocks of four outputs, then the remaining outputs.
        packed = [matrix[:, k : k + _UNROLLED].ravel() for k in range(0, blocks, _UNROLLED)]
        weights = self.weights(np.concatenate([*packed, matrix[:, blocks:].T.ravel()]), name)
        body = []
        for first, count, together in _unrolled(m):
            j, i = self.loop(), self.loop()
            sums = [self.local("sum") for _ in range(together)]
            outputs = [str(y.plus(first + k, (j, 1))) for k in range(together)]
            first_sums = ["0.0" if start is None else str(start.plus(first + k, (j, 1))) for k in range(together)]
            entry = self.local()
            inner: Body = [Let(entry, str(x.plus(0, (i, 1))))]
            for k, total in enumerate(sums):
                weight = weights.plus(first * n + k, (j, n), (i, together))
                inner.append(Set(total, f"{total} + {entry} * {weight}"))
            block: Body = [*map(Let, sums, first_sums), For(i, n, inner), *map(Set, outputs, sums)]
            body.append(For(j, count, block, together))
        return body

    def add_columns(self, x: Place, y: Place, n: int, m: int, matrix: Place) -> Body:
        """Add the product of a row [n] and a matrix [n, m] to a row [m]."""
        body: Body = []
        for first, count, together in _unrolled(n):
            i, j = self.loop(), self.loop()
            entries = [self.local() for _ in range(together)]
            lets = [Let(name, str(x.plus(first + k, (i, 1)))) for k, name in enumerate(entries)]
            weights = [matrix.plus((first + k) * m, (i, m), (j, 1)) for k in range(together)]
            products = " + ".join(f"{name} * {weight}" for name, weight in zip(entries, weights, strict=True))
            target = str(y.plus(0, (j, 1)))
            body.append(For(i, count, [*lets, For(j, m, [Set(target, f"{target} + ({products})")])], together))
        return body

    def zeros(self, y: Place, size: int) -> Body:
        """Set ``size`` numbers to 0."""
        return self.nest((size,), [(y, (1,))], lambda at: [Set(str(at[0]), "0.0")])

    # -- errors

    def unsupported(self, node: Node, why: str = "") -> NoReturn:
        """Raise an ``ExportError`` for a node that cannot be translated."""
        raise ExportError(
            f"The policy cannot be written as source code: the operator {node.operator}{why} is not supported (it "
            f"computes {node.outputs[0]!r}). An .onnx does not have this limit."
        )


def _unrolled(size: int) -> list[tuple[int, int, int]]:
    """Split ``size`` steps into those that are computed together and the rest: begin, number, and step of each loop."""
    main = size // _UNROLLED * _UNROLLED
    return [loop for loop in ((0, main, _UNROLLED), (main, size - main, 1)) if loop[1]]
