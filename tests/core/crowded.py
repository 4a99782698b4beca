"""Archives that are made to take forever."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path


def crowded(path: Path, members: int) -> Path:
    """An archive that lists one file under thousands of entries."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", b"")
    content = path.read_bytes()
    start, end = content.index(b"PK\1\2"), content.index(b"PK\5\6")
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, (end - start) * members, start, 0)
    path.write_bytes(content[:start] + content[start:end] * members + tail)
    return path
