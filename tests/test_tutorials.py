"""The files and scripts of tutorials and guides work as a reader would use them."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

import trajtrainer
from tests import inner_pytest
from tests.blocks import DOCS, run_examples
from tests.packages import Install
from tests.run.runs import behaviors_settings, ppo
from trajtrainer import testing
from trajtrainer.cli.main import main, parse
from trajtrainer.settings.components import ALGORITHMS

TUTORIALS = DOCS / "tutorials"
FILE = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
ALIVE_S = 120.0  # for a run to begin


def files_of(page: Path) -> dict[str, str]:
    """The files that a page lets its reader write: name -> content."""
    return dict(FILE.findall(page.read_text(encoding="utf-8")))


def write_files(page: Path, folder: Path) -> None:
    for name, content in files_of(page).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


def shorten(path: Path, max_steps: int) -> None:
    """Let a configuration train for a moment only."""
    text, count = re.subn(r"max_steps: [\d.e]+", f"max_steps: {max_steps}", path.read_text(encoding="utf-8"))
    assert count == 1
    path.write_text(re.sub(r"summary_freq: [\d.e]+", f"summary_freq: {max_steps}", text), encoding="utf-8")


def changed(call: Callable[..., Any], **changes: int) -> Callable[..., Any]:
    """What starts a run, with other settings of its behavior."""

    def called(settings: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        (behavior,) = settings["behaviors"].values()
        assert changes.keys() <= behavior.keys()
        behavior |= changes
        return call(settings, *arguments, **options)

    return called


@pytest.mark.slow
def test_the_environment_of_the_gymnasium_tutorial(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_files(TUTORIALS / "gymnasium.md", here)
    settings = {**behaviors_settings(Docking=ppo(2000)), "env_settings": {"env_path": "python:docking:Docking"}}
    (here / "Docking.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert main(["learn", "Docking.yaml", "--run-id=dock", "--num-envs=8"]) == 0
    capsys.readouterr()
    run_examples(DOCS / "tutorials" / "gymnasium.md")
    assert re.search(r"docked after \d+ steps|missed the dock", capsys.readouterr().out)


def test_the_cells_of_the_notebook(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a tenth of the steps; of the run that is watched there are two epochs."""
    monkeypatch.setattr(trajtrainer, "learn", changed(trajtrainer.learn, max_steps=4000, summary_freq=400))
    monkeypatch.setattr(trajtrainer, "Training", changed(trajtrainer.Training, max_steps=6000))
    run_examples(DOCS / "tutorials" / "notebook.md")
    printed = capsys.readouterr().out
    assert re.search(r"\d+ after 400 steps, \d+ after 4000", printed)
    assert re.search(r"^  5\d\d\d steps, mean return +[\d.]+, [\d.]+ s$", printed, re.MULTILINE)
    assert re.search(r"The pole stayed up for \d+ steps", printed)


@pytest.mark.slow
def test_the_callbacks(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("trajtrainer.run.evaluations.usable_cores", lambda: 1)  # in turn: a process takes long to start
    monkeypatch.setattr(trajtrainer, "learn", changed(trajtrainer.learn, max_steps=1200, checkpoint_interval=400))
    run_examples(DOCS / "extend" / "callbacks.md")
    printed = capsys.readouterr().out
    for pattern in (
        r"1\d\d\d steps: mean return",
        r"^[34] models$",
        r"^step 1\d\d\d: \d+ \(95 %",
        r"^new best model at",
    ):
        assert re.search(pattern, printed, re.MULTILINE), pattern


@pytest.mark.slow
def test_the_algorithm_of_the_tutorial(
    here: Path, install: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = TUTORIALS / "algorithm.md"
    write_files(page, here)
    (here / "my_algorithms" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(here), prepend=":" if sys.platform != "win32" else ";")
    project = tomllib.loads((here / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    install(project["name"], project["entry-points"])
    shorten(here / "cartpole.yaml", 1500)
    assert main(["learn", "cartpole.yaml", "--run-id=mine"]) == 0
    assert main(["learn", "cartpole.yaml", "--run-id=mine", "--resume"]) == 0
    assert main(["inspect", "results/mine/CartPole-v1.onnx"]) == 0
    capsys.readouterr()
    assert inner_pytest.run(here, "-q", "test_reinforce.py") == 0
    assert "5 passed" in capsys.readouterr().out


def test_the_algorithm_of_the_guide_keeps_the_contract(here: Path, install: Install, tmp_path: Path) -> None:
    write_files(DOCS / "extend" / "plugin-algorithm.md", here)
    (here / "my_package" / "__init__.py").touch()
    install("my-package", {ALGORITHMS.group: {"greedy": "my_package.greedy:ROW"}})

    class TestGreedy(testing.AlgorithmContract):
        trainer_type = "greedy"
        hyperparameters: ClassVar = {"batch_size": 8}

    contract = TestGreedy()
    contract.test_it_has_an_actor()
    contract.test_it_learns()
    contract.test_a_seed_gives_the_same_weights_again()
    contract.test_what_is_saved_is_restored()
    contract.test_its_policy_is_exported(tmp_path)


@pytest.mark.parametrize("kind", ["reward-signal", "encoder", "stats-writer", "environment", "scheme", "command"])
def test_pages_of_plugins_show_the_tested_package(kind: str) -> None:
    shown = {
        name: text for name, text in files_of(DOCS / "extend" / f"plugin-{kind}.md").items() if name.endswith(".py")
    }
    assert len(shown) == 1
    for name, text in shown.items():
        assert text == (DOCS.parent / "tests" / "plugin_package" / name).read_text(encoding="utf-8")


def test_the_curriculum_moves_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_files(DOCS / "train" / "curricula.md", here)
    settings = yaml.safe_load((here / "balls.yaml").read_text(encoding="utf-8"))
    settings["behaviors"]["3DBall"] |= {"max_steps": 3000, "summary_freq": 1000}
    for lesson in settings["environment_parameters"]["scale"]["curriculum"][:-1]:
        lesson["completion_criteria"] |= {"threshold": -1, "min_lesson_length": 1}
    (here / "balls.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert main(["learn", "balls.yaml", "--run-id=lessons"]) == 0
    printed = capsys.readouterr().out
    for lesson in ("Medium", "Small", "Any"):
        assert f"Parameter 'scale' is in lesson '{lesson}'" in printed


# Scripts for machines without us. ``trajtrainer``, ``srun`` and ``scontrol`` are scripts in a folder on the path.


def put_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    folder.mkdir()
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


THIS = f'exec {sys.executable} -m trajtrainer "$@"'
posix = pytest.mark.skipif(sys.platform == "win32", reason="a script for bash")


@posix
@pytest.mark.slow
def test_the_job_of_slurm_is_requeued_and_continues(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(DOCS / "operate" / "preemptible.md", here)
    put_on_path(
        here / "bin", monkeypatch, trajtrainer=THIS, srun='exec "$@"', scontrol=f'echo "$@" >> {here / "scontrol.log"}'
    )
    monkeypatch.setenv("SLURM_JOB_NAME", "basic")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    script = here / "train.sbatch"
    script.write_text(script.read_text().replace("builtin:ppo/Basic", "basic.yaml"), encoding="utf-8")

    def attempt(max_steps: int) -> subprocess.Popen[str]:
        settings = behaviors_settings(Basic=ppo(max_steps, summary_freq=500))
        (here / "basic.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        with (here / "log.txt").open("a") as log:
            return subprocess.Popen(["bash", script.name], cwd=here, stdout=log, stderr=log, text=True)

    first = attempt(10_000_000)
    deadline = time.monotonic() + ALIVE_S
    while "Step: 500." not in (here / "log.txt").read_text():
        assert first.poll() is None, (here / "log.txt").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    first.send_signal(signal.SIGTERM)
    assert first.wait(ALIVE_S) == 143
    assert (here / "scontrol.log").read_text() == "requeue 17\n"

    assert attempt(500).wait(ALIVE_S) == 0  # which the first attempt has passed
    assert "The run basic has a checkpoint and continues." in (here / "log.txt").read_text()
    assert (here / "scontrol.log").read_text() == "requeue 17\n"


@posix
@pytest.mark.parametrize(
    ("codes", "attempts", "last"),
    [("143 137 1 0", 4, 0), ("2", 1, 2), ("1 " * 12, 10, 1)],
    ids=["ends", "usage", "fails"],
)
def test_the_loop_ends(here: Path, monkeypatch: pytest.MonkeyPatch, codes: str, attempts: int, last: int) -> None:
    write_files(DOCS / "operate" / "preemptible.md", here)
    (here / "codes").write_text("\n".join(codes.split()) + "\n", encoding="utf-8")
    each = 'echo "$@" >> calls; code=$(head -n1 codes); sed -i.bak 1d codes; exit "$code"'
    put_on_path(here / "bin", monkeypatch, trajtrainer=each)
    monkeypatch.setenv("PAUSE", "0")
    done = subprocess.run(["bash", "keep-training.sh", "ball.yaml", "--run-id=x"], check=False, cwd=here, timeout=300)
    assert done.returncode == last
    assert (here / "calls").read_text().splitlines() == ["learn ball.yaml --run-id=x --resume=auto"] * attempts


def commands_in(text: str) -> list[list[str]]:
    return [line.split() for line in re.sub(r"\s*\n\s+--", " --", text).splitlines() if line.startswith("trajtrainer ")]


def test_the_command_for_skypilot_is_understood() -> None:
    assert_continues(yaml.safe_load(files_of(DOCS / "operate" / "preemptible.md")["sky.yaml"])["run"])


def assert_continues(script: str) -> None:
    """The only command of a script is understood, and continues the run that is there."""
    (command,) = commands_in(script)
    parse(command[1], command[2:])
    assert "--resume=auto" in command
    assert "--results-dir=/results" in command


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_scripts_have_no_mistakes_of_syntax(page: Path, tmp_path: Path) -> None:
    for name, text in files_of(page).items():
        if name.endswith((".yaml", ".yml")):
            assert yaml.safe_load(text), name
        elif name.endswith(".py"):
            compile(text, name, "exec")
        elif name.endswith((".sh", ".sbatch")) and shutil.which("bash"):
            (tmp_path / "script").write_text(text, encoding="utf-8")
            assert subprocess.run(["bash", "-n", tmp_path / "script"], check=False).returncode == 0, name
