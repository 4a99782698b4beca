"""``trajtrainer export RUN_OR_CHECKPOINT``: the ``.onnx`` of a checkpoint, ours or of ML-Agents, or its source code."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trajtrainer.cli.console import console
from trajtrainer.core.errors import SettingsError

if TYPE_CHECKING:
    from trajtrainer.checkpoints.saved_policies import Writer
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
        choices=("onnx", "c", "csharp", "js", "gdscript", "godot", "godot-onnx"),
        default="onnx",
        help="onnx for Unity's ML-Agents (default), or one file of source code that needs nothing else: a C99 header, "
        "a C# class, a JavaScript module, or a script for Godot 4; for games with the Godot RL Agents plugin godot, "
        "that script and a node that uses it, or godot-onnx, an .onnx for the plugin's C#",
    )
    parser.add_argument(
        "--action-order",
        metavar="KINDS",
        default="",
        help="with --to godot-onnx, where some actions are discrete and others continuous: their order in the game, "
        "such as discrete,continuous:2",
    )
    parser.add_argument("--opset", metavar="N", type=int, help="of the ONNX operators, 9 to 15 (default: 9)")
    parser.add_argument(
        "--output",
        metavar="PATH",
        type=Path,
        help="the file to write, or a folder (default: <Behavior>.onnx in the run's folder, as after training; for a "
        "single checkpoint the file beside it; source code has the suffix .h, .cs, .mjs or .gd, and an .onnx for Godot "
        ".godot.onnx)",
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

    if arguments.to != "onnx" and arguments.opset is not None:
        raise SettingsError(f"--opset is for the .onnx alone. Leave it out with --to {arguments.to}.")
    if arguments.to != "godot-onnx" and arguments.action_order:
        raise SettingsError(f"--action-order is for --to godot-onnx alone. Leave it out with --to {arguments.to}.")
    suffix, write = _form(arguments)
    with console(debug=False):
        export_saved(
            arguments.target,
            results=arguments.results_dir,
            behavior=arguments.behavior,
            sensors=_sensors(arguments.observation),
            write=write,
            suffix=suffix,
            output=arguments.output,
        )
    return 0


def _form(arguments: argparse.Namespace) -> tuple[str, Writer]:
    """Return the suffix of the files that are asked for, and what writes them."""
    from trajtrainer.codegen.write import LANGUAGES, WITH_NODE, export_source
    from trajtrainer.onnx.contract import DEFAULT_OPSET
    from trajtrainer.onnx.export import export_policy
    from trajtrainer.onnx.godot import ActionPart, export_for_godot

    if arguments.to == "onnx":
        opset = DEFAULT_OPSET if arguments.opset is None else arguments.opset
        return ".onnx", lambda actor, spec, path, _: export_policy(actor, spec, path, opset=opset)
    if arguments.to == "godot-onnx":
        order = ActionPart.parse(arguments.action_order) if arguments.action_order else ()
        return ".godot.onnx", lambda actor, spec, path, _: export_for_godot(actor, spec, path, order)
    language = WITH_NODE if arguments.to == "godot" else LANGUAGES[arguments.to]
    return language.suffix, lambda actor, spec, path, origin: export_source(actor, spec, path, language, origin)


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
