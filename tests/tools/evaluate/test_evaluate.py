"""``trajtrainer evaluate`` from models on disk to numbers and films."""

from __future__ import annotations

import csv
import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image

from tests.cli.test_export import checkpoint_of, saved
from tests.learning.nn.specs import behavior, network, vector
from tests.policies.onnx.test_onnx import random_actor
from tests.policies.play.worlds import Walk, chooser
from trajtrainer.cli.main import main
from trajtrainer.policies.onnx.export import export_policy
from trajtrainer.policies.play.loaded_policy import load_policy

WALK = "--env=python:tests.policies.play.worlds:Walk"
CONFIGURATION = """
environment_parameters:
  bonus:
    curriculum:
      - {name: easy, value: 100.0, completion_criteria: {measure: reward, behavior: Walk, threshold: 5.0}}
      - {name: hard, value: 1000.0}
"""


def evaluate(*arguments: str | Path) -> int:
    return main(["evaluate", "--torch-device=cpu", *map(str, arguments)])


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_models_are_compared_on_the_same_episodes(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(results)
    models = ["first", "first@best", str(tmp_path / "Walk.onnx")]
    files = [f"--json={tmp_path / 'out.json'}", f"--csv={tmp_path / 'out.csv'}"]
    arguments = [f"--results-dir={results}", WALK, "--episodes=40", "--seed=7", "--deterministic"]
    assert evaluate(*models, *files, *arguments) == 0
    table = capsys.readouterr().out
    found = json.loads((tmp_path / "out.json").read_text())
    rows = read(tmp_path / "out.csv")

    assert list(found) == ["results"]
    assert [list(result) for result in found["results"]] == [["model", "behaviors"]] * 3
    assert [result["model"] for result in found["results"]] == models
    first, best, exported = (result["behaviors"]["Walk"] for result in found["results"])
    assert {"episodes", "mean", "std", "ci95", "length", "decisions"} <= first.keys()
    assert (first["episodes"], first["seed"], first["deterministic"]) == (40, 7, True)
    assert first["decisions"] == sum(int(row["length"]) for row in rows[:40])
    assert first["mean"] == pytest.approx(exported["mean"]) == np.mean([float(row["return"]) for row in rows[:40]])
    # Each step pays 1 less, while the starts differ by much more.
    assert best["difference"]["mean"] == pytest.approx(-first["length"]["mean"])
    assert best["difference"]["ci95"][1] < -2.0
    assert first["ci95"][0] < first["mean"] - 2.0
    assert exported["difference"]["ci95"] == [0.0, 0.0]
    assert [row["seed"] for row in rows] == [str(seed) for seed in range(7, 47)] * 3
    assert all(model in table for model in models)
    assert f"{first['mean']:.3f}" in table
    assert contents(results) == before


def test_the_number_of_copies_changes_nothing(results: Path, tmp_path: Path) -> None:
    def returns(copies: int) -> dict[str, str]:
        out = tmp_path / f"{copies}.csv"
        arguments = [f"--num-envs={copies}", "--episodes=11", "--seed=3", "--deterministic", f"--csv={out}"]
        assert evaluate(tmp_path / "Walk.onnx", WALK, *arguments) == 0
        return {row["seed"]: row["return"] for row in read(out)}

    assert len(returns(1)) == 11
    assert returns(1) == returns(4)


@pytest.mark.parametrize("kind", ["run", "Walk.onnx"])
def test_gymnasium_itself_says_the_same(kind: str, results: Path, tmp_path: Path) -> None:
    """A policy that falls sooner or later, played by a loop of one's own as in Stable-Baselines3's evaluation."""
    actor = random_actor(behavior([vector(4)], 0, (2,)), seed=3)
    saved(tmp_path / "run" / "Walk" / "checkpoint.pt", checkpoint_of(actor, network()))
    export_policy(actor, actor.spec, tmp_path / "Walk.onnx")
    out, model = tmp_path / "out.csv", tmp_path / kind
    arguments = ["--env=gym:CartPole-v1", "--episodes=6", "--seed=20", "--num-envs=2", "--deterministic"]
    assert evaluate(model, f"--csv={out}", *arguments) == 0

    env = gymnasium.make("CartPole-v1")
    policy = load_policy(model, env=env)
    for row in sorted(read(out), key=lambda row: int(row["seed"])):
        observation, _ = env.reset(seed=int(row["seed"]))
        total, over, steps = 0.0, False, 0
        while not over:
            observation, reward, ended, late, _ = env.step(policy.act(observation, deterministic=True).action)
            total, over, steps = total + float(reward), ended or late, steps + 1
        assert (float(row["return"]), int(row["length"])) == (total, steps)


def test_what_is_required(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = [f"--results-dir={results}", WALK, "--episodes=3", "--seed=1"]
    assert evaluate("first", "--at-least=-30", *own) == 0
    assert evaluate("first", "--at-least=30", *own) == 3
    assert "the mean return of Walk is" in capsys.readouterr().err
    assert evaluate("first", "--at-least=Walk=30", "--at-least=-30", *own) == 3


def test_a_wrong_name_does_not_pass_for_a_good_model(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [f"--results-dir={results}", WALK, "--episodes=3", "--seed=1"]
    shutil.copy(tmp_path / "Walk.onnx", tmp_path / "Any.onnx")  # plays whatever there is
    assert evaluate(tmp_path / "Any.onnx", "--at-least=Other=-30", *own) == 3
    assert "there is no mean return for Other; the behaviors that played are Walk." in capsys.readouterr().err

    monkeypatch.setattr(Walk, "step", lambda *_: pytest.fail("it is known before"))
    assert "--at-least Wlak: first plays only Walk; did you mean Walk?" in refused(
        capsys, "first", "--at-least=Wlak=-30", *own
    )
    saved(results / "first" / "Run" / "checkpoint.pt", checkpoint_of(chooser(1), network()))
    monkeypatch.setattr(Walk, "__init__", lambda *_: pytest.fail("it is known before"))
    assert "--at-least Other: first plays only Run, Walk." in refused(capsys, "first", "--at-least=Other=-30", *own)


def test_parameters_of_the_run_and_of_the_command_line(results: Path, tmp_path: Path) -> None:
    def bonus(*arguments: str) -> float:
        out = tmp_path / "out.csv"
        options = [f"--results-dir={results}", WALK, "--episodes=1", "--seed=1", f"--csv={out}"]
        assert evaluate("first", *options, *arguments) == 0
        (row,) = read(out)
        return float(row["return"]) // 100 * 100 / int(row["length"])

    assert bonus() == pytest.approx(0.0, abs=60)
    (results / "first" / "configuration.yaml").write_text(CONFIGURATION)
    assert bonus() == pytest.approx(100.0, abs=60)
    (results / "first" / "run_logs").mkdir()
    (results / "first" / "run_logs" / "training_status.json").write_text('{"bonus": {"lesson_num": 1}}')
    assert bonus() == pytest.approx(1000.0, abs=60)
    assert bonus("--environment-parameters", "bonus=5000") == pytest.approx(5000.0, abs=60)
    sampler = "bonus={sampler_type: uniform, sampler_parameters: {min_value: 8000, max_value: 8000}}"
    assert bonus("--environment-parameters", sampler) == pytest.approx(8000.0, abs=60)


def test_the_environment_is_the_one_of_the_training(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same wrappers and arguments, unless others are given or the environment is another."""
    (results / "first" / "configuration.yaml").write_text(
        "env_settings: {env_path: 'python:tests.policies.play.worlds:Walk', env_args: ['shape=[8, 8]'], "
        "wrappers: ['gymnasium.wrappers:TimeLimit max_episode_steps=1']}\n"
    )

    def played(*arguments: str, env: str = WALK) -> tuple[set[int], list[str]]:
        out = tmp_path / "out.csv"
        options = [f"--results-dir={results}", env, "--episodes=9", "--seed=7", f"--csv={out}"]
        assert evaluate("first", *options, *arguments) == 0
        told = [line for line in capsys.readouterr().err.splitlines() if "Using options from the run of" in line]
        return {int(row["length"]) for row in read(out)}, told

    whole, longer = {2, 3}, "--wrapper=gymnasium.wrappers:TimeLimit max_episode_steps=2"
    assert played() == (
        {1},
        [
            "[INFO] Using options from the run of first: --wrapper gymnasium.wrappers:TimeLimit max_episode_steps=1, "
            "--env-args shape=[8, 8]."
        ],
    )
    assert played(longer, "--env-args", "shape=[9, 9]") == ({2}, [])
    assert played("--wrapper")[0] == whole
    assert played(env="--env=python:tests.tools.evaluate.test_evaluate:Walk") == (whole, [])


def test_an_environment_that_is_not_given_is_the_one_of_the_run(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configuration = results / "first" / "configuration.yaml"
    configuration.write_text(
        "env_settings: {env_path: 'python:tests.policies.play.worlds:Walk', "
        "wrappers: ['gymnasium.wrappers:TimeLimit max_episode_steps=1']}\n"
    )
    out, wanted = tmp_path / "out.json", "python:tests.policies.play.worlds:Walk"
    assert evaluate("first", f"--results-dir={results}", "--episodes=3", "--seed=7", f"--json={out}") == 0
    (result,) = json.loads(out.read_text())["results"][0]["behaviors"].values()
    assert (result["environment"], result["length"]["mean"]) == (wanted, 1.0)
    wrapper = "gymnasium.wrappers:TimeLimit max_episode_steps=1"
    told = f"Using options from the run of first: --env {wanted}, --wrapper {wrapper}.\n"
    assert told in capsys.readouterr().err


def test_options_fit_the_environment_of_the_run(results: Path, tmp_path: Path) -> None:
    """Several copies and wrappers cannot be had of the Editor, which no ``--env`` means elsewhere."""
    run = "env_settings: {env_path: 'python:tests.policies.play.worlds:Walk'}\n"
    (results / "first" / "configuration.yaml").write_text(run)
    newest = results / "first" / "Walk" / "checkpoint.pt"
    shutil.copy(newest, newest.with_name("Walk-10.pt"))
    own = [f"--results-dir={results}", "--episodes=4", "--seed=7", "--num-envs=2"]
    once = "--wrapper=gymnasium.wrappers:TimeLimit max_episode_steps=1"
    for word in ("first", "first/*", newest):
        out = tmp_path / "out.csv"
        assert evaluate(word, *own, once, f"--csv={out}") == 0
        assert [row["length"] for row in read(out)] == ["1"] * 4


def test_options_that_do_not_fit_are_told_with_no_run_to_look_at(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [f"--results-dir={results}", "--num-envs=2"]
    assert "the Editor is one environment" in refused(capsys, "first", *own)
    assert "the Editor is one environment" in refused(capsys, "random", *own)


def test_nothing_that_a_fetched_run_names_is_started_unasked(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's file may name a module that lies beside it, which would be imported."""
    monkeypatch.chdir(results.parent)
    run = results / "first"
    (run / "theirs.py").write_text("import pathlib\n\npathlib.Path('was-run').touch()\n")
    module = f"{results.name}.first.theirs"
    (run / "configuration.yaml").write_text(
        f"env_settings: {{env_path: 'python:tests.policies.play.worlds:Walk', wrappers: ['{module}:Wrapper']}}\n"
    )
    own = [f"--results-dir={results}", "--episodes=2", "--seed=7"]
    (run / "pulled_from.txt").write_text("https://hub/anna/walk at 0123\n")

    told = refused(capsys, "first", *own)
    assert f"--env python:tests.policies.play.worlds:Walk, --wrapper {module}:Wrapper" in told
    assert "was downloaded from https://hub/anna/walk at 0123" in told
    assert f"unless you ask for it: --wrapper {module}:Wrapper." in refused(capsys, "first", *own, WALK)
    assert not Path("was-run").exists()
    assert evaluate("first", *own, WALK, "--wrapper") == 0

    (run / "pulled_from.txt").unlink()  # what it would have done
    refused(capsys, "first", *own, WALK)
    assert Path("was-run").exists()


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 1) -> str:
    assert evaluate(*arguments) == code
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error[error.index("error: ") :]


def test_what_cannot_be(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = [f"--results-dir={results}", "--episodes=2", "--seed=1"]
    told = refused(capsys, "second", tmp_path / "third.pt", *own, WALK)
    assert "no file or folder second" in told
    assert "third.pt" in told
    (tmp_path / "damaged.onnx").write_bytes((tmp_path / "Walk.onnx").read_bytes()[:300])
    assert "damaged.onnx cannot be used" in refused(capsys, tmp_path / "damaged.onnx", *own, WALK)
    (results / "empty").mkdir()
    assert f"There is no best model in {results / 'empty'}" in refused(capsys, "empty@best", *own, WALK)
    told = refused(capsys, "first", *own, "--env=gym:CartPole-v1")
    assert "first cannot play 'CartPole-v1'" in told
    assert "sensor 0 ('vector', here 'observation') has the shape (2,), not (4,)" in told
    assert "Walks" in refused(capsys, "first", *own, "--env=python:tests.policies.play.worlds:Walks")
    assert "nowhere, which does not exist" in refused(capsys, "first", *own, WALK, "--json=nowhere/a.json")
    assert "expected a file name that ends in .mp4 or .gif" in refused(capsys, "first", *own, WALK, "--video=a.avi")
    told = refused(
        capsys, "first", *own, "--env=python:tests.policies.play.worlds:Blind", f"--video={tmp_path / 'a.gif'}"
    )
    assert "Blind cannot be filmed: its render_mode is None" in told
    assert "Editor cannot be filmed" in refused(capsys, "first", *own, f"--video={tmp_path / 'a.gif'}")
    assert "environment_parameters.bonus" in refused(capsys, "first", *own, WALK, "--environment-parameters", "bonus=x")
    assert not (tmp_path / "a.gif").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["a", "--episodes=0"], "'0' is not a number of episodes; expected 1 or more"),
        (["a", "--at-least=much"], "'much' is not a reward"),
        (["--environment-parameters", "a=1", "a"], "'a' is not of the form NAME=VALUE (models go before the options)"),
        ([], "MODEL"),
    ],
)
def test_wrong_usage(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_without_the_extra(results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    told = refused(capsys, "first", f"--results-dir={results}", WALK, "--video=a.mp4")

    assert "pip install 'trajtrainer[video]'" in told


def colors(seed: int) -> list[tuple[int, int]]:
    """What a film of the episode with this seed shows: red tells the start, green the step."""
    env = Walk()
    env.reset(seed=seed)
    return [(120 + 10 * int(env.start), 80 * step) for step in range(3 if env.start < 0 else 4)]


def test_a_film_of_the_first_episodes(results: Path, tmp_path: Path) -> None:
    film = tmp_path / "film.gif"
    arguments = [f"--results-dir={results}", WALK, "--episodes=5", "--seed=4", f"--video={film}", "--video-episodes=2"]
    assert evaluate("first", *arguments) == 0

    with Image.open(film) as shown:
        assert shown.info["duration"] == 200  # 5 pictures a second
        frames = []
        for number in range(shown.n_frames):  # type: ignore[attr-defined]
            shown.seek(number)
            frames.append(shown.convert("RGB").getpixel((3, 3))[:2])  # type: ignore[index]
    wanted = colors(4) + colors(5)
    assert np.array(frames) == pytest.approx(np.array(wanted), abs=4)


def test_a_film_of_odd_size_for_each_model(results: Path, tmp_path: Path) -> None:
    reader = pytest.importorskip("imageio.v2", reason="the extra video is not installed")
    pytest.importorskip("imageio_ffmpeg", reason="the extra video is not installed")
    options = [WALK, "--episodes=1", "--seed=4", f"--video={tmp_path / 'film.mp4'}", "--env-args", "shape=[65,91]"]
    assert evaluate("first", tmp_path / "Walk.onnx", f"--results-dir={results}", *options) == 0

    for number in (1, 2):
        with reader.get_reader(tmp_path / f"film-{number}.mp4") as film:
            assert film.get_meta_data()["size"] == (92, 66)
            assert film.count_frames() == len(colors(4))
    assert not (tmp_path / "film.mp4").exists()


def test_groups_of_a_simulation_with_a_film(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over the wire: in a player, and in another one that draws."""
    actor = random_actor(behavior([vector(17)], 0, (5,)))
    saved(tmp_path / "run" / "DungeonEscape" / "checkpoint.pt", checkpoint_of(actor, network()))
    out, film = tmp_path / "out.json", tmp_path / "film.gif"
    files = [f"--json={out}", f"--video={film}"]
    arguments = [f"--results-dir={tmp_path}", "--env=sim:DungeonEscape", "--episodes=60", "--seed=1"]
    assert evaluate("run", *arguments, *files) == 0
    found: dict[str, Any] = json.loads(out.read_text())["results"][0]["behaviors"]["DungeonEscape"]

    assert found["episodes"] == 60
    assert 16 <= found["groups"]["episodes"] <= 20
    assert found["groups"]["mean"] * 3 >= found["mean"] >= 0.0
    assert "groups" in capsys.readouterr().out
    with Image.open(film) as shown:
        assert shown.n_frames >= 2  # type: ignore[attr-defined]
        assert len(shown.convert("RGB").getcolors(10_000)) > 4  # type: ignore[arg-type]


def interrupted(
    results: Path, monkeypatch: pytest.MonkeyPatch, what: Callable[[], object], *arguments: str | Path
) -> int:
    """The exit code of an evaluation in whose 21st step something happens."""
    steps, step = itertools.count(1), Walk.step

    def stepped(self: Walk, action: Any) -> Any:
        if next(steps) == 21:
            what()
        return step(self, action)

    monkeypatch.setattr(Walk, "step", stepped)
    return evaluate("first", f"--results-dir={results}", WALK, "--episodes=100", *arguments)


def fail() -> None:
    raise RuntimeError("the path has ended")


@pytest.mark.parametrize(
    ("what", "code"),
    [(lambda: os.kill(os.getpid(), signal.SIGTERM), 143), (lambda: os.kill(os.getpid(), signal.SIGINT), 130)],
)
def test_a_signal_leaves_the_episodes_before(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: Callable[[], object], code: int
) -> None:
    out = tmp_path / "out.json"
    assert interrupted(results, monkeypatch, what, f"--json={out}") == code
    found = json.loads(out.read_text())["results"]

    assert len(found) == 1
    assert 6 <= found[0]["behaviors"]["Walk"]["episodes"] <= 11


def test_an_environment_that_fails(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert interrupted(results, monkeypatch, fail) == 1
    assert "failed in its step: RuntimeError: the path has ended" in capsys.readouterr().err


def test_episodes_that_do_not_end_are_truncated_and_told(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [f"--json={tmp_path / 'out.json'}", f"--csv={tmp_path / 'out.csv'}"]
    env = "--env=python:tests.policies.play.worlds:Endless"
    own = [f"--results-dir={results}", "--seed=7", "--deterministic", "--max-decisions=20", "--num-envs=2"]
    assert evaluate("first", *own, env, "--episodes=12", *files) == 0
    shown = capsys.readouterr()
    rows = read(tmp_path / "out.csv")
    found = json.loads((tmp_path / "out.json").read_text())["results"][0]["behaviors"]["Endless"]

    endless = [gymnasium.utils.seeding.np_random(seed)[0].integers(-8, 8) >= 0 for seed in range(7, 19)]
    assert 0 < sum(endless) < 12
    by_seed = sorted(rows, key=lambda row: int(row["seed"]))
    assert [row["truncated"] for row in by_seed] == [str(int(each)) for each in endless]
    assert {row["length"] for row in by_seed if row["truncated"] == "1"} == {"20"}
    assert found["truncated"] == sum(endless)
    assert found["mean"] == pytest.approx(np.mean([float(row["return"]) for row in rows]))
    lines = [line.split() for line in shown.out.splitlines()]
    head = next(line for line in lines if line[:1] == ["model"])
    line = next(line for line in lines if line[:1] == ["first"])
    assert line[head.index("truncated")] == str(sum(endless))
    assert f"first: {sum(endless)} of 12 episodes of Endless were truncated after 20 decisions" in shown.err


def test_what_a_player_says_is_not_mixed_with_the_results(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The player is a program of its own, which tells its arguments before it becomes a simulation."""
    actor = random_actor(behavior([vector(20)], 0, (3,)))
    saved(tmp_path / "run" / "Basic" / "checkpoint.pt", checkpoint_of(actor, network()))
    player, told = tmp_path / "player.sh", tmp_path / "arguments"
    simulation = f'exec {sys.executable} -m trajtrainer.envs.sim Basic "$@"'
    player.write_text(f'#!/bin/sh\necho "Mono path: chatter"\necho "$@" > {told}\n{simulation}\n')
    player.chmod(0o755)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    options = [f"--results-dir={tmp_path}", f"--env={player}", "--episodes=2", "--seed=1", "--max-decisions=50"]
    assert evaluate("run", *options) == 0
    shown = capfd.readouterr()
    assert "chatter" not in shown.out + shown.err
    assert f"-logFile {temporary}/trajtrainer-players-" in told.read_text()
    assert not list(temporary.iterdir()), "nothing is left of an evaluation that went well"

    player.write_text('#!/bin/sh\necho chatter\necho "the game broke" > "$4"\nexit 3\n')
    assert evaluate("run", *options) == 1
    shown = capfd.readouterr()
    assert "chatter" not in shown.out + shown.err
    (log,) = temporary.glob("*/Player-0.log")
    assert f"The end of its log {log}:\n  the game broke" in shown.err
    assert log.with_name("Player-0.stdout.log").read_text() == "chatter\n"


def test_random_and_written_policies_are_compared_with_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    actor = random_actor(behavior([vector(20)], 0, (3,)))
    saved(tmp_path / "run" / "Basic" / "checkpoint.pt", checkpoint_of(actor, network()))
    (tmp_path / "run" / "configuration.yaml").write_text("environment_parameters: {bonus: 3.0}\n")
    out = tmp_path / "out.json"
    own = [f"--results-dir={tmp_path}", "--env=sim:Basic", "--episodes=8", "--seed=1", "--max-decisions=99"]
    assert evaluate("random", "run", "heuristic", *own, f"--json={out}") == 0
    found = {each["model"]: each["behaviors"]["Basic"] for each in json.loads(out.read_text())["results"]}
    assert list(found) == ["random", "run", "heuristic"]
    assert found["heuristic"]["mean"] > 0.9, "it goes straight to the larger goal"
    assert found["random"]["mean"] < found["heuristic"]["mean"]
    assert "sampled actions; the environment parameters that run was trained with" in capsys.readouterr().out
    assert "There is no heuristic" in refused(capsys, "heuristic", "--env=sim:Sorter", *own[:1])
