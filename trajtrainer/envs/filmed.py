"""Environments that hand out a picture of each step, for people."""

from __future__ import annotations

from attrs import evolve

from trajtrainer.core.errors import SettingsError, UnsupportedError
from trajtrainer.envs.in_process import InProcessEnvironment
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.rendering import TakeFrame
from trajtrainer.envs.select import is_player, is_unity, make_environment, takes_argument
from trajtrainer.envs.unity_environment import PlayerLogs, connect_player
from trajtrainer.envs.user_code import keyword_arguments
from trajtrainer.settings.run import RunSettings
from trajtrainer.unity import launcher
from trajtrainer.unity.side_channels import PicturesChannel

_RENDER_MODE = "render_mode"
# A decision of Unity's example scenes takes a tenth of a second of the game.
_PLAYERS_RATE = 10.0


def make_filmed_environment(settings: RunSettings, logs: PlayerLogs, take: TakeFrame) -> Environment:
    """Return the environment that ``env_settings.env_path`` names, one copy of it, which is filmed.

    Gymnasium and PettingZoo environments are made with ``render_mode="rgb_array"``, built-in simulations draw
    themselves, and a Unity player may send PNG or JPEG pictures on the side channel of ``PicturesChannel``.

    Raises:
        SettingsError: it is the Editor, or see ``make_environment``.
        UnsupportedError: it does not render.
        EnvironmentFaultError: it cannot be made.
    """
    env = evolve(settings.env_settings, num_envs=1)
    path = env.env_path
    if path is None:
        raise SettingsError("The Unity Editor cannot be filmed: give a build or a simulation with --env.")
    if is_unity(path):
        launcher.command(path)
        if path.startswith("sim:"):
            env = evolve(env, env_args=[*(env.env_args or []), "--render"])
        channel = PicturesChannel(lambda frame: take(frame, _PLAYERS_RATE))
        return connect_player(
            0, settings=env, engine=settings.engine_settings, log_folder=None, run=settings, side_channels=(channel,)
        )
    if is_player(path):
        raise UnsupportedError(f"The environment {path} cannot be filmed: games of Godot send no pictures for people.")
    if takes_argument(path, _RENDER_MODE) and _RENDER_MODE not in keyword_arguments(env.env_args):
        env = evolve(env, env_args=[*(env.env_args or []), f"{_RENDER_MODE}=rgb_array"])
    environment = make_environment(evolve(settings, env_settings=env), logs)
    assert isinstance(environment, InProcessEnvironment)
    try:
        environment.film(take)
    except BaseException:
        environment.close()
        raise
    return environment
