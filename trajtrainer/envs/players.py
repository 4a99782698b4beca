"""Checks, starts and films Unity players and built-in simulations, which act as players."""

from __future__ import annotations

import logging
import os
import re
from typing import Any

from attrs import evolve

from trajtrainer.core.errors import SettingsError
from trajtrainer.core.spelling import closest
from trajtrainer.envs.filming import TakeFrame
from trajtrainer.envs.protocol import Environment, PlayerLogs
from trajtrainer.envs.sim.registry import simulation_kinds, simulation_of
from trajtrainer.envs.unity.faults import LaunchError
from trajtrainer.envs.unity.launcher import SIMULATION_PREFIX, command
from trajtrainer.envs.unity.side_channels import PicturesChannel
from trajtrainer.envs.unity_worker import connect_player, make_unity_environment
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.schemes import ENVIRONMENTS

logger = logging.getLogger(__name__)

# Frames per second. Agents in Unity's example scenes decide every 0.1 s of game time.
_RATE = 10.0
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]+")  # two or more characters, because a single letter is a Windows drive


def start_unity(settings: RunSettings, logs: PlayerLogs, **options: Any) -> Environment:
    """Start the players, or wait for the Unity Editor; see ``make_unity_environment``."""
    if not settings.env_settings.env_path:
        # A hint for users who try a bundled configuration without Unity. Users with other behaviors have their own
        # scene.
        names = list(filter(None, map(simulation_of, settings.behaviors)))
        if names or not settings.behaviors:
            simulation = names[0] if names else "3DBall"
            logger.info("No Unity Editor available? Try the built-in simulation --env=sim:%s.", simulation)
    return make_unity_environment(settings, logs, **options)


def check_build(env_path: str) -> None:
    """Check that a build exists.

    Raises:
        LaunchError: there is no such build. The message suggests what the user may have meant.
    """
    path = env_path.strip()
    try:
        command(path)
    except LaunchError as error:
        if os.path.isdir(os.path.expanduser(path)):
            raise  # The error already lists the contents of the folder.
        from trajtrainer.envs.python.factories import option_for_id  # imported here because only this error needs it

        simulation = simulation_of(os.path.basename(path))
        scheme, colon, _ = path.partition(":")
        if colon and _SCHEME.fullmatch(scheme):
            end = closest(scheme, ENVIRONMENTS) or "."
            known = ", ".join(sorted(ENVIRONMENTS))
            hint = f"There is no environment scheme {scheme!r} (known: {known}; packages can add others){end}"
        elif option := option_for_id(path):
            hint = f"If you mean the Gymnasium environment with this name, use {option}."
        elif simulation is not None:
            hint = f"If you mean the built-in simulation, use --env=sim:{simulation}."
        else:
            hint = "Without Unity, train on a built-in simulation, such as --env=sim:3DBall."
        raise LaunchError(f"{error} {hint}") from error


def check_simulation(names: str) -> None:
    """Check that simulations with these names exist.

    Raises:
        LaunchError: a simulation does not exist. The message suggests the name that the user probably meant.
    """
    path = f"{SIMULATION_PREFIX}{names}"
    if not names:
        raise LaunchError(f"--env {path} does not name a simulation. Expected sim:NAME, as in sim:3DBall.")
    try:
        simulation_kinds(names)
    except ValueError as error:
        raise LaunchError(f"--env {path}: {error}") from error


def film_unity(settings: RunSettings, take: TakeFrame) -> Environment:
    """Start one player, and film the PNG or JPEG pictures that it sends on the side channel of ``PicturesChannel``.

    Raises:
        SettingsError: the environment is the Editor.
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
    """Start one simulation that renders itself, and film it."""
    env = settings.env_settings
    return film_unity(evolve(settings, env_settings=evolve(env, env_args=[*(env.env_args or []), "--render"])), take)
