"""ONNX operators that work element by element, matrix products, convolutions, pooling and LSTMs."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from trajtrainer.learning.nn.graph import Node
from trajtrainer.tools.source import shapes
from trajtrainer.tools.source.lowering import LOWEST, ArrayPlace, Body, Lowering, Position, Value, number, row_major
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
CONDITIONS: Final = {"Less": "a < b", "Greater": "a > b"}

_GATES: Final = 4
RANDOM: Final = frozenset({"RandomNormalLike", "RandomUniformLike", "Multinomial"})


def elementwise(low: Lowering, node: Node, make: Callable[[str, list[str]], Body]) -> Body:
    """Translate an element-wise operator. ``make`` returns statements that set the target, given the elements."""
    values = [low.value(name) for name in node.inputs if name]
    shape, agents, strides = low.broadcast(node, values)
    result = low.values[node.outputs[0]] = low.new(shape, agents)
    target = low.place(result)
    operands = [(target.at, row_major(shape)), *((Position(), steps) for steps in strides)]

    def body(at: list[Position]) -> Body:
        elements = [low.read(value, each) for value, each in zip(values, at[1:], strict=True)]
        return make(str(ArrayPlace(target.array, at[0])), elements)

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


def expression(low: Lowering, node: Node) -> Body:
    """Translate one of ``EXPRESSIONS``."""
    attributes = _DEFAULTS.get(node.operator, {})
    attributes = {name: node.attributes.get(name, default) for name, default in attributes.items()}
    text = EXPRESSIONS[node.operator].format(**{name: number(value) for name, value in attributes.items()})

    def make(target: str, inputs: list[str]) -> Body:
        lets, value = fill_in(low, text, inputs)
        return [*lets, Set(target, value)]

    return elementwise(low, node, make)


def condition(low: Lowering, node: Node) -> Body:
    """Translate one of ``CONDITIONS``, whose result is 0.0 or 1.0."""

    def make(target: str, inputs: list[str]) -> Body:
        lets, condition = fill_in(low, CONDITIONS[node.operator], inputs)
        return [*lets, If(condition, [Set(target, "1.0")], [Set(target, "0.0")])]

    return elementwise(low, node, make)


def where(low: Lowering, node: Node) -> Body:
    """Translate a choice between two values."""

    def make(target: str, inputs: list[str]) -> Body:
        return [If(f"{inputs[0]} != 0.0", [Set(target, inputs[1])], [Set(target, inputs[2])])]

    return elementwise(low, node, make)


def largest(low: Lowering, node: Node) -> Body:
    """Translate the maximum or minimum of several values."""
    function = node.operator.lower()

    def make(target: str, inputs: list[str]) -> Body:
        value = inputs[0]
        for other in inputs[1:]:
            value = f"{function}({value}, {other})"
        return [Set(target, value)]

    return elementwise(low, node, make)


def clip(low: Lowering, node: Node) -> Body:
    """Translate a clip to limits."""
    lowest, highest = node.attributes.get("min"), node.attributes.get("max")

    def make(target: str, inputs: list[str]) -> Body:
        value = inputs[0]
        if lowest is not None:
            value = f"max({value}, {number(lowest)})"
        if highest is not None:
            value = f"min({value}, {number(highest)})"
        return [Set(target, value)]

    return elementwise(low, node, make)


def gemm(low: Lowering, node: Node) -> Body:
    """Translate a linear layer on one row. Its weights must be constant."""
    value, weight = low.value(node.inputs[0]), low.constant(node.inputs[1])
    bias = low.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    is_plain = value.agents == 0 and not node.attributes.get("transA", 0)
    if not is_plain or weight is None or (bias is None and len(node.inputs) > 2):
        low.unsupported(node, " with weights that are computed")
    matrix = (weight.T if node.attributes.get("transB", 0) else weight) * np.float32(node.attributes.get("alpha", 1.0))
    m = matrix.shape[1]
    if bias is not None:
        bias = np.broadcast_to(bias * np.float32(node.attributes.get("beta", 1.0)), (1, m)).ravel()
    result = low.values[node.outputs[0]] = low.new((1, m), 0)
    return low.linear(low.place(value), low.place(result), matrix, bias, name=node.inputs[1])


def matmul(low: Lowering, node: Node) -> Body:
    """Translate a matrix product. Both matrices may depend on the agent."""
    left, right = (low.value(name) for name in node.inputs)
    if len(left.shape) < 2 or len(right.shape) < 2 or (right.agents is not None and left.agents is None):
        low.unsupported(node, " of vectors")
    n, m = right.shape[-2:]
    rows = left.shape[-2]
    if right.constant is not None and len(right.shape) == 2:
        result = low.values[node.outputs[0]] = low.new((*left.shape[:-1], m), left.agents)
        constant = right.constant
        source, target = low.place(left), low.place(result)

        def row(at: list[Position]) -> Body:
            x, y = ArrayPlace(source.array, at[0]), ArrayPlace(target.array, at[1])
            return low.linear(x, y, constant, None, name=node.inputs[1])

        return low.nest((left.size // n,), [(source.at, (n,)), (target.at, (m,))], row)
    outer = [Value(value.shape[:-2], value.agents) for value in (left, right)]
    if any(value.agents is not None and value.agents >= len(value.shape) - 2 for value in (left, right)):
        low.unsupported(node, " across agents")
    shape, agents, strides = low.broadcast(node, outer)
    result = low.values[node.outputs[0]] = low.new((*shape, rows, m), agents)
    places = [low.place(left), low.place(right), low.place(result)]
    operands = [
        (places[0].at, [*(stride * rows * n for stride in strides[0]), n]),
        (places[1].at, [*(stride * n * m for stride in strides[1]), 0]),
        (places[2].at, [*(stride * rows * m for stride in row_major(shape)), m]),
    ]

    def body(at: list[Position]) -> Body:
        x, matrix, y = (ArrayPlace(place.array, each) for place, each in zip(places, at, strict=True))
        return [*low.zeros(y, m), *low.add_columns(x, y, n, m, matrix)]

    return low.nest((*shape, rows), operands, body)


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


def inside(value: Value, pads: Sequence[int], at: Sequence[Position]) -> str:
    """Return the condition that a row and a column of the padded image are not padding; "" without padding."""
    tests = []
    for k in range(2):
        if pads[k]:
            tests.append(f"{at[k]} >= {pads[k]}")
        if pads[k] or pads[2 + k]:
            tests.append(f"{at[k]} < {pads[k] + value.shape[2 + k]}")
    return " && ".join(tests)


def conv(low: Lowering, node: Node) -> Body:
    """Translate a convolution of images, as a linear layer on the row of all pixels below the kernel."""
    value, weight = low.value(node.inputs[0]), low.constant(node.inputs[1])
    if weight is None or len(weight.shape) != 4:
        low.unsupported(node, " of this kind")
    bias = low.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    channels, inputs, *kernel = weight.shape
    strides, dilations, pads, (height, width) = windows(low, node, value, kernel)
    groups = node.attributes.get("group", 1)
    _, _, rows, columns = value.shape
    each = channels // groups
    result = low.values[node.outputs[0]] = low.new((1, channels, height, width), 0)
    source, target = low.place(value), low.place(result)
    patch, outputs = low.scratch(inputs * kernel[0] * kernel[1]), low.scratch(each)

    def one_group(group: int) -> Body:
        part = slice(group * each, (group + 1) * each)
        matrix = weight[part].reshape(each, -1).T
        own_bias = None if bias is None else bias[part]
        name = node.inputs[1] if groups == 1 else f"{node.inputs[1]}, group {group}"

        def at_one_place(at: list[Position]) -> Body:
            corner, row, column, out = at

            def gather(inner: list[Position]) -> Body:
                to, below, y, x = inner
                copy = Set(str(ArrayPlace(patch.array, to)), str(ArrayPlace(source.array, below)))
                condition = inside(value, pads, (y, x))
                return [If(condition, [copy], [Set(copy.target, "0.0")])] if condition else [copy]

            # Gather the pixels below the kernel, so that the rest is a linear layer on a row.
            shape = (inputs, *kernel)
            operands = [
                (patch.at, row_major(shape)),
                (corner, (rows * columns, dilations[0] * columns, dilations[1])),
                (row, (0, dilations[0], 0)),
                (column, (0, 0, dilations[1])),
            ]
            gathered = low.nest(shape, operands, gather)
            scattered = low.copy((each,), outputs, (1,), ArrayPlace(target.array, out), (height * width,))
            return [*gathered, *low.linear(patch, outputs, matrix, own_bias, name=name), *scattered]

        first = source.at.plus(group * inputs * rows * columns - pads[0] * columns - pads[1])
        operands = [
            (first, (strides[0] * columns, strides[1])),
            (Position(), (strides[0], 0)),
            (Position(), (0, strides[1])),
            (target.at.plus(group * each * height * width), (width, 1)),
        ]
        return low.nest((height, width), operands, at_one_place)

    return [statement for group in range(groups) for statement in one_group(group)]


def pool(low: Lowering, node: Node) -> Body:
    """Translate the maximum or mean below a kernel."""
    value, kernel = low.value(node.inputs[0]), node.attributes["kernel_shape"]
    strides, dilations, pads, (height, width) = windows(low, node, value, kernel)
    averages = node.operator == "AveragePool"
    if averages and any(pads) and not node.attributes.get("count_include_pad", 0):
        low.unsupported(node, " that leaves the padding out")
    _, channels, rows, columns = value.shape
    result = low.values[node.outputs[0]] = low.new((1, channels, height, width), 0)
    source, target = low.place(value), low.place(result)

    def at_one_place(at: list[Position]) -> Body:
        corner, row, column, out = at
        total = low.local("sum" if averages else "best")

        def take(inner: list[Position]) -> Body:
            element = ArrayPlace(source.array, inner[0])
            step = Set(total, f"{total} + {element}" if averages else f"max({total}, {element})")
            condition = inside(value, pads, inner[1:])
            return [If(condition, [step])] if condition else [step]

        below = (corner, (dilations[0] * columns, dilations[1]))
        taken = low.nest(kernel, [below, (row, (dilations[0], 0)), (column, (0, dilations[1]))], take)
        scale = f" * {number(1.0 / math.prod(kernel))}" if averages else ""
        begin = "0.0" if averages else number(LOWEST)
        return [Let(total, begin), *taken, Set(str(ArrayPlace(target.array, out)), f"{total}{scale}")]

    operands = [
        (source.at.plus(-pads[0] * columns - pads[1]), (rows * columns, strides[0] * columns, strides[1])),
        (Position(), (0, strides[0], 0)),
        (Position(), (0, 0, strides[1])),
        (target.at, row_major((channels, height, width))),
    ]
    return low.nest((channels, height, width), operands, at_one_place)


def batch_normalization(low: Lowering, node: Node) -> Body:
    """Translate a batch normalization to a scale and a shift per channel."""
    value = low.value(node.inputs[0])
    found = [low.constant(name) for name in node.inputs[1:5]]
    if any(each is None for each in found):
        low.unsupported(node, " with weights that are computed")
    scale, bias, mean, variance = (np.asarray(each, np.float64) for each in found)
    factor = scale / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    shape = (-1, *(1,) * (len(value.shape) - 2))
    for name, each in ((f"{node.inputs[1]} (factor)", factor), (f"{node.inputs[2]} (shift)", bias - mean * factor)):
        numbers = each.astype(np.float32).reshape(shape)
        low.values[name] = Value(numbers.shape, constant=numbers)
    inputs = (node.inputs[0], f"{node.inputs[1]} (factor)", f"{node.inputs[2]} (shift)")
    plain = Node(node.operator, inputs, node.outputs, {})
    return elementwise(low, plain, lambda target, each: [Set(target, f"{each[0]} * {each[1]} + {each[2]}")])


def lstm(low: Lowering, node: Node) -> Body:
    """Translate one step of an LSTM."""
    inputs = [*node.inputs, *[""] * (8 - len(node.inputs))]
    x = low.value(inputs[0])
    weights, recurrence, bias = (low.constant(name) for name in inputs[1:4])
    plain = node.attributes.get("direction", "forward") in ("forward", b"forward") and not any(
        name in node.attributes for name in ("activations", "clip", "input_forget", "layout")
    )
    size = node.attributes["hidden_size"]
    if not plain or inputs[4] or inputs[7] or weights is None or recurrence is None or not inputs[5] or not inputs[6]:
        low.unsupported(node, " of this kind")
    if len(x.shape) != 3 or x.shape[:2] != (1, 1) or x.agents != 1:
        low.unsupported(node, " over several steps")
    before, cell_before = low.place(low.value(inputs[5])), low.place(low.value(inputs[6]))
    total = None if bias is None else bias[0, : _GATES * size] + bias[0, _GATES * size :]
    gates = low.scratch(_GATES * size)
    hidden, cell = (low.new((1, 1, size), 1) for _ in range(2))
    for name, value in zip(node.outputs, (Value((1, 1, 1, size), 2, hidden.array), hidden, cell), strict=False):
        low.values[name] = value
    body = low.linear(low.place(x), gates, weights[0].T, total, name=inputs[1])
    body += low.linear(before, gates, recurrence[0].T, None, name=inputs[2], adds=True)

    def unit(at: list[Position]) -> Body:
        known = [low.local() for _ in range(_GATES)]
        i, o, f, c = (ArrayPlace(gates.array, at[0].plus(k * size)) for k in range(_GATES))
        names = dict(zip("iofc", known, strict=True))
        new = ArrayPlace(low.place(cell).array, at[2])
        return [
            *(Let(names[gate], f"1.0 / (1.0 + exp(-{each}))") for gate, each in (("i", i), ("o", o), ("f", f))),
            Let(names["c"], f"{names['f']} * {ArrayPlace(cell_before.array, at[1])} + {names['i']} * tanh({c})"),
            Set(str(new), names["c"]),
            Set(str(ArrayPlace(low.place(hidden).array, at[3])), f"{names['o']} * tanh({names['c']})"),
        ]

    starts = (gates.at, cell_before.at, Position(), Position())
    return body + low.nest((size,), [(start, (1,)) for start in starts], unit)


OPERATORS: Final[dict[str, Callable[[Lowering, Node], Body]]] = {
    **dict.fromkeys(EXPRESSIONS, expression),
    **dict.fromkeys(CONDITIONS, condition),
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
    "Where": where,
}
