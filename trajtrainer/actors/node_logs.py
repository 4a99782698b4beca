"""Logs of players on machines that do not have the run's folder."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

_MOST_BYTES = 1 << 20  # of one file: its end
_MOST_FILES = 64
_NAME = re.compile(r"Player-\d{1,9}\.log")


class NodeLogs:
    """The ``PlayerLogs`` of one actor: in its folder of the run, or on another node in a folder to be sent there.

    Args:
        folder: of the run; None if nothing may be written.
        node: that the folder is on.
    """

    def __init__(self, folder: Path | None, node: str) -> None:
        self.folder = folder
        self._node = node
        self._is_away = False
        self._has_own = False

    def arrive(self, node: str) -> None:
        """Note which node the actor runs on."""
        self._is_away = self.folder is not None and node != self._node

    def player_log(self, worker: int) -> Path | None:
        if self._is_away and not self._has_own:
            self.folder, self._has_own = Path(tempfile.mkdtemp(prefix="trajtrainer-logs-")), True
        return None if self.folder is None else self.folder / f"Player-{worker}.log"

    def take(self) -> dict[str, bytes]:
        """Take the ends of all logs that the run's folder does not have: name -> text."""
        if not self._has_own or self.folder is None:
            return {}
        found = {path.name: _end_of(path) for path in sorted(self.folder.glob("Player-*.log"))[:_MOST_FILES]}
        shutil.rmtree(self.folder, ignore_errors=True)
        return found


def write_logs(folder: Path, logs: Mapping[str, bytes]) -> None:
    """Write what ``NodeLogs.take`` gave. The logs of an actor that was started again are continued.

    Raises:
        OSError: they cannot be written.
    """
    for name, text in logs.items():
        if _NAME.fullmatch(name):
            with (folder / name).open("ab") as file:
                file.write(text)


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _MOST_BYTES))
        return file.read(_MOST_BYTES)
