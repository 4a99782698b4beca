"""``trajtrainer export RUN_OR_CHECKPOINT``: the policy of a checkpoint, as ``.onnx`` or as source code."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trajtrainer.core.errors import SettingsError
from trajtrainer.run.console import add_results_dir, console

if TYPE_CHECKING:
    from trajtrainer.core.spec import BehaviorSpec, ObservationSpec
    from trajtrainer.learning.nn.actor import Actor
    from trajtrainer.policies.checkpoints.saved_policies import Origin


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "target",
        metavar="RUN_OR_CHECKPOINT",
        type=Path,
        help="a .pt file, the folder of a run or of one of its behaviors, or a run id",
    )
    parser.add_argument("--behavior", metavar="NAME", help="export only this behavior of a run (default: all)")
    parser.add_argument(
        "--to",
        choices=("onnx", "c", "csharp", "js", "gdscript", "godot", "godot-onnx"),
        default="onnx",
        help="onnx for Unity's ML-Agents (default), or a single file of source code without dependencies: a C99 header "
        "(c), a C# class (csharp), a JavaScript module (js), or a script for Godot 4 (gdscript); for games with the "
        "Godot RL Agents plugin: that script with a node that uses it (godot), or an .onnx for the plugin's C# "
        "(godot-onnx)",
    )
    parser.add_argument(
        "--action-order",
        metavar="KINDS",
        default="",
        help="with --to godot-onnx, if there are both discrete and continuous actions: their order in the game, such "
        "as discrete,continuous:2",
    )
    parser.add_argument("--opset", metavar="N", type=int, help="version of the ONNX operators, 9 to 15 (default: 9)")
    parser.add_argument(
        "--output",
        metavar="PATH",
        type=Path,
        help="the file to write, or a folder (default: <Behavior>.onnx in the run's folder, as after training; for a "
        "single checkpoint, a file with its name in its folder). Source code has the suffix .h, .cs, .mjs or .gd, and "
        "an .onnx for Godot .godot.onnx",
    )
    parser.add_argument(
        "--observation",
        metavar="SHAPE",
        action="append",
        default=[],
        help="the shape of a sensor, one option per sensor in Unity's order: 8 is a vector, 3x84x84 a picture "
        "(channels, height, width), 20x6 a list (entities, size), 3:goal a goal signal. Only needed for checkpoints of "
        "ML-Agents without an .onnx of the same name",
    )
    add_results_dir(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the files, and log where they are.

    Raises:
        CheckpointError: there is nothing to export, or a checkpoint cannot be used.
        ExportError: a policy cannot be exported or written.
        SettingsError: options exclude each other.
    """
    # Late: torch and onnx are slow to import, and --help does not need them.
    from trajtrainer.policies.checkpoints.saved_policies import export_saved
    from trajtrainer.policies.onnx.contract import DEFAULT_OPSET
    from trajtrainer.policies.onnx.export import export_policy
    from trajtrainer.policies.onnx.godot import ActionPart, export_for_godot
    from trajtrainer.tools.source.write import LANGUAGES, WITH_NODE, export_source

    if arguments.to != "onnx" and arguments.opset is not None:
        raise SettingsError(f"--opset can only be used with --to onnx. Remove it, or do not use --to {arguments.to}.")
    if arguments.to != "godot-onnx" and arguments.action_order:
        raise SettingsError(
            f"--action-order can only be used with --to godot-onnx. Remove it, or do not use --to {arguments.to}."
        )
    order = ActionPart.parse(arguments.action_order) if arguments.action_order else ()
    opset = DEFAULT_OPSET if arguments.opset is None else arguments.opset
    languages = {**LANGUAGES, "godot": WITH_NODE}

    def write(actor: Actor, spec: BehaviorSpec, path: Path, origin: Origin) -> None:
        if arguments.to == "onnx":
            export_policy(actor, spec, path, opset=opset)
        elif arguments.to == "godot-onnx":
            export_for_godot(actor, spec, path, order)
        else:
            export_source(actor, spec, path, languages[arguments.to], origin)

    suffixes = {"onnx": ".onnx", "godot-onnx": ".godot.onnx"} | {name: each.suffix for name, each in languages.items()}
    with console(debug=False):
        export_saved(
            arguments.target,
            results=arguments.results_dir,
            behavior=arguments.behavior,
            sensors=_sensors(arguments.observation),
            write=write,
            suffix=suffixes[arguments.to],
            output=arguments.output,
        )
    return 0


def _sensors(texts: Sequence[str]) -> list[ObservationSpec]:
    from trajtrainer.policies.checkpoints.mlagents.description import sensor

    sensors = []
    for index, text in enumerate(texts):
        sizes, _, kind = text.partition(":")
        parts = sizes.split("x")
        if kind not in ("", "goal") or not 1 <= len(parts) <= 3 or not all(p.isdecimal() and int(p) for p in parts):
            raise SettingsError(
                f"{text!r} is not a valid --observation; expected a vector such as 8, a list such as 20x6 (entities, "
                "size) or a picture such as 3x84x84 (channels, height, width), followed by :goal for a goal signal."
            )
        sensors.append(sensor(index, tuple(int(part) for part in parts), goal=kind == "goal"))
    return sensors
