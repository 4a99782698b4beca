"""A game with its model, and a recording of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tools.verify import games
from tests.tools.verify.games import Fault, Game, make_game, play, record


@pytest.fixture
def game() -> Game:
    return make_game(np.random.default_rng(1), games.two_vectors, games.HYBRID, drawn=False)


@pytest.fixture
def model(game: Game, tmp_path: Path) -> Path:
    return game.model(tmp_path / "Crawler.onnx")


@pytest.fixture
def demo(game: Game, model: Path, tmp_path: Path) -> Path:
    return record(tmp_path / "game.demo", game, *play(game, model, Fault()))
