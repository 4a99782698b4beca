"""Runs an ONNX model in numpy on any inputs, or on zeros, as Unity does when you assign a model to a behavior.

It uses the reference evaluator of the ``onnx`` package instead of onnxruntime. The ``onnx`` package is always installed
with trajtrainer, so the result is the same on every machine, and the evaluator is fast enough (a few milliseconds).

Models of unknown origin run with limits on memory and time. A file of a few hundred bytes can require any amount of
both, for example with forty operators that each double their input, or with a pooling layer whose padding is a million
wide. The output shapes of every operator are therefore inferred before it runs.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_max_pool

from trajtrainer.policies.onnx import contract

# A damaged or malicious file can declare inputs of any size. Inputs with more values than this are not allocated.
_MAX_INPUT_SIZE = 50_000_000
# Ten times as many values as policies with 512 x 512 images need.
_MAX_NUMBERS = 50_000_000
_MAX_SECONDS = 20.0
# Approximate seconds that the evaluator takes per value of a result. Most operators are fast, but these loop in Python.
_LOOPED = "AveragePool ConvTranspose LSTM MaxPool NonMaxSuppression OneHot Resize TopK Upsample"
_QUICK = contract.BARRACUDA_OPERATORS - set(_LOOPED.split())
_QUICK_S, _CONVOLUTION_S, _LOOPED_S, _PRODUCT_S = 1e-7, 2e-6, 1e-4, 1e-9
# Inputs that contain shapes or sizes are no larger than this.
_MAX_SHAPE_NUMBERS = 1000


class GraphEvaluator:
    """Evaluates a model any number of times.

    Args:
        model: the model to run.
        limited: raise ``OverBudgetError`` before an operator that would take more memory or time than any policy needs.

    Raises:
        Exception: the evaluator lacks an operator, or the graph is invalid.
    """

    def __init__(self, model: onnx.ModelProto, *, limited: bool = False) -> None:
        self.model = model
        self._evaluator = ReferenceEvaluator(model, new_ops=[MaxPool, Multinomial])
        self._budget: Budget | None = None
        if limited:
            opset = max(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
            self._budget = Budget(opset)
            self._evaluator.rt_nodes_ = [_Metered(node, self._budget) for node in self._evaluator.rt_nodes_]

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the model once on inputs by name, and return its outputs by name.

        Raises:
            OverBudgetError: a limited run would take too much memory or time.
            Exception: the evaluator failed; the type depends on the operator.
        """
        if self._budget is not None:
            self._budget.reset()
        with np.errstate(all="ignore"):
            values = self._evaluator.run(None, dict(inputs))
        return {output.name: np.asarray(value) for output, value in zip(self.model.graph.output, values, strict=True)}


def trial_inputs(model: onnx.ModelProto, batch: int) -> dict[str, NDArray[Any]]:
    """Create zeros for every input, and masks that allow all actions.

    If the first dimension of an input is not fixed, it becomes ``batch``. Other free dimensions become 1. Unity tries a
    model with masks of zeros, which forbid every action, so a valid policy may divide by zero. Unity only reads the
    constants from that run.

    Raises:
        ValueError: an input is too large to allocate.
    """
    inputs = {}
    for value in graph_inputs(model):
        tensor = value.type.tensor_type
        dims = [dim.dim_value for dim in tensor.shape.dim]
        shape = [size or (batch if axis == 0 else 1) for axis, size in enumerate(dims)]
        if np.prod(shape, dtype=np.float64) > _MAX_INPUT_SIZE:
            raise ValueError(f"input {value.name!r} of shape {shape} is too large")
        fill = 1 if value.name == contract.ACTION_MASKS else 0
        inputs[value.name] = np.full(shape, fill, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return inputs


def graph_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller must provide. Older files list their weights as inputs, too."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


class Multinomial(OpRun):
    """Samples from unnormalized log weights. The reference evaluator lacks only this operator of ML-Agents' models."""

    op_domain = ""

    def _run(
        self, logits: NDArray[np.float32], dtype: int = 6, sample_size: int = 1, seed: float | None = None
    ) -> tuple[NDArray[Any]]:
        generator = np.random.default_rng(0 if seed is None else int(seed))
        weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        cumulated = np.cumsum(weights, axis=1)
        drawn = generator.random((len(logits), sample_size)) * cumulated[:, -1:]
        indices = (cumulated[:, None, :] <= drawn[:, :, None]).sum(axis=2)
        return (indices.astype(onnx.helper.tensor_dtype_to_np_dtype(dtype)),)


class MaxPool(op_max_pool.MaxPool):
    """A fast implementation of plain max pooling, the only kind that agents' networks need.

    The evaluator's own implementation loops over every pixel in Python.
    """

    def _run(self, x: NDArray[Any], *args: Any, **attributes: Any) -> Any:  # type: ignore[override]
        kernel = attributes.get("kernel_shape")
        if args or kernel is None or not _is_plain(attributes) or len(self.output) != 1:
            return super()._run(x, *args, **attributes)  # type: ignore[no-untyped-call]
        axes = tuple(range(2, x.ndim))
        pads = list(attributes.get("pads") or [0] * 2 * len(axes))
        if any(pads):
            lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
            around = [(0, 0), (0, 0), *zip(pads[: len(axes)], pads[len(axes) :], strict=True)]
            x = np.pad(x, around, constant_values=lowest)
        windows = np.lib.stride_tricks.sliding_window_view(x, tuple(kernel), axis=axes)
        for axis, stride in zip(axes, attributes.get("strides") or [1] * len(axes), strict=True):
            windows = windows[(slice(None),) * axis + (slice(None, None, stride),)]
        return (windows.max(axis=tuple(range(x.ndim, windows.ndim))),)


def _is_plain(pooling: Mapping[str, Any]) -> bool:
    """Return whether a pooling operator uses explicit padding, and neither dilation nor ceiling mode."""
    return (
        pooling.get("auto_pad") in (None, "NOTSET", b"NOTSET")
        and all(dilation == 1 for dilation in pooling.get("dilations") or ())
        and not pooling.get("ceil_mode")
        and not pooling.get("storage_order")
    )


class OverBudgetError(ValueError):
    """The model would take more memory or time than any policy needs."""


class Budget:
    """The memory and time budget for one run of a model. Each operator is charged before it runs.

    Args:
        opset: version of the standard operator set.
    """

    def __init__(self, opset: int) -> None:
        self._opset = opset
        self.reset()

    def reset(self) -> None:
        """Start a new run."""
        self._numbers = 0
        self._seconds = 0.0

    def charge(self, node: onnx.NodeProto, inputs: Sequence[Any], *, quick: bool) -> None:
        """Charge the estimated memory and time of one operator.

        Args:
            node: the operator.
            inputs: the inputs that it is about to receive.
            quick: True if the operator is known not to loop in Python.

        Raises:
            OverBudgetError: the operator exceeds the budget.
            Exception: the inputs are invalid for the operator; the type depends on the problem.
        """
        outputs = self._num_outputs(node, inputs)
        # Number of products or comparisons per value of the result.
        if node.op_type == "Conv":
            terms, seconds = math.prod(inputs[1].shape[1:]), _CONVOLUTION_S
        else:
            is_product = node.op_type in ("MatMul", "Gemm")
            terms = max(inputs[0].shape, default=1) if is_product else math.prod(_whole_numbers(node, "kernel_shape"))
            seconds = _QUICK_S if quick or node.op_type in _QUICK else _LOOPED_S
        self._numbers += outputs
        self._seconds += outputs * (seconds + terms * _PRODUCT_S)
        numbers = self._numbers + _temporaries(node, inputs, outputs * terms)
        if numbers > _MAX_NUMBERS or self._seconds > _MAX_SECONDS:
            raise OverBudgetError(
                f"its operators up to {node.op_type} {node.name!r} would produce {numbers:,} numbers and take "
                f"{self._seconds:,.0f} s; the limits are {_MAX_NUMBERS:,} numbers and {_MAX_SECONDS:.0f} s"
            )

    def _num_outputs(self, node: onnx.NodeProto, inputs: Sequence[Any]) -> int:
        """Return the number of values in an operator's results.

        A dimension that depends on input values is assumed to have the size of the largest input.
        """
        arrays = {name: np.asarray(each) for name, each in zip(node.input, inputs, strict=False) if name}
        elements = {name: onnx.helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in arrays.items()}
        outputs = onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(node.op_type, self._opset, node.domain),
            node,
            {name: onnx.helper.make_tensor_type_proto(elements[name], array.shape) for name, array in arrays.items()},
            {
                name: onnx.numpy_helper.from_array(array)
                for name, array in arrays.items()
                if array.size <= _MAX_SHAPE_NUMBERS
            },
        )
        largest = max((array.size for array in arrays.values()), default=0)
        shapes = (output.tensor_type.shape.dim for output in outputs.values())
        return sum(math.prod(d.dim_value if d.HasField("dim_value") else largest for d in shape) for shape in shapes)


def _temporaries(node: onnx.NodeProto, inputs: Sequence[Any], products: int) -> int:
    """Return the number of temporary values that exist while the operator runs.

    These are its padded input and, for a convolution, a matrix of all windows, which the output channels share.
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


class _Metered:
    """Wraps an operator of the reference evaluator and charges the budget before it runs."""

    def __init__(self, operator: OpRun, budget: Budget) -> None:
        self._operator = operator
        self._budget = budget
        node = operator.onnx_node
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        # whether the fast ``MaxPool`` above handles the operator
        self._quick = node.op_type == "MaxPool" and _is_plain(attributes) and len(node.output) == 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)

    def run(self, *inputs: Any, **options: Any) -> Any:
        self._budget.charge(self._operator.onnx_node, inputs, quick=self._quick)
        return self._operator.run(*inputs, **options)  # type: ignore[no-untyped-call]
