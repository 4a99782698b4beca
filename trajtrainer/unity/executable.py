"""The command to run for ``--env``: a Unity build on this operating system, or a built-in simulation.

See docs/mlagents-behavior.md#launch.
"""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from trajtrainer.envs.gymnasium_ids import option_for
from trajtrainer.sim.registry import simulation_kind, simulation_of
from trajtrainer.unity.faults import LaunchError

SIMULATION_PREFIX = "sim:"
# A path may bear the ending of another system's build, as the settings file may have been written there.
_ENDINGS = (".x86_64", ".x86", ".exe", ".app")
_CRASH_HANDLER = "UnityCrashHandler*.exe"  # stands beside every build for Windows
_SHOWN = 8  # entries of a folder that are named


def is_simulation(env_path: str | None) -> bool:
    """Return whether this names simulations of our own."""
    return env_path is not None and env_path.strip().startswith(SIMULATION_PREFIX)


def command(env_path: str, platform: str = sys.platform) -> list[str]:
    """Return the command that starts the player, without its arguments.

    ``env_path`` is a build, with or without its ending, absolute or from the current folder, or ``sim:NAME`` or
    ``sim:NAME+NAME2`` for simulations of our own.

    Raises:
        LaunchError: there is no such build or simulation.
    """
    env_path = env_path.strip()
    if is_simulation(env_path):
        return [sys.executable, "-m", "trajtrainer.sim", _simulations(env_path)]
    return [str(find(env_path, platform, lambda given: _meant(env_path, given, platform)))]


def find(path: str, platform: str, meant: Callable[[Path], str]) -> Path:
    """Return the program of a build: ``path``, with or without its ending, absolute or from the current folder.

    Raises:
        LaunchError: there is none. ``meant`` ends its message with what to give instead.
    """
    # Absolute, so that no program of that name is looked for elsewhere.
    given = Path(os.path.abspath(os.path.expanduser(path)))
    tried = []
    for candidate in _candidates(given, platform):
        if candidate.is_file():
            return candidate
        tried.append(str(candidate))
    raise LaunchError(
        f"Couldn't launch the {path} environment. Provided filename does not match any environments. Tried: "
        f"{', '.join(dict.fromkeys(tried))}. {meant(given)}"
    )


def _simulations(env_path: str) -> str:
    """Return the names behind ``sim:``, all of which there are."""
    names = env_path.removeprefix(SIMULATION_PREFIX)
    if not names:
        raise LaunchError(f"--env {env_path} names no simulation. Expected sim:NAME, as in sim:3DBall.")
    try:
        for name in names.split("+"):
            simulation_kind(name)
    except ValueError as error:
        raise LaunchError(f"--env {env_path}: {error}") from error
    return names


def _meant(env_path: str, given: Path, platform: str) -> str:
    """Return what to give instead of something that is no build."""
    if given.is_dir():
        return _contents(env_path, given, platform)
    option = option_for(env_path)
    if option:
        return f"For the Gymnasium environment of this name: {option}."
    simulation = simulation_of(given.name)
    if simulation is not None:
        return f"For the built-in simulation: --env=sim:{simulation}."
    return (
        "Give --env the path of a build for this system, with or without its ending, leave it out to train in the "
        "Editor, or train on a built-in simulation with --env=sim:3DBall."
    )


def _contents(env_path: str, folder: Path, platform: str) -> str:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        return f"{env_path} is a folder that cannot be read: {error.strerror}."
    build = next((name for name in names if _is_build(name, platform)), None)
    if build is not None:
        return f"{env_path} is a folder. It holds {build}: --env={os.path.join(env_path, build)}"
    if not names:
        return f"{env_path} is an empty folder."
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{env_path} is a folder with no build for {platform}, but {', '.join(names[:_SHOWN])}{more}."


def _is_build(name: str, platform: str) -> bool:
    endings = {"darwin": (".app",), "win32": (".exe",)}.get(platform, (".x86_64", ".x86"))
    return name.endswith(endings) and not fnmatch.fnmatch(name, _CRASH_HANDLER)


def _candidates(given: Path, platform: str) -> Iterator[Path]:
    """Yield files that may be meant, the likeliest first."""
    base = _without_ending(given)
    if platform == "darwin":
        folder = base.with_name(f"{base.name}.app") / "Contents" / "MacOS"
        yield folder / base.name
        yield from _files_in(folder, "*")
    elif platform == "win32":
        yield base.with_name(f"{base.name}.exe")
        for file in _files_in(base, "*.exe"):
            if not fnmatch.fnmatch(file.name, _CRASH_HANDLER):
                yield file
    else:
        yield base.with_name(f"{base.name}.x86_64")
        yield base.with_name(f"{base.name}.x86")
    yield base
    yield given


def _without_ending(path: Path) -> Path:
    """Return the path without its ending.

    Only an ending counts: a folder or a name may have ``.app`` or ``.x86`` in the middle.
    """
    for ending in _ENDINGS:
        if path.name.endswith(ending) and path.name != ending:
            return path.with_name(path.name.removesuffix(ending))
    return path


def _files_in(folder: Path, pattern: str) -> list[Path]:
    return sorted(file for file in folder.glob(pattern) if file.is_file()) if folder.is_dir() else []
