"""Turns ``--env`` into an environment, by looking up its scheme in the table ``ENVIRONMENTS``."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

from attrs import evolve

from trajtrainer.core.errors import SettingsError, UnsupportedError
from trajtrainer.core.plugins import Reference, resolve
from trajtrainer.envs import user_code
from trajtrainer.envs.filming import TakeFrame
from trajtrainer.envs.in_process import InProcessEnvironment, SideBySide
from trajtrainer.envs.protocol import Environment, PlayerLogs
from trajtrainer.settings.environment import EnvironmentSettings
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.schemes import ENVIRONMENTS, UNITY, EnvironmentScheme, split_scheme

_RENDER_MODE = "render_mode"


def make_environment(
    settings: RunSettings, logs: PlayerLogs, *, ports_of_run: int = 0, here: bool = False, waits: bool = True
) -> Environment:
    """Make the environment that ``env_settings.env_path`` names.

    - ``gym:ID``: a Gymnasium environment; ``gym:MODULE:ID`` first imports the module that registers it. An ID with only
      a vectorized entry point becomes a vectorized environment.
    - ``pettingzoo:MODULE``: a module with ``parallel_env`` or ``env``, such as ``butterfly.pistonball_v6`` or
      your own module.
    - ``python:MODULE:FACTORY``: the environment that a function or class makes; see ``from_factory``.
    - ``sim:NAME``: a built-in simulation.
    - ``SCHEME:NAME``: an environment of any other row of ``ENVIRONMENTS``.
    - anything else: a Unity player.
    - nothing: the Unity Editor.

    Python environments run as ``num_envs`` copies in this process. Each copy is made with the ``key=value`` arguments
    in ``env_args`` and wrapped in ``wrappers``. Some arguments are handled here, unless the function or class that
    makes the environment has a parameter of the same name: ``behaviors``, ``teams`` and ``groups`` classify the agents
    of PettingZoo environments (``pettingzoo_agents.AgentRule``), ``smallest_picture`` distinguishes pictures from
    vectors, and ``max_items`` limits lists (``ObservationLayout``).

    Args:
        settings: settings of the run.
        logs: where players write their logs.
        ports_of_run: not 0 if this is one of several environments of the run; see ``ports.base_ports``.
        here: a built-in simulation may run in this process; see ``connect_player``.
        waits: wait until players have connected. Otherwise they are ``Launched``.

    Raises:
        SettingsError: there is no such environment, or a package that it needs is missing.
        EnvironmentFaultError: the environment cannot be made.
        UnsupportedError: its spaces are not supported.
        PluginError: the package that provides the scheme is broken.
    """
    path = settings.env_settings.env_path
    check(path or None)  # fail before any process is started
    scheme, row, name = _row(path)
    with _blaming(scheme):
        return make_with(row, name, settings, logs, ports_of_run=ports_of_run, here=here, waits=waits)


def make_with(
    row: EnvironmentScheme,
    name: str,
    settings: RunSettings,
    logs: PlayerLogs,
    *,
    ports_of_run: int = 0,
    here: bool = False,
    waits: bool = True,
) -> Environment:
    """Make the environment with this name from a given row, like ``make_environment`` but without its check."""
    if row.start is not None:
        return cast(Environment, resolve(row.start)(settings, logs, ports_of_run=ports_of_run, here=here, waits=waits))
    if row.make is not None:
        return cast(Environment, resolve(row.make)(name, settings))
    from trajtrainer.envs.python.factories import from_factory  # imported here because only Python environments need it

    factory = partial(resolve(cast(Reference, row.factory)), name)
    return from_factory(factory, settings, f"--env {settings.env_settings.env_path}")


def make_separate_environments(settings: RunSettings, logs: PlayerLogs) -> Environment:
    """Make an environment like ``make_environment``, but with each of the ``num_envs`` copies as a separate worker.

    Raises:
        TrajtrainerError: see ``make_environment``.
    """
    env = settings.env_settings
    if env.num_envs == 1 or is_player(env.env_path or ""):
        return make_environment(settings, logs)
    from trajtrainer.envs.python.factories import build

    def make(copy: int) -> Environment:
        alone = evolve(env, num_envs=1, seed=env.seed + copy)
        return make_environment(evolve(settings, env_settings=alone), logs)

    return build(make, env.num_envs, partial(SideBySide, str(env.env_path)))


def make_filmed_environment(settings: RunSettings, logs: PlayerLogs, take: TakeFrame) -> Environment:
    """Make one copy of the environment that ``env_settings.env_path`` names, and film it.

    Raises:
        SettingsError: the environment is an editor; see also ``make_environment``.
        UnsupportedError: the environment does not render.
        EnvironmentFaultError: the environment cannot be made.
    """
    env = evolve(settings.env_settings, num_envs=1)
    path = env.env_path
    scheme, row, _ = _row(path)
    if row.film is not None:
        if path is not None:
            check(path)
        with _blaming(scheme):
            return cast(Environment, resolve(row.film)(evolve(settings, env_settings=env), take))
    assert path is not None
    if takes_argument(path, _RENDER_MODE) and _RENDER_MODE not in user_code.keyword_arguments(env.env_args):
        env = evolve(env, env_args=[*(env.env_args or []), f"{_RENDER_MODE}=rgb_array"])
    environment = make_environment(evolve(settings, env_settings=env), logs)
    try:
        if not isinstance(environment, InProcessEnvironment):
            raise UnsupportedError(f"The environment {path} cannot be filmed: it does not render.")
        environment.film(take)
    except BaseException:
        environment.close()
        raise
    return environment


def check(env_path: str | None) -> None:
    """Check that an ``--env`` exists, as far as possible without starting anything.

    Raises:
        SettingsError: ``env_path`` does not name an environment.
        LaunchError: there is no such build or simulation.
        PluginError: the package that provides the scheme is broken.
    """
    scheme, row, name = _row(env_path)
    if row.check is not None and env_path is not None:
        with _blaming(scheme):
            resolve(row.check)(name)


def is_player(env_path: str) -> bool:
    """Return whether the environment runs as a separate program rather than in this process."""
    return _row(env_path)[1].is_player


def absolute(env_path: str) -> str:
    """Make the path in an ``--env`` absolute, so that it does not depend on the current folder."""
    scheme, row, name = _row(env_path)
    if not row.is_path or not name or split_scheme(name)[0] is not None:
        return env_path
    return ("" if scheme is None else f"{scheme}:") + os.path.abspath(os.path.expanduser(name.strip()))


def takes_argument(env_path: str, name: str) -> bool:
    """Return whether an environment in this process can be made with an argument of this name.

    Raises:
        SettingsError: ``env_path`` does not name an environment.
        PluginError: the package that provides the scheme is broken.
    """
    scheme, row, rest = _row(env_path)
    with _blaming(scheme):
        if row.takes_argument is not None:
            return bool(resolve(row.takes_argument)(rest, name))
        return row.factory is None or name in user_code.named_parameters(partial(resolve(row.factory), rest))


def to_env_args(env_path: str | None, arguments: Mapping[str, Any]) -> list[str]:
    """Convert arguments to the form that ``--env-args`` takes.

    Environments in this process take ``key=value`` pairs, and players take command-line options.

    Raises:
        SettingsError: a name or a value cannot be written as text.
    """
    row = _row(env_path)[1]
    write: Callable[..., Any] = user_code.to_options if row.is_player else user_code.to_keywords
    return list((write if row.write_arguments is None else resolve(row.write_arguments))(arguments))


def episode_limit(settings: EnvironmentSettings) -> int | None:
    """Return the number of steps after which episodes are truncated, if known without making the environment."""
    scheme, row, name = _row(settings.env_path)
    if row.episode_limit is None:
        return None
    with _blaming(scheme):
        limit = resolve(row.episode_limit)(name, settings.env_args)
    return limit if isinstance(limit, int) and limit > 0 else None


def _row(env_path: str | None) -> tuple[str | None, EnvironmentScheme, str]:
    """Return the scheme (None for Unity), its row, and the name.

    Raises:
        SettingsError: no name follows the scheme.
        PluginError: the package that provides the scheme is broken.
    """
    scheme, name = split_scheme(env_path)
    if scheme is None:
        return None, UNITY, name
    row = ENVIRONMENTS[scheme]
    if not name.strip() and (not row.is_player or (row.editor and ":" in str(env_path))):
        raise SettingsError(f"--env {env_path!r} does not name the {row.noun}. Expected {row.example}.")
    return scheme, row, name


def _blaming(scheme: str | None) -> AbstractContextManager[None]:
    """Return a context manager whose errors name the package that provides the scheme."""
    return nullcontext() if scheme is None else ENVIRONMENTS.blaming(scheme)
