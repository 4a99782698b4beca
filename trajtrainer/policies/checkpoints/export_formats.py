"""Registry of the formats that ``trajtrainer export --to`` can write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trajtrainer.core.plugins import Reference, Registry


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """A format for exported policies.

    Attributes:
        suffix: suffix of the exported files.
        write: function that writes one policy. It is called with the ``Actor``, its ``BehaviorSpec``, the path and an
            ``Origin``, and with each given flag as a keyword argument.
        flags: command-line options that only this format accepts, each with its arguments for
            ``ArgumentParser.add_argument``.
    """

    suffix: str
    write: Reference
    flags: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


EXPORT_FORMATS: Registry[ExportFormat] = Registry(
    "export format",
    "trajtrainer.export_formats",
    ExportFormat,
    {
        "onnx": ExportFormat(
            ".onnx",
            "trajtrainer.policies.checkpoints.export_saved:write_onnx",
            {"--opset": {"metavar": "N", "type": int, "help": "version of the ONNX operators, 9 to 15 (default: 9)"}},
        ),
        "c": "trajtrainer.tools.source.formats:C",
        "csharp": "trajtrainer.tools.source.formats:CSHARP",
        "js": "trajtrainer.tools.source.formats:JS",
        "gdscript": "trajtrainer.tools.source.formats:GDSCRIPT",
        "godot": "trajtrainer.tools.source.formats:GODOT",
        "godot-onnx": "trajtrainer.plugins.godot.export:ROW",
    },
)
"""The export formats, by their name in ``--to``."""
