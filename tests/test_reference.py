"""The hand-written tables of docs/reference agree with the code and with the files of real runs."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trajtrainer.cli import main as command_line
from trajtrainer.cli.commands import COMMANDS
from trajtrainer.cli.main import main
from trajtrainer.policies.folder import run_folder
from trajtrainer.run import acting

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
RUNS = sorted((ROOT / "tests" / "upgrade").glob("*/runs"))
TAG = re.compile(r"(Environment|Policy|Losses|Self-play|Evaluation|Perf|Actors)/[A-Z\0].*|Is Training")
PLACEHOLDER = re.compile(r"\b(SIGNAL|NAME|TEAM|BEHAVIOR|RUN|SEARCH|STEP|N|M)\b")
NUMBERS = {"STEP", "N", "M"}


def rows(page: str, heading: str = "") -> list[list[str]]:
    """The cells of all tables of a page, or of those below a heading, without their heads."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    if heading:
        text = text.partition(f"# {heading}\n")[2].partition("\n#")[0]
    tables = re.findall(r"^\|[ |-]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for table in tables for row in table.splitlines()]


def codes(page: str, heading: str = "") -> list[str]:
    """What the first cells have in backquotes."""
    return [name for first, *_ in rows(page, heading) for name in re.findall(r"`([^`]+)`", first)]


def trees() -> Iterator[ast.Module]:
    for path in ROOT.glob("trajtrainer/**/*.py"):
        yield ast.parse(path.read_text(encoding="utf-8"))


def tags_of_code() -> set[str]:
    """All texts of the package that are tags. ``\0`` marks the places that an f-string fills in."""
    constants, texts = dict[str, str](), list[list[ast.expr]]()
    for tree in trees():
        inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                constants |= {target.id: node.value.value for target in node.targets if isinstance(target, ast.Name)}
            if isinstance(node, ast.JoinedStr):
                texts.append(node.values)
            elif isinstance(node, ast.Constant) and id(node) not in inner:
                texts.append([node])

    def text(part: ast.expr) -> str:
        if isinstance(part, ast.Constant):
            return str(part.value)
        assert isinstance(part, ast.FormattedValue)
        value = constants.get(part.value.id, "") if isinstance(part.value, ast.Name) else ""
        return value if TAG.fullmatch(value) else "\0"

    found = {"".join(map(text, parts)) for parts in texts}
    return {tag for tag in found if TAG.fullmatch(tag) and not re.search(r"[{\n]|_hist", tag)}


def as_pattern(text: str) -> re.Pattern[str]:
    """Matches everything that a text with placeholders may be."""
    pattern = re.escape(text).replace("\0", ".+").replace(r"\*", ".*")
    return re.compile(PLACEHOLDER.sub(lambda found: r"\d+" if found[1] in NUMBERS else ".+", pattern))


def test_the_table_of_tags_has_the_tags_of_the_code_and_no_others() -> None:
    on_page = set(codes("tags.md"))
    in_code = tags_of_code()
    assert len(on_page) > 50
    unexplained = {
        tag
        for tag in in_code
        if not any(as_pattern(row).fullmatch(tag) or as_pattern(tag).fullmatch(row) for row in on_page)
    }
    invented = {
        row
        for row in on_page
        if not any(row == tag or ("\0" in tag and as_pattern(tag).fullmatch(row)) for tag in in_code)
    }
    assert (unexplained, invented) == (set(), set())


def test_the_table_of_tags_has_the_tags_of_runs() -> None:
    patterns = [as_pattern(row) for row in codes("tags.md")]
    found = set()
    for place in {path.parent for runs in RUNS for path in runs.rglob("events.out.tfevents.*")}:
        tags = EventAccumulator(str(place)).Reload().Tags()
        found |= {tag for tag in tags["scalars"] if TAG.fullmatch(tag)}
    assert len(found) > 20
    assert {tag for tag in found if not any(pattern.fullmatch(tag) for pattern in patterns)} == set()


def test_the_table_of_files_has_the_files_of_runs() -> None:
    searches = {path.parent for runs in RUNS for path in runs.glob("*/study.journal")}
    folders = {path.parent for runs in RUNS for path in runs.rglob("configuration.yaml")}
    unknown, known = set(), set[str]()
    for place, heading in [*((each, "A run") for each in folders), *((each, "A search") for each in searches)]:
        patterns = {name: as_pattern(name) for name in codes("files.md", heading)}
        for path in place.rglob("*"):
            name = path.relative_to(place).as_posix()
            if path.is_dir() or name.startswith("trial-"):
                continue
            fitting = {row for row, pattern in patterns.items() if pattern.fullmatch(name)}
            known |= fitting
            if not fitting:
                unknown.add(name)
    assert unknown == set()
    # Written only by long logs, by players that crash or print, or with several seeds and matplotlib.
    rare = {"run_logs/trainer.log.N", "run_logs/Player-N.M.log", "run_logs/Player-N.stdout.log", "search.png"}
    all_rows = {*codes("files.md", "A run"), *codes("files.md", "A search")}
    assert all_rows - known - rare - {"keep_best"} == {"trial-N"}


def test_the_table_of_files_next_to_a_run_has_those_of_the_code() -> None:
    in_code = set(re.findall(r"^    results/(\.?)<run-id>(\.[\w.]+)", run_folder.__doc__ or "", re.MULTILINE))
    in_table = {re.match(r"(\.?)RUN(\.[\w.]+)", name) for name in codes("files.md", "Next to a run")}
    assert len(in_code) > 4
    assert in_code == {found.groups() for found in in_table if found}


def test_the_tables_of_the_status_have_its_keys() -> None:
    written = {
        key
        for runs in RUNS
        for path in runs.rglob("training_status.json")
        for name, entry in json.loads(path.read_text(encoding="utf-8")).items()
        if name != "metadata"
        for key in entry
    }
    source = (ROOT / "trajtrainer" / "policies" / "folder" / "status.py").read_text(encoding="utf-8")
    in_code = set(re.findall(r'(?:_set\(\w+(?:\.\w+)?, |section\[)"(\w+)"', source))
    in_table = {re.findall(r"`(\w+)`", first)[0] for first, *_ in rows("files.md", "training_status.json")}
    assert written - in_code - {"lesson_num"} == set()
    assert in_table == (in_code | written) - {"lesson_num"}


def test_the_table_of_environment_variables_has_what_the_code_reads() -> None:
    read = set()
    for path in ROOT.glob("trajtrainer/**/*.py"):
        source = path.read_text(encoding="utf-8")
        if "environ" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            names: list[ast.expr] = []
            if isinstance(node, ast.Call) and re.search(r"\benviron\.\w+$", ast.unparse(node.func)):
                names = node.args[:1]
            elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
                names = [node.slice]
            elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]).endswith("environ"):
                names = [node.left]
            elif isinstance(node, ast.comprehension) and isinstance(node.iter, ast.Tuple | ast.List):
                names = [name for name in node.iter.elts if re.fullmatch(r"'[A-Z]+_[A-Z_]+'", ast.unparse(name))]
            read |= {name.value for name in names if isinstance(name, ast.Constant)}
    # Read by huggingface_hub, W&B and MLflow.
    by_packages = {"HF_TOKEN", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "NETRC"}
    by_packages |= {"MLFLOW_ALLOW_FILE_STORE"}
    assert set(codes("environment-variables.md")) - by_packages == read - by_packages


def test_the_table_of_exit_codes_has_those_of_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of all commands. What a code of a single command means is for the tests of the command."""
    of_all = {int(code) for code, command, _ in rows("exit-codes.md") if command == "all"}
    assert of_all == {0, acting.FAILED, command_line._WRONG_USAGE, acting.INTERRUPTED, 128 + 15}
    assert command_line.INTERRUPTED == acting.INTERRUPTED
    assert main(["learn", "--no-such-option"]) == 2
    assert main(["inspect", "no-such-file.onnx"]) == 1
    assert "error" in capsys.readouterr().err


def test_the_commands_of_the_tables_exist() -> None:
    told = {
        word
        for page in ("exit-codes.md", "environment-variables.md")
        for row in rows(page)
        for word in re.findall(r"`([a-z]+)`", row[1])
    }
    sections = {path.stem for path in (REFERENCE / "settings").glob("*.md")}
    assert told <= set(COMMANDS) | sections
