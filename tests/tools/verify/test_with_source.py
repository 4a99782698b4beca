"""``trajtrainer verify --against``: the policy as source code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.tools.source.players import missing
from tests.tools.verify import games
from tests.tools.verify.games import Fault, make_game, play, record
from tests.tools.verify.planting import other_policy
from tests.tools.verify.test_verify import in_a_run, refused, verify
from trajtrainer.policies.checkpoints.saved_policies import Origin
from trajtrainer.tools.source.write import LANGUAGES, export_source


@pytest.fixture(params=["c", "js", "csharp"])
def language(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if (absent := missing(name)) is not None:
        pytest.skip(f"{name} needs {absent}")
    return name


@pytest.mark.parametrize("sensors", [games.two_vectors, games.remembering])
def test_source_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], language: str, sensors: Callable[..., object]
) -> None:
    game = make_game(np.random.default_rng(9), sensors, games.HYBRID, masked=True, drawn=True)  # type: ignore[arg-type]
    model = game.model(tmp_path / "Crawler.onnx")
    demo = record(tmp_path / "game.demo", game, *play(game, model, Fault()))
    form = LANGUAGES[language]
    file = tmp_path / f"Crawler{form.suffix}"
    export_source(game.actor, game.spec, file, form, Origin("Crawler", None, 5))
    assert verify(model, "--demo", demo, "--against", file) == 0
    shown = capsys.readouterr()
    assert f"{file} is compiled and run in a temporary folder." in shown.err
    assert f"AGREE: {file} (sampled) and the model" in shown.out
    assert f"AGREE: {file} (deterministic) and the model" in shown.out
    older = other_policy(game, np.random.default_rng(2), 0.15)
    run = in_a_run(tmp_path / "first", (100, older), (200, game))
    export_source(older.actor, game.spec, file, form, Origin("Crawler", None, 5))
    assert verify(model, "--demo", demo, "--against", file, "--run", run) == 1
    out = capsys.readouterr().out
    assert "AGREE: the game" in out
    assert f"DIFFERENT: {file} (deterministic)" in out
    assert out.count("These are the actions of another model of the run: the checkpoint of step 100") == 2
    stranger = other_policy(game, np.random.default_rng(2), 1.0)
    export_source(stranger.actor, game.spec, file, form, Origin("Crawler", None, 5))
    assert verify(model, "--demo", demo, "--against", file) == 1
    out = capsys.readouterr().out
    assert out.count("explains its actions, so the file probably holds another model.") == 2
    assert "Behavior Parameters" not in out


def test_source_code_that_cannot_be_run(
    model: Path, demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], language: str
) -> None:
    form = LANGUAGES[language]
    file = tmp_path / f"x{form.suffix}"
    file.write_text("nothing")
    assert "is no policy that `trajtrainer export --to` wrote" in refused(
        capsys, model, "--demo", demo, "--against", file
    )
    other = make_game(np.random.default_rng(1), games.vectors, games.HYBRID)
    export_source(other.actor, other.spec, file, form, Origin("Crawler", None, 5))
    assert "is of agents that see or do something else" in refused(capsys, model, "--demo", demo, "--against", file)
    file.write_text(file.read_text().replace("Policy", "Broken", 0) + "\n?! \n")
    assert "does not work: " in refused(capsys, model, "--demo", demo, "--against", file)
    godot = tmp_path / "x.gd"
    assert "runs in Godot alone" in refused(capsys, model, "--demo", demo, "--against", godot)
    assert "is no policy as source code" in refused(capsys, model, "--demo", demo, "--against", tmp_path / "x.py")
