"""Where a run is from that was fetched and not trained here: what its files name is not run unasked."""

from __future__ import annotations

from pathlib import Path

FILE = "pulled_from.txt"


def write_origin(folder: Path, origin: str) -> None:
    """Note in a run's folder where it was fetched from."""
    (folder / FILE).write_text(f"{origin}\n", encoding="utf-8")


def origin_of(folder: Path) -> str | None:
    """Return where a folder, or one around it, was fetched from; None if it was not."""
    for each in (folder, *folder.parents):
        if (each / FILE).is_file():
            return (each / FILE).read_text(encoding="utf-8", errors="replace").strip()
    return None
