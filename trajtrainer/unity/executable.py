"""What to run for ``--env``: a Unity build on this operating system, or a built-in simulation (reference 5.8)."""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from trajtrainer.unity.faults import LaunchError

SIMULATION_PREFIX = "sim:"
# A path may bear the ending of another system's build, as the settings file may have been written there.
_ENDINGS = (".x86_64", ".x86", ".exe", ".app")


def command(env_path: str, platform: str = sys.platform) -> list[str]:
    """The command that starts the player, without its arguments.

    ``env_path`` is a build, with or without its ending, absolute or from the current folder, or ``sim:NAME`` or
    ``sim:NAME+NAME2`` for simulations of our own.

    Raises:
        LaunchError: there is no such build.
    """
    env_path = env_path.strip()
    if env_path.startswith(SIMULATION_PREFIX):
        name = env_path.removeprefix(SIMULATION_PREFIX)
        if not name:
            raise LaunchError(f"--env {env_path} names no simulation. Expected sim:NAME, as in sim:3DBall.")
        return [sys.executable, "-m", "trajtrainer.sim", name]
    # Absolute, so that no program of that name is looked for elsewhere.
    given = Path(os.path.abspath(os.path.expanduser(env_path)))
    tried = []
    for candidate in _candidates(given, platform):
        if candidate.is_file():
            return [str(candidate)]
        tried.append(str(candidate))
    raise LaunchError(
        f"Couldn't launch the {env_path} environment. Provided filename does not match any environments. Tried: "
        f"{', '.join(tried)}. Give --env the path of a build for this system, with or without its ending, "
        "or leave it out to train in the Editor."
    )


def _candidates(given: Path, platform: str) -> Iterator[Path]:
    """Files that may be meant, the likeliest first."""
    base = _without_ending(given)
    if platform == "darwin":
        folder = base.with_name(f"{base.name}.app") / "Contents" / "MacOS"
        yield folder / base.name
        yield from _files_in(folder, "*")
    elif platform == "win32":
        yield base.with_name(f"{base.name}.exe")
        for file in _files_in(base, "*.exe"):
            if not fnmatch.fnmatch(file.name, "UnityCrashHandler*.exe"):
                yield file
    else:
        yield base.with_name(f"{base.name}.x86_64")
        yield base.with_name(f"{base.name}.x86")
    yield base
    yield given


def _without_ending(path: Path) -> Path:
    """Only an ending counts: a folder or a name may have ``.app`` or ``.x86`` in the middle."""
    for ending in _ENDINGS:
        if path.name.endswith(ending) and path.name != ending:
            return path.with_name(path.name.removesuffix(ending))
    return path


def _files_in(folder: Path, pattern: str) -> list[Path]:
    return sorted(file for file in folder.glob(pattern) if file.is_file()) if folder.is_dir() else []
