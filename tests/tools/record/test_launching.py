"""The player of ``trajtrainer record`` loads while torch is imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.run.at_import import check_launch, check_signal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
RECORD = ["record", "--policy=heuristic", "--env=sim:Basic", "--episodes=2", "--output=a.demo"]


def test_the_player_is_launched_first(tmp_path: Path) -> None:
    check_launch(tmp_path, *RECORD)
    assert (tmp_path / "a.demo").exists()


def test_a_signal_during_the_import_ends_the_player(tmp_path: Path) -> None:
    check_signal(tmp_path, *RECORD)
