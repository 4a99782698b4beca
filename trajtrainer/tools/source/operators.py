"""ONNX operators that work element by element, matrix products, convolutions, pooling and LSTMs."""

import math
import re
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

import numpy as np

from trajtrainer.learning.nn.graph import Node
from trajtrainer.tools.source import shapes
from trajtrainer.tools.source.lowering import Body, Lowering, Place, Value, number, row_major
from trajtrainer.tools.source.program import If, Let, Set

SWISH: Final = "Swish"  # not an ONNX operator: x * sigmoid(x), which most networks use

# Expressions in terms of the inputs a, b and c; {name} is an attribute, whose default is below.
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
# Condition, and the values if it is true and false.
CHOICES: Final = {"Less": ("a < b", "1.0", "0.0"), "Greater": ("a > b", "1.0", "0.0"), "Where": ("a != 0.0", "b", "c")}

_GATES: Final = 4
RANDOM: Final = frozenset({"RandomNormalLike", "RandomUniformLike", "Multinomial"})


def elementwise(low: Lowering, node: Node, values: Sequence[Value], make: Callable[[str, list[str]], Body]) -> Body:
    """Translate an element-wise operator. ``make`` returns statements that set the target, given the elements."""
    shape, agents, strides = low.broadcast(node, values)
    target = low.define(node.outputs[0], shape, agents)
    operands = [(target, row_major(shape)), *((Place(), steps) for steps in strides)]

    def body(at: list[Place]) -> Body:
        return make(str(at[0]), [low.read(value, each) for value, each in zip(values, at[1:], strict=True)])

    return low.nest(shape, operands, body)


def fill_in(low: Lowering, expression: str, inputs: Sequence[str]) -> tuple[Body, str]:
    """Insert the inputs into an expression of a, b and c. An input that occurs several times is only read once."""
    lets: Body = []
    for name, text in zip("abc", inputs, strict=False):
        pattern = re.compile(rf"\b{name}\b(?!\()")
        if len(pattern.findall(expression)) > 1 and "@" in text:
            known = low.local()
            lets.append(Let(known, text))
            text = known
        expression = pattern.sub(lambda _, text=text: text, expression)  # type: ignore[misc]
    return lets, expression


def expression(low: Lowering, node: Node, *values: Value) -> Body:
    """Translate one of ``EXPRESSIONS``."""
    defaults = _DEFAULTS.get(node.operator, {}).items()
    attributes = {name: number(node.attributes.get(name, default)) for name, default in defaults}
    return written(low, node, values, EXPRESSIONS[node.operator].format(**attributes))


def written(low: Lowering, node: Node, values: Sequence[Value], text: str) -> Body:
    """Translate an operator to an expression of a, b and c."""

    def make(target: str, inputs: list[str]) -> Body:
        lets, value = fill_in(low, text, inputs)
        return [*lets, Set(target, value)]

    return elementwise(low, node, values, make)


def choice(low: Lowering, node: Node, *values: Value) -> Body:
    """Translate one of ``CHOICES``."""

    def make(target: str, inputs: list[str]) -> Body:
        lets, condition = fill_in(low, CHOICES[node.operator][0], inputs)
        then, otherwise = (fill_in(low, text, inputs)[1] for text in CHOICES[node.operator][1:])
        return [*lets, If(condition, [Set(target, then)], [Set(target, otherwise)])]

    return elementwise(low, node, values, make)


def largest(low: Lowering, node: Node, *values: Value) -> Body:
    """Translate the maximum or minimum of several values."""
    function = node.operator.lower()

    def make(target: str, inputs: list[str]) -> Body:
        return [Set(target, reduce(lambda value, other: f"{function}({value}, {other})", inputs))]

    return elementwise(low, node, values, make)


def clip(low: Lowering, node: Node, value: Value) -> Body:
    """Translate a clip to limits."""
    text = "a"
    for function, limit in (("max", node.attributes.get("min")), ("min", node.attributes.get("max"))):
        if limit is not None:
            text = f"{function}({text}, {number(limit)})"
    return written(low, node, [value], text)


def gemm(low: Lowering, node: Node, value: Value, *_: Value) -> Body:
    """Translate a linear layer on one row. Its weights must be constant."""
    weight = low.constant(node.inputs[1])
    bias = low.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    is_plain = value.agents == 0 and not node.attributes.get("transA", 0)
    if not is_plain or weight is None or (bias is None and len(node.inputs) > 2):
        low.unsupported(node, " with weights that are computed")
    matrix = (weight.T if node.attributes.get("transB", 0) else weight) * np.float32(node.attributes.get("alpha", 1.0))
    m = matrix.shape[1]
    if bias is not None:
        bias = np.broadcast_to(bias * np.float32(node.attributes.get("beta", 1.0)), (1, m)).ravel()
    return low.linear(low.place(value), low.define(node.outputs[0], (1, m), 0), matrix, bias, name=node.inputs[1])


def matmul(low: Lowering, node: Node, left: Value, right: Value) -> Body:
    """Translate a matrix product. Both matrices may depend on the agent."""
    if len(left.shape) < 2 or len(right.shape) < 2 or (right.agents is not None and left.agents is None):
        low.unsupported(node, " of vectors")
    n, m = right.shape[-2:]
    rows = left.shape[-2]
    if right.constant is not None and len(right.shape) == 2:
        target, matrix = low.define(node.outputs[0], (*left.shape[:-1], m), left.agents), right.constant
        operands = [(low.place(left), (n,)), (target, (m,))]
        return low.nest(
            (left.size // n,), operands, lambda at: low.linear(at[0], at[1], matrix, None, name=node.inputs[1])
        )
    outer = [Value(value.shape[:-2], value.agents) for value in (left, right)]
    if any(value.agents is not None and value.agents >= len(value.shape) - 2 for value in (left, right)):
        low.unsupported(node, " across agents")
    shape, agents, strides = low.broadcast(node, outer)
    target = low.define(node.outputs[0], (*shape, rows, m), agents)
    products = [
        (low.place(left), [*(stride * rows * n for stride in strides[0]), n]),
        (low.place(right), [*(stride * n * m for stride in strides[1]), 0]),
        (target, [*(stride * rows * m for stride in row_major(shape)), m]),
    ]

    def body(at: list[Place]) -> Body:
        x, matrix, y = at
        return [*low.zeros(y, m), *low.add_columns(x, y, n, m, matrix)]

    return low.nest((*shape, rows), products, body)


def windows(
    low: Lowering, node: Node, value: Value, kernel: Sequence[int]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return strides, dilations, padding and the size of the result, for a convolution or pooling of images."""
    if len(value.shape) != 4 or value.agents != 0 or node.attributes.get("ceil_mode", 0):
        low.unsupported(node, " for anything but images, or with ceil_mode")
    if node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", b"NOTSET", "VALID", b"VALID"):
        low.unsupported(node, " with auto_pad")
    strides, dilations = node.attributes.get("strides", [1, 1]), node.attributes.get("dilations", [1, 1])
    pads = node.attributes.get("pads", [0, 0, 0, 0])
    sizes = [
        (value.shape[2 + k] + pads[k] + pads[2 + k] - dilations[k] * (kernel[k] - 1) - 1) // strides[k] + 1
        for k in range(2)
    ]
    return list(strides), list(dilations), list(pads), sizes


def pixels(at: Sequence[Place], columns: int, steps: Sequence[int], *channel: int) -> list[tuple[Place, Sequence[int]]]:
    """Return the operands for loops over the pixels of an image, ``steps`` rows and columns apart.

    Args:
        at: place of the first pixel, its row and its column.
        columns: number of columns of the image.
        steps: distance of rows and of columns.
        channel: stride of the channels, if there is a loop over them, too.
    """
    (first, row, column), (y, x), still = at, steps, [0] * len(channel)
    return [(first, [*channel, y * columns, x]), (row, [*still, y, 0]), (column, [*still, 0, x])]


def inside(value: Value, pads: Sequence[int], at: Sequence[Place]) -> str:
    """Return a condition that is true for pixels of the padded image that are not padding; "" without padding."""
    tests = []
    for k in range(2):
        if pads[k]:
            tests.append(f"{at[k]} >= {pads[k]}")
        if pads[k] or pads[2 + k]:
            tests.append(f"{at[k]} < {pads[k] + value.shape[2 + k]}")
    return " && ".join(tests)


def conv(low: Lowering, node: Node, value: Value, *_: Value) -> Body:
    """Translate a convolution of images to a linear layer on the row of all pixels under the kernel."""
    weight = low.constant(node.inputs[1])
    if weight is None or len(weight.shape) != 4:
        low.unsupported(node, " of this kind")
    bias = low.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    channels, inputs, *kernel = weight.shape
    strides, dilations, pads, (height, width) = windows(low, node, value, kernel)
    groups = node.attributes.get("group", 1)
    rows, columns = value.shape[2:]
    each = channels // groups
    target, source = low.define(node.outputs[0], (1, channels, height, width), 0), low.place(value)
    patch, outputs = low.scratch(inputs * kernel[0] * kernel[1]), low.scratch(each)

    def one_group(group: int) -> Body:
        part = slice(group * each, (group + 1) * each)
        matrix = weight[part].reshape(each, -1).T
        own_bias = None if bias is None else bias[part]
        name = node.inputs[1] if groups == 1 else f"{node.inputs[1]}, group {group}"

        def at_one_place(at: list[Place]) -> Body:
            *corner, out = at

            def gather(inner: list[Place]) -> Body:
                to, below, y, x = inner
                copy = Set(str(to), str(below))
                condition = inside(value, pads, (y, x))
                return [If(condition, [copy], [Set(copy.target, "0.0")])] if condition else [copy]

            # Gather the pixels under the kernel, so that the rest is a linear layer on a row.
            shape = (inputs, *kernel)
            below_kernel = pixels(corner, columns, dilations, rows * columns)
            gathered = low.nest(shape, [(patch, row_major(shape)), *below_kernel], gather)
            scattered = low.copy((each,), outputs, (1,), out, (height * width,))
            return [*gathered, *low.linear(patch, outputs, matrix, own_bias, name=name), *scattered]

        first = source.plus(group * inputs * rows * columns - pads[0] * columns - pads[1])
        out = target.plus(group * each * height * width)
        operands = [*pixels((first, Place(), Place()), columns, strides), (out, (width, 1))]
        return low.nest((height, width), operands, at_one_place)

    return [statement for group in range(groups) for statement in one_group(group)]


def pool(low: Lowering, node: Node, value: Value) -> Body:
    """Translate a max or average pooling."""
    kernel = node.attributes["kernel_shape"]
    strides, dilations, pads, (height, width) = windows(low, node, value, kernel)
    averages = node.operator == "AveragePool"
    if averages and any(pads) and not node.attributes.get("count_include_pad", 0):
        low.unsupported(node, " that leaves the padding out")
    _, channels, rows, columns = value.shape
    target, source = low.define(node.outputs[0], (1, channels, height, width), 0), low.place(value)

    begin, step, factor = shapes.accumulation(node.operator, math.prod(kernel))

    def at_one_place(at: list[Place]) -> Body:
        *corner, out = at
        total = low.local("sum" if averages else "best")

        def take(inner: list[Place]) -> Body:
            take_one = Set(total, step.format(total, inner[0]))
            condition = inside(value, pads, inner[1:])
            return [If(condition, [take_one])] if condition else [take_one]

        taken = low.nest(kernel, pixels(corner, columns, dilations), take)
        return [Let(total, begin), *taken, Set(str(out), total + factor)]

    first = (source.plus(-pads[0] * columns - pads[1]), Place(), Place())
    shape = (channels, height, width)
    operands = [*pixels(first, columns, strides, rows * columns), (target, row_major(shape))]
    return low.nest(shape, operands, at_one_place)


def batch_normalization(low: Lowering, node: Node, value: Value, *_: Value) -> Body:
    """Translate a batch normalization to a scale and a shift per channel."""
    found = [low.constant(name) for name in node.inputs[1:5]]
    if any(each is None for each in found):
        low.unsupported(node, " with weights that are computed")
    scale, bias, mean, variance = (np.asarray(each, np.float64) for each in found)
    factor = scale / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    shape = (-1, *(1,) * (len(value.shape) - 2))
    values = [value]
    for name, each in ((f"{node.inputs[1]} (factor)", factor), (f"{node.inputs[2]} (shift)", bias - mean * factor)):
        numbers = each.astype(np.float32).reshape(shape)
        low.values[name] = Value(numbers.shape, constant=numbers)
        values.append(low.values[name])
    return written(low, node, values, "a * b + c")


def lstm(low: Lowering, node: Node, x: Value, *_: Value) -> Body:
    """Translate one step of an LSTM."""
    inputs = [*node.inputs, *[""] * (8 - len(node.inputs))]
    weights, recurrence, bias = (low.constant(name) for name in inputs[1:4])
    plain = node.attributes.get("direction", "forward") in ("forward", b"forward") and not any(
        name in node.attributes for name in ("activations", "clip", "input_forget", "layout")
    )
    size = node.attributes["hidden_size"]
    if not plain or inputs[4] or inputs[7] or weights is None or recurrence is None or not inputs[5] or not inputs[6]:
        low.unsupported(node, " of this kind")
    if len(x.shape) != 3 or x.shape[:2] != (1, 1) or x.agents != 1:
        low.unsupported(node, " over several steps")
    before, cell_before = (low.place(low.values[name]) for name in inputs[5:7])
    total = None if bias is None else bias[0, : _GATES * size] + bias[0, _GATES * size :]
    gates, hidden, cell = low.scratch(_GATES * size), low.scratch(size), low.scratch(size)
    outputs = (Value((1, 1, 1, size), 2, hidden), Value((1, 1, size), 1, hidden), Value((1, 1, size), 1, cell))
    low.values.update(zip(node.outputs, outputs, strict=False))
    body = low.linear(low.place(x), gates, weights[0].T, total, name=inputs[1])
    body += low.linear(before, gates, recurrence[0].T, None, name=inputs[2], adds=True)

    def unit(at: list[Place]) -> Body:
        gate, old, new, out = at
        i, o, f, c = (low.local() for _ in range(_GATES))
        return [
            *(Let(name, f"1.0 / (1.0 + exp(-{gate.plus(k * size)}))") for k, name in enumerate((i, o, f))),
            Let(c, f"{f} * {old} + {i} * tanh({gate.plus(3 * size)})"),
            Set(str(new), c),
            Set(str(out), f"{o} * tanh({c})"),
        ]

    return body + low.nest((size,), [(start, (1,)) for start in (gates, cell_before, cell, hidden)], unit)


# Operator -> a function that translates a node, given the program, the node and its inputs, without missing ones ("").
OPERATORS: Final[dict[str, Callable[..., Body]]] = {
    **dict.fromkeys(EXPRESSIONS, expression),
    **dict.fromkeys(CHOICES, choice),
    **dict.fromkeys(("Max", "Min"), largest),
    **dict.fromkeys(("Identity", "Dropout"), shapes.same),
    **dict.fromkeys(("MaxPool", "AveragePool"), pool),
    **dict.fromkeys(
        ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "GlobalAveragePool", "GlobalMaxPool"), shapes.reduce
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax"), shapes.softmax),
    "ArgMax": shapes.argmax,
    "BatchNormalization": batch_normalization,
    "Cast": shapes.cast,
    "Clip": clip,
    "Concat": shapes.concat,
    "Conv": conv,
    "Flatten": shapes.flatten,
    "Gemm": gemm,
    "LSTM": lstm,
    "MatMul": matmul,
    "Multinomial": shapes.multinomial,
    "RandomNormalLike": shapes.normal,
    "RandomUniformLike": shapes.uniform,
    "Reshape": shapes.reshape,
    "Slice": shapes.cut,
    "Split": shapes.split,
    "Squeeze": shapes.squeeze,
    "Transpose": shapes.transpose,
    "Unsqueeze": shapes.unsqueeze,
}
