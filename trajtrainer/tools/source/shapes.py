"""ONNX operators that work along axes, and operators that draw random numbers."""

import math
from collections.abc import Sequence
from typing import Final

from trajtrainer.learning.nn.graph import FLOAT, Node
from trajtrainer.tools.source.lowering import LOWEST, ArrayPlace, Body, Lowering, Position, Value, number, row_major
from trajtrainer.tools.source.program import For, If, Let, Set

_SMALLEST_UNIFORM: Final = 2.0**-24


def reduce(low: Lowering, node: Node) -> Body:
    """Translate a sum, mean, maximum or minimum over axes of one agent; for ``Global...``, over the pixels."""
    value = low.value(node.inputs[0])
    pools = node.operator.startswith("Global")
    axes = range(2, len(value.shape)) if pools else node.attributes.get("axes", range(len(value.shape)))
    reduced = {low.axis(node, value, axis) for axis in axes}
    strides = row_major(value.shape)
    kept = tuple(1 if axis in reduced else size for axis, size in enumerate(value.shape))
    full = low.new(kept, value.agents)
    source, target = low.place(value), low.place(full)
    inner = tuple(value.shape[axis] for axis in sorted(reduced))
    function = next(name for name in ("Max", "Min", "Mean", "Average", "Sum") if name in node.operator)

    def outer(at: list[Position]) -> Body:
        total = low.local("total")
        begin = {"Max": number(LOWEST), "Min": number(-LOWEST)}.get(function, "0.0")
        take = f"{function.lower()}({total}, {{}})" if function in ("Max", "Min") else f"{total} + {{}}"
        loops = low.nest(
            inner,
            [(at[0], [strides[axis] for axis in sorted(reduced)])],
            lambda each: [Set(total, take.format(ArrayPlace(source.array, each[0])))],
        )
        scale = f" * {number(1.0 / math.prod(inner))}" if function in ("Mean", "Average") else ""
        return [Let(total, begin), *loops, Set(str(ArrayPlace(target.array, at[1])), f"{total}{scale}")]

    body = low.nest(kept, [(source.at, strides), (target.at, row_major(kept))], outer)
    low.values[node.outputs[0]] = full
    if not pools and not node.attributes.get("keepdims", 1):
        shape = tuple(size for axis, size in enumerate(value.shape) if axis not in reduced)
        agents = None if value.agents is None else value.agents - sum(axis < value.agents for axis in reduced)
        low.values[node.outputs[0]] = Value(shape, agents, full.array)
    return body


def softmax(low: Lowering, node: Node) -> Body:
    """Translate a softmax or its logarithm, computed without overflow."""
    value = low.value(node.inputs[0])
    axis = low.axis(node, value, node.attributes.get("axis", 1))
    if value.agents is not None and value.agents > axis:
        low.unsupported(node, " across agents")
    # In this opset, all axes from this one on are treated as a single axis.
    shape, length = (*value.shape[:axis], *(1,) * (len(value.shape) - axis)), math.prod(value.shape[axis:])
    result = low.values[node.outputs[0]] = low.new(value.shape, value.agents)
    source, target = low.place(value), low.place(result)
    strides = row_major(value.shape)
    logarithm = node.operator == "LogSoftmax"

    def row(at: list[Position]) -> Body:
        i, j, k = low.loop(), low.loop(), low.loop()
        best, total = low.local("best"), low.local("total")
        x, y = ArrayPlace(source.array, at[0]), ArrayPlace(target.array, at[1])
        shifted = f"{x.plus(0, (j, 1))} - {best}"
        power = low.local()
        out, last = y.plus(0, (j, 1)), y.plus(0, (k, 1))
        add: Body = [Let(power, f"exp({shifted})"), Set(total, f"{total} + {power}")]
        return [
            Let(best, str(x)),
            For(i, length, [Set(best, f"max({best}, {x.plus(0, (i, 1))})")]),
            Let(total, "0.0"),
            For(j, length, [*add, Set(str(out), shifted if logarithm else power)]),
            *([Set(total, f"log({total})")] if logarithm else []),
            For(k, length, [Set(str(last), f"{last} - {total}" if logarithm else f"{last} / {total}")]),
        ]

    return low.nest(shape, [(source.at, strides), (target.at, strides)], row)


def argmax(low: Lowering, node: Node) -> Body:
    """Translate an argmax to the index of the first largest element, as a float."""
    value = low.value(node.inputs[0])
    axis = low.axis(node, value, node.attributes.get("axis", 0))
    shape = tuple(1 if other == axis else size for other, size in enumerate(value.shape))
    length, stride = value.shape[axis], row_major(value.shape)[axis]
    result = low.new(shape, value.agents)
    source, target = low.place(value), low.place(result)

    def row(at: list[Position]) -> Body:
        i, best = low.loop(), low.local("best")
        x, y = ArrayPlace(source.array, at[0]), str(ArrayPlace(target.array, at[1]))
        element = str(x.plus(0, (i, stride)))
        return [
            Let(best, str(x)),
            Set(y, "0.0"),
            For(i, length, [If(f"{element} > {best}", [Set(best, element), Set(y, f"float({i})")])]),
        ]

    body = low.nest(shape, [(source.at, row_major(value.shape)), (target.at, row_major(shape))], row)
    low.values[node.outputs[0]] = result
    if not node.attributes.get("keepdims", 1):
        kept = tuple(size for other, size in enumerate(shape) if other != axis)
        agents = None if value.agents is None else value.agents - (axis < value.agents)
        low.values[node.outputs[0]] = Value(kept, agents, result.array)
    return body


def normal(low: Lowering, node: Node) -> Body:
    """Translate normal random numbers: two uniform numbers are converted to two normal ones (Box and Muller 1958)."""
    value = low.value(node.inputs[0])
    result = low.values[node.outputs[0]] = low.new(value.shape, value.agents)
    y = low.place(result)
    mean, scale = node.attributes.get("mean", 0.0), node.attributes.get("scale", 1.0)
    body: Body = []
    pairs = value.size // 2
    uniform = low.random(2 * (pairs + value.size % 2))

    def pair(at: ArrayPlace, to: ArrayPlace, functions: Sequence[str]) -> Body:
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


def uniform(low: Lowering, node: Node) -> Body:
    """Translate uniform random numbers in a range."""
    value = low.value(node.inputs[0])
    result = low.values[node.outputs[0]] = low.new(value.shape, value.agents)
    lowest, highest = node.attributes.get("low", 0.0), node.attributes.get("high", 1.0)
    y, uniform = low.place(result), low.random(value.size)

    def draw(at: list[Position]) -> Body:
        drawn = f"{number(lowest)} + {number(highest - lowest)} * {ArrayPlace(uniform.array, at[1])}"
        return [Set(str(ArrayPlace(y.array, at[0])), drawn)]

    return low.nest((value.size,), [(y.at, (1,)), (uniform.at, (1,))], draw)


def multinomial(low: Lowering, node: Node) -> Body:
    """Translate a random choice: the first action with a probability above 0 whose cumulative sum exceeds a number.

    The number is uniform between 0 and the sum of all probabilities.
    """
    value = low.value(node.inputs[0])
    if node.attributes.get("sample_size", 1) != 1 or value.agents != 0 or len(value.shape) != 2:
        low.unsupported(node, " of several samples")
    result = low.values[node.outputs[0]] = low.new((1, 1), 0)
    x, y, uniform = low.place(value), low.place(result), low.random(1)
    i, j, k = low.loop(), low.loop(), low.loop()
    best, left, power = low.local("best"), low.local("left"), low.local()
    powers, length = low.scratch(value.size), value.size
    add: Body = [Let(power, f"exp({x.plus(0, (j, 1))} - {best})"), Set(left, f"{left} + {power}")]
    each = powers.plus(0, (k, 1))
    choose = [Set(str(y), f"float({k})"), Set(left, f"{left} - {each}")]
    return [
        Let(best, str(x)),
        For(i, length, [Set(best, f"max({best}, {x.plus(0, (i, 1))})")]),
        Let(left, "0.0"),
        For(j, length, [*add, Set(str(powers.plus(0, (j, 1))), power)]),
        Set(left, f"{left} * {uniform}"),
        For(k, length, [If(f"{left} >= 0.0 && {each} > 0.0", choose)]),
    ]


def cast(low: Lowering, node: Node) -> Body:
    """Translate a cast to float, which leaves the numbers unchanged."""
    if node.attributes.get("to") != FLOAT:
        low.unsupported(node, " to types other than float")
    return same(low, node)  # conditions are already 0.0 or 1.0


def view(low: Lowering, node: Node, shape: Sequence[int], agents: int | None, offset: int = 0) -> Body:
    """Reuse the numbers of the first input, from ``offset`` on, with another shape."""
    value = low.value(node.inputs[0])
    place = low.place(value)
    low.values[node.outputs[0]] = Value(tuple(shape), agents, place.array, value.offset + offset)
    return []


def same(low: Lowering, node: Node) -> Body:
    """Reuse the first input unchanged."""
    value = low.value(node.inputs[0])
    return view(low, node, value.shape, value.agents)


def reshape(low: Lowering, node: Node) -> Body:
    """Translate a reshape that does not mix agents."""
    value = low.value(node.inputs[0])
    given = low.constant(node.inputs[1])
    if given is None or value.agents is None:
        low.unsupported(node, " to a shape that is computed")
    wanted = [int(size) for size in given]
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
    return view(low, node, shape, agents)


def flatten(low: Lowering, node: Node) -> Body:
    """Translate a flatten operator, whose result has one row per agent."""
    value = low.value(node.inputs[0])
    if node.attributes.get("axis", 1) != 1 or value.agents != 0:
        low.unsupported(node, " across agents")
    return view(low, node, (1, value.size), 0)


def squeeze(low: Lowering, node: Node) -> Body:
    """Drop axes of size 1."""
    value = low.value(node.inputs[0])
    if "axes" not in node.attributes or value.agents is None:
        low.unsupported(node, " without axes")
    dropped = {low.axis(node, value, axis) for axis in node.attributes["axes"]}
    shape = [size for axis, size in enumerate(value.shape) if axis not in dropped]
    return view(low, node, shape, value.agents - sum(axis < value.agents for axis in dropped))


def unsqueeze(low: Lowering, node: Node) -> Body:
    """Add axes of size 1."""
    value = low.value(node.inputs[0])
    axes = node.attributes["axes"]
    if value.agents is None:
        low.unsupported(node, " of values that do not depend on the agent")
    rank = len(value.shape) + len(axes)
    added = {axis % rank for axis in axes}
    kept = [axis for axis in range(rank) if axis not in added]
    shape = [1] * rank
    for axis, size in zip(kept, value.shape, strict=True):
        shape[axis] = size
    return view(low, node, shape, kept[value.agents])


def transpose(low: Lowering, node: Node) -> Body:
    """Translate a transpose. Numbers are only copied if their order changes."""
    value = low.value(node.inputs[0])
    order = node.attributes.get("perm", list(range(len(value.shape)))[::-1])
    shape = [value.shape[axis] for axis in order]
    agents = None if value.agents is None else list(order).index(value.agents)
    moved = [axis for axis in order if value.shape[axis] > 1]
    if moved == sorted(moved):
        return view(low, node, shape, agents)
    result = low.values[node.outputs[0]] = low.new(shape, agents)
    strides = row_major(value.shape)
    return low.copy(shape, low.place(value), [strides[axis] for axis in order], low.place(result), row_major(shape))


def cut(low: Lowering, node: Node) -> Body:
    """Translate a slice."""
    value = low.value(node.inputs[0])
    starts, ends = node.attributes["starts"], node.attributes["ends"]
    axes = node.attributes.get("axes", range(len(starts)))
    shape, offset, strides = list(value.shape), 0, row_major(value.shape)
    for start, end, axis in zip(starts, ends, axes, strict=True):
        axis = low.axis(node, value, axis)
        kept = range(value.shape[axis])[start:end]
        shape[axis] = len(kept)
        offset += kept.start * strides[axis]
    return part(low, node, node.outputs[0], value, shape, offset, strides)


def part(
    low: Lowering, node: Node, name: str, value: Value, shape: Sequence[int], offset: int, strides: Sequence[int]
) -> Body:
    """Define ``name`` as a part of a value. It is only copied if it is not contiguous."""
    axes = zip(shape, strides, row_major(shape), strict=True)
    if all(size == 1 or stride == own for size, stride, own in axes):
        return view(low, Node(node.operator, node.inputs[:1], (name,), {}), shape, value.agents, offset)
    result = low.values[name] = low.new(shape, value.agents)
    return low.copy(shape, low.place(value).plus(offset), strides, low.place(result), row_major(shape))


def split(low: Lowering, node: Node) -> Body:
    """Translate a split into parts."""
    value = low.value(node.inputs[0])
    axis = low.axis(node, value, node.attributes.get("axis", 0))
    parts = len(node.outputs)
    sizes = node.attributes.get("split", [value.shape[axis] // parts] * parts)
    body: Body = []
    start = 0
    strides = row_major(value.shape)
    for name, size in zip(node.outputs, sizes, strict=True):
        shape = [size if other == axis else own for other, own in enumerate(value.shape)]
        body += part(low, node, name, value, shape, start * strides[axis], strides)
        start += size
    return body


def concat(low: Lowering, node: Node) -> Body:
    """Translate a concatenation."""
    values = [low.value(name) for name in node.inputs]
    agents = next((value.agents for value in values if value.agents is not None), None)
    if any(value.agents != agents for value in values):
        low.unsupported(node, " of values that depend on the agent and values that do not")
    axis = low.axis(node, values[0], node.attributes["axis"])
    total = sum(value.shape[axis] for value in values)
    shape = [total if other == axis else size for other, size in enumerate(values[0].shape)]
    result = low.values[node.outputs[0]] = low.new(shape, agents)
    strides, target = row_major(shape), low.place(result)
    body: Body = []
    for value in values:
        body += low.copy(value.shape, low.place(value), row_major(value.shape), target, strides)
        target = target.plus(value.shape[axis] * strides[axis])
    return body
