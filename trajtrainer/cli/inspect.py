"""``trajtrainer inspect FILE.onnx ...``: shows whether Unity will load the models, and what inputs they expect."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from trajtrainer.core.printable import one_line

if TYPE_CHECKING:
    from trajtrainer.policies.onnx.unity_names import Report, TensorInfo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("files", nargs="+", metavar="FILE.onnx", help="exported models, from this trainer or another")


def run(args: argparse.Namespace) -> int:
    """Print one report per file. Return 0 if Unity will load all of them, 1 otherwise."""
    from trajtrainer.policies.onnx.inspect import inspect_model  # imported late, because onnx is slow to import

    reports = [inspect_model(file) for file in args.files]
    print("\n".join(format_report(report) for report in reports), end="")
    return 0 if all(report.loads for report in reports) else 1


def format_report(report: Report) -> str:
    """Format a report as text that ends with a newline."""
    lines = [str(report.path), f"  Unity loads it: {'yes' if report.loads else 'NO'}"]
    lines += [f"  error: {text}" for text in report.errors]
    lines += [f"  warning: {text}" for text in report.warnings]
    if report.operators:
        version = "none" if report.model_version is None else report.model_version
        actions = [f"{report.continuous_size} continuous"] if report.continuous_size else []
        if report.discrete_branches:
            actions.append(f"discrete branches of {', '.join(map(str, report.discrete_branches))}")
        memory = f"memory of {report.memory_size}" if report.memory_size else "no memory"
        lines += [
            f"  made by {report.producer or 'an unnamed program'}; ONNX opset {report.opset}, IR {report.ir_version}",
            f"  model version {version}; actions: {' and '.join(actions) or 'unknown'}; {memory}",
            *("  inputs", *_tensors(report.inputs)),
            *("  outputs", *_tensors(report.outputs)),
            "  operators: " + ", ".join(f"{name} {count}" for name, count in report.operators.items()),
            "  packages",
        ]
        width = max((len(package.package) for package in report.packages), default=0)
        for package in report.packages:
            text = package.support.value
            if package.back_ends:
                text += f"; runs on {', '.join(package.back_ends)}"
            if package.notes:
                text += f" ({'; '.join(package.notes)})"
            lines.append(f"    {package.package:{width}}  {text}")
    return "\n".join(map(one_line, lines)) + "\n"


def _tensors(tensors: tuple[TensorInfo, ...]) -> Iterable[str]:
    width = max((len(str(tensor)) for tensor in tensors), default=0)
    for tensor in tensors:
        yield f"    {tensor!s:{width}}  {tensor.meaning or 'not known to Unity'}"
