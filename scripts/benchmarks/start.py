"""Measures how long commands take to start, compared with ``import torch`` in a new process.

``scripts/bench start [--mlagents VENV]``; for VENV see ``scripts/benchmarks/mlagents.py``.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from scripts.benchmarks.jobs import ROOT
from scripts.benchmarks.report import RUNS, Row, interleaved

_PORT = 16500
_SLOW_PLAYER_S = 8.0
_TRAJTRAINER = [sys.executable, "-m", "trajtrainer"]
_CONFIGURATION = str(ROOT / "config" / "ppo" / "3DBall.yaml")
_LEARN = [*_TRAJTRAINER, "learn", _CONFIGURATION]


def measure(venv: Path | None = None) -> list[Row]:
    """Measure the seconds of each command, and their ratio to ``import torch`` or an empty program."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _seconds([*_TRAJTRAINER, "learn", "builtin:quick/Basic", *_options(folder), "--run-id=trained"])
        player, slow = _player(folder, 0), _player(folder, _SLOW_PLAYER_S)
        commands = {
            "python -c pass": partial(_seconds, [sys.executable, "-c", "pass"]),
            "import torch": partial(_seconds, [sys.executable, "-c", "import torch"]),
            "trajtrainer --help": partial(_seconds, [*_TRAJTRAINER, "--help"]),
            "trajtrainer config": partial(_seconds, [*_TRAJTRAINER, "config", "builtin:quick/Basic"]),
            "learn, to the first exchange": partial(_until_connected, _LEARN, player, folder),
            "learn, a player that needs 8 s, on top of the player's": partial(_on_top, _LEARN, slow, folder),
            "learn builtin:quick/Basic, to the end": partial(
                _seconds,
                [*_TRAJTRAINER, "learn", "builtin:quick/Basic", *_options(folder), "--run-id=whole", "--force"],
            ),
            "evaluate, 1 episode": partial(
                _seconds, [*_TRAJTRAINER, "evaluate", str(folder / "results" / "trained"), "--episodes=1"]
            ),
            "page, until it answers": partial(_until_the_page_answers, folder),
        }
        if venv is not None:
            learn = [str(venv / "bin" / "mlagents-learn"), _CONFIGURATION]
            commands["mlagents-learn, to the first exchange"] = partial(_until_connected, learn, player, folder)
        figures = dict(zip(commands, interleaved(list(commands.values()), RUNS), strict=True))
    rows = []
    for name, seconds in figures.items():
        rows.append(Row(name, "s", seconds))
        if name not in ("python -c pass", "import torch"):
            base = "python -c pass" if name == "trajtrainer --help" else "import torch"
            rows.append(Row(f"... / {base}", "times", [a / b for a, b in zip(seconds, figures[base], strict=True)]))
    return rows


def _options(folder: Path) -> list[str]:
    return ["--env=sim:Basic", f"--results-dir={folder / 'results'}", "--seed=1", f"--base-port={_PORT}"]


def _player(folder: Path, start_s: float) -> Path:
    """Write a player that waits for this long before it starts and connects."""
    file = folder / f"player-{start_s:g}.x86_64"
    served = shlex.join([sys.executable, "-m", "trajtrainer.envs.sim", "3DBall"])
    file.write_text(f'#!/bin/sh\nsleep {start_s:g}\nexec {served} "$@"\n')
    file.chmod(0o755)
    return file


def _seconds(command: Sequence[str]) -> float:
    begin_s = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - begin_s


def _until_connected(learn: Sequence[str], player: Path, folder: Path) -> float:
    """Return the seconds until a trainer logs that the player has connected. Both trainers use the same message."""
    command = [*learn, f"--env={player}", f"--results-dir={folder / 'results'}", "--run-id=started", "--force"]
    command += [f"--base-port={_PORT}", "--torch-device=cpu"]
    begin_s, seconds, lines = time.monotonic(), None, []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if seconds is None and "Connected to Unity environment" in line:
                seconds = time.monotonic() - begin_s
                process.send_signal(signal.SIGINT)
    if seconds is None:
        raise RuntimeError("".join(lines[-20:]))
    time.sleep(0.5)  # wait until the port is free again
    return seconds


def _on_top(learn: Sequence[str], player: Path, folder: Path) -> float:
    """Return the seconds that a trainer adds to the time that its player needs to connect."""
    return _until_connected(learn, player, folder) - _own_start(player)


def _own_start(player: Path) -> float:
    """Return the seconds that a player needs to start and connect."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        begin_s = time.monotonic()
        with subprocess.Popen(
            [str(player), "--mlagents-port", str(listening.getsockname()[1])],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                listening.settimeout(120)
                listening.accept()[0].close()
                return time.monotonic() - begin_s
            finally:
                os.killpg(process.pid, signal.SIGKILL)


def _until_the_page_answers(folder: Path) -> float:
    begin_s = time.monotonic()
    command = [*_TRAJTRAINER, "page", str(folder / "results"), f"--port={_PORT + 1}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{_PORT + 1}/", timeout=60).close()
                    return time.monotonic() - begin_s
                time.sleep(0.01)
        finally:
            process.terminate()
    raise RuntimeError(f"The page exited with code {process.returncode}.")
