"""``trajtrainer tournament`` from models on disk to a table."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.test_export import checkpoint_of, saved
from tests.learning.nn.specs import behavior, network, vector
from tests.policies.onnx.test_onnx import random_actor
from tests.tools.bids import SPEC, Bids
from trajtrainer.cli.main import main
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.policies.onnx.export import export_policy

GAME = "--env=python:tests.tools.bids:Bids"


def bidder(bid: int, certainty: float = 9.0) -> Actor:
    """An actor that all but always bids so."""
    actor = random_actor(SPEC)
    with torch.no_grad():
        for name, parameter in actor.head.named_parameters():
            parameter.zero_()
            if name.endswith("bias"):
                parameter[bid] = certainty
    return actor


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A run that has learned to bid 0, then 1, then 2, and beside it the model of another that bids 1."""
    for step, bid in ((10, 0), (20, 1), (30, 2)):
        content = checkpoint_of(bidder(bid), network())
        content["global_step"]["_GlobalSteps__global_step"].fill_(step)
        for name in (f"Bids-{step}.pt", "checkpoint.pt"):
            saved(tmp_path / "results" / "first" / "Bids" / name, content)
    export_policy(bidder(1), SPEC, tmp_path / "Bids.onnx")
    return tmp_path / "results"


def tournament(*arguments: str | Path) -> int:
    return main(["tournament", "--torch-device=cpu", *map(str, arguments)])


def table(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """Name -> steps, games, wins, draws, losses, rating, ±, uncertainty; in the order of the table."""
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["model", "steps", "games", "wins", "draws", "losses", "rating"]
    return {row.split()[0]: row.split()[1:] for row in rows}


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_all_checkpoints_of_a_run(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(results)
    assert tournament("first/*", f"--results-dir={results}", GAME, "--games=10", "--deterministic") == 0

    rows = table(capsys)
    assert list(rows) == ["first/30", "first/20", "first/10"]
    assert [row[:5] for row in rows.values()] == [
        ["30", "20", "20", "0", "0"], ["20", "20", "10", "0", "10"], ["10", "20", "0", "0", "20"]
    ]  # fmt: skip
    assert all(re.fullmatch(r"± \d\.\d", " ".join(row[6:])) for row in rows.values())
    assert contents(results) == before


def test_an_environment_that_is_not_given_is_the_one_of_the_first_run(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = "env_settings: {env_path: 'python:tests.tools.bids:Bids', env_args: [tables=2]}\n"
    parameters = "environment_parameters: {stake: 3.0}\n"
    (results / "first" / "configuration.yaml").write_text(own + parameters)
    models: list[str | Path] = ["first", tmp_path / "Bids.onnx"]
    assert tournament(*models, f"--results-dir={results}", "--games=4", "--num-envs=2") == 0
    told = capsys.readouterr().err
    assert "Environment parameters: stake=" in told
    assert "Using options from the run of first: --env python:tests.tools.bids:Bids, --env-args tables=2." in told


def test_several_kinds_of_models_in_several_environments(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models: list[str | Path] = ["first", results / "first" / "Bids" / "Bids-10.pt", tmp_path / "Bids.onnx"]
    files = [f"--json={tmp_path / 'out.json'}", f"--plot={tmp_path / 'out.png'}"]
    arguments = [*models, f"--results-dir={results}", GAME, "--games=8", "--seed=3", "--num-envs=2", *files]
    assert tournament(*arguments, "--env-args", "tables=2") == 0
    rows = table(capsys)

    found: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    assert (found["environment"], found["seed"], found["games_per_pair"]) == (
        "python:tests.tools.bids:Bids",
        3,
        8,
    )
    assert [(each["name"], str(each["wins"])) for each in found["models"]] == [
        (name, row[-6]) for name, row in rows.items()
    ]
    assert list(rows) == ["first", str(tmp_path / "Bids.onnx"), str(models[1])]
    assert {each["name"]: list(each["files"]) for each in found["models"]}["first"] == ["Bids"]
    assert [pair["games"] for pair in found["pairs"]] == [8, 8, 8]
    assert [side["games"] for side in found["pairs"][0]["by_side"]] == [4, 4]
    assert (tmp_path / "out.png").read_bytes()[:4] == b"\x89PNG"


def test_a_seed_repeats_it(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        export_policy(bidder(number, certainty=0.3), SPEC, tmp_path / f"{number}.onnx")
    saved(tmp_path / "luck.pt", checkpoint_of(bidder(1, certainty=0.3), network()))
    models = [tmp_path / "0.onnx", tmp_path / "1.onnx", tmp_path / "luck.pt"]

    def held(seed: int) -> Any:
        assert tournament(*models, GAME, "--games=20", f"--seed={seed}", f"--json={tmp_path / 'out.json'}") == 0
        return json.loads((tmp_path / "out.json").read_text())["pairs"]

    assert held(1) == held(1)
    assert held(1) != held(2)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert tournament(*arguments) == 1
    error = capsys.readouterr().err
    return error[error.index("error: ") :]


def test_what_cannot_be(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = f"--results-dir={results}"
    everything = ["first/*", own, GAME]
    assert "needs at least two models" in refused(capsys, "first", own, GAME)
    told = refused(capsys, "first", "second", tmp_path / "third.pt", own, GAME)
    assert "no file or folder second" in told
    assert "third.pt" in told
    told = refused(capsys, "first/*", own, "--env=python:tests.tools.bids:one_team", "--games=2")
    assert "has one team (0)" in told
    told = refused(capsys, *everything, f"--plot={tmp_path / 'nowhere' / 'a.png'}")
    assert "nowhere, which does not exist" in told
    assert "the name of an image file must end in" in refused(capsys, *everything, f"--plot={tmp_path / 'a.bmp'}")
    assert f"--json {tmp_path} is a folder" in refused(capsys, *everything, f"--json={tmp_path}")


def test_models_of_other_agents(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = random_actor(behavior([vector(5)], 2))
    saved(tmp_path / "other.pt", checkpoint_of(other, network()))
    export_policy(other, other.spec, tmp_path / "other.onnx")
    told = refused(capsys, "first", tmp_path / "other.pt", tmp_path / "other.onnx", f"--results-dir={results}", GAME)

    assert f"{tmp_path / 'other.pt'} cannot play 'Bids': " in told
    assert f"{tmp_path / 'other.onnx'} cannot play 'Bids': " in told
    assert "first cannot" not in told


def test_one_team_of_a_real_player(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over the wire, in two players."""
    actor = random_actor(behavior([vector(20)], 0, (3,)))
    for name in ("a.pt", "b.pt"):
        saved(tmp_path / name, checkpoint_of(actor, network()))
    sim = ["--env=sim:Basic", "--num-envs=2"]

    assert "has one team (0)" in refused(capsys, tmp_path / "a.pt", tmp_path / "b.pt", *sim)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("simulation", "roles"),
    [("Duel", {"Duel": (7, 5)}), ("StrikerVsGoalie", {"Striker": (3, 3), "Goalie": (4, 3)})],
)
def test_the_built_in_games_over_the_wire(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    simulation: str,
    roles: dict[str, tuple[int, int]],
    workers: int,
) -> None:
    """Eight areas in each player. No game of these can be a draw unless both sides act alike, or areas are mixed up."""
    for name, (size, choices) in roles.items():
        for run, seed in (("a", 1), ("b", 2)):
            actor = random_actor(behavior([vector(size)], 0, (choices,)), seed=seed)
            saved(tmp_path / run / name / "checkpoint.pt", checkpoint_of(actor, network()))
    result = tmp_path / "out.json"
    arguments = [f"--results-dir={tmp_path}", f"--env=sim:{simulation}", f"--num-envs={workers}", "--num-areas=8"]

    assert tournament("a", "b", *arguments, "--games=30", "--seed=1", f"--json={result}") == 0
    found: dict[str, Any] = json.loads(result.read_text())
    assert [side["games"] for side in found["pairs"][0]["by_side"]] == [15, 15]
    if simulation == "StrikerVsGoalie":
        assert found["pairs"][0]["draws"] == 0


@pytest.mark.parametrize(("arguments", "told"), [(["a", "--games=0"], "'0' is not a number of games"), ([], "MODEL")])
def test_wrong_usage(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tournament", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_without_matplotlib(results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    told = refused(capsys, "first/*", f"--results-dir={results}", GAME, "--plot=a.png")

    assert "pip install 'trajtrainer[plot]'" in told


def interrupted(
    results: Path, monkeypatch: pytest.MonkeyPatch, what: Callable[[], object], *arguments: str | Path
) -> int:
    """The exit code of a tournament in whose 21st step something happens."""
    steps = itertools.count(1)
    step = Bids.step

    def stepped(self: Bids) -> None:
        if next(steps) == 21:
            what()
        step(self)

    monkeypatch.setattr(Bids, "step", stepped)
    return tournament("first/*", f"--results-dir={results}", GAME, "--games=100", *arguments)


def fail() -> None:
    raise RuntimeError("the table has collapsed")


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (fail, 1),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), 143),
        (lambda: os.kill(os.getpid(), signal.SIGINT), 130),
    ],
)
def test_what_ends_it_early_leaves_the_games_before(
    results: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    what: Callable[[], object],
    code: int,
) -> None:
    assert interrupted(results, monkeypatch, what, f"--json={tmp_path / 'out.json'}") == code

    shown = capsys.readouterr()
    assert ("the table has collapsed" in shown.err) == (what is fail)
    played = sum(each["games"] for each in json.loads((tmp_path / "out.json").read_text())["models"]) // 2
    assert f"{played} of 300 games were played" in shown.err
    assert 4 < played < 12
    assert len(shown.out.splitlines()) == 4


def test_a_model_plays_against_random_actions(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tournament("random", "first", f"--results-dir={results}", GAME, "--games=20", "--deterministic") == 0
    rows = table(capsys)
    assert list(rows) == ["first", "random"]
    assert int(rows["first"][2]) > 10, "wins of the highest bid"
