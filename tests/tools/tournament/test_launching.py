"""The player of ``trajtrainer tournament`` loads while torch is imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.run.at_import import check_launch, check_signal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
TOURNAMENT = ["tournament", "random", "heuristic", "--env=sim:Duel", "--games=2"]


def test_the_player_is_launched_first(tmp_path: Path) -> None:
    # There is no heuristic for this game, but that is known only when the player has described its agents.
    output = check_launch(tmp_path, *TOURNAMENT, code=1)
    assert "heuristic cannot play 'Duel'" in output


def test_a_signal_during_the_import_ends_the_player(tmp_path: Path) -> None:
    check_signal(tmp_path, *TOURNAMENT)
