"""``scripts/tenants [--quick | --near] [--together] [NAME ...]``: deletes tenants in a copy, and tests the rest.

Tenants are tools, plugins and algorithms that can be deleted without breaking the rest. Testing each deletion takes
many hours. Two runs test nearly the same in a third of the time: ``--together`` deletes all tenants at once and runs
all remaining tests, and ``--near`` deletes one at a time and runs only tests that may depend on another tenant.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.pruning import prune

ROOT = Path(__file__).resolve().parents[1]
NEAR = ("tests/plugins", "tests/tools", "tests/learning/algos/xqc", "tests/cli", "tests/settings")
"""Tests of tenants and of code that lists them. ``--near`` also runs the test modules directly in ``tests/``."""


@dataclass(frozen=True)
class Tenant:
    """The files and mentions of a tenant, besides its folder, its tests and its rows.

    Attributes:
        folder: its folder in the package, and in ``tests/``. Tests that combine it with another tenant are in
            ``test_with_NAME.py`` of the other tenant.
        config: its files and folders in ``config/``.
        pages: its pages in ``docs/``.
        extras: its extras in ``pyproject.toml``.
        benchmark: its part of ``scripts/bench``.
        shown: a regular expression for mentions on other pages, besides its commands and links to its pages.
    """

    folder: str
    config: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    shown: str = ""
    benchmark: str = ""

    @property
    def module(self) -> str:
        return f"trajtrainer.{self.folder.replace('/', '.')}"


TENANTS = {
    "godot": Tenant(
        "plugins/godot",
        ("godot",),
        ("train/godot.md",),
        shown=r"--env[= ]godot|\bgodot:|--to[= ]godot-onnx|godot_rl",
    ),
    "envpool": Tenant(
        "plugins/envpool", ("gym/Pong-envpool.yaml",), ("train/envpool.md",), ("envpool",), r"\benvpool:|Pong-envpool"
    ),
    "tracking": Tenant("plugins/tracking", (), ("measure/tracking.md",), ("wandb", "mlflow", "trackio")),
    "metrics": Tenant(
        "plugins/metrics", ("monitoring",), extras=("metrics",), shown=r"builtin:monitoring|--metrics-(?:port|file)"
    ),
    "ray": Tenant(
        "plugins/ray",
        ("actors/3DBall-ray.yaml",),
        ("operate/clusters.md",),
        ("ray",),
        r"backend: ray|backend[= ]ray|--ray-address|rayjob|3DBall-ray",
    ),
    "xqc": Tenant(
        "learning/algos/xqc",
        ("xqc",),
        ("benchmarks/xqc.md", "reference/settings/xqc.md", "tutorials/pendulum.md"),
        benchmark="xqc",
    ),
    "imitation": Tenant(
        "plugins/imitation",
        ("offline",),
        ("train/offline.md", *(f"reference/settings/{name}.md" for name in ("bc", "dagger", "iql"))),
    ),
    "evaluate": Tenant("tools/evaluate", (), ("deploy/build-pipeline.md", "reference/cli/evaluate.md"), ("video",)),
    "record": Tenant("tools/record", (), ("reference/cli/record.md",), shown=r"\bExpert\.demo\b"),
    "demo": Tenant("tools/demo", (), ("reference/cli/demo.md",)),
    "tournament": Tenant("tools/tournament", (), ("measure/tournament.md", "reference/cli/tournament.md")),
    "search": Tenant("tools/search", ("search",), ("train/search.md", "reference/cli/search.md"), ("tune",)),
    "hub": Tenant("tools/hub", (), ("deploy/sharing.md", "reference/cli/push.md", "reference/cli/pull.md"), ("hub",)),
    "report": Tenant("tools/report", (), ("measure/reports.md", "reference/cli/report.md", "reference/cli/plot.md")),
    "page": Tenant("tools/page", (), ("measure/page.md", "reference/cli/page.md"), ("page",)),
    "source": Tenant(
        "tools/source",
        (),
        ("deploy/games.md",),
        shown=r"--to[= ](?:c|csharp|js|gdscript|godot)(?![\w-])",
        benchmark="export",
    ),
    "importing": Tenant("tools/importing", (), ("deploy/importing.md", "reference/cli/import.md"), ("import",)),
    "verify": Tenant("tools/verify", (), ("deploy/verify.md", "reference/cli/verify.md")),
    "init": Tenant("tools/init", (), ("train/first-settings.md", "reference/cli/init.md")),
}


def delete(name: str, root: Path) -> int:
    """Delete a tenant from a checkout, and return the number of its rows in tables."""
    tenant = TENANTS[name]
    shutil.rmtree(root / "trajtrainer" / tenant.folder)
    shutil.rmtree(root / "tests" / tenant.folder, ignore_errors=True)
    for path in [
        *(root / "config" / each for each in tenant.config),
        *(root / "docs" / each for each in tenant.pages),
        *root.glob(f"tests/*/*/test_with_{name}.py"),
        *root.glob(f"scripts/benchmarks/{tenant.benchmark}.py"),
    ]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    rows = sum(_without_rows(path, tenant.module) for path in root.glob("trajtrainer/**/*.py"))
    _without_mentions(tenant, root)
    return rows


def _without_mentions(tenant: Tenant, root: Path) -> None:
    """Remove a tenant's extras, the links to its pages, and mentions of it on other pages."""
    project, site = root / "pyproject.toml", root / ".zensical.toml"
    for path, gone in [
        (project, [rf"^{extra} = .*\n" for extra in tenant.extras]),
        (site, [rf'^.*"{re.escape(page)}".*\n' for page in tenant.pages]),
    ]:
        path.write_text(re.sub("|".join(gone) or "(?!)", "", path.read_text(encoding="utf-8"), flags=re.M), "utf-8")
    for path in root.glob("notebooks/*") if tenant.extras else []:
        extra = "|".join(tenant.extras)
        text = re.sub(rf"(trajtrainer\[[\w,]*?),?(?:{extra})\b", r"\1", path.read_text(encoding="utf-8"))
        path.write_text(text.replace("trajtrainer[]", "trajtrainer"), encoding="utf-8")
    cited = "|".join(map(re.escape, tenant.pages)) or "(?!)"
    for path in [*root.glob("trajtrainer/**/*.py"), *root.glob("scripts/**/*.py")]:
        text = path.read_text(encoding="utf-8")
        shorter = re.sub(rf"\[([^\]]+)\]\([./]*(?:docs/)?(?:{cited})[^)]*\)| \(docs/(?:{cited})\)", r"\1", text)
        if shorter != text:
            path.write_text(shorter, encoding="utf-8")
    commands = [Path(page).stem for page in tenant.pages if page.startswith("reference/cli/")]
    # Do not match "git -C trajtrainer ..." and "from trajtrainer import ...".
    shown = [rf"(?<!-C )(?<!from )\btrajtrainer {command}\b" for command in commands]
    shown += [rf"\btrajtrainer\[{extra}\]" for extra in tenant.extras]
    gone = "|".join([*shown, rf"\b{tenant.folder}/", tenant.shown or "(?!)"])
    prune([*root.glob("*.md"), *root.glob("docs/**/*.md")], re.compile(gone))


def _without_rows(path: Path, module: str) -> int:
    """Remove the entries of tables that name a module, and return their number."""
    text = path.read_text(encoding="utf-8")
    if module not in text:
        return 0
    spans = sorted(set(_rows(ast.parse(text), module)), reverse=True)
    lines = text.splitlines(keepends=True)
    for first, begin, last, end in spans:
        rest = lines[last - 1][end:].removeprefix(",")
        before = lines[first - 1][:begin]
        lines[first - 1 : last] = [] if not before.strip() and not rest.strip() else [before + rest.lstrip(" ")]
    path.write_text("".join(lines), encoding="utf-8")
    return len(spans)


def _rows(tree: ast.AST, module: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield the positions of entries in dicts, tuples and lists that name a module: first and last line and column."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            entries = [(key or value, value) for key, value in zip(node.keys, node.values, strict=True)]
        elif isinstance(node, ast.Tuple | ast.List):
            entries = [(each, each) for each in node.elts]
        else:
            continue
        for key, value in entries:
            if _names(value, module) and not any(_names(inner, module) for inner in _tables(value)):
                assert value.end_lineno is not None
                assert value.end_col_offset is not None
                yield key.lineno, key.col_offset, value.end_lineno, value.end_col_offset


def _names(node: ast.AST, module: str) -> bool:
    constants = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
    return any(isinstance(each, str) and re.match(rf"{re.escape(module)}[.:]", each) for each in constants)


def _tables(node: ast.AST) -> Iterator[ast.AST]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Dict | ast.Tuple | ast.List))


def check(names: Sequence[str], *, quick: bool, near: bool) -> bool:
    """Delete tenants in a copy of the checkout, and print whether the rest passes."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copy"
        files = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
        ).stdout.split("\0")[:-1]
        for file in files:
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, root / file)
        if (ROOT.parent / "shared").is_dir():
            (Path(folder) / "shared").symlink_to(ROOT.parent / "shared")
        if (ROOT / ".mypy_cache").is_dir():
            shutil.copytree(ROOT / ".mypy_cache", root / ".mypy_cache")
        num_rows = sum(delete(name, root) for name in names)
        pytest = ["pytest", "-q", "-p", "no:cacheprovider"]
        if near:
            pytest += [path for path in NEAR if (root / path).exists()]
            pytest += [str(path.relative_to(root)) for path in sorted(root.glob("tests/test_*.py"))]
        commands = {
            "pages": [sys.executable, "-m", "scripts.pages"],  # -m imports the copy, not the installed package
            "types": [sys.executable, "-m", "mypy"],
            "tests": [sys.executable, "-m", *pytest, *(["--collect-only"] if quick else ["-n", "3"])],
        }
        environment = {**os.environ, "PYTHONPATH": str(root)}  # for programs that tests start in other folders
        begin_s, failed = time.monotonic(), []
        for what, command in commands.items():
            done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                failed.append(what)
                print("\n".join((done.stdout + done.stderr).splitlines()[-25:]), flush=True)
        result = f"fails: {', '.join(failed)}" if failed else "the rest passes"
        print(f"{' '.join(names)}: {num_rows} rows, {time.monotonic() - begin_s:.0f} s, {result}", flush=True)
        return not failed


def main() -> int:
    parser = argparse.ArgumentParser("scripts/tenants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(TENANTS)} (default: all)")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="collect the tests, but do not run them")
    extent.add_argument("--near", action="store_true", help="run only the tests that could need another tenant")
    parser.add_argument("--together", action="store_true", help="delete the tenants at once, not one at a time")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(TENANTS)
    if unknown:
        parser.error(f"there is no tenant {', '.join(sorted(unknown))}; expected some of {', '.join(TENANTS)}")
    names = arguments.names or list(TENANTS)
    copies = [names] if arguments.together else [[name] for name in names]
    passed = [check(deleted, quick=arguments.quick, near=arguments.near) for deleted in copies]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
