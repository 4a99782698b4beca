"""The contract tests for plugins in docs/extend/plugins.md pass, and the table of columns is complete."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests import inner_pytest
from tests.packages import REGISTRIES, Install
from trajtrainer import testing
from trajtrainer.cli.commands import COMMANDS
from trajtrainer.core.columns import TABLE, Store
from trajtrainer.settings.actors import ACTOR_BACKENDS

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "extend" / "plugins.md").read_text(encoding="utf-8")
COLUMNS = (ROOT / "docs" / "extend" / "plugin-algorithm.md").read_text(encoding="utf-8").partition("## Columns of")[2]
CONTRACTS = {name for name in vars(testing) if name.endswith("Contract")}
TYPES = {"f32": "<f4", "i32": "<i4", "bool": "?"}


def examples() -> str:
    """The block of the page that tests one plugin of each kind."""
    (block,) = (text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "Contract" in text)
    return str(block)


def test_there_is_one_example_for_each_contract_and_kind_of_plugin() -> None:
    used = re.findall(r"\(testing\.(\w+)\)", examples())
    assert Counter(used) == Counter(CONTRACTS)
    # The rows of the first need modules that are not public, and a command has no contract but argparse's.
    own = [each for each in REGISTRIES if each not in (ACTOR_BACKENDS, COMMANDS)]
    assert len(CONTRACTS) == len(own) + 1  # and environments, which need no entry point


def test_the_examples_pass(install: Install, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install()
    (here / "test_page.py").write_text(examples(), encoding="utf-8")
    code = inner_pytest.run(here, "-v", "test_page.py")
    printed = capsys.readouterr().out
    assert code == 0, printed
    passed = Counter(re.findall(r"::(\w+)::\w+ PASSED", printed))
    for name, contract in re.findall(r"class (\w+)\(testing\.(\w+)\)", examples()):
        methods = [each for each in vars(getattr(testing, contract)) if each.startswith("test_")]
        assert passed[name] == len(methods) > 0, name


def test_the_table_of_columns_is_that_of_the_code() -> None:
    row = re.compile(r"^\| `([\w.]+)`[^|]*\|([^|]+)\|([^|]*)\|[^|]+\|$", re.MULTILINE)
    table = {}
    for name, kind, shape in row.findall(COLUMNS.partition("| attribute |")[0]):
        table[name.removesuffix(".0")] = (
            "" if name == "obs.0" else TYPES[kind.strip()],
            shape.strip().removeprefix("one value"),
        )
    kept = [column for column in TABLE if column.stores & (Store.POOL | Store.GROUP)]
    assert table == {column.name: (column.dtype, "".join(column.shape)) for column in kept}


def test_packed_steps_have_these_columns() -> None:
    packed = testing.random_steps(testing.vector_spec(), groups=True, memory_size=4)
    named = {re.sub(r"\.\d+$", "", name) for name, _ in packed.steps.items()}
    assert named == {column.name for column in TABLE if column.stores & (Store.POOL | Store.GROUP)}
    assert packed["log_prob"].dtype == np.float32


def test_plugins_import_public_modules_only() -> None:
    folder = ROOT / "tests" / "plugin_package" / "trajtrainer_sample"
    imports = [
        found
        for file in folder.glob("*.py")
        for found in re.findall(r"^from (trajtrainer[\w.]*) import", file.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert set(imports) <= {"trajtrainer", "trajtrainer.validators"}


def test_failures_show_the_values(tmp_path: Path) -> None:
    lines = [
        "from trajtrainer import testing",
        "class TestFive(testing.StatsWriterContract):",
        "    make = lambda *_: [5]",
    ]
    (tmp_path / "test_five.py").write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "is_a_writer", str(tmp_path)]
    assert (
        "where False = isinstance(5, StatsWriter)"
        in subprocess.run(command, capture_output=True, text=True, check=False).stdout
    )
