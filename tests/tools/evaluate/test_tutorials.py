"""What tutorials and guides do with ``trajtrainer evaluate``."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.blocks import DOCS
from tests.packages import Install
from tests.run.runs import behaviors_settings, ppo
from tests.test_tutorials import ALIVE_S, THIS, TUTORIALS, posix, put_on_path, shorten, write_files
from trajtrainer.cli.main import main


@posix
@pytest.mark.slow
@pytest.mark.parametrize(("reward", "code", "ships"), [("-100", 0, True), ("100", 3, False)], ids=["good", "bad"])
def test_the_pipeline_ships_only_good_models(
    here: Path, monkeypatch: pytest.MonkeyPatch, reward: str, code: int, ships: bool
) -> None:
    write_files(DOCS / "deploy" / "build-pipeline.md", here)
    put_on_path(here / "bin", monkeypatch, trajtrainer=THIS)
    (here / "basic.yaml").write_text(yaml.safe_dump(behaviors_settings(Basic=ppo(1000))), encoding="utf-8")
    script = here / "train-and-check.sh"
    script.write_text(script.read_text().replace("--episodes=100", "--episodes=4"), encoding="utf-8")
    for name, value in (("CONFIG", "basic.yaml"), ("GAME", "sim:Basic"), ("REWARD", reward)):
        monkeypatch.setenv(name, value)
    assert subprocess.run(["bash", script.name], check=False, cwd=here, timeout=ALIVE_S).returncode == code
    assert (here / "evaluation.json").exists()
    assert (here / "shipped" / "Basic.onnx").exists() == ships


@pytest.mark.slow
def test_the_run_of_the_gymnasium_tutorial(here: Path) -> None:
    write_files(TUTORIALS / "gymnasium.md", here)
    settings = {**behaviors_settings(Docking=ppo(500)), "env_settings": {"env_path": "python:docking:Docking"}}
    (here / "Docking.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert main(["learn", "Docking.yaml", "--run-id=dock", "--num-envs=8"]) == 0
    assert main(["evaluate", "dock", "--episodes=4", "--seed=1", "--deterministic"]) == 0


@pytest.mark.slow
def test_the_run_of_the_tutorials_algorithm(here: Path, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(TUTORIALS / "algorithm.md", here)
    (here / "my_algorithms" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(here), prepend=":" if sys.platform != "win32" else ";")
    project = tomllib.loads((here / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    install(project["name"], project["entry-points"])
    shorten(here / "cartpole.yaml", 1000)
    assert main(["learn", "cartpole.yaml", "--run-id=mine"]) == 0
    assert main(["evaluate", "mine", "--episodes=4", "--seed=1", "--deterministic"]) == 0
