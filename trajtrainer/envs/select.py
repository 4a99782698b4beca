"""From ``--env`` to an environment: players of Unity and Godot, simulations, Gymnasium, PettingZoo, any factory."""

import importlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from trajtrainer.core.errors import SettingsError, UnsupportedError
from trajtrainer.envs import user_code
from trajtrainer.envs.godot import build
from trajtrainer.envs.godot.environment import make_godot_environment
from trajtrainer.envs.in_process import InProcessEnvironment, SideBySide, TakeFrame
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.python import factories as python
from trajtrainer.envs.sim.registry import simulation_kinds, simulation_of
from trajtrainer.envs.unity.faults import LaunchError
from trajtrainer.envs.unity.launcher import SIMULATION_PREFIX, command, is_simulation
from trajtrainer.envs.unity.side_channels import PicturesChannel
from trajtrainer.envs.unity_environment import PlayerLogs, connect_player, make_unity_environment
from trajtrainer.settings.environment import GODOT_EDITOR, EnvironmentSettings
from trajtrainer.settings.run import RunSettings

logger = logging.getLogger(__name__)

_GODOT = GODOT_EDITOR  # also the scheme of games: godot:PATH
_SCHEMES: dict[str, tuple[Callable[[str, str, RunSettings], Environment], str]] = {
    "gym": (python.make_gymnasium, "gym:ID such as gym:CartPole-v1"),
    "envpool": (python.make_envpool, "envpool:ID such as envpool:Pong-v5"),
    "pettingzoo": (python.make_pettingzoo, "pettingzoo:MODULE such as pettingzoo:butterfly.pistonball_v6"),
    "python": (python.make_from_factory, "python:PACKAGE.MODULE:FACTORY such as python:my_game.training:make_env"),
}
_RENDER_MODE = "render_mode"
# A decision of Unity's example scenes takes a tenth of a second of the game.
_PLAYERS_RATE = 10.0


def make_environment(
    settings: RunSettings, logs: PlayerLogs, *, ports_of_run: int = 0, here: bool = False
) -> Environment:
    """Make the environment that ``env_settings.env_path`` names.

    - ``gym:ID``: a Gymnasium environment; ``gym:MODULE:ID`` first imports the module that registers it. An ID with only
      a vectorized entry point becomes a vectorized environment.
    - ``envpool:ID``: an EnvPool environment, whose copies EnvPool's own threads step.
    - ``pettingzoo:MODULE``: a module with ``parallel_env`` or ``env``, such as ``butterfly.pistonball_v6`` or one of
      your own.
    - ``python:MODULE:FACTORY``: whatever a function or class makes, see ``from_factory``.
    - ``godot:PATH``: a Godot game; ``godot``: one that is played in the Godot editor.
    - anything else, or nothing: a Unity player, the Unity Editor, or a built-in simulation.

    All but the last two make ``num_envs`` copies in this process; ``env_args`` are ``key=value`` arguments of each.
    Three kinds of arguments are ours unless what makes the environment has a parameter of that name: ``behaviors``,
    ``teams`` and ``groups`` sort the agents of PettingZoo environments (``pettingzoo_agents.AgentRule``),
    ``smallest_picture`` distinguishes pictures from vectors, and ``max_items`` limits lists (``ObservationLayout``).
    ``wrappers`` go around each copy, except for EnvPool.

    Args:
        settings: of the run.
        logs: where players write their logs.
        ports_of_run: if this is one of several environments of the run; see ``connect_player``.
        here: a built-in simulation may play in this process; see ``connect_player``.

    Raises:
        SettingsError: there is no such environment, or a package that it needs is missing.
        EnvironmentFaultError: it cannot be made.
        UnsupportedError: its spaces cannot be translated.
    """
    path = settings.env_settings.env_path or ""
    scheme, name = _scheme(path)
    if scheme == _GODOT:
        return make_godot_environment(settings, logs, ports_of_run=ports_of_run)
    if scheme is not None:
        return _SCHEMES[scheme][0](path, name, settings)
    if not path:
        # For anyone who tries a shipped configuration without Unity. Behaviors of the user's own come with a scene.
        names = list(filter(None, map(simulation_of, settings.behaviors)))
        if names or not settings.behaviors:
            simulation = names[0] if names else "3DBall"
            logger.info("No Unity Editor at hand? Try the built-in simulation --env=sim:%s.", simulation)
    check(path or None)  # before any process is started
    return make_unity_environment(settings, logs, ports_of_run=ports_of_run, here=here)


def make_separate_environments(settings: RunSettings, logs: PlayerLogs) -> Environment:
    """Like ``make_environment``, but each of ``num_envs`` copies is a worker of its own.

    Raises:
        TrajtrainerError: see ``make_environment``.
    """
    env = settings.env_settings
    if env.num_envs == 1 or is_player(env.env_path or ""):
        return make_environment(settings, logs)

    def make(copy: int) -> Environment:
        alone = evolve(env, num_envs=1, seed=env.seed + copy)
        return make_environment(evolve(settings, env_settings=alone), logs)

    return SideBySide(str(env.env_path), python.make_copies(make, env.num_envs))


def make_filmed_environment(settings: RunSettings, logs: PlayerLogs, take: TakeFrame) -> Environment:
    """Make one copy of the environment that ``env_settings.env_path`` names, and film it.

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
        raise SettingsError("The Unity Editor cannot be filmed. Name a build or a simulation with --env.")
    if is_unity(path):
        check(path)
        if is_simulation(path):
            env = evolve(env, env_args=[*(env.env_args or []), "--render"])
        channel = PicturesChannel(lambda frame: take(frame, _PLAYERS_RATE))
        return connect_player(
            0, settings=env, engine=settings.engine_settings, log_folder=None, run=settings, side_channels=(channel,)
        )
    if is_player(path):
        raise UnsupportedError(f"The environment {path} cannot be filmed: Godot games send no images to film.")
    if takes_argument(path, _RENDER_MODE) and _RENDER_MODE not in user_code.keyword_arguments(env.env_args):
        env = evolve(env, env_args=[*(env.env_args or []), f"{_RENDER_MODE}=rgb_array"])
    environment = make_environment(evolve(settings, env_settings=env), logs)
    assert isinstance(environment, InProcessEnvironment)
    try:
        environment.film(take)
    except BaseException:
        environment.close()
        raise
    return environment


def check(env_path: str | None) -> None:
    """Refuse an ``--env`` that does not exist, as far as that shows without starting anything.

    Raises:
        SettingsError: it names no environment.
        LaunchError: there is no such build or simulation.
    """
    scheme, name = _scheme(env_path or "")
    if scheme == _GODOT and name:
        build.command(name)
    if scheme is not None or env_path is None:
        return
    path = env_path.strip()
    if is_simulation(path):
        names = path.removeprefix(SIMULATION_PREFIX)
        if not names:
            raise LaunchError(f"--env {path} names no simulation. Expected sim:NAME, as in sim:3DBall.")
        try:
            simulation_kinds(names)
        except ValueError as error:
            raise LaunchError(f"--env {path}: {error}") from error
        return
    try:
        command(path)
    except LaunchError as error:
        if os.path.isdir(os.path.expanduser(path)):
            raise  # The error lists what is in the folder.
        simulation = simulation_of(os.path.basename(path))
        if option := python.option_for_id(path):
            hint = f"If you mean the Gymnasium environment of this name, use {option}."
        elif simulation is not None:
            hint = f"If you mean the built-in simulation, use --env=sim:{simulation}."
        else:
            hint = "Without Unity, train on a built-in simulation, such as --env=sim:3DBall."
        raise LaunchError(f"{error} {hint}") from error


def is_player(env_path: str) -> bool:
    """Whether this is a program of its own, rather than an environment in this process."""
    return _scheme(env_path)[0] in (None, _GODOT)


def is_unity(env_path: str) -> bool:
    """Whether this is a Unity player, or a built-in simulation that acts as one."""
    return _scheme(env_path)[0] is None


def absolute(env_path: str) -> str:
    """Make an ``--env`` independent of the current folder."""
    scheme, path = _scheme(env_path)
    if not is_player(env_path) or not path or is_simulation(path):
        return env_path
    return ("" if scheme is None else f"{scheme}:") + os.path.abspath(os.path.expanduser(path.strip()))


def takes_argument(env_path: str, name: str) -> bool:
    """Whether what makes an environment in this process may be called with an argument of this name.

    Raises:
        SettingsError: it names no environment.
    """
    scheme, rest = _scheme(env_path)
    if scheme != "python":
        return True
    return name in user_code.named_parameters(user_code.find_factory(rest, f"--env {env_path}"))


def to_env_args(env_path: str | None, arguments: Mapping[str, Any]) -> list[str]:
    """Write arguments as ``--env-args`` takes them.

    Environments in this process take ``key=value``, players take options of their command line.

    Raises:
        SettingsError: a name or a value that cannot be written as text.
    """
    scheme = _scheme(env_path or "")[0]
    if scheme == _GODOT:
        return build.to_env_args(arguments)
    return user_code.to_options(arguments) if scheme is None else user_code.to_keywords(arguments)


def episode_limit(settings: EnvironmentSettings) -> int | None:
    """Steps after which a Gymnasium environment truncates each episode, according to its registration."""
    scheme, name = _scheme(settings.env_path or "")
    if scheme != "gym":
        return None
    try:
        import gymnasium

        module, _, env_id = name.rpartition(":")
        if module:
            importlib.import_module(module)
        registered = gymnasium.spec(env_id).max_episode_steps
    except Exception:  # Not installed where only learning takes place, or an ID whose error is reported elsewhere.
        return None
    limit = user_code.keyword_arguments(settings.env_args).get("max_episode_steps", registered)
    return limit if isinstance(limit, int) and limit > 0 else None


def _scheme(env_path: str) -> tuple[str | None, str]:
    """Split into the scheme, None for a Unity player, and what follows it.

    Raises:
        SettingsError: nothing follows a scheme that needs a name.
    """
    scheme, colon, name = env_path.strip().partition(":")
    if scheme == _GODOT:
        if colon and not name.strip():
            raise SettingsError(f"--env {env_path!r} names no game. Expected godot:PATH, or godot for the editor.")
        return scheme, name
    if scheme not in _SCHEMES:
        return None, env_path
    if scheme == "gym":  # what runs of version 0.1.0 wrote into their configuration
        name = name.replace("trajtrainer.envs.gymnasium_environment:", "trajtrainer.gymnasium:")
    if not name:
        raise SettingsError(f"--env {env_path!r} names no environment. Expected {_SCHEMES[scheme][1]}.")
    return scheme, name
