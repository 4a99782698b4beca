"""``godot:PATH``: a Godot game that uses the Godot RL Agents plugin; ``godot``: the game in the Godot editor."""

from __future__ import annotations

from trajtrainer.core.errors import UnsupportedError
from trajtrainer.envs.filming import TakeFrame
from trajtrainer.envs.protocol import Environment
from trajtrainer.plugins.godot import build
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.schemes import EnvironmentScheme


def check(name: str) -> None:
    """Check that the game exists.

    Raises:
        LaunchError: the build or simulation does not exist.
    """
    if name:
        build.command(name)


def film(settings: RunSettings, take: TakeFrame) -> Environment:  # noqa: ARG001
    """Raise an error, because Godot games cannot be filmed.

    Raises:
        UnsupportedError: always.
    """
    path = settings.env_settings.env_path
    raise UnsupportedError(f"The environment {path} cannot be filmed: Godot games send no images to film.")


ROW = EnvironmentScheme(
    example="godot:PATH, or godot for the editor",
    noun="game",
    start="trajtrainer.plugins.godot.environment:make_godot_environment",
    check=check,
    film=film,
    write_arguments=build.to_env_args,
    editor=True,
    is_path=True,
    takes_wrappers=False,
)
