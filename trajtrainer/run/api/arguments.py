"""The arguments of ``learn`` and ``Training``: settings, environment and options that go before the settings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve

from trajtrainer.core.errors import SettingsError
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.python_environments import from_factory
from trajtrainer.envs.select import make_environment, to_env_args
from trajtrainer.rundir.folder import RunFolder
from trajtrainer.settings.checks import InvalidValueError, Place
from trajtrainer.settings.flags import settle_with
from trajtrainer.settings.presets import config_path
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import read_file, to_mapping
from trajtrainer.settings.yaml.document import Entry, from_mapping, whole_number

SettingsSource = str | Path | Mapping[str, Any] | RunSettings | None
EnvironmentSource = str | Callable[..., Any]


def settle(
    settings: SettingsSource,
    options: Mapping[str, object],
    env_args: Mapping[str, Any] | Sequence[str] | None,
    episodes: int | None,
    source: str,
) -> RunSettings:
    """Return the settings of a run.

    Args:
        settings: see ``learn``.
        options: ``Flag.name`` -> value; None where none was given.
        env_args: see ``learn``.
        episodes: see ``learn``.
        source: where all this comes from, for messages.

    Raises:
        SettingsError: anything is wrong.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if env_args is not None and not isinstance(env_args, Mapping):
        given["env_args"] = env_args
    settled = _settled(settings, given, source)
    if isinstance(env_args, Mapping):
        settled = _with_env_args(settled, env_args)
    return settled if episodes is None else _with_episodes(settled, episodes, source)


def at_least_one(number: object, name: str, source: str) -> int:
    """Return a whole number of 1 or more.

    Raises:
        SettingsError: it is none.
    """
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise SettingsError(f"{source}: {name} is {number!r}, expected a whole number of at least 1.")
    return number


def name_of(environment: EnvironmentSource | None, source: str) -> str | None:
    """Return the environment's name as it stands in configuration.yaml.

    Raises:
        SettingsError: it is neither a name nor a function.
    """
    if environment is None or isinstance(environment, str):
        return environment
    if not callable(environment):
        raise SettingsError(
            f"{source}: environment is a {type(environment).__name__}, expected a text such as "
            "'gym:CartPole-v1', or a callable that returns an environment (each copy is made by a call)."
        )
    name = getattr(environment, "__qualname__", type(environment).__qualname__)
    return f"python:{getattr(environment, '__module__', '?')}:{name}"


def maker(environment: EnvironmentSource | None) -> Callable[[RunSettings, RunFolder], Environment]:
    """Return what makes the environment of a run."""
    if environment is None or isinstance(environment, str):
        return make_environment
    return functools.partial(_made_by, _NewEachTime(environment))


def _made_by(factory: _NewEachTime, settings: RunSettings, _folder: RunFolder) -> Environment:
    return from_factory(factory, settings)


class _NewEachTime:
    """A factory, which is refused as soon as it returns what it has returned before.

    An evaluation in the environment of the training would disturb it. Can be sent to another process if the factory
    can.
    """

    def __init__(self, factory: Callable[..., Any]) -> None:
        self._factory = factory
        self._made: list[Any] = []
        functools.update_wrapper(self, factory)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        environment = self._factory(*arguments, **options)
        if any(environment is other for other in self._made):
            raise SettingsError(
                f"The factory {getattr(self._factory, '__name__', self._factory)!s} returned the same environment "
                "twice. Each call must make a new one."
            )
        self._made.append(environment)
        return environment

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._factory,)


def _settled(settings: SettingsSource, options: Mapping[str, object], source: str) -> RunSettings:
    place = Place(source)
    if settings is None:
        return settle_with(Entry({}, place), options, behaviors_required=False, source=source)
    if isinstance(settings, RunSettings):
        if not options:
            return settings
        root = from_mapping(to_mapping(settings), place)
        settled = settle_with(root, options, behaviors_required=settings.behaviors_required, source=source)
        return evolve(settled, deterministic=settings.deterministic)
    if isinstance(settings, Mapping):
        return settle_with(from_mapping(settings, place), options, behaviors_required=True, source=source)
    root, problems = read_file(config_path(settings))
    return settle_with(root, options, problems, behaviors_required=True, source=source)


def _with_env_args(settings: RunSettings, env_args: Mapping[str, Any]) -> RunSettings:
    env = settings.env_settings
    return evolve(settings, env_settings=evolve(env, env_args=to_env_args(env.env_path, env_args)))


def _with_episodes(settings: RunSettings, episodes: int, source: str) -> RunSettings:
    if not settings.checkpoint_settings.inference:
        raise SettingsError(
            f"{source}: episodes goes with inference=True only. Training ends at the max_steps of its behaviors."
        )
    try:
        number = whole_number(from_mapping(episodes, Place(source)).content)
        return evolve(settings, inference_episodes=number)
    except InvalidValueError as error:
        raise SettingsError(f"{source}: episodes: {error}.") from error
