"""The examples of the pages are run, their commands are understood, the messages that they quote are there, and every
public name has an example."""

from __future__ import annotations

import ast
import pickle
import re
import shlex
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import trajtrainer
from trajtrainer.cli.main import COMMANDS, main
from trajtrainer.commands.importing.weights import read_statistics

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGE = DOCS / "guides" / "python.md"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]
PLUGINS = ROOT / "tests" / "plugin_package" / "trajtrainer_sample"  # which tests/core/test_plugins.py runs
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHELL = re.compile(r"^```(?:bash|sh)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run_examples(page: Path, **names: Any) -> dict[str, Any]:
    """Runs the examples of a page, one after the other, and returns the names that they made."""
    text = page.read_text(encoding="utf-8")
    names["__name__"] = page.stem
    for found in BLOCK.finditer(text):
        line = text[: found.start(1)].count("\n")
        exec(compile("\n" * line + found[1], str(page), "exec"), names)  # errors tell the page's line
    return names


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trajtrainer.run.evaluations.usable_cores", lambda: 1)  # in turn: a process takes long to start
    run_examples(PAGE)
    printed = capsys.readouterr().out
    for word in ("saved CartPole-v1", "better CartPole-v1", "evaluated CartPole-v1", "s of learning"):
        assert word in printed

    (tmp_path / "results" / "third").rename(tmp_path / "results" / "pole")
    assert run_examples(DOCS / "guides" / "evaluation.md")["total"] >= 8

    short = partial(trajtrainer.learn, max_epochs=1, epoch_steps=200, verbose=False, force=True)
    monkeypatch.setattr(trajtrainer, "learn", short)
    assert run_examples(ROOT / "README.md")["result"].behaviors["CartPole-v1"].onnx.exists()

    expert = run_examples(DOCS / "guides" / "offline.md")["balance"]
    assert expert([np.ones((5, 8), np.float32)], None).shape == (5, 2)
    monkeypatch.syspath_prepend(str(PLUGINS.parent))
    run_examples(DOCS / "explanation" / "architecture.md")  # whose tests tests/test_contract_examples.py runs

    capsys.readouterr()
    run_examples(DOCS / "guides" / "unity-environments.md")
    assert "3DBall?team=0 [(8,)] Continuous: 2" in capsys.readouterr().out

    shutil.copy(ROOT / "config" / "demos" / "3DBall.demo", tmp_path / "Expert3DBall.demo")
    assert run_examples(DOCS / "guides" / "demonstrations.md")["demonstrations"].packed.num_trajectories > 0


def test_the_examples_of_other_trainers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    monkeypatch.chdir(tmp_path)
    learn = sb3.PPO.learn
    monkeypatch.setattr(sb3.PPO, "learn", lambda model, _: learn(model, 1_000))
    torch.save(torch.nn.Linear(3, 2), "model.pt")
    rms = SimpleNamespace(mean=np.zeros(8), var=np.ones(8), count=7.0)
    (tmp_path / "vecnormalize.pkl").write_bytes(pickle.dumps(SimpleNamespace(obs_rms=rms, epsilon=1e-8, clip_obs=9.0)))
    run_examples(DOCS / "guides" / "importing.md")
    assert read_statistics(Path("stats.npz")).clip == 9
    assert torch.load("weights.pt").keys() == {"weight", "bias"}
    assert main(["import", "ball.zip", "--env=sim:3DBall", "--statistics=stats.npz", "-o", "3DBall.onnx"]) == 0


def test_all_pages_with_examples_are_run() -> None:
    with_examples = {page.name for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))}
    run = re.findall(r'run_examples\(\w+(?: / "\w+")* / "([\w.-]+)"\)', Path(__file__).read_text(encoding="utf-8"))
    assert with_examples == {PAGE.name, *run}


def test_every_public_name_has_an_example() -> None:
    code = "\n".join(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    used = set(re.findall(r"trajtrainer\.(\w+)", code))
    samples = "\n".join(path.read_text(encoding="utf-8") for path in PLUGINS.glob("*.py"))
    used |= {name for name in trajtrainer.__all__ if re.search(rf"\b{name}\b", samples)}
    assert set(trajtrainer.__all__) - used - {"__version__"} == set()


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every command of trajtrainer that stands in a block of a page."""
    for block in SHELL.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            if re.match(r"(\$ )?trajtrainer [a-z]", line):
                words = shlex.split(line.removeprefix("$ "), comments=True)[1:]
                yield words[: words.index(">")] if ">" in words else words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_understood(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = {command.name: command for command in COMMANDS}
    for name, *arguments in commands(page):
        try:
            known[name].parse(arguments)
        except SystemExit:
            pytest.fail(f"trajtrainer {name} {' '.join(arguments)}: {capsys.readouterr().err}")


def test_commands_that_are_told_of_exist() -> None:
    known = {command.name for command in COMMANDS}
    told = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(r"`trajtrainer ([a-z]+)[ `]", page.read_text(encoding="utf-8"))
    }
    assert {(page, name) for page, name in told if name not in known} == set()


def texts() -> str:
    """All texts of the package, what is filled in left out."""
    found = []
    for path in ROOT.glob("trajtrainer/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values))  # type: ignore[misc]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def quotations(page: str) -> Iterator[str]:
    """What a page says that the program says: behind "says", and in the first column of tables of that head."""
    for found in re.finditer(r"\b[Ss]ays\s+((?:`[^`]+`(?:,? or |, )?(?:says )?)+)", page):
        yield from re.findall(r"`([^`]+)`", found[1])
    for table in re.findall(r"^\| says \|.*\n\|[ |-]+\n((?:\|.*\n)+)", page, re.MULTILINE):
        for row in table.splitlines():
            yield from re.findall(r"`([^`]+)`", row.split("|")[1])


def test_messages_that_are_quoted_are_there() -> None:
    known = texts()
    quoted = list(quotations((DOCS / "guides" / "troubleshooting.md").read_text(encoding="utf-8")))
    assert len(quoted) > 20
    missing = [
        quotation
        for quotation in quoted
        if not all(part.strip(" ,") in known for part in " ".join(quotation.split()).split("..."))
    ]
    assert missing == []
