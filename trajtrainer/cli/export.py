"""``trajtrainer export RUN_OR_CHECKPOINT``: the ``.onnx`` of a checkpoint, ours or of ML-Agents, or its source code."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trajtrainer.cli.console import console
from trajtrainer.core.errors import SettingsError

if TYPE_CHECKING:
    from trajtrainer.core.spec import ObservationSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "target",
        metavar="RUN_OR_CHECKPOINT",
        type=Path,
        help="a .pt file, the folder of a run or of one of its behaviors, or a run id",
    )
    parser.add_argument("--behavior", metavar="NAME", help="export this behavior of a run alone (default: all)")
    parser.add_argument(
        "--to",
        choices=("onnx", "c", "csharp", "js", "gdscript"),
        default="onnx",
        help="onnx for Unity's ML-Agents (default), or one file of source code that needs nothing else: a C99 header, "
        "a C# class, a JavaScript module, or a script for Godot 4",
    )
    parser.add_argument("--opset", metavar="N", type=int, help="of the ONNX operators, 9 to 15 (default: 9)")
    parser.add_argument(
        "--output",
        metavar="PATH",
        type=Path,
        help="the file to write, or a folder (default: <Behavior>.onnx in the run's folder, as after training; for a "
        "single checkpoint the file beside it; source code has the suffix .h, .cs, .mjs or .gd)",
    )
    parser.add_argument(
        "--observation",
        metavar="SHAPE",
        action="append",
        default=[],
        help="what a sensor sends, one option per sensor in Unity's order: 8 is a vector, 3x84x84 a picture (channels, "
        "height, width), 20x6 a list (entities, size), 3:goal a goal signal. Needed only for checkpoints of "
        "ML-Agents without an .onnx beside them",
    )
    parser.add_argument(
        "--results-dir", metavar="FOLDER", type=Path, default=Path("results"), help="where run ids are looked for"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the files and say where they are.

    Raises:
        CheckpointError: nothing to export, or a checkpoint that cannot be used.
        ExportError: the policy cannot be exported or written.
        SettingsError: options that exclude each other.
    """
    # Late: torch and onnx take longer to import than help may take.
    from trajtrainer.checkpoints.saved_policies import export_saved
    from trajtrainer.export.contract import DEFAULT_OPSET
    from trajtrainer.export.source.write import LANGUAGES

    if arguments.to != "onnx" and arguments.opset is not None:
        raise SettingsError(f"--opset is for the .onnx alone. Leave it out with --to {arguments.to}.")
    with console(debug=False):
        export_saved(
            arguments.target,
            results=arguments.results_dir,
            behavior=arguments.behavior,
            sensors=_sensors(arguments.observation),
            opset=DEFAULT_OPSET if arguments.opset is None else arguments.opset,
            language=LANGUAGES.get(arguments.to),
            output=arguments.output,
        )
    return 0


def _sensors(texts: Sequence[str]) -> list[ObservationSpec]:
    from trajtrainer.checkpoints.mlagents.description import sensor

    sensors = []
    for index, text in enumerate(texts):
        sizes, _, kind = text.partition(":")
        parts = sizes.split("x")
        if kind not in ("", "goal") or not 1 <= len(parts) <= 3 or not all(p.isdecimal() and int(p) for p in parts):
            raise SettingsError(
                f"{text!r} is no observation; expected a vector such as 8, a list such as 20x6 (entities, size) or a "
                "picture such as 3x84x84 (channels, height, width), followed by :goal for a goal signal."
            )
        sensors.append(sensor(index, tuple(int(part) for part in parts), goal=kind == "goal"))
    return sensors
