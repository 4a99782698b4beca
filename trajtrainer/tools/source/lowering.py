"""From the nodes of an ONNX graph to statements: values and their places, loops, matrix products.

A value has one row per agent, and a program is for one agent, so the axis of the agents has size 1 in every shape here.
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
from trajtrainer.tools.source.program import Array, ArrayRole, For, Let, Program, Set, Statement

Body = list[Statement]

LOWEST: Final = float(np.finfo(np.float32).min)
# Products at a time: independent sums keep a processor's units busy.
_UNROLLED: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor of the graph.

    Attributes:
        shape: with size 1 at the axis ``agents``, which is None where a value does not depend on the agent.
        array: holds it, in row-major order from ``offset``. None for constants, which get an array when one is needed.
    """

    shape: tuple[int, ...]
    agents: int | None = None
    array: int | None = None
    offset: int = 0
    constant: NDArray[Any] | None = None

    @property
    def size(self) -> int:
        """Numbers per agent."""
        return int(np.prod(self.shape))


class Position(NamedTuple):
    """An index: the sum of ``offset`` and of variable * stride over the terms."""

    offset: int = 0
    terms: tuple[tuple[str, int], ...] = ()

    def plus(self, offset: int, *terms: tuple[str, int]) -> Position:
        """The position that much further."""
        return Position(self.offset + offset, self.terms + terms)

    def __str__(self) -> str:
        parts = [name if stride == 1 else f"{name} * {stride}" for name, stride in self.terms if stride]
        if self.offset or not parts:
            parts.append(str(self.offset))
        return " + ".join(parts)


class ArrayPlace(NamedTuple):
    """Where numbers are: an array, and an index in it."""

    array: int
    at: Position = Position()

    def plus(self, offset: int, *terms: tuple[str, int]) -> ArrayPlace:
        """The place that much further."""
        return ArrayPlace(self.array, self.at.plus(offset, *terms))

    def __str__(self) -> str:
        return f"@{self.array}[{self.at}]"


def number(value: float) -> str:
    """The shortest text that is this float32, with a point; in parentheses if it is negative."""
    text = str(np.float32(value))
    mantissa, exponent, power = text.partition("e")
    text = (mantissa if "." in mantissa else mantissa + ".0") + exponent + power
    return f"({text})" if text.startswith("-") else text


def row_major(shape: Sequence[int]) -> list[int]:
    """The stride of each axis."""
    return [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]


class Lowering:
    """The program in the making.

    Args:
        program: what is added to.
        random: the array of uniform numbers.
        columns: in matrix products add whole columns of the weights to the outputs, which compilers turn into vector
            instructions. Without it, four outputs at a time are summed up in local numbers, which suits just-in-time
            compilers.
    """

    def __init__(self, program: Program, *, random: int, columns: bool) -> None:
        self.program = program
        self.values: dict[str, Value] = {}
        self._random = random
        self._columns = columns
        self._constants: dict[int, int] = {}  # id of a constant value -> its array
        self._locals = itertools.count()
        self._loops = itertools.count()

    # -- values

    def value(self, name: str) -> Value:
        """The value of this name."""
        return self.values[name]

    def constant(self, name: str) -> NDArray[Any] | None:
        """The numbers of a constant; None if it is none, or the optional input ``""``."""
        return self.values[name].constant if name else None

    def new(self, shape: Sequence[int], agents: int | None) -> Value:
        """A value with an array of its own in the workspace."""
        shape = tuple(int(size) for size in shape)
        array = self.program.add(Array(ArrayRole.SCRATCH, int(np.prod(shape))))
        return Value(shape, agents, array)

    def scratch(self, size: int) -> ArrayPlace:
        """A place for numbers that are only needed within one step."""
        return ArrayPlace(self.program.add(Array(ArrayRole.SCRATCH, size)))

    def random(self, size: int) -> ArrayPlace:
        """The place of uniform random numbers that no other operator reads."""
        self.program.random_size += size
        return ArrayPlace(self._random, Position(self.program.random_size - size))

    def weights(self, values: NDArray[Any], name: str) -> ArrayPlace:
        """The place of numbers that never change."""
        flat = np.ascontiguousarray(values, np.float32).ravel()
        return ArrayPlace(self.program.add(Array(ArrayRole.WEIGHTS, flat.size, name, flat)))

    def place(self, value: Value) -> ArrayPlace:
        """Where a value begins; a constant gets its array here."""
        array = value.array
        if array is None:
            assert value.constant is not None
            array = self._constants.get(id(value))
            if array is None:
                name = next((name for name, other in self.values.items() if other is value), "")
                array = self._constants[id(value)] = self.weights(value.constant, name).array
        return ArrayPlace(array, Position(value.offset))

    def read(self, value: Value, at: Position) -> str:
        """The expression of an element, as a literal if there is but one and it never changes."""
        if value.constant is not None and value.size == 1:
            return number(value.constant.item())
        place = self.place(value)
        return str(place.plus(at.offset, *at.terms))

    def local(self, prefix: str = "x") -> str:
        """A new name of a local number."""
        return f"{prefix}{next(self._locals)}"

    def loop(self) -> str:
        """A new name of a loop's variable."""
        return f"i{next(self._loops)}"

    def next_step(self) -> None:
        """Begin a step: the names of loops' variables may be used again."""
        self._loops = itertools.count()

    # -- what nodes say

    def axis(self, node: Node, value: Value, axis: int) -> int:
        """An axis, counted from the front, that is not that of the agents."""
        axis = axis % len(value.shape)
        if axis == value.agents:
            self.unsupported(node, " across agents")
        return axis

    def broadcast(self, node: Node, values: Sequence[Value]) -> tuple[tuple[int, ...], int | None, list[list[int]]]:
        """The common shape, its axis of the agents, and each value's strides in it."""
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
        operands: Sequence[tuple[Position, Sequence[int]]],
        make: Callable[[list[Position]], Body],
    ) -> Body:
        """Loops over all elements of a shape. Axes along which all operands continue evenly become one loop.

        Args:
            shape: of the loops.
            operands: where each begins, and its stride along each axis.
            make: returns the innermost statements for the operands' positions.
        """
        merged: list[tuple[int, list[int]]] = []
        for axis, size in enumerate(shape):
            strides = [steps[axis] for _, steps in operands]
            if size == 1:
                continue
            if merged and all(outer == size * inner for outer, inner in zip(merged[-1][1], strides, strict=True)):
                merged[-1] = (merged[-1][0] * size, strides)
            else:
                merged.append((size, strides))
        variables = [self.loop() for _ in merged]
        positions = [
            start.plus(0, *((name, strides[k]) for name, (_, strides) in zip(variables, merged, strict=True)))
            for k, (start, _) in enumerate(operands)
        ]
        body = make(positions)
        for name, (size, _) in zip(reversed(variables), reversed(merged), strict=True):
            body = [For(name, size, body)]
        return body

    def copy(
        self,
        shape: Sequence[int],
        source: ArrayPlace,
        from_strides: Sequence[int],
        target: ArrayPlace,
        to_strides: Sequence[int],
    ) -> Body:
        """Copy elements of a shape."""

        def assign(at: list[Position]) -> Body:
            return [Set(str(ArrayPlace(target.array, at[1])), str(ArrayPlace(source.array, at[0])))]

        return self.nest(shape, [(source.at, from_strides), (target.at, to_strides)], assign)

    # -- matrix products

    def linear(
        self,
        x: ArrayPlace,
        y: ArrayPlace,
        matrix: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
        *,
        name: str = "",
        adds: bool = False,
    ) -> Body:
        """Apply a layer to one row: ``y = x @ matrix + bias``, or ``y += x @ matrix`` if it ``adds``.

        Args:
            x: the row [n].
            y: the result [m].
            matrix: weights [n, m].
            bias: [m], or None.
            name: of the weights.
            adds: to what is there.
        """
        n, m = matrix.shape
        start = None if bias is None else self.weights(bias, f"bias of {name}")
        if self._columns and m >= _UNROLLED:
            weights = self.weights(matrix, name)
            body = []
            if not adds:
                body = self.zeros(y, m) if start is None else self.copy((m,), start, (1,), y, (1,))
            return body + self.add_columns(x, y, n, m, weights)

        blocks = m // _UNROLLED * _UNROLLED
        # The weights in the order in which they are read: four outputs side by side, then the outputs that are left.
        packed = [matrix[:, k : k + _UNROLLED].ravel() for k in range(0, blocks, _UNROLLED)]
        weights = self.weights(np.concatenate([*packed, matrix[:, blocks:].T.ravel()]), name)
        body = []
        for first, count, together in ((0, blocks, _UNROLLED), (blocks, m - blocks, 1)):
            if not count:
                continue
            j, i = self.loop(), self.loop()
            sums = [self.local("sum") for _ in range(together)]
            outputs = [str(y.plus(first + k, (j, 1))) for k in range(together)]
            first_sums = outputs
            if not adds:
                first_sums = ["0.0" if start is None else str(start.plus(first + k, (j, 1))) for k in range(together)]
            entry = self.local()
            inner: Body = [Let(entry, str(x.plus(0, (i, 1))))]
            for k, total in enumerate(sums):
                weight = weights.plus(first * n + k, (j, n), (i, together))
                inner.append(Set(total, f"{total} + {entry} * {weight}"))
            block: Body = [*map(Let, sums, first_sums), For(i, n, inner), *map(Set, outputs, sums)]
            body.append(For(j, count, block, together))
        return body

    def add_columns(self, x: ArrayPlace, y: ArrayPlace, n: int, m: int, matrix: ArrayPlace) -> Body:
        """Add the product of a row [n] and a matrix [n, m] to a row [m]."""
        body: Body = []
        main = n // _UNROLLED * _UNROLLED
        for first, count, together in ((0, main, _UNROLLED), (main, n - main, 1)):
            if not count:
                continue
            i, j = self.loop(), self.loop()
            entries = [self.local() for _ in range(together)]
            lets = [Let(name, str(x.plus(first + k, (i, 1)))) for k, name in enumerate(entries)]
            weights = [matrix.plus((first + k) * m, (i, m), (j, 1)) for k in range(together)]
            products = " + ".join(f"{name} * {weight}" for name, weight in zip(entries, weights, strict=True))
            target = str(y.plus(0, (j, 1)))
            body.append(For(i, count, [*lets, For(j, m, [Set(target, f"{target} + ({products})")])], together))
        return body

    def zeros(self, y: ArrayPlace, size: int) -> Body:
        """Set numbers to 0."""
        return self.nest((size,), [(y.at, (1,))], lambda at: [Set(str(ArrayPlace(y.array, at[0])), "0.0")])

    # -- mistakes

    def unsupported(self, node: Node, why: str = "") -> NoReturn:
        """Raise that this node cannot be written."""
        raise ExportError(
            f"The policy cannot be written as source code: there is no form of the operator {node.operator}"
            f"{why} (which makes {node.outputs[0]!r}). Its .onnx has no such limit."
        )
