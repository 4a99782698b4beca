"""Source code in several languages as formats of ``trajtrainer export``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trajtrainer.policies.checkpoints.export_formats import ExportFormat

if TYPE_CHECKING:
    from trajtrainer.core.spec import BehaviorSpec
    from trajtrainer.learning.nn.actor import Actor
    from trajtrainer.policies.checkpoints.export_saved import Origin


def write(language: str, actor: Actor, spec: BehaviorSpec, path: Path, origin: Origin) -> None:
    """Write a policy in one of ``LANGUAGES``.

    Raises:
        ExportError: see ``export_source``.
    """
    # Imported here because torch is slow to import, and --help does not need it.
    from trajtrainer.tools.source.write import LANGUAGES, export_source

    export_source(actor, spec, path, LANGUAGES[language], origin)


C = ExportFormat(".h", partial(write, "c"))
CSHARP = ExportFormat(".cs", partial(write, "csharp"))
JS = ExportFormat(".mjs", partial(write, "js"))
GDSCRIPT = ExportFormat(".gd", partial(write, "gdscript"))
GODOT = ExportFormat(".gd", partial(write, "godot"))
