"""``trajtrainer export RUN_OR_CHECKPOINT``: exports policies of checkpoints as ``.onnx`` or as source code."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajtrainer.core.errors import SettingsError
from trajtrainer.core.plugins import resolve
from trajtrainer.policies.checkpoints.export_formats import EXPORT_FORMATS
from trajtrainer.run.console import add_results_dir, console

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
    parser.add_argument("--behavior", metavar="NAME", help="export only this behavior of a run (default: all)")
    parser.add_argument(
        "--to",
        choices=tuple(EXPORT_FORMATS),
        default="onnx",
        help="onnx for Unity's ML-Agents (default), or a single file of source code without dependencies: a C99 header "
        "(c), a C# class (csharp), a JavaScript module (js), or a script for Godot 4 (gdscript); for games with the "
        "Godot RL Agents plugin: that script with a node that uses it (godot), or an .onnx for the plugin's C# "
        "(godot-onnx)",
    )
    for flag, (_, options) in sorted(_flags().items()):
        parser.add_argument(flag, **options)
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


def _flags() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return the options that apply to only one format: option -> name of the format, arguments of the option."""
    rows = {name: EXPORT_FORMATS.get(name) for name in EXPORT_FORMATS}
    return {flag: (name, options) for name, row in rows.items() if row for flag, options in row.flags.items()}


def run(arguments: argparse.Namespace) -> int:
    """Write the files, and log their paths.

    Raises:
        CheckpointError: there is no policy to export, or a checkpoint cannot be used.
        ExportError: a policy cannot be exported or written.
        SettingsError: the options are incompatible with each other.
        PluginError: the package that provides the format is broken.
    """
    # Imported late, because torch and onnx are slow to import and --help does not need them.
    from trajtrainer.policies.checkpoints.export_saved import export_saved

    given: dict[str, Any] = {}
    for flag, (name, _) in _flags().items():
        key = flag.removeprefix("--").replace("-", "_")
        value = getattr(arguments, key)
        if value is not None and name != arguments.to:
            raise SettingsError(
                f"{flag} can only be used with --to {name}. Remove it, or do not use --to {arguments.to}."
            )
        given |= {} if value is None else {key: value}
    row = EXPORT_FORMATS[arguments.to]
    with EXPORT_FORMATS.blaming(arguments.to):
        write = partial(resolve(row.write), **given)
    with console(debug=False):
        export_saved(
            arguments.target,
            results=arguments.results_dir,
            behavior=arguments.behavior,
            sensors=_sensors(arguments.observation),
            write=write,
            suffix=row.suffix,
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
