"""Memory that two processes see, up to its end."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.envs.workers import shared_memory
from trajtrainer.envs.workers.shared_memory import SharedMemory


def test_a_block_is_gone_when_both_have_closed_it() -> None:
    block = SharedMemory.create(100)
    other = SharedMemory.open(block.address)
    block.buffer[3] = 7
    block.unlink()
    assert other.buffer[3] == 7
    if sys.platform != "win32":  # there a name lives as long as its memory
        with pytest.raises(OSError, match="No such file"):
            SharedMemory.open(block.address)
    block.unlink()
    block.close()
    assert other.buffer[3] == 7
    other.close()


def test_arrays_may_outlive_their_block() -> None:
    block = SharedMemory.create(100)
    array = np.ndarray((4,), np.float32, block.buffer)
    array[:] = 5
    block.close()
    del block
    assert array.tolist() == [5] * 4


def test_a_block_on_disk_where_there_are_no_files_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shared_memory, "_OPEN_FILES", "/does/not/exist")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    block = SharedMemory.create(100)
    other = SharedMemory.open(block.address)
    block.buffer[3] = 7
    block.unlink()
    assert list(tmp_path.iterdir()) == []
    assert other.buffer[3] == 7


def test_no_room() -> None:
    with pytest.raises(EnvironmentFaultError, match=r"Cannot allocate .* bytes of shared memory"):
        SharedMemory.create(2**60)
