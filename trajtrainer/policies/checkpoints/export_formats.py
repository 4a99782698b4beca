"""Registry of what ``trajtrainer export --to`` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trajtrainer.core.plugins import Reference, Registry


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """A format of exported policies.

    Attributes:
        suffix: of its files.
        write: called with the ``Actor``, its ``BehaviorSpec``, the path and an ``Origin``, and with the values of its
            flags that are given, by name; writes one policy.
        flags: options of the command that only this format takes -> arguments of ``ArgumentParser.add_argument``.
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
            "trajtrainer.policies.checkpoints.saved_policies:write_onnx",
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
"""Value of ``--to`` -> format."""
