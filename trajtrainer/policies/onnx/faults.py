"""Faults that make a model unusable in Unity, regardless of the program that exported it."""

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from trajtrainer.core.errors import ExportError
from trajtrainer.core.printable import shortened
from trajtrainer.policies.onnx import contract

STANDARD_DOMAINS = ("", "ai.onnx")
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)


def refuse(faults: Sequence[str]) -> None:
    """Refuse to export a model with these faults.

    Raises:
        ExportError: there are any faults.
    """
    if faults:
        errors = shortened("; ".join(faults))
        raise ExportError(f"The policy was not exported, because Unity would not run it: {errors}.")


def unsupported_operators(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the operators that Unity's importer does not support. Custom ones are named ``domain.Name``."""
    return tuple(
        name if domain in STANDARD_DOMAINS else f"{domain}.{name}"
        for domain, name in sorted({(node.domain, node.op_type) for node in model.graph.node})
        if domain not in STANDARD_DOMAINS or contract.is_unsupported(name)
    )


def faults_of_operators(unsupported: Sequence[str]) -> Iterator[str]:
    """Yield a fault if a model has unsupported operators."""
    if unsupported:
        yield f"Unity's importer lacks the operators {', '.join(unsupported)}"


def faults_of_weights(model: onnx.ModelProto) -> list[str]:
    """Return the faults of a model's weights: NaN values, even if they do not show up in the outputs."""
    damaged = _names_of_nan(model)
    if not damaged:
        return []
    more = f" and {len(damaged) - 1} more" if damaged[1:] else ""
    return [f"the weights are damaged: found NaN in {damaged[0]!r}{more}"]


def _names_of_nan(model: onnx.ModelProto) -> list[str]:
    """Return the names of weights and constants that contain NaN.

    Discrete actions hide NaN, because ArgMax and Multinomial return an action anyway. Constants that are outputs of the
    model are not included, because their values are checked elsewhere.
    """
    outputs = {value.name for value in model.graph.output}
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            tensors.update((name, attribute.t) for name in node.output for attribute in node.attribute)
    found = []
    for name, tensor in tensors.items():
        if name in outputs or tensor.data_type not in _FLOATS or tensor.data_location == onnx.TensorProto.EXTERNAL:
            continue
        with contextlib.suppress(ValueError, TypeError):  # The ONNX checker reports malformed tensors.
            if np.isnan(numpy_helper.to_array(tensor)).any():
                found.append(name)
    return found
