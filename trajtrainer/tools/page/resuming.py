"""Finds the command that continues a run."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path, PurePosixPath, PureWindowsPath

from trajtrainer.policies.folder.saved_run import SavedRun
from trajtrainer.settings.schemes import find_scheme

_COMMANDS = {"trajtrainer", "mlagents-learn", "__main__"}


def resume_command(saved: SavedRun) -> tuple[str, str]:
    """Return a command line for this machine's shell, and a remark about it. Either may be empty.

    The command that started the run cannot be reused, because ``timers.json`` has it without quotation marks. All of
    its settings are also in ``configuration.yaml``.
    """
    if not saved.configuration.flat or saved.folder.entry((*saved.parts, "configuration.yaml")) is None:
        return "", ""
    started = saved.metadata.get("command_line_arguments") or "trajtrainer"
    program = PureWindowsPath(str(started).partition(" ")[0])
    if program.stem not in _COMMANDS:
        return "", f"This run was started by a program ({program.name}). Start it again with resume=True."
    results = saved.folder.path.joinpath(*saved.parts[:-1])
    words = ["trajtrainer", "learn", str(saved.path / "configuration.yaml"), "--resume"]
    words += [f"--run-id={saved.path.name}", f"--results-dir={results}"]
    environment = saved.configuration.flat.get("env_settings.env_path")
    remark = "Run this in the folder where the run was started." if _is_relative(environment) else ""
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words), remark


def _is_relative(environment: object) -> bool:
    """Return whether an ``env_path`` depends on the current folder, unlike "sim:3DBall" and "/builds/Ball"."""
    if not isinstance(environment, str) or not environment:
        return False
    kind, colon, path = environment.partition(":")
    scheme = find_scheme(environment)
    if (colon and len(kind) > 1) or (scheme is not None and scheme.editor):  # a single letter is a Windows drive
        is_local = colon and scheme is not None and (scheme.is_path or scheme.is_module)
        return bool(is_local) and not Path(path).is_absolute()
    return not PurePosixPath(environment).is_absolute() and not PureWindowsPath(environment).drive
