"""``scripts/tenants [--quick] [NAME ...]``: deletes each tenant in a copy, and shows that the rest still passes."""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Tenant:
    """What belongs to a tenant besides its folder, its tests and its rows.

    Attributes:
        folder: below the package; the tests are in the folder of this name below ``tests/``.
        config: folders below ``config/``.
        pages: below ``docs/``.
    """

    folder: str
    config: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        return f"trajtrainer.{self.folder.replace('/', '.')}"


TENANTS = {
    "godot": Tenant("plugins/godot", ("godot",), ("guides/godot.md",)),
    "envpool": Tenant("plugins/envpool", (), ("guides/envpool.md",)),
    "tracking": Tenant("plugins/tracking", (), ("guides/tracking.md",)),
    "metrics": Tenant("plugins/metrics"),
    "ray": Tenant("plugins/ray", (), ("guides/clusters.md",)),
    "xqc": Tenant("learning/algos/xqc", ("xqc",), ("benchmarks/xqc.md", "reference/settings/xqc.md")),
    "imitation": Tenant(
        "plugins/imitation",
        ("offline",),
        ("guides/offline.md", *(f"reference/settings/{name}.md" for name in ("bc", "dagger", "iql"))),
    ),
    "evaluate": Tenant("tools/evaluate", (), ("reference/cli/evaluate.md",)),
    "record": Tenant("tools/record", (), ("reference/cli/record.md",)),
    "demo": Tenant("tools/demo", (), ("reference/cli/demo.md",)),
    "tournament": Tenant("tools/tournament", (), ("guides/tournament.md", "reference/cli/tournament.md")),
    "search": Tenant("tools/search", ("search",), ("guides/search.md", "reference/cli/search.md")),
    "hub": Tenant("tools/hub", (), ("guides/sharing.md", "reference/cli/push.md", "reference/cli/pull.md")),
    "report": Tenant("tools/report", (), ("guides/reports.md", "reference/cli/report.md", "reference/cli/plot.md")),
    "page": Tenant("tools/page", (), ("guides/page.md", "reference/cli/page.md")),
    "source": Tenant("tools/source", (), ("guides/games.md",)),
    "importing": Tenant("tools/importing", (), ("guides/importing.md", "reference/cli/import.md")),
    "verify": Tenant("tools/verify", (), ("guides/verify.md", "reference/cli/verify.md")),
    "init": Tenant("tools/init", (), ("guides/first-settings.md", "reference/cli/init.md")),
}


def delete(tenant: Tenant, root: Path) -> int:
    """Delete a tenant from a checkout. Returns the number of its rows."""
    shutil.rmtree(root / "trajtrainer" / tenant.folder)
    shutil.rmtree(root / "tests" / tenant.folder, ignore_errors=True)
    for folder in tenant.config:
        shutil.rmtree(root / "config" / folder)
    rows = sum(_without_rows(path, tenant.module) for path in root.glob("trajtrainer/**/*.py"))
    for page in tenant.pages:
        (root / "docs" / page).unlink()
    names = [re.escape(Path(page).name) for page in tenant.pages]
    if names:
        link = re.compile(rf"\b({'|'.join(names)})\b")
        for path in [*root.glob("*.md"), *root.glob("docs/**/*.md"), root / ".zensical.toml"]:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            path.write_text("".join(line for line in lines if not link.search(line)), encoding="utf-8")
    return rows


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
    """Where the innermost entries of dictionaries, tuples and lists are that name a module: lines and columns."""
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


def check(name: str, *, quick: bool) -> bool:
    """Delete a tenant in a copy of the checkout, and print whether the rest passes."""
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
        num_rows = delete(TENANTS[name], root)
        pytest = ["pytest", "-q", "-p", "no:cacheprovider"]
        commands = {
            "pages": [sys.executable, "-m", "scripts.pages"],  # a script would import the installed package
            "types": [sys.executable, "-m", "mypy"],
            "tests": [sys.executable, "-m", *pytest, *(["--collect-only"] if quick else ["-n", "3"])],
        }
        begin_s, failed = time.monotonic(), []
        for what, command in commands.items():
            done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
            if done.returncode:
                failed.append(what)
                print("\n".join((done.stdout + done.stderr).splitlines()[-25:]), flush=True)
        result = f"fails: {', '.join(failed)}" if failed else "the rest passes"
        print(f"{name}: {num_rows} rows, {time.monotonic() - begin_s:.0f} s, {result}", flush=True)
        return not failed


def main() -> int:
    parser = argparse.ArgumentParser("scripts/tenants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(TENANTS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="collect the tests, but do not run them")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(TENANTS)
    if unknown:
        parser.error(f"there is no tenant {', '.join(sorted(unknown))}; expected some of {', '.join(TENANTS)}")
    passed = [check(name, quick=arguments.quick) for name in arguments.names or TENANTS]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
