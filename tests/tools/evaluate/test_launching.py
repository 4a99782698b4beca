"""The player of ``trajtrainer evaluate`` loads while torch is imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.run import process_tree
from tests.run.at_import import LIMIT_S, check_launch, check_signal, command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
EVALUATE = ["evaluate", "random", "heuristic", "--env=sim:Basic", "--episodes=2"]


def test_the_player_of_the_first_model_is_launched_first(tmp_path: Path) -> None:
    check_launch(tmp_path, *EVALUATE)


def test_a_film_has_a_player_of_its_own_which_would_need_the_same_port(tmp_path: Path) -> None:
    run = command(tmp_path, "go", *EVALUATE, "--video=a.gif")
    output, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, output
    assert not (tmp_path / "players").read_text()
    assert (tmp_path / "a-1.gif").exists()


def test_a_signal_during_the_import_ends_the_player(tmp_path: Path) -> None:
    check_signal(tmp_path, *EVALUATE)


@pytest.mark.parametrize(
    ("model", "message", "num_players"),
    [
        ("missing", "There is no file or folder missing", 0),
        ("damaged.pt", "The checkpoint damaged.pt was rejected", 1),  # nobody can know before it is read
    ],
)
def test_a_model_that_cannot_be_used_leaves_no_player(
    model: str, message: str, num_players: int, tmp_path: Path
) -> None:
    (tmp_path / "damaged.pt").write_bytes(b"damaged")
    run = command(tmp_path, "go", "evaluate", model, "--env=sim:Basic")
    output, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 1, output
    assert message in output
    launched = [int(pid) for pid in (tmp_path / "players").read_text().split()]
    assert len(launched) == num_players
    assert not any(map(process_tree.is_alive, launched))
