"""Runs an ONNX model in numpy, on zeros much as Unity does when you assign a model to a behavior, or on any inputs.

The reference evaluator of the ``onnx`` package is used and not onnxruntime: it is always installed with this package,
so the verdict is the same on every machine, and it is fast enough (some milliseconds).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_max_pool

from trajtrainer.onnx import contract
from trajtrainer.onnx.budget import Budget, Metered

# Refuse to allocate inputs beyond this many numbers: a damaged or hostile file can claim any size.
_MAX_INPUT_SIZE = 50_000_000


class Multinomial(OpRun):
    """The one operator of ML-Agents models that the reference evaluator lacks: draws from unnormalised log weights."""

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
    """The evaluator's own loops over every pixel in Python.

    Plain pooling, all that networks of agents need, is fast here.
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
    """Return no dilation, no rounding up, padding as given."""
    return (
        pooling.get("auto_pad") in (None, "NOTSET", b"NOTSET")
        and all(dilation == 1 for dilation in pooling.get("dilations") or ())
        and not pooling.get("ceil_mode")
        and not pooling.get("storage_order")
    )


def _is_quick(node: onnx.NodeProto) -> bool:
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    return node.op_type == "MaxPool" and _is_plain(attributes) and len(node.output) == 1


def trial_inputs(model: onnx.ModelProto, batch: int) -> dict[str, NDArray[Any]]:
    """Return zeros for every input, and masks that allow all actions. Free dimensions are 1, the first is ``batch``.

    Unity tries a model on masks of zeros. Those forbid every action, so a valid policy may divide by zero there; Unity
    reads only the constants of that run.

    Raises:
        ValueError: an input is too large to try.
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
    """Return the inputs a caller must give. Older files list their weights as inputs, too."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


class Evaluator:
    """A model ready to run, any number of times.

    Raises:
        Exception: the evaluator lacks an operator, or the graph is broken.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self._budget = Budget(max(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")))
        self._evaluator = ReferenceEvaluator(model, new_ops=[MaxPool, Multinomial])
        self._evaluator.rt_nodes_ = [
            Metered(node, self._budget, quick=_is_quick(node.onnx_node)) for node in self._evaluator.rt_nodes_
        ]

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return every output.

        Raises:
            OverBudgetError: it would take more memory or time than any policy needs.
            Exception: whatever the evaluator stumbles over; its type depends on the operator.
        """
        self._budget.reset()
        with np.errstate(all="ignore"):
            values = self._evaluator.run(None, dict(inputs))
        return {output.name: np.asarray(value) for output, value in zip(self.model.graph.output, values, strict=True)}

    def try_out(self, batch: int) -> dict[str, NDArray[Any]]:
        """Return the results of :meth:`run` on :func:`trial_inputs`."""
        return self.run(trial_inputs(self.model, batch))
