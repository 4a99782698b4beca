"""``scripts/traces record FILE`` and ``scripts/traces compare BEFORE AFTER``: checks that a change keeps results equal.

Records the weights and the curves of a short run of every kind (``tests/run/traces.py``). On the same machine, two
checkouts with equal behavior have identical traces::

    scripts/traces record before.json      # in the checkout before the change
    scripts/traces record after.json       # in the checkout after it
    scripts/traces compare before.json after.json

Traces of other processors may differ, because they round sums differently. The reference traces of the tests,
``tests/run/traces.json``, are also written by ``scripts/traces record``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.run import traces

DEMOS = Path(__file__).resolve().parents[1] / "config" / "demos"


def main() -> int:
    parser = argparse.ArgumentParser(
        "scripts/traces", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("file", type=Path)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "record":
        return _record(arguments.file)
    return _compare(*(json.loads(path.read_text(encoding="utf-8")) for path in (arguments.before, arguments.after)))


def _record(file: Path) -> int:
    found = {}
    for kind, (settings, environment) in traces.kinds(DEMOS).items():
        with tempfile.TemporaryDirectory() as folder:
            found[kind] = traces.record(Path(folder), settings, environment)
        print(kind, flush=True)
    lines = ",\n".join(f"{json.dumps(kind)}: {json.dumps(trace)}" for kind, trace in found.items())
    file.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    return 0


def _compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print all differences; return 1 if there are any, otherwise 0."""
    differences = [
        f"{kind}: {part}" for kind in {**before, **after} for part in _differing(before.get(kind), after.get(kind))
    ]
    print("\n".join(differences) or f"{len(before)} traces are identical.")
    return int(bool(differences))


def _differing(before: Any, after: Any, path: str = "") -> list[str]:
    """Return descriptions of all entries that differ; for a curve, of its first point that differs."""
    if before == after:
        return []
    if isinstance(before, dict) and isinstance(after, dict):
        keys = {**before, **after}
        return [found for key in keys for found in _differing(before.get(key), after.get(key), f"{path} {key}")]
    if isinstance(before, list) and isinstance(after, list):
        pairs = [(one, other) for one, other in zip(before, after, strict=False) if one != other]
        return [
            f"{path}: {pairs[0][0]} became {pairs[0][1]}" if pairs else f"{path}: {len(before)} became {len(after)}"
        ]
    return [f"{path}: {before} became {after}"]


if __name__ == "__main__":
    sys.exit(main())
