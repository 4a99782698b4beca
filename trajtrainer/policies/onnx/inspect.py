"""Checks whether Unity can load an ``.onnx`` policy, and reports its inputs and outputs.

The checks are those that the C# package makes when a model is assigned to a behavior and when the model runs, plus the
limits of the underlying inference packages. An error means that Unity throws an exception or rejects the model. A
warning means that Unity only logs a warning or that a feature is unavailable. The files are of unknown origin, so they
run with limits on memory and time.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from trajtrainer.core.errors import first_line
from trajtrainer.core.filenames import open_regular
from trajtrainer.policies.onnx import contract, unity_names
from trajtrainer.policies.onnx.evaluate import GraphEvaluator, graph_inputs, trial_inputs
from trajtrainer.policies.onnx.faults import (
    STANDARD_DOMAINS,
    faults_of_operators,
    faults_of_weights,
    refuse,
    unsupported_operators,
)
from trajtrainer.policies.onnx.unity_names import PackageSupport, Report, Support, TensorInfo

_MAX_BYTES = 2**30
# Maximum number of operators; policies have a few hundred. Each takes a fraction of a millisecond, even if it computes
# little.
_MAX_OPERATORS = 20_000
_MAX_ACTIONS = 1000
_FOREIGN_TYPES = (onnx.TensorProto.STRING, onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128)


def inspect_model(path: str | os.PathLike[str]) -> Report:
    """Inspect a file. If the file is not a model, the report contains an error, and no exception is raised."""
    report = Report(path=Path(path))
    model = read_model(report)
    if model is not None:
        inspect_graph(model, report)
    return report


def check_model(model: onnx.ModelProto) -> None:
    """Check that Unity would run a model of unknown origin.

    Raises:
        ExportError: Unity would not run the model.
    """
    report = Report(path=Path())
    inspect_graph(model, report)
    refuse(report.errors)


def inspect_graph(model: onnx.ModelProto, report: Report) -> None:
    """Fill in the report on a model in memory, which may be of unknown origin."""
    _describe(model, report)
    _check_container(model, report)
    evaluator, values = _run_on_zeros(model, report)
    if evaluator is not None:
        _check_batch(evaluator, report)
    unity_names.check_outputs(model, values, report)
    unity_names.check_inputs(report)
    if evaluator is not None and report.loads and report.is_legacy and report.discrete_branches:
        report.discrete_branches = _find_branches(evaluator, report)
    report.packages = (
        _barracuda(model, report),
        _sentis("ML-Agents 3.0 (Sentis 2.1)", report),
        _sentis("ML-Agents 4.0 (Inference Engine 2.2)", report, "Sentis 2.4 and newer run Multinomial on all"),
    )


def read_model(report: Report) -> onnx.ModelProto | None:
    """Read the report's file. If that fails, add an error to the report and return None."""
    found = _model_or_error(report.path)
    if isinstance(found, str):
        report.errors.append(found)
        return None
    return found


def _model_or_error(path: Path) -> onnx.ModelProto | str:
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > _MAX_BYTES:
                return f"the file has more than {_MAX_BYTES:,} bytes, more than any policy needs"
            content = file.read()
    except FileNotFoundError:
        return "the file does not exist"
    except OSError as error:
        return f"the file cannot be read: {error.strerror}"
    if content.startswith(b"PK\x03\x04"):
        return "this is a zip archive, probably a checkpoint (.pt) and not an exported .onnx model"
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        return "this is not an ONNX model, or it is damaged: its content cannot be decoded"
    if not model.graph.node or not model.opset_import:
        return "this is not an ONNX model: it has no operators" if content else "the file is empty"
    if (count := len(model.graph.node)) > _MAX_OPERATORS:
        return f"the model has {count:,} operators; no policy needs more than {_MAX_OPERATORS:,}, so it was not run"
    if not all(isinstance(text, str) for text in _texts(model)):  # protobuf returns damaged text as bytes.
        return "this ONNX model is damaged: it contains text that cannot be decoded"
    return model


def _texts(model: onnx.ModelProto) -> Iterator[object]:
    """Yield every part of a model that this module reads as text."""
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
    """Fill in the producer, tensors and operators. Operators that Unity's importer lacks are an error."""
    report.producer = f"{model.producer_name} {model.producer_version}".strip()
    report.ir_version = model.ir_version
    report.opset = max((entry.version for entry in model.opset_import if entry.domain in STANDARD_DOMAINS), default=0)
    report.operators = dict(sorted(Counter(node.op_type for node in model.graph.node).items()))
    report.inputs = tuple(_tensor(value, unity_names.input_meaning) for value in graph_inputs(model))
    report.outputs = tuple(_tensor(value, unity_names.output_meaning) for value in model.graph.output)
    report.unsupported_operators = unsupported_operators(model)
    report.errors.extend(faults_of_operators(report.unsupported_operators))


def _tensor(value: onnx.ValueInfoProto, meaning: Callable[[str, str, unity_names.Shape], str]) -> TensorInfo:
    tensor = value.type.tensor_type
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    except KeyError:
        dtype = "not a tensor of numbers"
    shape = tuple(dim.dim_param or dim.dim_value or "?" for dim in tensor.shape.dim)
    return TensorInfo(value.name, dtype, shape, meaning(value.name, dtype, shape))


def _check_container(model: onnx.ModelProto, report: Report) -> None:
    try:
        onnx.checker.check_model(model)
    except Exception as error:  # The checker raises its own exception class and, for some damage, built-in ones.
        report.errors.append(f"the model violates the ONNX standard: {first_line(error)}")
    if not contract.MIN_OPSET <= report.opset <= contract.MAX_OPSET:
        newest = " (only Sentis 2.6 and newer support more)" if report.opset > contract.MAX_OPSET else ""
        report.errors.append(
            f"ONNX opset {report.opset} is outside Unity's supported range of {contract.MIN_OPSET} to "
            f"{contract.MAX_OPSET}{newest}. Export with opset {contract.DEFAULT_OPSET} or {contract.MAX_OPSET}"
        )
    weights = model.graph.initializer
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in weights):
        report.errors.append(
            "the weights are in a second file, which this check does not read. Export with the weights in the model"
        )
    if len(model.graph.sparse_initializer):
        report.errors.append("sparse tensors are not supported by Unity")
    if any(tensor.data_type in _FOREIGN_TYPES for tensor in weights):
        report.errors.append("tensors of text or complex numbers are not supported by Unity")
    ranks = [len(tensor.dims) for tensor in weights] + [len(info.shape) for info in report.inputs + report.outputs]
    if max(ranks, default=0) > contract.MAX_RANK:
        report.errors.append(f"a tensor has {max(ranks)} dimensions; Unity supports at most {contract.MAX_RANK}")


def _run_on_zeros(model: onnx.ModelProto, report: Report) -> tuple[GraphEvaluator | None, Mapping[str, NDArray[Any]]]:
    """Run a model for one agent and report an error if it fails or returns NaN. Call this after ``_describe``.

    Returns:
        The evaluator and the model's outputs by name; None and no outputs if the model cannot run.
    """
    damaged = faults_of_weights(model)
    report.errors.extend(damaged)
    # Operators from other packages cannot be run, and a loop in a malicious file would never end.
    if report.unsupported_operators:
        return None, {}
    try:
        evaluator = GraphEvaluator(model, limited=True)
        values = evaluator.run(trial_inputs(model, batch=1))
    except Exception as error:  # Every operator raises its own exception class.
        if report.loads:  # Do not report the same problem twice.
            report.errors.append(
                f"the model cannot run on inputs of zeros, which Unity tries when it is assigned: {first_line(error)}"
            )
        return None, {}
    if not damaged and any(
        np.issubdtype(value.dtype, np.floating) and np.isnan(value).any() for value in values.values()
    ):
        report.errors.append("the model returns NaN for inputs of zeros: its weights are damaged")
    return evaluator, values


def _check_batch(evaluator: GraphEvaluator, report: Report) -> None:
    fixed = [info.name for info in report.inputs if info.shape and isinstance(info.shape[0], int)]
    if fixed:
        report.warnings.append(f"{', '.join(fixed)}: the file has a fixed number of agents, so other numbers may fail")
        return
    try:
        values = evaluator.run(trial_inputs(evaluator.model, batch=2))
        short = [name for name in contract.PER_AGENT_OUTPUTS if name in values and len(values[name]) != 2]
    except Exception as error:
        report.errors.append(f"the model runs for one agent, but not for two: {first_line(error)}")
        return
    if short:
        report.errors.append(f"{', '.join(short)}: not one row per agent when there are two agents")


def _find_branches(evaluator: GraphEvaluator, report: Report) -> tuple[int, ...]:
    """Find the sizes of the discrete branches of an ML-Agents 1.x model, whose file contains only their sum.

    If only two actions are allowed, their probabilities add up to 1 if both are in the same branch, and to 2 if each is
    the only allowed action in its branch. The batch tests each pair of adjacent actions in one row. If the model's
    probabilities do not distinguish branches, all actions are treated as one branch.
    """
    total = sum(report.discrete_branches)
    if not 1 < total <= _MAX_ACTIONS:
        return (total,)
    inputs = trial_inputs(evaluator.model, total)
    if inputs.get(contract.ACTION_MASKS, np.zeros(0)).shape != (total, total):
        return (total,)
    pairs = np.eye(total, dtype=np.float32) + np.eye(total, k=1, dtype=np.float32)
    pairs[-1] = 1.0  # The last action has no next action. Its row allows all actions.
    try:
        values = evaluator.run({**inputs, contract.ACTION_MASKS: pairs})
        log_probs = values[report.legacy_output(contract.DISCRETE_ACTIONS)]
    except Exception:  # Every operator raises its own exception class, and the batch may exceed the budget.
        return (total,)
    probability = np.exp(log_probs)
    first = np.arange(total - 1)
    ends = np.flatnonzero(probability[first, first] + probability[first, first + 1] > 1.5) + 1
    sums = [branch.sum() for branch in np.split(probability[-1], ends)]
    return tuple(np.diff([0, *ends, total]).tolist()) if np.allclose(sums, 1.0, atol=0.01) else (total,)


def _barracuda(model: onnx.ModelProto, report: Report) -> PackageSupport:
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
        notes.append(f"opset {contract.BARRACUDA_OPSET} is recommended")
    transposes = [node for node in model.graph.node if node.op_type == "Transpose"]
    permutations = [tuple(attribute.ints) for node in transposes for attribute in node.attribute]
    layouts = sum(permutation in contract.BARRACUDA_LAYOUT_TRANSPOSES for permutation in permutations)
    if layouts:
        always = "Conv" in report.operators
        support = Support.NO if always else Support.MAYBE
        notes.append(
            f"{'removes' if always else 'early versions remove'} {layouts} Transpose (0, 2, 3, 1 or 0, 3, 1, 2), "
            "mistaken for a layout conversion, so the policy acts differently there"
        )
    if not report.is_legacy:
        notes.append("2.0 and newer")
    return PackageSupport(package, support, notes=tuple(notes))


def _sentis(package: str, report: Report, *notes: str) -> PackageSupport:
    """Report how a package supports the model. Add ``notes`` if ``Multinomial`` limits the back ends."""
    if not report.loads:
        return PackageSupport(package, Support.NO)
    ends_of = contract.BACK_ENDS_OF_OPERATOR
    limited = {name: ends_of[name] for name in report.operators if name in ends_of}
    back_ends = tuple(end for end in contract.BACK_ENDS if all(end in ends for ends in limited.values()))
    limits = [f"{name}: {', '.join(ends)} only" for name, ends in limited.items()]
    limits += notes if "Multinomial" in limited and back_ends else ()
    return PackageSupport(package, Support.YES, back_ends, tuple(limits))
