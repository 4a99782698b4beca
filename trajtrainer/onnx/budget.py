"""A limit of memory and time for trying a model of unknown origin.

A file of a few hundred bytes can ask for any amount of both: forty operators that each double their input, or a pooling
whose padding is a million wide. So the shapes of every operator's outputs are inferred before it runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

from trajtrainer.onnx.contract import BARRACUDA_OPERATORS

# Ten times what policies for pictures of 512 x 512 need.
_MAX_NUMBERS = 50_000_000
_MAX_SECONDS = 20.0
# What the evaluator takes per number of its result, roughly; operators that it does not loop over in Python are quick.
_LOOPED = {
    "AveragePool",
    "ConvTranspose",
    "LSTM",
    "MaxPool",
    "NonMaxSuppression",
    "OneHot",
    "Resize",
    "TopK",
    "Upsample",
}
_QUICK = BARRACUDA_OPERATORS - _LOOPED
_QUICK_S, _CONVOLUTION_S, _LOOPED_S, _PRODUCT_S = 1e-7, 2e-6, 1e-4, 1e-9
# Only small inputs hold shapes, sizes and the like.
_MAX_SHAPE_NUMBERS = 1000


class OverBudgetError(ValueError):
    """The model would take more memory or time than any policy needs."""


class Budget:
    """The budget of one run of a model. Each of its operators is charged before it runs.

    Args:
        opset: of the standard operators.
    """

    def __init__(self, opset: int) -> None:
        self._opset = opset
        self.reset()

    def reset(self) -> None:
        """Begin a new run."""
        self._numbers = 0
        self._seconds = 0.0

    def charge(self, node: onnx.NodeProto, inputs: Sequence[Any], *, quick: bool) -> None:
        """Count what one operator will take.

        Args:
            node: the operator.
            inputs: what it is about to be given.
            quick: it is known to need no loop in Python.

        Raises:
            OverBudgetError: it is too much.
            Exception: the operator does not fit its inputs; the type depends on what is wrong.
        """
        outputs = self._outputs(node, inputs)
        terms = _terms(node, inputs)
        self._numbers += outputs
        self._seconds += outputs * (_seconds_each(node, quick=quick) + terms * _PRODUCT_S)
        numbers = self._numbers + _in_passing(node, inputs, outputs * terms)
        if numbers > _MAX_NUMBERS or self._seconds > _MAX_SECONDS:
            raise OverBudgetError(
                f"its operators up to {node.op_type} {node.name!r} would make {numbers:,} numbers and take "
                f"{self._seconds:,.0f} s; at most {_MAX_NUMBERS:,} and {_MAX_SECONDS:.0f} s are tried"
            )

    def _outputs(self, node: onnx.NodeProto, inputs: Sequence[Any]) -> int:
        """Return numbers in its results. Where a shape depends on the values, as many as its largest input has."""
        arrays = {name: np.asarray(each) for name, each in zip(node.input, inputs, strict=False) if name}
        largest = max((array.size for array in arrays.values()), default=0)
        return sum(math.prod(_sizes(each, largest)) for each in self._infer(node, arrays).values())

    def _infer(self, node: onnx.NodeProto, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, onnx.TypeProto]:
        elements = {name: onnx.helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in arrays.items()}
        return onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(node.op_type, self._opset, node.domain),
            node,
            {name: onnx.helper.make_tensor_type_proto(elements[name], array.shape) for name, array in arrays.items()},
            {
                name: onnx.numpy_helper.from_array(array)
                for name, array in arrays.items()
                if array.size <= _MAX_SHAPE_NUMBERS
            },
        )


def _sizes(value: onnx.TypeProto, unknown: int) -> Iterator[int]:
    for dim in value.tensor_type.shape.dim:
        yield dim.dim_value if dim.HasField("dim_value") else unknown


def _terms(node: onnx.NodeProto, inputs: Sequence[Any]) -> int:
    """Return how many products or comparisons make one number of the result."""
    if node.op_type == "Conv":
        return math.prod(inputs[1].shape[1:])
    if node.op_type in ("MatMul", "Gemm"):
        return max(inputs[0].shape, default=1)
    return math.prod(_whole_numbers(node, "kernel_shape"))


def _seconds_each(node: onnx.NodeProto, *, quick: bool) -> float:
    if node.op_type == "Conv":
        return _CONVOLUTION_S
    return _QUICK_S if quick or node.op_type in _QUICK else _LOOPED_S


def _in_passing(node: onnx.NodeProto, inputs: Sequence[Any], products: int) -> int:
    """Return numbers that live as long as the operator runs.

    Its padded input, and a convolution's windows side by side, which are there once for all of its output channels.
    """
    windows = products // max(1, len(inputs[1])) if node.op_type == "Conv" else 0
    pads = _whole_numbers(node, "pads")
    rank = len(pads) // 2
    sizes = inputs[0].shape if pads and inputs else ()
    within = sizes[len(sizes) - rank :]
    padded = [size + before + after for size, before, after in zip(within, pads, pads[rank:], strict=False)]
    return int(windows + math.prod(sizes[: len(sizes) - rank]) * math.prod(padded))


def _whole_numbers(node: onnx.NodeProto, name: str) -> Sequence[int]:
    return next((attribute.ints for attribute in node.attribute if attribute.name == name), ())


class Metered:
    """An operator of the reference evaluator that is charged before it runs."""

    def __init__(self, operator: OpRun, budget: Budget, *, quick: bool) -> None:
        self._operator = operator
        self._budget = budget
        self._quick = quick

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)

    def run(self, *inputs: Any, **options: Any) -> Any:
        """Charge the budget and run the operator."""
        self._budget.charge(self._operator.onnx_node, inputs, quick=self._quick)
        return self._operator.run(*inputs, **options)  # type: ignore[no-untyped-call]
