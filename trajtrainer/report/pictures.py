"""Pictures that matplotlib draws (the extra ``plot``), as files."""

from __future__ import annotations

from pathlib import Path

from trajtrainer.core.errors import SettingsError


def check_picture(path: Path, option: str) -> None:
    """Look whether a picture of this name, which ``option`` gave, can be drawn.

    Raises:
        SettingsError: it cannot, or the package that draws is not installed.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise SettingsError(
            f"{option} needs the package matplotlib, which is not installed. Install it with: pip install "
            "'trajtrainer[plot]'. (trajtrainer report needs nothing.)"
        ) from error
    kinds = FigureCanvasBase.filetypes
    if path.suffix[1:] not in kinds:
        raise SettingsError(f"{option} {path}: pictures are called *.{', *.'.join(sorted(kinds))}.")
