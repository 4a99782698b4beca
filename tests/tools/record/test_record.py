"""``trajtrainer record``: policies that lie on disk, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from trajtrainer.cli.main import main
from trajtrainer.experience.recordings.demonstrations import load_demonstrations

WALK = "--env=python:tests.policies.play.worlds:Walk"
CONFIGURATION = """
environment_parameters:
  bonus:
    curriculum:
      - {name: easy, value: 100.0, completion_criteria: {measure: reward, behavior: Walk, threshold: 5.0}}
      - {name: hard, value: 1000.0}
"""


def test_options_fit_the_environment_of_the_run(results: Path, tmp_path: Path) -> None:
    run = "env_settings: {env_path: 'python:tests.policies.play.worlds:Walk'}\n"
    (results / "first" / "configuration.yaml").write_text(run)
    own = [f"--results-dir={results}", "--episodes=4", "--seed=7", "--num-envs=2"]
    once = "--wrapper=gymnasium.wrappers:TimeLimit max_episode_steps=1"
    written = tmp_path / "x.demo"
    assert main(["record", "--torch-device=cpu", "--policy=first", *own, once, f"--output={written}"]) == 0
    assert load_demonstrations([written]).packed["reward"].shape == (4,)


def test_nothing_that_a_fetched_run_names_is_started_unasked(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(results.parent)
    run = results / "first"
    (run / "theirs.py").write_text("import pathlib\n\npathlib.Path('was-run').touch()\n")
    (run / "configuration.yaml").write_text(
        "env_settings: {env_path: 'python:tests.policies.play.worlds:Walk', "
        f"wrappers: ['{results.name}.first.theirs:Wrapper']}}\n"
    )
    (run / "pulled_from.txt").write_text("https://hub/anna/walk at 0123\n")
    own = [f"--results-dir={results}", "--episodes=2", "--seed=7", WALK]
    assert main(["record", "--policy=first", f"--output={tmp_path / 'x.demo'}", "--torch-device=cpu", *own]) == 1
    assert not Path("was-run").exists()


def test_a_recording_is_made_with_the_parameters_of_the_run(results: Path, tmp_path: Path) -> None:
    (results / "first" / "configuration.yaml").write_text(CONFIGURATION)
    options = [f"--results-dir={results}", WALK, "--episodes=1", "--seed=1", f"--output={tmp_path / 'x.demo'}"]
    assert main(["record", "--torch-device=cpu", "--policy=first", *options]) == 0
    assert load_demonstrations([tmp_path / "x.demo"]).packed["reward"].mean() == pytest.approx(100.0, abs=60)


def test_a_recording_has_what_the_expert_would_have_done(results: Path, tmp_path: Path) -> None:
    written = tmp_path / "x.demo"
    options = [WALK, f"--results-dir={results}", "--episodes=9", "--num-envs=2", "--seed=1", "--deterministic"]
    for expert, wanted in (("first", 1), ("first@best", 0), (str(tmp_path / "Walk.onnx"), 1)):
        roles = ["--policy=random", f"--expert={expert}", f"--output={written}"]
        assert main(["record", "--torch-device=cpu", *roles, *options]) == 0
        assert set(load_demonstrations([written]).packed["discrete"].flatten().tolist()) == {wanted}


@pytest.mark.parametrize(
    ("env", "at_least"), [("gym:CartPole-v1", 495.0), ("gym:Pendulum-v1", -400.0), ("sim:Hybrid", 0.8)]
)
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], env: str, at_least: float) -> None:
    if env.startswith("gym:"):
        pytest.importorskip("gymnasium")
    path = tmp_path / "x.demo"
    options = ["--seed", "5", "--base-port", "23460", "--quiet"]
    assert main(["record", "--policy", "heuristic", "--env", env, "--episodes", "2", "-o", str(path), *options]) == 0
    packed = load_demonstrations([path]).packed
    assert packed.num_trajectories == 2
    returns = np.add.reduceat(packed["reward"], packed.offset[:-1])
    assert returns.min() >= at_least
    assert "2 episodes" in capsys.readouterr().out


def test_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["record", "--env", "gym:CartPole-v1", "--episodes", "1"]
    assert main([*base, "--policy", "random", "-o", str(tmp_path / "x.txt")]) == 1
    assert "ends in .demo or .npz" in capsys.readouterr().err
    assert main([*base, "--policy", "nothing", "-o", str(tmp_path / "x.demo")]) == 1
    assert "nothing" in capsys.readouterr().err
    for step in (10, 20):
        (tmp_path / "run" / "Ball").mkdir(parents=True, exist_ok=True)
        torch.save({"Policy": {"weight": torch.zeros(1)}}, tmp_path / "run" / "Ball" / f"Ball-{step}.pt")
    every = f"{tmp_path / 'run'}/*"
    assert main([*base, "--policy", every, "-o", str(tmp_path / "x.demo")]) == 1
    assert f"{every} matches 2 models, expected one." in capsys.readouterr().err
    assert main([*base, "--policy", "random", "--behavior", "Other", "-o", str(tmp_path / "x.demo")]) == 1
    assert "Nothing was recorded: no episode of Other" in capsys.readouterr().err
    assert main([*base, "--policy", "random", "-o", str(tmp_path / "x.demo"), "--length", "3", "--quiet"]) == 0
    assert len(load_demonstrations([tmp_path / "x.demo"])) == 3
