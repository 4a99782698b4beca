"""Lets every file operation of a run fail once, and looks whether what was saved before is still there.

::

    LD_PRELOAD=faults.so python -m tests.disk.campaign --folder FOLDER KIND ...

A process that has imported everything forks two for each case: one in which an operation fails, and one that does what
a user does next. Each case that does not hold is printed as a line of JSON, and at the end the table of all.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import json
import os
import random
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.disk import faults
from tests.disk.faults import EXIT_CODE, MODES, Operation
from tests.disk.kinds import RESULTS, Kind, damage, empty, make_kinds
from tests.hub_stand_in import serving
from trajtrainer.core.filenames import EVENT_FILE_PREFIX
from trajtrainer.policies.folder.status import FILE as ORIGIN_FILE

_TIMEOUT_S = 300.0
_PRELOADED = (
    "tests.envs.duel",
    "tests.run.api.test_learn_api",
    "trajtrainer.cli.learn",
    "trajtrainer.envs.python.gymnasium_environment",
    "trajtrainer.policies.onnx.export",
    "trajtrainer.run.assembly",
    "trajtrainer.run.session",
)
# What tools add: ``kinds(hub)`` or ``COMMANDS``, and ``PRELOADED``.
_OF_TOOLS = sorted(f"tests.tools.{path.parent.name}.disk" for path in Path(__file__).parents[1].glob("tools/*/disk.py"))
_WORDS = ("No space left on device", "Input/output error", "cannot be written")
# Their failure costs nobody anything: what makes a rename last, a lock's or a log's last file, what a kill has left, a
# log's second name, which it gets at the end anyway. zipfile opens a file once more if that fails. Notes that are left
# beside another run are recognized by their marks.
_SILENT = {
    ("fsync", "folder"),
    ("unlink", "lock"),
    ("unlink", "stop"),
    ("truncate", "lock"),
    ("open", "npz"),
    *((name, "notes lock") for name in ("open", "write", "truncate", "unlink")),
    ("link", "log"),
}


@dataclass
class Outcome:
    """What became of a case.

    Attributes:
        fired: the operations that failed; none if there were fewer operations than that.
        wrong: what did not hold.
    """

    kind: str
    mode: str
    number: int
    fired: list[Operation] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def forked(call: Callable[[], int], output: Path) -> int | None:
    """Call it in a forked process, what it prints in a file. Returns its exit code; None if it took too long."""
    pid = os.fork()
    if pid == 0:
        code = 98
        try:
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1)
            os.dup2(file, 2)
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
            code = call()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    end_s = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < end_s:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.003)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return None


class Case:
    """One operation of a kind that fails in one way, in a folder of its own.

    Args:
        kind: what is done.
        template: the folder as it is before.
        folder: is made.
    """

    def __init__(self, kind: Kind, template: Path, folder: Path) -> None:
        self._kind, self._folder = kind, folder
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(template, folder, symlinks=True)
        os.chdir(folder)
        self._told, self._log, self.output = folder / "told.txt", folder / "operations.txt", folder / "output.txt"

    def act(self, number: int | None, mode: str) -> int | None:
        """Do it. Returns the exit code."""

        def call() -> int:
            told = os.open(self._told, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            faults.arm(self._folder / RESULTS, number, mode, self._log)
            return self._kind.act(lambda facts: os.write(told, f"{json.dumps(facts)}\n".encode()))

        return forked(call, self.output)

    def operations(self) -> list[Operation]:
        return faults.operations(self._log)

    def told(self) -> list[dict[str, Any]]:
        lines = self._told.read_text().splitlines() if self._told.is_file() else []
        return [json.loads(line) for line in lines]

    def go_on(self, *, was_killed: bool = False) -> list[str]:
        """Do what a user does next. Returns what is wrong."""
        told, found = self.told(), self._folder / "found.json"

        def call() -> int:
            wrong = list(self._kind.go_on(told))
            found.write_text(json.dumps(wrong))
            return 0

        output = self._folder / "output.txt"
        code = forked(call, output)
        text = output.read_text(errors="replace")
        wrong = json.loads(found.read_text()) if found.is_file() else [f"going on ended with {code}"]
        if wrong or "Traceback" in text:
            wrong.append(f"what going on said: {text[-1500:]}")
        may_be_left = was_killed and self._kind.leaves_temporaries
        return [*wrong, *leftovers(self._folder / RESULTS, temporary=may_be_left, was_killed=was_killed)]


def leftovers(results: Path, *, temporary: bool = False, was_killed: bool = False) -> list[str]:
    """What is half-written or left over in a results folder.

    Args:
        results: the folder.
        temporary: temporary files may be there: a process has ended, and none has come after it.
        was_killed: event files, which are only ever appended to, may be cut for the same reason.
    """
    if not results.is_dir():
        return []
    wrong = []
    for path in sorted(results.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(results).parts)
        if hidden and not path.name.endswith(".lock") and not temporary:
            wrong.append(f"left over: {path.relative_to(results)}")
        elif path.is_file() and not hidden:
            wrong += damage(path, may_be_cut=temporary or (was_killed and path.name.startswith(EVENT_FILE_PREFIX)))
    return wrong


def run_case(kind: Kind, name: str, mode: str, number: int, template: Path, folder: Path) -> Outcome:
    """Make a case and return what came of it."""
    case = Case(kind, template, folder)
    code = case.act(number, mode)
    fired = [each for each in case.operations() if each.failed]
    outcome = Outcome(name, mode, number, fired)
    if not fired:
        return outcome
    text = case.output.read_text(errors="replace")
    if mode == "die":
        if code != EXIT_CODE:
            outcome.wrong.append(f"exit code {code}, expected that of a process that ended")
        outcome.wrong += leftovers(folder / RESULTS, temporary=True)
    else:
        outcome.wrong += complaints(code, text, fired, kind.num_commands)
        # What could not be removed is there; what comes next removes it.
        outcome.wrong += leftovers(folder / RESULTS, temporary=any(each.name == "unlink" for each in fired))
    if outcome.wrong:
        outcome.wrong.append(f"what it said: {text[-2500:]}")
    outcome.wrong += case.go_on(was_killed=mode == "die")
    return outcome


def complaints(code: int | None, text: str, fired: Sequence[Operation], most: int) -> list[str]:
    """What is wrong with what a run said of its failure; ``most``: so many messages of an error may end it."""
    wrong = []
    if code not in (0, 1):
        wrong.append("it hung" if code is None else f"exit code {code}")
    if "Traceback" in text:
        wrong.append("a traceback")
    if text.count("error: ") > most or (code == 1 and "error: " not in text):
        wrong.append(f"{text.count('error: ')} messages of an error that ended it")
    if not all(map(_is_silent, fired)) and not any(word in text for word in _WORDS):
        wrong.append("it said nothing")
    return wrong


def _is_silent(operation: Operation) -> bool:
    # huggingface_hub tries again or does without, and its threads write in any order, so which of its operations fails
    # differs between runs. The files that it fetches are looked at afterwards. The rest is done by trajtrainer.
    if ".pull-" in operation.path:
        return operation.name != "fsync" and not operation.path.endswith(f"/{ORIGIN_FILE}")
    return (operation.name, _what(operation.path)) in _SILENT


def _what(path: str) -> str:
    name = path.rpartition("/")[2]
    if name.endswith(".notes.lock"):
        return "notes lock"
    return name.rpartition(".")[2] if "." in name else "folder"


def campaign(kinds: Sequence[str], folder: Path, modes: Sequence[str], sample: int, seed: int) -> list[Outcome]:
    """Make the cases of kinds: all, or so many of each kind that are drawn."""
    draw, outcomes = random.Random(seed), []
    # The hub complains of every process that ends while it is served.
    with serving() as hub, contextlib.redirect_stderr(io.StringIO()):
        os.environ |= {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}
        parts = [importlib.import_module(name) for name in _OF_TOOLS]
        made = make_kinds([words for part in parts for words in getattr(part, "COMMANDS", [])])
        for part in parts:
            made |= part.kinds(hub) if hasattr(part, "kinds") else {}
        for name in kinds or made:
            kind, template, begin_s = made[name], folder / "template", time.monotonic()
            empty(template)
            if forked(partial(_prepare, kind), template / "output.txt") != 0:
                raise RuntimeError((template / "output.txt").read_text())
            (template / RESULTS).mkdir(exist_ok=True)
            whole = Case(kind, template, folder / "case")
            if whole.act(None, "eio") != 0 or whole.go_on():
                raise RuntimeError(f"{name} fails without a fault: {whole.output.read_text()}{whole.go_on()}")
            number = len(whole.operations())
            cases = [(mode, each) for mode in modes for each in range(number)]
            for mode, each in draw.sample(cases, min(sample, len(cases))) if sample else cases:
                outcome = run_case(kind, name, mode, each, template, folder / "case")
                outcomes.append(outcome)
                if outcome.wrong:
                    failed = [f"{operation.name} {operation.path}" for operation in outcome.fired]
                    line = {"kind": name, "mode": mode, "number": each, "failed": failed[:3], "wrong": outcome.wrong}
                    print(json.dumps(line), flush=True)
            own = [each for each in outcomes if each.kind == name and each.fired]
            held = sum(not each.wrong for each in own)
            took = f"{time.monotonic() - begin_s:.0f} s"
            print(f"{name}: {number} operations, {len(own)} cases, {held} held, {took}", flush=True)
    return outcomes


def _prepare(kind: Kind) -> int:
    kind.prepare()
    return 0


def table(outcomes: Sequence[Outcome]) -> str:
    """The numbers of cases of each kind and mode, and how many held."""
    rows = ["| kind | " + " | ".join(MODES) + " |", "| --- |" + " --- |" * len(MODES)]
    for kind in dict.fromkeys(each.kind for each in outcomes):
        cells = []
        for mode in MODES:
            own = [each for each in outcomes if (each.kind, each.mode) == (kind, mode) and each.fired]
            cells.append(f"{sum(not each.wrong for each in own)} of {len(own)}")
        rows.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", help="all if none is named")
    parser.add_argument("--folder", type=Path, required=True, help="where all happens; it is emptied")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--sample", type=int, default=0, help="cases of each kind; 0 makes all")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    of_tools = [name for part in map(importlib.import_module, _OF_TOOLS) for name in part.PRELOADED]
    for name in (*_PRELOADED, *of_tools):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    outcomes = campaign(arguments.kinds, arguments.folder.resolve(), arguments.modes, arguments.sample, arguments.seed)
    print(table(outcomes))
    return int(any(each.wrong for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
