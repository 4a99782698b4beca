"""Tells whether Unity will load an ``.onnx`` policy, and what it expects and gives.

The checks are those that the C# package makes when a model is assigned to a behaviour and when it runs, and the limits
of the inference packages below it. What makes Unity throw or refuse is an error, what only makes it complain or leaves
a feature unusable is a warning.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from trajtrainer.core.filenames import open_regular
from trajtrainer.onnx import contract
from trajtrainer.onnx.evaluate import Evaluator, graph_inputs
from trajtrainer.onnx.legacy import find_branches
from trajtrainer.onnx.report import PackageSupport, Report, Support, TensorInfo
from trajtrainer.onnx.unity_names import check_inputs, check_outputs, input_meaning, output_meaning

_MAX_BYTES = 2**30
# Policies have some hundred. Each takes a fraction of a millisecond, however little it computes.
_MAX_OPERATORS = 20_000
_STANDARD_DOMAINS = ("", "ai.onnx")
_FOREIGN_TYPES = (onnx.TensorProto.STRING, onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128)


def inspect_model(path: str | os.PathLike[str]) -> Report:
    """Inspect a file. A file that is no model gives a report with one error that says so; nothing is raised for it."""
    report = Report(path=Path(path))
    model = read_model(report)
    if model is not None:
        inspect_graph(model, report)
    return report


def inspect_graph(model: onnx.ModelProto, report: Report) -> None:
    """Fill the report on a model in memory."""
    _describe(model, report)
    _check_container(model, report)
    # The operators of other packages cannot be run, and a loop in a hostile file would not end.
    evaluator = None if report.unsupported_operators else _evaluator(model, report)
    values = {} if evaluator is None else _run(evaluator, report)
    check_outputs(model, values, report)
    check_inputs(report)
    if evaluator is not None and report.loads and report.is_legacy and report.discrete_branches:
        report.discrete_branches = find_branches(evaluator, report)
    report.packages = _packages(report, _count_layout_transposes(model))


def read_model(report: Report) -> onnx.ModelProto | None:
    """Return the model in the report's file; None after an error, which is in the report then."""
    path = report.path
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > _MAX_BYTES:
                report.errors.append(f"the file has more than {_MAX_BYTES:,} bytes, which no policy needs")
                return None
            content = file.read()
    except FileNotFoundError:
        report.errors.append("there is no such file")
        return None
    except OSError as error:
        report.errors.append(f"the file cannot be read: {error.strerror}")
        return None
    if content.startswith(b"PK\x03\x04"):
        report.errors.append("this is a zip archive, probably a checkpoint (.pt) and not an exported .onnx model")
        return None
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        report.errors.append("this is not an ONNX model, or it is damaged: its content cannot be decoded")
        return None
    if not model.graph.node or not model.opset_import:
        what = "the file is empty" if not content else "this is not an ONNX model: it has no operators"
        report.errors.append(what)
        return None
    if len(model.graph.node) > _MAX_OPERATORS:
        report.errors.append(
            f"the model has {len(model.graph.node):,} operators; no policy needs more than {_MAX_OPERATORS:,}, so it "
            "was not run"
        )
        return None
    if not all(isinstance(text, str) for text in _texts(model)):  # protobuf gives damaged text as bytes
        report.errors.append("this ONNX model is damaged: it contains text that cannot be decoded")
        return None
    return model


def _texts(model: onnx.ModelProto) -> Iterator[object]:
    """Yield everything of a model that is read as text here."""
    yield from (model.producer_name, model.producer_version)
    yield from (entry.domain for entry in model.opset_import)
    for node in model.graph.node:
        yield from (node.name, node.domain, node.op_type, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
    yield from (tensor.name for tensor in model.graph.initializer)
    for value in (*model.graph.input, *model.graph.output):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)


def _describe(model: onnx.ModelProto, report: Report) -> None:
    report.producer = f"{model.producer_name} {model.producer_version}".strip()
    report.ir_version = model.ir_version
    report.opset = max((entry.version for entry in model.opset_import if entry.domain in _STANDARD_DOMAINS), default=0)
    report.operators = dict(sorted(Counter(node.op_type for node in model.graph.node).items()))
    report.inputs = tuple(_tensor(value, input_meaning) for value in graph_inputs(model))
    report.outputs = tuple(_tensor(value, output_meaning) for value in model.graph.output)
    report.unsupported_operators = tuple(
        name if node_domain in _STANDARD_DOMAINS else f"{node_domain}.{name}"
        for node_domain, name in sorted({(node.domain, node.op_type) for node in model.graph.node})
        if node_domain not in _STANDARD_DOMAINS or contract.is_unsupported(name)
    )


def _tensor(value: onnx.ValueInfoProto, meaning: Callable[[str, str, tuple[int | str, ...]], str]) -> TensorInfo:
    tensor = value.type.tensor_type
    shape = tuple(dim.dim_param or dim.dim_value or "?" for dim in tensor.shape.dim)
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    except KeyError:
        dtype = "not a tensor of numbers"
    return TensorInfo(value.name, dtype, shape, meaning(value.name, dtype, shape))


def _check_container(model: onnx.ModelProto, report: Report) -> None:
    try:
        onnx.checker.check_model(model)
    except Exception as error:  # the checker raises its own class and, for some damage, plain ones
        report.errors.append(f"the model breaks the ONNX standard: {_first_line(error)}")
    if not contract.MIN_OPSET <= report.opset <= contract.MAX_OPSET:
        newest = " (only Sentis 2.6 and newer go beyond)" if report.opset > contract.MAX_OPSET else ""
        report.errors.append(
            f"ONNX opset {report.opset} is outside what Unity imports, {contract.MIN_OPSET} to {contract.MAX_OPSET}"
            f"{newest}. Export with opset {contract.DEFAULT_OPSET} or {contract.MAX_OPSET}"
        )
    if report.unsupported_operators:
        report.errors.append(f"Unity's importer lacks the operators {', '.join(report.unsupported_operators)}")
    _check_tensors(model, report)


def _check_tensors(model: onnx.ModelProto, report: Report) -> None:
    weights = model.graph.initializer
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in weights):
        report.errors.append(
            "the weights are in a second file, which this check does not follow. Export with the weights inside"
        )
    if len(model.graph.sparse_initializer):
        report.errors.append("sparse tensors are not supported by Unity")
    if any(tensor.data_type in _FOREIGN_TYPES for tensor in weights):
        report.errors.append("tensors of text or complex numbers are not supported by Unity")
    ranks = [len(tensor.dims) for tensor in weights] + [len(info.shape) for info in report.inputs + report.outputs]
    if max(ranks, default=0) > contract.MAX_RANK:
        report.errors.append(f"a tensor has {max(ranks)} dimensions; Unity supports {contract.MAX_RANK}")


def _evaluator(model: onnx.ModelProto, report: Report) -> Evaluator | None:
    try:
        return Evaluator(model)
    except Exception as error:  # every operator raises its own class
        _cannot_run(error, report)
        return None


def _cannot_run(error: Exception, report: Report) -> None:
    if report.loads:  # one message for one cause is enough
        report.errors.append(
            f"the model cannot run on inputs of zeros, which Unity tries when it is assigned: {_first_line(error)}"
        )


def _run(evaluator: Evaluator, report: Report) -> Mapping[str, NDArray[Any]]:
    """Return the outputs for zeros and one agent; empty when the model cannot run. Two agents are tried, too."""
    try:
        values = evaluator.try_out(batch=1)
    except Exception as error:  # every operator raises its own class
        _cannot_run(error, report)
        return {}
    if any(np.issubdtype(value.dtype, np.floating) and np.isnan(value).any() for value in values.values()):
        report.errors.append("the model gives NaN for inputs of zeros: its weights are damaged")
    _check_batch(evaluator, report)
    return values


def _check_batch(evaluator: Evaluator, report: Report) -> None:
    fixed = [info.name for info in report.inputs if info.shape and isinstance(info.shape[0], int)]
    if fixed:
        report.warnings.append(f"{', '.join(fixed)}: the number of agents is fixed in the file, so others may fail")
        return
    try:
        values = evaluator.try_out(batch=2)
        short = [name for name in contract.PER_AGENT_OUTPUTS if name in values and len(values[name]) != 2]
    except Exception as error:
        report.errors.append(f"the model runs for one agent, but not for two: {_first_line(error)}")
        return
    if short:
        report.errors.append(f"{', '.join(short)}: not one row per agent when there are two agents")


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


def _count_layout_transposes(model: onnx.ModelProto) -> int:
    permutations = (
        tuple(attribute.ints)
        for node in model.graph.node
        if node.op_type == "Transpose"
        for attribute in node.attribute
    )
    return sum(permutation in contract.BARRACUDA_LAYOUT_TRANSPOSES for permutation in permutations)


def _packages(report: Report, layout_transposes: int) -> tuple[PackageSupport, ...]:
    return (
        _barracuda(report, layout_transposes),
        _sentis("ML-Agents 3.0 (Sentis 2.1)", report),
        _sentis_of_ml_agents_4(report),
    )


def _barracuda(report: Report, layout_transposes: int) -> PackageSupport:
    package = "ML-Agents 1.x and 2.x (Barracuda)"
    missing = sorted(set(report.operators) - contract.BARRACUDA_OPERATORS)
    if missing:
        return PackageSupport(package, Support.NO, notes=(f"lacks {', '.join(missing)}",))
    if not report.loads:
        return PackageSupport(package, Support.NO)
    notes = []
    support = Support.YES
    if report.opset > contract.BARRACUDA_OPSET:
        support = Support.MAYBE
        notes.append(f"opset {contract.BARRACUDA_OPSET} is advised")
    if layout_transposes:
        always = "Conv" in report.operators
        support = Support.NO if always else Support.MAYBE
        notes.append(
            f"{'leaves' if always else 'early versions leave'} out {layout_transposes} Transpose (0, 2, 3, 1 or "
            "0, 3, 1, 2), taken for a change of layout, so the policy acts differently there"
        )
    if not report.is_legacy:
        notes.append("2.0 and newer")
    return PackageSupport(package, support, notes=tuple(notes))


def _sentis(package: str, report: Report) -> PackageSupport:
    if not report.loads:
        return PackageSupport(package, Support.NO)
    limited = {name: contract.BACK_ENDS_OF_OPERATOR[name] for name in report.operators if name in _LIMITED}
    back_ends = tuple(end for end in contract.BACK_ENDS if all(end in ends for ends in limited.values()))
    notes = tuple(f"{name}: {', '.join(ends)} only" for name, ends in limited.items())
    return PackageSupport(package, Support.YES, back_ends, notes)


def _sentis_of_ml_agents_4(report: Report) -> PackageSupport:
    result = _sentis("ML-Agents 4.0 (Inference Engine 2.2)", report)
    if "Multinomial" not in report.operators or not result.back_ends:
        return result
    notes = (*result.notes, "from Sentis 2.4 on Multinomial runs on all")
    return PackageSupport(result.package, result.support, result.back_ends, notes)


_LIMITED = contract.BACK_ENDS_OF_OPERATOR.keys()
