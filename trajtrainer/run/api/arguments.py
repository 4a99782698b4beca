"""The arguments of ``learn`` and ``Training``: settings, environment, and options that override the settings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve

from trajtrainer.core.errors import SettingsError
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.python.factories import from_factory
from trajtrainer.envs.select import make_environment, to_env_args
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.settings.checks import InvalidValueError, Place
from trajtrainer.settings.flags import run_settings_with
from trajtrainer.settings.presets import config_path
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import read_file, to_mapping
from trajtrainer.settings.yaml.document import PlacedValue, from_mapping, whole_number

SettingsSource = str | Path | Mapping[str, Any] | RunSettings | None
EnvironmentSource = str | Callable[..., Any]


def combine_arguments(
    settings: SettingsSource,
    options: Mapping[str, object],
    env_args: Mapping[str, Any] | Sequence[str] | None,
    episodes: int | None,
    source: str,
) -> RunSettings:
    """Combine the arguments into the settings of a run.

    Args:
        settings: as for ``learn``.
        options: ``Flag.name`` -> value; None if the option was not given.
        env_args: as for ``learn``.
        episodes: as for ``learn``.
        source: name of the called function, for error messages.

    Raises:
        SettingsError: an argument is invalid.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if env_args is not None and not isinstance(env_args, Mapping):
        given["env_args"] = env_args
    place = Place(source)
    if settings is None:
        combined = run_settings_with(PlacedValue({}, place), given, behaviors_required=False, source=source)
    elif isinstance(settings, RunSettings):
        combined = settings
        if given:
            root = from_mapping(to_mapping(settings), place)
            combined = run_settings_with(root, given, behaviors_required=settings.behaviors_required, source=source)
            combined = evolve(combined, deterministic=settings.deterministic)
    elif isinstance(settings, Mapping):
        combined = run_settings_with(from_mapping(settings, place), given, behaviors_required=True, source=source)
    else:
        root, problems = read_file(config_path(settings))
        combined = run_settings_with(root, given, problems, behaviors_required=True, source=source)
    if isinstance(env_args, Mapping):
        env = combined.env_settings
        combined = evolve(combined, env_settings=evolve(env, env_args=to_env_args(env.env_path, env_args)))
    if episodes is None:
        return combined
    if not combined.checkpoint_settings.inference:
        raise SettingsError(
            f"{source}: episodes can only be used with inference=True. Training ends at the max_steps of its behaviors."
        )
    try:
        return evolve(combined, inference_episodes=whole_number(from_mapping(episodes, place).content))
    except InvalidValueError as error:
        raise SettingsError(f"{source}: episodes: {error}.") from error


def at_least_one(number: object, name: str, source: str) -> int:
    """Check that ``number`` is a whole number of at least 1, and return it.

    Raises:
        SettingsError: it is not.
    """
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise SettingsError(f"{source}: {name} is {number!r}, expected a whole number of at least 1.")
    return number


def name_of(environment: EnvironmentSource | None, source: str) -> str | None:
    """Return the name of the environment, as stored in configuration.yaml.

    Raises:
        SettingsError: it is neither a name nor a callable.
    """
    if environment is None or isinstance(environment, str):
        return environment
    if not callable(environment):
        raise SettingsError(
            f"{source}: environment is a {type(environment).__name__}; expected a string such as 'gym:CartPole-v1', or "
            "a callable that returns an environment (and is called once for each copy)."
        )
    name = getattr(environment, "__qualname__", type(environment).__qualname__)
    return f"python:{getattr(environment, '__module__', '?')}:{name}"


def maker(environment: EnvironmentSource | None) -> Callable[[RunSettings, RunFolder], Environment]:
    """Return the factory that creates a run's environments."""
    if environment is None or isinstance(environment, str):
        return make_environment
    return functools.partial(_made_by, _NewEachTime(environment))


def _made_by(factory: _NewEachTime, settings: RunSettings, _folder: RunFolder) -> Environment:
    return from_factory(factory, settings)


class _NewEachTime:
    """Wraps the user's factory, and raises an error if it returns the same environment twice.

    Otherwise, evaluations would run in the training environment and disturb training. Picklable if the user's factory
    is.
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
                "twice. Each call must make a new environment."
            )
        self._made.append(environment)
        return environment

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._factory,)
