"""The examples of the pages are run, their commands are understood, the messages that they quote are there, and every
public name has an example."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml
from attrs import evolve

import trajtrainer
from scripts.reference.docstrings import MADE
from tests.blocks import DOCS, FILE, NAMES, NAMES_PLUGIN, PAGES, ROOT, Block, blocks, run_examples, runs, treatment
from tests.packages import Install
from trajtrainer.cli.commands import COMMANDS
from trajtrainer.cli.main import main, parse, parser_of
from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.settings.checks import ConfigurationError
from trajtrainer.settings.components import ALGORITHMS
from trajtrainer.settings.presets import config_path
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.search import SearchSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import dump, load, read_document, read_file, run_settings, structure

PAGE = DOCS / "train" / "python.md"
PLUGINS = ROOT / "tests" / "plugin_package" / "trajtrainer_sample"  # which tests/core/test_plugins.py runs


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trajtrainer.run.evaluations.usable_cores", lambda: 1)  # in turn: a process takes long to start
    shutil.copy(ROOT / "config" / "demos" / "3DBall.demo", tmp_path / "Expert3DBall.demo")
    run_examples(PAGE)
    printed = capsys.readouterr().out
    for word in ("saved CartPole-v1", "better CartPole-v1", "evaluated CartPole-v1", "s of learning"):
        assert word in printed

    (tmp_path / "results" / "third").rename(tmp_path / "results" / "pole")
    assert run_examples(DOCS / "measure" / "evaluation.md")["total"] >= 8

    short = partial(trajtrainer.learn, max_epochs=1, epoch_steps=200, verbose=False, force=True)
    monkeypatch.setattr(trajtrainer, "learn", short)
    (example,) = re.findall(r"`(trajtrainer\.learn\(.*?\))`", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert eval(example, {"trajtrainer": trajtrainer}).behaviors["CartPole-v1"].onnx.exists()

    monkeypatch.syspath_prepend(str(PLUGINS.parent))
    run_examples(DOCS / "extend" / "plugins.md")  # whose tests tests/test_contract_examples.py runs

    capsys.readouterr()
    run_examples(DOCS / "train" / "unity-environments.md")
    assert "3DBall?team=0 [(8,)] Continuous: 2" in capsys.readouterr().out

    assert run_examples(DOCS / "train" / "demonstrations.md")["demonstrations"].packed.num_trajectories > 0


# Run by other tests, because they need preparations or show results to check.
TESTS = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
PREPARED = set(re.findall(r'run_examples\(((?:\w+)(?: / "[\w.-]+")+)', TESTS))
PREPARED_PAGES = {PAGE} | {
    Path(*([DOCS] if base == "DOCS" else [ROOT]), *re.findall(r'"([^"]+)"', parts))
    for base, _, parts in (each.partition(" / ") for each in PREPARED)
}


def in_order(page: Path) -> list[Block]:
    """The blocks of a page that run in a fresh folder: marked commands, and Python unless it is run above."""
    return [block for block in blocks(page) if runs(block) and (block.is_shell or page not in PREPARED_PAGES)]


@pytest.mark.parametrize("page", [page for page in PAGES if in_order(page)], ids=NAMES.__getitem__)
def test_blocks_that_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training is short: the examples work, but they do not learn."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "config" / "demos", tmp_path / "config" / "demos")  # for configurations that are shortened
    short = partial(trajtrainer.learn, max_epochs=1, epoch_steps=200, verbose=False, force=True)
    monkeypatch.setattr(trajtrainer, "learn", short)
    names: dict[str, Any] = {"__name__": page.stem}
    for block in in_order(page):
        if not block.is_shell:
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)
            continue
        for words, target in block.commands():
            capsys.readouterr()
            code = main(shortened(words, tmp_path))
            printed = capsys.readouterr()
            assert code == 0, f"{block.place}: trajtrainer {shlex.join(words)}: {printed.err}{printed.out}"
            if target:
                Path(target).write_text(printed.out, encoding="utf-8")


def shortened(words: list[str], folder: Path) -> list[str]:
    """The command; training takes few steps."""
    name, *arguments = words
    if name != "learn":
        return words
    config = parser_of(name).parse_args(arguments).trainer_config_path
    if config is None:
        text = "default_settings: {max_steps: 300}"
    else:
        settings = run_settings(*read_file(config_path(config)))
        behaviors = {behavior: evolve(each, max_steps=300) for behavior, each in settings.behaviors.items()}
        text = dump(evolve(settings, behaviors=behaviors))
        arguments = [word for word in arguments if word != str(config)]
    path = folder / f"short-{len(list(folder.glob('short-*')))}.yaml"
    path.write_text(text, encoding="utf-8")
    return [name, str(path), *arguments]


def test_every_block_is_run_or_has_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints the list: ``pytest -s tests/test_docs.py -k reason``."""
    listed = {block.place: (block, treatment(block)) for page in PAGES for block in blocks(page)}
    with capsys.disabled() if "-s" in sys.argv else contextlib.nullcontext():
        for place, (block, reason) in listed.items():
            print(f"{place} ({block.language or 'no language'}): {reason}")
    assert sum(reason == "run" for _, reason in listed.values()) > 30
    reasons = [reason for block, reason in listed.values() if block.language == "python" and reason != "run"]
    assert all(reason in ("copied from the code", FILE) or len(reason) > len("parsed; not run: ") for reason in reasons)


@pytest.mark.parametrize("page", PAGES, ids=NAMES.__getitem__)
def test_blocks_are_well_formed(page: Path) -> None:
    fences = re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page)), "a block is not closed, or closed at another indentation"
    for block in blocks(page):
        try:
            check(block)
        except (SyntaxError, ValueError, TrajtrainerError, yaml.YAMLError) as error:
            pytest.fail(f"{block.place}: {error}")


def check(block: Block) -> None:
    """Parse a block, and check configurations against the schema of the settings."""
    if block.language == "python" and not block.info:
        ast.parse(block.code)
    if block.language == "json":
        json.loads(block.code)
    if block.language == "toml":
        tomllib.loads(block.code)
    if block.is_shell and (bash := shutil.which("bash")) and os.name == "posix":
        done = subprocess.run([bash, "-n"], input=block.code, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise ValueError(done.stderr)
    if block.language != "yaml":
        return
    keys = {key for part in yaml.safe_load_all(block.code) if isinstance(part, dict) for key in part}
    if "{...}" in block.code or block.mark == NAMES_PLUGIN:
        return  # Only the structure is shown, or the plugin is not installed.
    if "search" in keys:
        root, problems = read_document(block.code, block.place)
        search = root.mapping["search"]
        search.mapping.pop("ranges", None)  # whose values depend on the settings that they change
        structure(search, SearchSettings, problems)
    elif keys <= set(attrs.fields_dict(RunSettings)):
        load(block.code + ("" if "env_settings" in keys else "\nenv_settings: {env_path: Game}"), block.place)
    elif keys <= set(attrs.fields_dict(TrainerSettings)):
        check_behavior(block)


def check_behavior(block: Block) -> None:
    """Check a part of a behavior's settings, with the first algorithm that has such hyperparameters."""
    found: list[TrajtrainerError] = []
    for algorithm in [""] if "trainer_type" in block.code else ALGORITHMS.builtin:
        head = f"  NAME:\n    trainer_type: {algorithm}\n" if algorithm else "  NAME:\n"
        try:
            load(f"behaviors:\n{head}{textwrap.indent(textwrap.dedent(block.code), '    ')}", block.place)
        except ConfigurationError as error:
            found.append(error)
        else:
            return
    raise found[0]


def test_every_public_name_has_an_example() -> None:
    code = "\n".join(block.code for block in blocks(PAGE) if block.language == "python")
    used = set(re.findall(r"trajtrainer\.(\w+)", code))
    samples = "\n".join(path.read_text(encoding="utf-8") for path in PLUGINS.glob("*.py"))
    used |= {name for name in trajtrainer.__all__ if re.search(rf"\b{name}\b", samples)}
    assert set(trajtrainer.__all__) - used - {"__version__"} == set()


@pytest.mark.parametrize("page", PAGES, ids=NAMES.__getitem__)
def test_commands_are_understood(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(page):
        if not block.is_shell or block.info.startswith("title="):  # tests/test_tutorials.py runs scripts
            continue
        for (name, *arguments), _ in block.commands():
            try:
                parse(name, arguments)
            except SystemExit:
                pytest.fail(f"{block.place}: trajtrainer {name} {' '.join(arguments)}: {capsys.readouterr().err}")


def test_commands_that_are_told_of_exist(install: Install) -> None:
    """On pages that are written by hand: others are made from texts of the program, which may tell of tools."""
    install()  # the package whose command a page tells of
    told = {
        (page.name, name)
        for page in PAGES
        if MADE not in page.read_text(encoding="utf-8")
        for name in re.findall(r"`trajtrainer ([a-z]+)[ `]", page.read_text(encoding="utf-8"))
    }
    assert {(page, name) for page, name in told if name not in COMMANDS} == set()


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
    for table in re.findall(r"^\| (?:says|message) \|.*\n\|[ |-]+\n((?:\|.*\n)+)", page, re.MULTILINE):
        for row in table.splitlines():
            yield from re.findall(r"`([^`]+)`", row.split("|")[1])


def test_messages_that_are_quoted_are_there() -> None:
    known = texts()
    names = ("operate/troubleshooting", "train/action-spaces", "deploy/quantization")
    pages = [DOCS / f"{name}.md" for name in names]
    quoted = [each for page in pages for each in quotations(page.read_text(encoding="utf-8"))]
    assert len(quoted) > 20
    missing = [
        quotation
        for quotation in quoted
        if not all(part.strip(" ,") in known for part in " ".join(quotation.split()).split("..."))
    ]
    assert missing == []
