"""The ONNX operators that source code can be written of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trajtrainer.export.source import axes, elements, layers, views
from trajtrainer.export.source.lowering import Body, Lowering
from trajtrainer.nn.graph import Node

RANDOM: Final = frozenset({"RandomNormalLike", "RandomUniformLike", "Multinomial"})

OPERATORS: Final[dict[str, Callable[[Lowering, Node], Body]]] = {
    **dict.fromkeys(elements.EXPRESSIONS, elements.expression),
    **dict.fromkeys(elements.CONDITIONS, elements.condition),
    **dict.fromkeys(("Max", "Min"), elements.largest),
    **dict.fromkeys(("Identity", "Dropout"), views.same),
    **dict.fromkeys(("MaxPool", "AveragePool"), layers.pool),
    **dict.fromkeys(
        ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "GlobalAveragePool", "GlobalMaxPool"), axes.reduce
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax"), axes.softmax),
    "ArgMax": axes.argmax,
    "BatchNormalization": layers.batch_normalization,
    "Cast": views.cast,
    "Clip": elements.clip,
    "Concat": views.concat,
    "Conv": layers.conv,
    "Flatten": views.flatten,
    "Gemm": layers.gemm,
    "LSTM": layers.lstm,
    "MatMul": layers.matmul,
    "Multinomial": axes.multinomial,
    "RandomNormalLike": axes.normal,
    "RandomUniformLike": axes.uniform,
    "Reshape": views.reshape,
    "Slice": views.cut,
    "Split": views.split,
    "Squeeze": views.squeeze,
    "Transpose": views.transpose,
    "Unsqueeze": views.unsqueeze,
    "Where": elements.where,
}
