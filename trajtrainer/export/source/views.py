"""ONNX operators that give the same numbers another shape or order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trajtrainer.export.source.lowering import Body, Lowering, Value, row_major
from trajtrainer.nn.graph import FLOAT, Node


def cast(low: Lowering, node: Node) -> Body:
    """Take over numbers as floats."""
    if node.attributes.get("to") != FLOAT:
        low.refuse(node, " to other types than float")
    return same(low, node)  # conditions are 0.0 and 1.0 already


def view(low: Lowering, node: Node, shape: Sequence[int], agents: int | None, offset: int = 0) -> Body:
    """Take over the numbers of the first input, from ``offset`` on, in another shape."""
    value = low.value(node.inputs[0])
    place = low.place(value)
    low.values[node.outputs[0]] = Value(tuple(shape), agents, place.array, value.offset + offset)
    return []


def same(low: Lowering, node: Node) -> Body:
    """Take over the first input."""
    value = low.value(node.inputs[0])
    return view(low, node, value.shape, value.agents)


def reshape(low: Lowering, node: Node) -> Body:
    """Give another shape, in which agents stay apart."""
    value = low.value(node.inputs[0])
    given = low.constant(node.inputs[1])
    if given is None or value.agents is None:
        low.refuse(node, " to a shape that is computed")
    wanted = [int(size) for size in given]
    shape = [value.shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
    agents = value.agents if value.agents < len(wanted) and wanted[value.agents] == 0 else None
    if -1 in shape:
        free = shape.index(-1)
        # What is left is the number of agents, unless that is kept by a 0 elsewhere.
        shape[free] = 1 if agents is None else value.size // -math.prod(shape)
        agents = free if agents is None else agents
    mixes = agents is None or math.prod(shape[:agents]) > 1 or math.prod(value.shape[: value.agents]) > 1
    if mixes or math.prod(shape) != value.size:
        low.refuse(node, " across agents")
    return view(low, node, shape, agents)


def flatten(low: Lowering, node: Node) -> Body:
    """Give the shape of one row per agent."""
    value = low.value(node.inputs[0])
    if node.attributes.get("axis", 1) != 1 or value.agents != 0:
        low.refuse(node, " across agents")
    return view(low, node, (1, value.size), 0)


def squeeze(low: Lowering, node: Node) -> Body:
    """Drop axes of size 1."""
    value = low.value(node.inputs[0])
    if "axes" not in node.attributes or value.agents is None:
        low.refuse(node, " without axes")
    dropped = {low.axis(node, value, axis) for axis in node.attributes["axes"]}
    shape = [size for axis, size in enumerate(value.shape) if axis not in dropped]
    return view(low, node, shape, value.agents - sum(axis < value.agents for axis in dropped))


def unsqueeze(low: Lowering, node: Node) -> Body:
    """Add axes of size 1."""
    value = low.value(node.inputs[0])
    axes = node.attributes["axes"]
    if value.agents is None:
        low.refuse(node, " of what does not depend on the agent")
    rank = len(value.shape) + len(axes)
    added = {axis % rank for axis in axes}
    kept = [axis for axis in range(rank) if axis not in added]
    shape = [1] * rank
    for axis, size in zip(kept, value.shape, strict=True):
        shape[axis] = size
    return view(low, node, shape, kept[value.agents])


def transpose(low: Lowering, node: Node) -> Body:
    """Change the order of axes; the numbers move only if they have to."""
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
    """Cut a part out."""
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
    """Call a part of a value ``name``; it is copied only if it is in pieces."""
    one_piece = all(
        size == 1 or stride == own for size, stride, own in zip(shape, strides, row_major(shape), strict=True)
    )
    if one_piece:
        return view(low, Node(node.operator, node.inputs[:1], (name,), {}), shape, value.agents, offset)
    result = low.values[name] = low.new(shape, value.agents)
    return low.copy(shape, low.place(value).plus(offset), strides, low.place(result), row_major(shape))


def split(low: Lowering, node: Node) -> Body:
    """Cut into parts."""
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
    """Put side by side."""
    values = [low.value(name) for name in node.inputs]
    agents = next((value.agents for value in values if value.agents is not None), None)
    if any(value.agents != agents for value in values):
        low.refuse(node, " of what depends on the agent and what does not")
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
