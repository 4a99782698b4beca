"""``trajtrainer inspect FILE.onnx ...``: whether Unity will load these models, and what they expect."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from trajtrainer.core.printable import one_line

if TYPE_CHECKING:
    from trajtrainer.onnx.unity_names import PackageSupport, Report, TensorInfo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("files", nargs="+", metavar="FILE.onnx", help="exported models, by this trainer or another")


def run(args: argparse.Namespace) -> int:
    """Print one report per file. Returns 0 when Unity will load all of them, 1 otherwise."""
    from trajtrainer.onnx.inspect import inspect_model  # late: onnx takes longer to import than help may take

    reports = [inspect_model(file) for file in args.files]
    print("\n".join(format_report(report) for report in reports), end="")
    return 0 if all(report.loads for report in reports) else 1


def format_report(report: Report) -> str:
    """Return a report as text to read, ending with a line break."""
    lines = [str(report.path), f"  Unity loads it: {'yes' if report.loads else 'NO'}"]
    lines += [f"  error: {text}" for text in report.errors]
    lines += [f"  warning: {text}" for text in report.warnings]
    if report.operators:
        lines += _details(report)
    return "\n".join(map(one_line, lines)) + "\n"


def _details(report: Report) -> Iterable[str]:
    version = "none" if report.model_version is None else report.model_version
    yield f"  made by {report.producer or 'an unnamed program'}; ONNX opset {report.opset}, IR {report.ir_version}"
    yield f"  model version {version}; {_actions(report)}; {_memory(report)}"
    yield "  inputs"
    yield from _tensors(report.inputs)
    yield "  outputs"
    yield from _tensors(report.outputs)
    yield "  operators: " + ", ".join(f"{name} {count}" for name, count in report.operators.items())
    yield "  packages"
    width = max((len(package.package) for package in report.packages), default=0)
    for package in report.packages:
        yield f"    {package.package:{width}}  {_support(package)}"


def _actions(report: Report) -> str:
    parts = []
    if report.continuous_size:
        parts.append(f"{report.continuous_size} continuous")
    if report.discrete_branches:
        parts.append(f"discrete branches of {', '.join(map(str, report.discrete_branches))}")
    return "actions: " + (" and ".join(parts) if parts else "unknown")


def _memory(report: Report) -> str:
    return f"memory of {report.memory_size}" if report.memory_size else "no memory"


def _tensors(tensors: tuple[TensorInfo, ...]) -> Iterable[str]:
    width = max((len(str(tensor)) for tensor in tensors), default=0)
    for tensor in tensors:
        yield f"    {tensor!s:{width}}  {tensor.meaning or 'not known to Unity'}"


def _support(package: PackageSupport) -> str:
    text = package.support.value
    if package.back_ends:
        text += f"; runs on {', '.join(package.back_ends)}"
    return text + (f" ({'; '.join(package.notes)})" if package.notes else "")
