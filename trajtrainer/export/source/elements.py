"""ONNX operators that work on each element alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from trajtrainer.export.source.lowering import Body, Lowering, Place, Position, number, row_major
from trajtrainer.export.source.program import If, Let, Set
from trajtrainer.nn.graph import Node

SWISH: Final = "Swish"  # not of ONNX: x * sigmoid(x), which the networks are full of

# Expressions of the inputs a, b, c; {name} is an attribute, with its default below.
EXPRESSIONS: Final[dict[str, str]] = {
    "Add": "a + b",
    "Sub": "a - b",
    "Mul": "a * b",
    "Div": "a / b",
    "Pow": "pow(a, b)",
    "And": "a * b",
    "Not": "1.0 - a",
    SWISH: "a / (1.0 + exp(-a))",
    "Sigmoid": "1.0 / (1.0 + exp(-a))",
    "Tanh": "tanh(a)",
    "Relu": "max(a, 0.0)",
    "LeakyRelu": "max(a, 0.0) + {alpha} * min(a, 0.0)",
    "Elu": "max(a, 0.0) + {alpha} * (exp(min(a, 0.0)) - 1.0)",
    "Selu": "{gamma} * (max(a, 0.0) + {alpha} * (exp(min(a, 0.0)) - 1.0))",
    "PRelu": "max(a, 0.0) + b * min(a, 0.0)",
    "HardSigmoid": "min(max({alpha} * a + {beta}, 0.0), 1.0)",
    "Softplus": "max(a, 0.0) + log(1.0 + exp(-abs(a)))",
    "Softsign": "a / (1.0 + abs(a))",
    "Exp": "exp(a)",
    "Log": "log(a)",
    "Sqrt": "sqrt(a)",
    "Sin": "sin(a)",
    "Cos": "cos(a)",
    "Abs": "abs(a)",
    "Floor": "floor(a)",
    "Ceil": "ceil(a)",
    "Neg": "-a",
    "Reciprocal": "1.0 / a",
}
_DEFAULTS: Final[dict[str, dict[str, float]]] = {
    "LeakyRelu": {"alpha": 0.01},
    "Elu": {"alpha": 1.0},
    "Selu": {"alpha": 1.67326319, "gamma": 1.05070102},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
}
CONDITIONS: Final = {"Less": "a < b", "Greater": "a > b"}


def elementwise(low: Lowering, node: Node, make: Callable[[str, list[str]], Body]) -> Body:
    """``make`` returns the statements that set the target to something of the inputs' elements."""
    values = [low.value(name) for name in node.inputs if name]
    shape, agents, strides = low.broadcast(node, values)
    result = low.values[node.outputs[0]] = low.new(shape, agents)
    target = low.place(result)
    operands = [(target.at, row_major(shape)), *((Position(), steps) for steps in strides)]

    def body(at: list[Position]) -> Body:
        return make(
            str(Place(target.array, at[0])), [low.read(value, each) for value, each in zip(values, at[1:], strict=True)]
        )

    return low.nest(shape, operands, body)


def fill_in(low: Lowering, expression: str, inputs: Sequence[str]) -> tuple[Body, str]:
    """Put the inputs into an expression of a, b and c. One that it takes several times is read once."""
    lets: Body = []
    for name, text in zip("abc", inputs, strict=False):
        pattern = re.compile(rf"\b{name}\b(?!\()")
        if len(pattern.findall(expression)) > 1 and "@" in text:
            known = low.local()
            lets.append(Let(known, text))
            text = known
        expression = pattern.sub(lambda _, text=text: text, expression)  # type: ignore[misc]
    return lets, expression


def expression(low: Lowering, node: Node) -> Body:
    """Write one of ``EXPRESSIONS``."""
    attributes = {
        name: number(node.attributes.get(name, default)) for name, default in _DEFAULTS.get(node.operator, {}).items()
    }
    text = EXPRESSIONS[node.operator].format(**attributes)

    def make(target: str, inputs: list[str]) -> Body:
        lets, value = fill_in(low, text, inputs)
        return [*lets, Set(target, value)]

    return elementwise(low, node, make)


def condition(low: Lowering, node: Node) -> Body:
    """Write one of ``CONDITIONS`` as 0.0 or 1.0."""

    def make(target: str, inputs: list[str]) -> Body:
        lets, condition = fill_in(low, CONDITIONS[node.operator], inputs)
        return [*lets, If(condition, [Set(target, "1.0")], [Set(target, "0.0")])]

    return elementwise(low, node, make)


def where(low: Lowering, node: Node) -> Body:
    """Write a choice between two values."""
    return elementwise(
        low,
        node,
        lambda target, inputs: [If(f"{inputs[0]} != 0.0", [Set(target, inputs[1])], [Set(target, inputs[2])])],
    )


def largest(low: Lowering, node: Node) -> Body:
    """Write the largest or smallest of any number of values."""
    function = node.operator.lower()

    def make(target: str, inputs: list[str]) -> Body:
        value = inputs[0]
        for other in inputs[1:]:
            value = f"{function}({value}, {other})"
        return [Set(target, value)]

    return elementwise(low, node, make)


def clip(low: Lowering, node: Node) -> Body:
    """Write limits."""
    lowest, highest = node.attributes.get("min"), node.attributes.get("max")

    def make(target: str, inputs: list[str]) -> Body:
        value = inputs[0]
        if lowest is not None:
            value = f"max({value}, {number(lowest)})"
        if highest is not None:
            value = f"min({value}, {number(highest)})"
        return [Set(target, value)]

    return elementwise(low, node, make)
