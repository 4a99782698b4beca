"""The command line of a game, which is an exported build or a built-in simulation that behaves like one."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trajtrainer.envs.sim.registry import simulation_kinds
from trajtrainer.envs.unity import launcher
from trajtrainer.envs.unity.faults import LaunchError
from trajtrainer.envs.user_code import to_options
from trajtrainer.settings.environment import EngineSettings

_PREFIX = "godot:"
_WITH_WINDOW = "--no-headless"
_HEADLESS = ("--headless", "--disable-render-loop")
_PROJECT = "project.godot"


def command(env_path: str) -> list[str]:
    """Return the command that starts a game, without its arguments.

    Raises:
        LaunchError: the build or simulation does not exist.
    """
    path = _path(env_path)
    if launcher.is_simulation(path):
        names = path.removeprefix(launcher.SIMULATION_PREFIX)
        try:
            simulation_kinds(names)
        except ValueError as error:
            raise LaunchError(f"--env {env_path}: {error}") from error
        return [sys.executable, "-m", "trajtrainer.plugins.godot.simulation", names]

    def hint(given: Path) -> str:
        if (given / _PROJECT).is_file() or given.name == _PROJECT:
            return (
                f"{given} is a project. Export it (Project, Export) and pass the exported file, or leave the path out "
                "(--env=godot) and press Play in the Godot editor."
            )
        if given.is_dir():
            return f"{env_path} is a folder. Pass the path of the exported file in it."
        return (
            "Use --env=godot:PATH with the path of a game exported for this system, or --env=godot to train in the "
            "Godot editor."
        )

    return [str(launcher.find(path, sys.platform, hint))]


def _path(env_path: str) -> str:
    return env_path.strip().removeprefix(_PREFIX).strip()


def arguments(port: int, seed: int, engine: EngineSettings, env_args: Sequence[str] = ()) -> list[str]:
    """Return the arguments of a game. If an option is repeated, the plugin uses its last value."""
    return [
        *(() if _WITH_WINDOW in env_args else _HEADLESS),
        f"--port={port}",
        f"--env_seed={seed}",
        f"--speedup={engine.time_scale:g}",
        *(argument for argument in env_args if argument != _WITH_WINDOW),
    ]


def draws_nothing(env_path: str, env_args: Sequence[str]) -> bool:
    """Return whether a game is started without a window, so that Godot does not render images."""
    is_build = env_path.strip().startswith(_PREFIX) and not launcher.is_simulation(_path(env_path))
    return is_build and _WITH_WINDOW not in env_args


def to_env_args(given: Mapping[str, Any]) -> list[str]:
    """Convert arguments to the plugin's format.

    >>> to_env_args({"action_repeat": 4, "no-headless": True})
    ['--action_repeat=4', '--no-headless']

    Raises:
        SettingsError: a name or value cannot be written as an argument.
    """
    options = (to_options({name: value}) for name, value in given.items())
    return ["=".join(words) for words in options if words]
