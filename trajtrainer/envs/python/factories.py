"""Environments of Python libraries: Gymnasium and PettingZoo environments by ID, and environments from factories.

Gymnasium and PettingZoo are optional. The functions here look for them in ``sys.modules``, because an object of one of
these packages can only exist if the package has been imported.
"""

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mlagents_envs.base_env import BaseEnv

from trajtrainer.core.errors import SettingsError, TrajtrainerError
from trajtrainer.envs import user_code
from trajtrainer.envs.in_process import SideBySide
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.user_code import Factory, call
from trajtrainer.settings.environment import EnvironmentSettings
from trajtrainer.settings.run import RunSettings

# The fields of ``pettingzoo_agents.AgentRule``, repeated here because importing it requires Gymnasium.
_RULE_NAMES = ("behaviors", "teams", "groups")
_READING = {
    "smallest_picture": "the minimum height and width in pixels of a Box that counts as a picture",
    "max_items": "the maximum length of a Sequence, or one per sensor name, such as {tiles: 20, walls: 5}",
}
_INSTALL = "Install it with: pip install 'trajtrainer[gym]'."
# Extras that have the same name in Gymnasium and in this package.
_GYMNASIUM_EXTRAS = ("mujoco", "box2d", "atari")
_ID = re.compile(r"(?:([\w-]+)/)?[\w.-]+-v\d+")
# Maps each namespace to the module whose import registers its IDs, and to the extra that installs this module.
_PACKAGES = {"ALE": ("ale_py", "atari")}


def make_from_factory(name: str, settings: RunSettings) -> Environment:
    """Make the environment of ``python:MODULE:FACTORY``. Raises the same errors as ``from_factory``."""
    path = settings.env_settings.env_path
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise SettingsError(
            f"--env {path!r}: expected python:PACKAGE.MODULE:FACTORY such as python:my_game.training:make_env."
        )
    what = f"--env {path}"
    return from_factory(user_code.find_factory(name, what), settings, what)


def factory_takes(name: str, argument: str) -> bool:
    """Return whether the factory of ``python:MODULE:FACTORY`` has a parameter with this name."""
    return argument in user_code.named_parameters(user_code.find_factory(name, f"--env python:{name}"))


def from_factory(factory: Factory, settings: RunSettings, what: str | None = None) -> Environment:
    """Make an environment with a factory.

    The factory returns a Gymnasium environment, a PettingZoo environment (parallel or AEC), a ``mlagents_envs`` BaseEnv
    or an ``Environment`` with one worker. It is called once per copy (``num_envs``), or only once if it returns a
    Gymnasium vectorized environment, which contains all copies.

    Args:
        factory: called with ``env_args``, and with those of the following arguments that it has a parameter for:
            ``worker_id`` (0, 1, ...), ``seed`` (the run's seed plus the worker id), ``side_channels`` (a list, for a
            BaseEnv) and ``num_envs`` (if it is greater than 1).
        settings: settings of the run.
        what: description of the factory for error messages.

    Raises:
        SettingsError: the factory does not accept the arguments, or returns something other than an environment.
        EnvironmentFaultError: the factory fails.
        UnsupportedError: the spaces of the environment cannot be translated.
    """
    what = what or f"The factory {getattr(factory, '__name__', factory)!s}"
    env_settings = settings.env_settings
    arguments = user_code.keyword_arguments(env_settings.env_args)
    rule, reading = _take(_RULE_NAMES, factory, arguments), take_reading(factory, arguments)
    offered: list[Any] = []

    def make(copy: int) -> Any:
        offered.append(None)
        seed = env_settings.seed + copy

        def channels() -> list[Any]:
            from trajtrainer.envs.python.base_env import TrainerChannels

            offered[copy] = TrainerChannels(settings.engine_settings)
            return offered[copy].all()  # type: ignore[no-any-return]

        offers = {"worker_id": lambda: copy, "seed": lambda: seed, "side_channels": channels}
        if env_settings.num_envs > 1:  # with 1, let the factory use its own default
            offers["num_envs"] = lambda: env_settings.num_envs
        made = call(factory, what, arguments, offers)
        if isinstance(made, type):
            raise SettingsError(
                f"{what} returned the class {made.__qualname__}, not an environment. Return {made.__qualname__}(...)."
            )
        return _wrap_made(made, env_settings.wrappers, what)

    return build(make, env_settings.num_envs, lambda envs: _adapt(envs, offered, env_settings, rule, reading, what))


def _wrap_made(env: Any, wrappers: Sequence[str] | None, what: str) -> Any:
    if not wrappers:
        return env
    if "pettingzoo" in sys.modules:
        from trajtrainer.envs.python.pettingzoo_environment import BASES, is_pettingzoo

        if is_pettingzoo(env):
            return user_code.wrap(env, wrappers, BASES)
    if "gymnasium" in sys.modules:
        bases = (sys.modules["gymnasium"].Env, sys.modules["gymnasium"].vector.VectorEnv)
        kind = next((base for base in bases if isinstance(env, base)), None)
        if kind is not None:
            return user_code.wrap(env, wrappers, (kind,))
    raise SettingsError(
        f"{what} created a {type(env).__module__}.{type(env).__qualname__}, which cannot be wrapped: --wrapper is for "
        "Gymnasium and PettingZoo environments."
    )


def _adapt(
    envs: list[Any],
    channels: list[Any],
    env_settings: EnvironmentSettings,
    rule: dict[str, Any],
    reading: dict[str, Any],
    what: str,
) -> Environment:
    """Convert the environments that a factory made to an ``Environment``, depending on their type."""
    if len({id(env) for env in envs}) < len(envs):
        raise SettingsError(f"{what} returned the same environment twice. Each call must make a new one.")
    first, seed = envs[0], env_settings.seed
    if "pettingzoo" in sys.modules:
        from trajtrainer.envs.python.pettingzoo_agents import AgentRule
        from trajtrainer.envs.python.pettingzoo_environment import PettingZooEnvironment, is_pettingzoo

        if is_pettingzoo(first):
            return PettingZooEnvironment(envs, seed=seed, rule=AgentRule.parse(rule), **reading)
    if rule:
        raise SettingsError(
            f"{what} does not accept the argument {next(iter(rule))!r} and did not create a PettingZoo environment. "
            f"The --env-args {', '.join(_RULE_NAMES)} are for PettingZoo agents."
        )
    if isinstance(first, BaseEnv):
        if reading:
            raise SettingsError(
                f"{what} does not accept the argument {next(iter(reading))!r}, and a BaseEnv describes its sensors "
                "itself."
            )
        from trajtrainer.envs.python.base_env import BaseEnvEnvironment, BaseEnvWorker

        return BaseEnvEnvironment([BaseEnvWorker(*pair) for pair in zip(envs, channels, strict=True)])
    if "gymnasium" in sys.modules:
        from trajtrainer.envs.python.gymnasium_environment import GymnasiumEnvironment

        if isinstance(first, sys.modules["gymnasium"].Env):
            return GymnasiumEnvironment(envs, seed=seed, **reading)
        if _is_vectorized(first):
            return _vectorized(first, env_settings, reading, what)
    if isinstance(first, Environment) and first.num_workers == 1 and not reading:
        return SideBySide(what, envs)
    raise SettingsError(
        f"{what} created a {type(first).__module__}.{type(first).__qualname__}. Expected a gymnasium.Env, a "
        "gymnasium.vector.VectorEnv, a PettingZoo ParallelEnv or AECEnv, or a mlagents_envs BaseEnv. For several "
        "copies of an environment use --num-envs, not a vectorized environment of another library."
    )


def make_gymnasium(name: str, settings: RunSettings) -> Environment:
    """Make the environment of ``gym:ID``.

    Raises:
        SettingsError: Gymnasium is missing, or it cannot make this environment with these arguments.
    """
    what, name = f"--env {settings.env_settings.env_path}", _with_current_module(name)
    try:
        import gymnasium
    except ImportError as error:
        raise SettingsError(f"{what} needs the package gymnasium, which is not installed. {_INSTALL}") from error

    env_settings = settings.env_settings
    arguments = user_code.keyword_arguments(env_settings.env_args)
    reading = take_reading(gymnasium.make, arguments)

    def make(_: int) -> Any:
        try:
            # Gymnasium's checker would slow down every step, and the adapter has its own checks.
            env = call(gymnasium.make, what, {"id": name, "disable_env_checker": True, **arguments}, {})
        except TrajtrainerError as error:
            spec = gymnasium.registry.get(name.rpartition(":")[2])
            if spec is None or spec.entry_point is not None or spec.vector_entry_point is None:
                raise _explained(error, what, name) from error
            own = {"id": name, "num_envs": env_settings.num_envs, "vectorization_mode": "vector_entry_point"}
            env = call(gymnasium.make_vec, what, {**own, **arguments}, {})
        return _wrap_made(env, env_settings.wrappers, what)

    return build(make, env_settings.num_envs, lambda envs: _adapt(envs, [], env_settings, {}, reading, what))


def _with_current_module(name: str) -> str:
    """Return the name of a Gymnasium environment, replacing an outdated module name from version 0.1.0."""
    return name.replace("trajtrainer.envs.gymnasium_environment:", "trajtrainer.gymnasium:")


def gymnasium_episode_limit(name: str, env_args: Sequence[str] | None) -> Any:
    """Return the maximum number of steps in an episode of ``gym:ID``, or None if it is unlimited or unknown."""
    try:
        import gymnasium

        module, _, env_id = _with_current_module(name).rpartition(":")
        if module:
            importlib.import_module(module)
        registered = gymnasium.spec(env_id).max_episode_steps
    except Exception:  # A learner may not have Gymnasium. Errors in the ID are reported elsewhere.
        return None
    return user_code.keyword_arguments(env_args).get("max_episode_steps", registered)


def _explained(error: TrajtrainerError, what: str, name: str) -> TrajtrainerError:
    """Convert Gymnasium's error for an unknown ID or a missing package to a ``SettingsError`` with a hint."""
    from gymnasium import error as gymnasium_error

    cause = error.__cause__
    if isinstance(cause, gymnasium_error.DependencyNotInstalled):
        extra = next((name for name in _GYMNASIUM_EXTRAS if name in str(cause).lower()), None)
        hint = "" if extra is None else f" With trajtrainer: pip install 'trajtrainer[{extra}]'."
        return SettingsError(f"{what}: {str(cause).rstrip('.')}.{hint}")
    if isinstance(cause, gymnasium_error.UnregisteredEnv | ModuleNotFoundError):
        hint = "" if "Did you mean" in str(cause) else registration_hint(name)
        return SettingsError(f"{what}: {cause}{hint}")
    if isinstance(cause, gymnasium_error.Error):
        return SettingsError(f"{what}: {cause}")
    return error


def option_for_id(env_id: str) -> str:
    """Return the ``--env`` option for a Gymnasium ID and what to install; "" if the text does not look like an ID.

    >>> option_for_id("CartPole-v1"), option_for_id("Builds/Game.exe")
    ('--env=gym:CartPole-v1', '')
    >>> option_for_id("ALE/Pong-v5")
    "--env=gym:ale_py:ALE/Pong-v5 (pip install 'trajtrainer[atari]')"
    """
    match = _ID.fullmatch(env_id)
    if match is None:
        return ""
    if match[1] not in _PACKAGES:
        return f"--env=gym:{env_id}"
    module, extra = _PACKAGES[match[1]]
    return f"--env=gym:{module}:{env_id} (pip install 'trajtrainer[{extra}]')"


def registration_hint(name: str) -> str:
    """Return a hint on how to register an ID that Gymnasium does not know.

    Args:
        name: the text after ``gym:``, with or without the module that registers the ID.
    """
    module, _, env_id = name.rpartition(":")
    option = option_for_id(env_id)
    if option.endswith(")"):
        return f" Use {option}."
    return (
        "" if module else f" For IDs of other packages, name the module that registers them: --env=gym:MODULE:{env_id}."
    )


def make_pettingzoo(name: str, settings: RunSettings) -> Environment:
    """Make the environment of ``pettingzoo:MODULE``.

    Raises:
        SettingsError: PettingZoo or the module is missing, or the module does not accept these arguments.
    """
    what = f"--env {settings.env_settings.env_path}"
    try:
        import pettingzoo  # noqa: F401
    except ImportError as error:
        raise SettingsError(f"{what} needs the package pettingzoo, which is not installed. {_INSTALL}") from error
    from trajtrainer.envs.python.pettingzoo_agents import AgentRule
    from trajtrainer.envs.python.pettingzoo_environment import BASES, PettingZooEnvironment

    family, _, rest = name.removeprefix("pettingzoo.").partition(".")
    # pettingzoo.mpe has moved to the package mpe2, and importing it raises an error.
    names = [f"mpe2.{rest}"] if family == "mpe" else [f"pettingzoo.{family}.{rest}" if rest else name, name]
    module = user_code.import_first(names, what)
    entry = next((entry for entry in ("parallel_env", "env", "raw_env") if hasattr(module, entry)), "parallel_env")
    factory = user_code.factory_of(module, entry, what)
    arguments = user_code.keyword_arguments(settings.env_settings.env_args)
    rule, reading = AgentRule.parse(_take(_RULE_NAMES, factory, arguments)), take_reading(factory, arguments)

    def make(_: int) -> Any:
        return user_code.wrap(call(factory, what, arguments, {}), settings.env_settings.wrappers, BASES)

    return build(
        make,
        settings.env_settings.num_envs,
        lambda envs: PettingZooEnvironment(envs, seed=settings.env_settings.seed, rule=rule, **reading),
    )


def _take(names: Iterable[str], factory: Factory, arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove the named arguments from ``arguments`` and return them, except for those that the factory takes."""
    own = user_code.named_parameters(factory)
    return {name: arguments.pop(name) for name in names if name in arguments and name not in own}


def take_reading(factory: Factory, arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove the options for reading spaces from ``arguments`` and return them, except for those the factory takes.

    Raises:
        SettingsError: a value is not a positive integer.
    """
    taken = _take(_READING, factory, arguments)
    for name, value in taken.items():
        numbers = list(value.values()) if isinstance(value, dict) and name == "max_items" else [value]
        if not numbers or any(type(number) is not int or number < 1 for number in numbers):
            raise SettingsError(f"--env-args {name}={value!r}: expected a whole number, {_READING[name]}.")
    return taken


def _is_vectorized(env: Any) -> bool:
    return "gymnasium" in sys.modules and isinstance(env, sys.modules["gymnasium"].vector.VectorEnv)


def _vectorized(env: Any, settings: EnvironmentSettings, reading: dict[str, Any], what: str) -> Environment:
    from trajtrainer.envs.python.gymnasium_vector import VectorEnvironment, copies_of

    copies = copies_of(env, what)
    if settings.num_envs not in (1, copies):
        raise SettingsError(
            f"{what} created a vectorized environment with {copies} copies, but --num-envs is {settings.num_envs}. "
            "Omit --num-envs, or give the factory a parameter num_envs, which receives the number of copies to create."
        )
    return VectorEnvironment(env, seed=settings.seed, **reading)


def build(make: Callable[[int], Any], count: int, adapt: Callable[[list[Any]], Environment]) -> Environment:
    """Make ``count`` environments, or only one if it is vectorized and contains all copies, and adapt them.

    If this fails, close the environments that were made.
    """
    envs: list[Any] = []
    try:
        for copy in range(count):
            envs.append(make(copy))
            if _is_vectorized(envs[0]):
                break
        return adapt(envs)
    except BaseException:
        for env in envs:
            close = getattr(env, "close", None)
            if close is not None:
                close()
        raise
