"""Tests that a reader writes, run within the test under way: a process of their own would import torch first."""

from __future__ import annotations

from pathlib import Path

import pytest


def run(folder: Path, *arguments: str) -> int:
    """``pytest ARGUMENTS`` in a folder that has no configuration. Returns the exit code; the output is printed."""
    own = ("-p", "no:cacheprovider", "-p", "no:faulthandler", f"--rootdir={folder}")
    return int(pytest.main([*own, *arguments]))
