"""A pipe into which nobody writes never keeps the command waiting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.test_no_files import assert_pipes_are_refused

COMMANDS = {"import --env=sim:Basic -o new.onnx": ("x.zip", "cannot be read")}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are files on POSIX only")
def test_it_refuses_pipes(tmp_path: Path) -> None:
    assert_pipes_are_refused(COMMANDS, tmp_path)
