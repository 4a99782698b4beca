"""Unity players, and built-in simulations that act as players: how they are checked, started and filmed."""

from __future__ import annotations

import logging
import os
import re
from typing import Any

from attrs import evolve

from trajtrainer.core.errors import SettingsError
from trajtrainer.envs.filming import TakeFrame
from trajtrainer.envs.protocol import Environment, PlayerLogs
from trajtrainer.envs.sim.registry import simulation_kinds, simulation_of
from trajtrainer.envs.unity.faults import LaunchError
from trajtrainer.envs.unity.launcher import SIMULATION_PREFIX, command
from trajtrainer.envs.unity.side_channels import PicturesChannel
from trajtrainer.envs.unity_worker import connect_player, make_unity_environment
from trajtrainer.settings.checks import closest
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.schemes import ENVIRONMENTS

logger = logging.getLogger(__name__)

# A decision of Unity's example scenes takes a tenth of a second of the game.
_RATE = 10.0
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]+")  # longer than the letter of a drive


def start_unity(settings: RunSettings, logs: PlayerLogs, **options: Any) -> Environment:
    """Start players, or wait for the Unity Editor; see ``make_unity_environment``."""
    if not settings.env_settings.env_path:
        # For anyone who tries a shipped configuration without Unity. Behaviors of the user's own come with a scene.
        names = list(filter(None, map(simulation_of, settings.behaviors)))
        if names or not settings.behaviors:
            simulation = names[0] if names else "3DBall"
            logger.info("No Unity Editor at hand? Try the built-in simulation --env=sim:%s.", simulation)
    return make_unity_environment(settings, logs, **options)


def check_build(env_path: str) -> None:
    """Reject a build that does not exist.

    Raises:
        LaunchError: with what the user may mean instead.
    """
    path = env_path.strip()
    try:
        command(path)
    except LaunchError as error:
        if os.path.isdir(os.path.expanduser(path)):
            raise  # The error lists what is in the folder.
        from trajtrainer.envs.python.factories import option_for_id  # late: only this message needs it

        simulation = simulation_of(os.path.basename(path))
        scheme, colon, _ = path.partition(":")
        if colon and _SCHEME.fullmatch(scheme):
            end = closest(scheme, ENVIRONMENTS) or "."
            known = ", ".join(sorted(ENVIRONMENTS))
            hint = f"There is no environment scheme {scheme!r} (known: {known}; packages can add others){end}"
        elif option := option_for_id(path):
            hint = f"If you mean the Gymnasium environment of this name, use {option}."
        elif simulation is not None:
            hint = f"If you mean the built-in simulation, use --env=sim:{simulation}."
        else:
            hint = "Without Unity, train on a built-in simulation, such as --env=sim:3DBall."
        raise LaunchError(f"{error} {hint}") from error


def check_simulation(names: str) -> None:
    """Reject names of simulations that do not exist.

    Raises:
        LaunchError: with the name that was probably meant.
    """
    path = f"{SIMULATION_PREFIX}{names}"
    if not names:
        raise LaunchError(f"--env {path} names no simulation. Expected sim:NAME, as in sim:3DBall.")
    try:
        simulation_kinds(names)
    except ValueError as error:
        raise LaunchError(f"--env {path}: {error}") from error


def film_unity(settings: RunSettings, take: TakeFrame) -> Environment:
    """Start one player, which may send PNG or JPEG pictures on the side channel of ``PicturesChannel``.

    Raises:
        SettingsError: it is the Editor.
        EnvironmentFaultError: see ``connect_player``.
    """
    if settings.env_settings.env_path is None:
        raise SettingsError("The Unity Editor cannot be filmed. Name a build or a simulation with --env.")
    channel = PicturesChannel(lambda frame: take(frame, _RATE))
    return connect_player(
        0,
        settings=settings.env_settings,
        engine=settings.engine_settings,
        log_folder=None,
        run=settings,
        side_channels=(channel,),
    )


def film_simulation(settings: RunSettings, take: TakeFrame) -> Environment:
    """Start one simulation that draws itself."""
    env = settings.env_settings
    return film_unity(evolve(settings, env_settings=evolve(env, env_args=[*(env.env_args or []), "--render"])), take)
