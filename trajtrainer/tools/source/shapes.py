"""ONNX operators that work along axes, and operators that draw random numbers."""

import math
from collections.abc import Sequence
from typing import Final

from trajtrainer.learning.nn.graph import FLOAT, Node
from trajtrainer.tools.source.lowering import LOWEST, Body, Lowering, Place, Value, number, row_major
from trajtrainer.tools.source.program import For, If, Let, Set

_SMALLEST_UNIFORM: Final = 2.0**-24


def reduce(low: Lowering, node: Node, value: Value) -> Body:
    """Translate a sum, mean, maximum or minimum over axes of one agent; for ``Global...``, over the pixels."""
    pools = node.operator.startswith("Global")
    axes = range(2, len(value.shape)) if pools else node.attributes.get("axes", range(len(value.shape)))
    reduced = {low.axis(node, value, axis) for axis in axes}
    strides = row_major(value.shape)
    kept = tuple(1 if axis in reduced else size for axis, size in enumerate(value.shape))
    target, source = low.define(node.outputs[0], kept, value.agents), low.place(value)
    inner = [value.shape[axis] for axis in sorted(reduced)]
    inner_strides = [strides[axis] for axis in sorted(reduced)]
    begin, step, factor = accumulation(node.operator, math.prod(inner))

    def outer(at: list[Place]) -> Body:
        total = low.local("total")
        loops = low.nest(inner, [(at[0], inner_strides)], lambda each: [Set(total, step.format(total, each[0]))])
        return [Let(total, begin), *loops, Set(str(at[1]), total + factor)]

    body = low.nest(kept, [(source, strides), (target, row_major(kept))], outer)
    if not pools and not node.attributes.get("keepdims", 1):
        drop(low, node, reduced)
    return body


def accumulation(operator: str, count: int) -> tuple[str, str, str]:
    """Return how an operator combines ``count`` numbers: the first value, the pattern of a step, and a final factor."""
    for function, begin in (("Max", LOWEST), ("Min", -LOWEST)):
        if function in operator:
            return number(begin), f"{function.lower()}({{}}, {{}})", ""
    is_mean = "Mean" in operator or "Average" in operator
    return "0.0", "{} + {}", f" * {number(1.0 / count)}" if is_mean else ""


def softmax(low: Lowering, node: Node, value: Value) -> Body:
    """Translate a softmax or its logarithm, computed without overflow."""
    axis = low.axis(node, value, node.attributes.get("axis", 1))
    if value.agents is not None and value.agents > axis:
        low.unsupported(node, " across agents")
    # In this opset, all axes from this one on are treated as a single axis.
    shape, length = (*value.shape[:axis], *(1,) * (len(value.shape) - axis)), math.prod(value.shape[axis:])
    target, source = low.define(node.outputs[0], value.shape, value.agents), low.place(value)
    strides = row_major(value.shape)
    logarithm = node.operator == "LogSoftmax"

    def row(at: list[Place]) -> Body:
        x, y = at
        total, body = sum_of_powers(low, x, y, length, "total", shifted=logarithm)
        k = low.loop()
        last = y.plus(0, (k, 1))
        if logarithm:
            body.append(Set(total, f"log({total})"))
        return [*body, For(k, length, [Set(str(last), f"{last} {'-' if logarithm else '/'} {total}")])]

    return low.nest(shape, [(source, strides), (target, strides)], row)


def sum_of_powers(
    low: Lowering, x: Place, y: Place, length: int, name: str, *, shifted: bool = False
) -> tuple[str, Body]:
    """Sum up the exponentials of a row, relative to its largest number.

    Args:
        low: the program.
        x: place of the row.
        y: place for the exponentials, or with ``shifted`` for the row minus its largest number.
        length: length of the row.
        name: prefix of the sum's name.
        shifted: see ``y``.

    Returns:
        The name of the sum, and the statements.
    """
    i, j = low.loop(), low.loop()
    best, total, power = low.local("best"), low.local(name), low.local()
    difference = f"{x.plus(0, (j, 1))} - {best}"
    add: Body = [Let(power, f"exp({difference})"), Set(total, f"{total} + {power}")]
    return total, [
        Let(best, str(x)),
        For(i, length, [Set(best, f"max({best}, {x.plus(0, (i, 1))})")]),
        Let(total, "0.0"),
        For(j, length, [*add, Set(str(y.plus(0, (j, 1))), difference if shifted else power)]),
    ]


def argmax(low: Lowering, node: Node, value: Value) -> Body:
    """Translate an argmax to the index of the first largest element, as a float."""
    axis = low.axis(node, value, node.attributes.get("axis", 0))
    shape = tuple(1 if other == axis else size for other, size in enumerate(value.shape))
    strides = row_major(value.shape)
    target, source = low.define(node.outputs[0], shape, value.agents), low.place(value)

    def row(at: list[Place]) -> Body:
        i, best = low.loop(), low.local("best")
        x, y = map(str, at)
        element = str(at[0].plus(0, (i, strides[axis])))
        choose = If(f"{element} > {best}", [Set(best, element), Set(y, f"float({i})")])
        return [Let(best, x), Set(y, "0.0"), For(i, value.shape[axis], [choose])]

    body = low.nest(shape, [(source, strides), (target, row_major(shape))], row)
    if not node.attributes.get("keepdims", 1):
        drop(low, node, {axis})
    return body


def drop(low: Lowering, node: Node, axes: set[int]) -> None:
    """Drop these axes of a node's result, which have size 1."""
    value = low.values[node.outputs[0]]
    shape = tuple(size for axis, size in enumerate(value.shape) if axis not in axes)
    agents = None if value.agents is None else value.agents - sum(axis < value.agents for axis in axes)
    low.values[node.outputs[0]] = Value(shape, agents, value.place)


def normal(low: Lowering, node: Node, value: Value) -> Body:
    """Translate normal random numbers: two uniform numbers are converted to two normal ones (Box and Muller 1958)."""
    y = low.define(node.outputs[0], value.shape, value.agents)
    mean, scale = node.attributes.get("mean", 0.0), node.attributes.get("scale", 1.0)
    body: Body = []
    pairs = value.size // 2
    uniform = low.random(2 * (pairs + value.size % 2))

    def pair(at: Place, to: Place, functions: Sequence[str]) -> Body:
        radius, angle = low.local("radius"), low.local("angle")
        texts = [f"{radius} * {function}({angle})" for function in functions]
        if (mean, scale) != (0.0, 1.0):
            texts = [f"{number(mean)} + {number(scale)} * {text}" for text in texts]
        return [
            Let(radius, f"sqrt((-2.0) * log(max(1.0 - {at}, {number(_SMALLEST_UNIFORM)})))"),
            Let(angle, f"{number(2.0 * math.pi)} * {at.plus(1)}"),
            *(Set(str(to.plus(k)), text) for k, text in enumerate(texts)),
        ]

    if pairs:
        i = low.loop()
        body.append(For(i, 2 * pairs, pair(uniform.plus(0, (i, 1)), y.plus(0, (i, 1)), ("cos", "sin")), 2))
    if value.size % 2:
        body += pair(uniform.plus(2 * pairs), y.plus(2 * pairs), ("cos",))
    return body


def uniform(low: Lowering, node: Node, value: Value) -> Body:
    """Translate uniform random numbers in a range."""
    lowest, highest = node.attributes.get("low", 0.0), node.attributes.get("high", 1.0)
    y, uniform = low.define(node.outputs[0], value.shape, value.agents), low.random(value.size)

    def draw(at: list[Place]) -> Body:
        return [Set(str(at[0]), f"{number(lowest)} + {number(highest - lowest)} * {at[1]}")]

    return low.nest((value.size,), [(y, (1,)), (uniform, (1,))], draw)


def multinomial(low: Lowering, node: Node, value: Value) -> Body:
    """Translate a random choice: the first action whose cumulative probability exceeds a random number.

    The random number is uniform between 0 and the sum of all probabilities, and never chooses an action with
    probability 0.
    """
    if node.attributes.get("sample_size", 1) != 1 or value.agents != 0 or len(value.shape) != 2:
        low.unsupported(node, " of several samples")
    y, uniform, powers = low.define(node.outputs[0], (1, 1), 0), low.random(1), low.scratch(value.size)
    left, body = sum_of_powers(low, low.place(value), powers, value.size, "left")
    k = low.loop()
    each = powers.plus(0, (k, 1))
    choose = [Set(str(y), f"float({k})"), Set(left, f"{left} - {each}")]
    return [
        *body,
        Set(left, f"{left} * {uniform}"),
        For(k, value.size, [If(f"{left} >= 0.0 && {each} > 0.0", choose)]),
    ]


def cast(low: Lowering, node: Node, value: Value) -> Body:
    """Translate a cast to float, which leaves the numbers unchanged."""
    if node.attributes.get("to") != FLOAT:
        low.unsupported(node, " to types other than float")
    return same(low, node, value)  # conditions are already 0.0 or 1.0


def view(low: Lowering, name: str, shape: Sequence[int], agents: int | None, place: Place) -> Body:
    """Define ``name`` as the numbers that start at this place."""
    low.values[name] = Value(tuple(shape), agents, place)
    return []


def same(low: Lowering, node: Node, value: Value) -> Body:
    """Reuse the first input unchanged."""
    return view(low, node.outputs[0], value.shape, value.agents, low.place(value))


def reshape(low: Lowering, node: Node, value: Value, given: Value) -> Body:
    """Translate a reshape that does not mix agents."""
    if given.constant is None or value.agents is None:
        low.unsupported(node, " to a shape that is computed")
    wanted = [int(size) for size in given.constant]
    shape = [value.shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
    agents = value.agents if value.agents < len(wanted) and wanted[value.agents] == 0 else None
    if -1 in shape:
        free = shape.index(-1)
        # The -1 stands for the number of agents, unless a 0 elsewhere already keeps the agents' axis.
        shape[free] = 1 if agents is None else value.size // -math.prod(shape)
        agents = free if agents is None else agents
    mixes = agents is None or math.prod(shape[:agents]) > 1 or math.prod(value.shape[: value.agents]) > 1
    if mixes or math.prod(shape) != value.size:
        low.unsupported(node, " across agents")
    return view(low, node.outputs[0], shape, agents, low.place(value))


def flatten(low: Lowering, node: Node, value: Value) -> Body:
    """Translate a flatten operator, whose result has one row per agent."""
    if node.attributes.get("axis", 1) != 1 or value.agents != 0:
        low.unsupported(node, " across agents")
    return view(low, node.outputs[0], (1, value.size), 0, low.place(value))


def squeeze(low: Lowering, node: Node, value: Value) -> Body:
    """Drop axes of size 1."""
    if "axes" not in node.attributes or value.agents is None:
        low.unsupported(node, " without axes")
    body = same(low, node, value)
    drop(low, node, {low.axis(node, value, axis) for axis in node.attributes["axes"]})
    return body


def unsqueeze(low: Lowering, node: Node, value: Value) -> Body:
    """Add axes of size 1."""
    axes = node.attributes["axes"]
    if value.agents is None:
        low.unsupported(node, " of values that do not depend on the agent")
    rank = len(value.shape) + len(axes)
    added = {axis % rank for axis in axes}
    kept = [axis for axis in range(rank) if axis not in added]
    sizes = iter(value.shape)
    shape = [1 if axis in added else next(sizes) for axis in range(rank)]
    return view(low, node.outputs[0], shape, kept[value.agents], low.place(value))


def transpose(low: Lowering, node: Node, value: Value) -> Body:
    """Translate a transpose. Numbers are only copied if their order changes."""
    order = node.attributes.get("perm", list(range(len(value.shape)))[::-1])
    shape = [value.shape[axis] for axis in order]
    agents = None if value.agents is None else list(order).index(value.agents)
    moved = [axis for axis in order if value.shape[axis] > 1]
    if moved == sorted(moved):
        return view(low, node.outputs[0], shape, agents, low.place(value))
    target, strides = low.define(node.outputs[0], shape, agents), row_major(value.shape)
    return low.copy(shape, low.place(value), [strides[axis] for axis in order], target, row_major(shape))


def cut(low: Lowering, node: Node, value: Value) -> Body:
    """Translate a slice."""
    starts, ends = node.attributes["starts"], node.attributes["ends"]
    axes = node.attributes.get("axes", range(len(starts)))
    shape, offset, strides = list(value.shape), 0, row_major(value.shape)
    for start, end, axis in zip(starts, ends, axes, strict=True):
        axis = low.axis(node, value, axis)
        kept = range(value.shape[axis])[start:end]
        shape[axis] = len(kept)
        offset += kept.start * strides[axis]
    return part(low, node.outputs[0], value, shape, offset)


def part(low: Lowering, name: str, value: Value, shape: Sequence[int], offset: int) -> Body:
    """Define ``name`` as a part of a value. It is only copied if it is not contiguous."""
    strides, own_strides = row_major(value.shape), row_major(shape)
    source = low.place(value).plus(offset)
    if all(size == 1 or stride == own for size, stride, own in zip(shape, strides, own_strides, strict=True)):
        return view(low, name, shape, value.agents, source)
    return low.copy(shape, source, strides, low.define(name, shape, value.agents), own_strides)


def split(low: Lowering, node: Node, value: Value) -> Body:
    """Translate a split into parts."""
    axis = low.axis(node, value, node.attributes.get("axis", 0))
    parts = len(node.outputs)
    sizes = node.attributes.get("split", [value.shape[axis] // parts] * parts)
    body: Body = []
    offset = 0
    for name, size in zip(node.outputs, sizes, strict=True):
        shape = [size if other == axis else own for other, own in enumerate(value.shape)]
        body += part(low, name, value, shape, offset)
        offset += size * row_major(value.shape)[axis]
    return body


def concat(low: Lowering, node: Node, *values: Value) -> Body:
    """Translate a concatenation."""
    agents = next((value.agents for value in values if value.agents is not None), None)
    if any(value.agents != agents for value in values):
        low.unsupported(node, " of values that depend on the agent and values that do not")
    axis = low.axis(node, values[0], node.attributes["axis"])
    total = sum(value.shape[axis] for value in values)
    shape = [total if other == axis else size for other, size in enumerate(values[0].shape)]
    target, strides = low.define(node.outputs[0], shape, agents), row_major(shape)
    body: Body = []
    for value in values:
        body += low.copy(value.shape, low.place(value), row_major(value.shape), target, strides)
        target = target.plus(value.shape[axis] * strides[axis])
    return body
