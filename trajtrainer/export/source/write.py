"""Writes a policy as one file of source code that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trajtrainer.core import atomic
from trajtrainer.core.errors import ExportError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.export.source.build import build_program
from trajtrainer.export.source.c import write_c
from trajtrainer.export.source.csharp import write_csharp
from trajtrainer.export.source.gdscript import write_gdscript
from trajtrainer.export.source.godot_node import write_node
from trajtrainer.export.source.javascript import write_javascript
from trajtrainer.export.source.printing import Origin
from trajtrainer.export.source.program import Program
from trajtrainer.nn.actor import Actor

# 16 MB of numbers, which are 20 to 50 MB of text. Compilers and editors take minutes for more.
MOST_WEIGHTS: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class Language:
    """How policies are written in a language.

    Attributes:
        suffix: of its files.
        write: returns the text of a file.
        write_node: returns the text of a second file, which ends in ``Node`` and uses the first.
        columns: the form of matrix products that suits its compilers; see ``Lowering``.
    """

    name: str
    suffix: str
    write: Callable[[Program, Origin], str]
    columns: bool = False
    write_node: Callable[[Program, Origin], str] | None = None


LANGUAGES: Final[Mapping[str, Language]] = {
    "c": Language("C", ".h", write_c, columns=True),
    "csharp": Language("C#", ".cs", write_csharp),
    "js": Language("JavaScript", ".mjs", write_javascript),
    "gdscript": Language("GDScript", ".gd", write_gdscript),
}
WITH_NODE: Final = Language("GDScript", ".gd", write_gdscript, write_node=write_node)
"""GDScript, and a node for agents of the Godot RL Agents plugin."""


def export_source(actor: Actor, spec: BehaviorSpec, path: Path, language: Language, origin: Origin) -> None:
    """Write a policy as source code. Each file appears whole or not at all.

    Args:
        actor: trained or not, on any device.
        spec: of the behavior.
        path: of the file; what is there is replaced.
        language: one of ``LANGUAGES``.
        origin: for the comment at the top.

    Raises:
        ExportError: an operator for which there is no form, too many weights, or the file cannot be written.
    """
    size = sum(parameter.numel() for parameter in actor.parameters())
    if size > MOST_WEIGHTS:
        raise ExportError(
            f"The policy has {size:,} weights, and source code is written of up to {MOST_WEIGHTS:,}. Use its .onnx "
            "(the same command without --to)."
        )
    program = build_program(actor, spec, columns=language.columns)
    texts = {path: language.write(program, origin)}
    if language.write_node is not None:
        texts[path.with_stem(f"{path.stem}Node")] = language.write_node(program, origin)
    try:
        for file, text in texts.items():
            atomic.write_text(file, text)
    except OSError as error:
        raise ExportError(f"The policy could not be written to {path}: {error.strerror or error}.") from error
