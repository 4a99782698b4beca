"""From ``--env`` to an environment: players of Unity and Godot, simulations, Gymnasium, PettingZoo, any factory."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve
from mlagents_envs.base_env import BaseEnv

from trajtrainer.core.errors import SettingsError, TrajtrainerError
from trajtrainer.envs.godot import build
from trajtrainer.envs.godot.environment import make_godot_environment
from trajtrainer.envs.gymnasium_ids import registration_hint
from trajtrainer.envs.in_process import SideBySide
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.unity_environment import PlayerLogs, make_unity_environment
from trajtrainer.envs.user_code import (
    Factory,
    call,
    factory_of,
    import_first,
    keyword_arguments,
    named_parameters,
    to_keywords,
    to_options,
    wrap,
)
from trajtrainer.settings.environment import GODOT_EDITOR, EnvironmentSettings
from trajtrainer.settings.run import RunSettings
from trajtrainer.sim.registry import simulation_of
from trajtrainer.unity import launcher

logger = logging.getLogger(__name__)

_GODOT = GODOT_EDITOR  # and what stands before the colon
# Fields of ``pettingzoo_agents.AgentRule``, which is imported with Gymnasium only.
_RULE_NAMES = ("behaviors", "teams", "groups")
_SMALLEST_PICTURE, _MAX_ITEMS = "smallest_picture", "max_items"
_INSTALL = "Install it with: pip install 'trajtrainer[gym]'."


def make_environment(
    settings: RunSettings, logs: PlayerLogs, *, ports_of_run: int = 0, here: bool = False
) -> Environment:
    """Return the environment that ``env_settings.env_path`` names.

    - ``gym:ID``: a Gymnasium environment; ``gym:MODULE:ID`` imports the module that registers it first. One that is
      registered with a vectorized environment alone is that.
    - ``envpool:ID``: one of EnvPool, whose copies are stepped by threads of its own.
    - ``pettingzoo:MODULE``: a module with ``parallel_env`` or ``env``, such as ``butterfly.pistonball_v6`` or one of
      your own.
    - ``python:MODULE:FACTORY``: whatever a function or class makes, see ``from_factory``.
    - ``godot:PATH``: a game of Godot; ``godot`` one that is played in its editor.
    - all else, and nothing: a Unity player, the Editor, or a built-in simulation.

    All but the last two make ``num_envs`` copies in this process; ``env_args`` are ``key=value`` arguments of each.
    ``behaviors``, ``teams`` and ``groups`` among them sort the agents of PettingZoo environments
    (``pettingzoo_agents.AgentRule``), ``smallest_picture`` tells pictures from vectors and
    ``max_items`` how long lists are (``ObservationLayout``), unless what makes the environment has a parameter of this
    name. But for EnvPool's each copy is within ``wrappers``.

    Args:
        settings: of the run.
        logs: where players write theirs.
        ports_of_run: if this is one of several environments of the run; see ``connect_player``.
        here: a built-in simulation needs no player of its own; see ``connect_player``.

    Raises:
        SettingsError: there is no such environment, or a package for it is missing.
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
        _tell_of_simulations(settings)
    return make_unity_environment(settings, logs, ports_of_run=ports_of_run, here=here)


def make_separate_environments(settings: RunSettings, logs: PlayerLogs) -> Environment:
    """Return what ``make_environment`` does, with a worker of its own for each of ``num_envs`` copies.

    Raises:
        TrajtrainerError: see ``make_environment``.
    """
    env = settings.env_settings
    if env.num_envs == 1 or is_player(env.env_path or ""):
        return make_environment(settings, logs)

    def make(copy: int) -> Environment:
        alone = evolve(env, num_envs=1, seed=env.seed + copy)
        return make_environment(evolve(settings, env_settings=alone), logs)

    return SideBySide(str(env.env_path), _copies(make, env.num_envs))


def is_player(env_path: str) -> bool:
    """Return whether this is a program, and no environment in this process."""
    return _scheme(env_path)[0] in (None, _GODOT)


def is_unity(env_path: str) -> bool:
    """Return whether this is a player of Unity, or a built-in simulation that speaks as one."""
    return _scheme(env_path)[0] is None


def absolute(env_path: str) -> str:
    """Return an ``--env`` that means the same from any folder."""
    scheme, path = _scheme(env_path)
    if not is_player(env_path) or not path or path.strip().startswith(launcher.SIMULATION_PREFIX):
        return env_path
    return ("" if scheme is None else f"{scheme}:") + os.path.abspath(os.path.expanduser(path.strip()))


def takes_argument(env_path: str, name: str) -> bool:
    """Return whether what makes an environment in this process may be given an argument of this name.

    Raises:
        SettingsError: it names no environment.
    """
    scheme, rest = _scheme(env_path)
    if scheme != "python":
        return True
    module, _, attribute = rest.partition(":")
    factory = factory_of(import_first([module], f"--env {env_path}"), attribute, f"--env {env_path}")
    return name in named_parameters(factory)


def check(env_path: str | None) -> None:
    """Refuse an ``--env`` of which can be told without starting anything that there is no such thing.

    Raises:
        SettingsError: it names no environment.
        LaunchError: there is no such build or simulation.
    """
    scheme, name = _scheme(env_path or "")
    if scheme == _GODOT and name:
        build.command(name)
    elif env_path is not None and scheme is None:
        launcher.command(env_path)


def _scheme(env_path: str) -> tuple[str | None, str]:
    """Return the scheme, None for a player, and what stands behind it."""
    scheme, colon, name = env_path.strip().partition(":")
    if scheme == _GODOT:
        if colon and not name.strip():
            raise SettingsError(f"--env {env_path!r} names no game; expected godot:PATH, or godot for the editor.")
        return scheme, name
    if scheme not in _SCHEMES:
        return None, env_path
    if not name:
        raise SettingsError(f"--env {env_path!r} names no environment; expected {_SCHEMES[scheme][1]}.")
    return scheme, name


def _tell_of_simulations(settings: RunSettings) -> None:
    """Tell of the simulations whoever tries a shipped configuration without Unity.

    Who trains behaviors of their own has an Editor.
    """
    names = [name for behavior in settings.behaviors if (name := simulation_of(behavior)) is not None]
    if names or not settings.behaviors:
        simulation = names[0] if names else "3DBall"
        logger.info("No Unity Editor at hand? --env=sim:%s is a built-in simulation.", simulation)


def to_env_args(env_path: str | None, arguments: Mapping[str, Any]) -> list[str]:
    """Write arguments down as ``--env-args`` takes them.

    For environments in this process as ``key=value``, for players as options of their command line.

    Raises:
        SettingsError: a name or a value that cannot be written down.
    """
    scheme = _scheme(env_path or "")[0]
    if scheme == _GODOT:
        return build.to_env_args(arguments)
    return to_options(arguments) if scheme is None else to_keywords(arguments)


def from_factory(factory: Factory, settings: RunSettings, what: str | None = None) -> Environment:
    """Return the environment of a factory.

    It returns a Gymnasium environment, a PettingZoo environment (parallel or AEC) or a ``mlagents_envs`` BaseEnv. It is
    called once per copy (``num_envs``), or once for a vectorized environment of Gymnasium, which has all copies in it.

    Args:
        factory: called with ``env_args``, and, where it has parameters of these names, ``worker_id`` (0, 1, ...),
            ``seed`` (of the run, plus the worker id), ``side_channels`` (a list, for a BaseEnv) and ``num_envs`` (where
            it is more than 1).
        settings: of the run.
        what: it is, for messages.

    Raises:
        SettingsError: it does not take the arguments, or makes something else.
        EnvironmentFaultError: it fails.
        UnsupportedError: its environment's spaces cannot be translated.
    """
    what = what or f"The factory {getattr(factory, '__name__', factory)!s}"
    arguments = keyword_arguments(settings.env_settings.env_args)
    rule, reading = _take_rule(factory, arguments), _take_reading(factory, arguments)
    offered: list[Any] = []

    def make(copy: int) -> Any:
        offered.append(None)
        seed = settings.env_settings.seed + copy

        def channels() -> list[Any]:
            from trajtrainer.envs.base_env import TrainerChannels

            offered[copy] = TrainerChannels(settings.engine_settings)
            return offered[copy].all()  # type: ignore[no-any-return]

        offers = {"worker_id": lambda: copy, "seed": lambda: seed, "side_channels": channels}
        if settings.env_settings.num_envs > 1:  # otherwise a factory of vectorized environments has its own default
            offers["num_envs"] = lambda: settings.env_settings.num_envs
        made = call(factory, what, arguments, offers)
        if isinstance(made, type):
            raise SettingsError(
                f"{what} returned the class {made.__qualname__} and no environment. Return {made.__qualname__}(...)."
            )
        return _wrap_made(made, settings.env_settings.wrappers, what)

    envs = _copies(make, settings.env_settings.num_envs)
    if len({id(env) for env in envs}) < len(envs):
        _close(envs)
        raise SettingsError(f"{what} returned the same environment twice. Each call must make a new one.")
    return _closing(envs, lambda: _adapt(envs, offered, settings.env_settings, rule, reading, what))


def _wrap_made(env: Any, wrappers: Sequence[str] | None, what: str) -> Any:
    """Return what a factory made within its wrappers, if there are any."""
    if not wrappers:
        return env
    # Who has made an object of these packages has imported them.
    if "pettingzoo" in sys.modules:
        from trajtrainer.envs.pettingzoo_environment import BASES, is_pettingzoo

        if is_pettingzoo(env):
            return wrap(env, wrappers, BASES)
    if "gymnasium" in sys.modules:
        bases = (sys.modules["gymnasium"].Env, sys.modules["gymnasium"].vector.VectorEnv)
        kind = next((base for base in bases if isinstance(env, base)), None)
        if kind is not None:
            return wrap(env, wrappers, (kind,))
    raise SettingsError(
        f"{what} made a {type(env).__module__}.{type(env).__qualname__}, which has no wrappers: --wrapper is for "
        "environments of Gymnasium and PettingZoo."
    )


def _adapt(
    envs: list[Any],
    channels: list[Any],
    env_settings: EnvironmentSettings,
    rule: dict[str, Any],
    reading: dict[str, Any],
    what: str,
) -> Environment:
    first, seed = envs[0], env_settings.seed
    if "pettingzoo" in sys.modules:
        from trajtrainer.envs.pettingzoo_agents import AgentRule
        from trajtrainer.envs.pettingzoo_environment import PettingZooEnvironment, is_pettingzoo

        if is_pettingzoo(first):
            return PettingZooEnvironment(envs, seed=seed, rule=AgentRule.parse(rule), **reading)
    if rule:
        raise SettingsError(
            f"{what} takes no argument {next(iter(rule))!r}, and made no PettingZoo environment, whose agents "
            f"--env-args {', '.join(_RULE_NAMES)} sort."
        )
    if isinstance(first, BaseEnv):
        if reading:
            raise SettingsError(
                f"{what} takes no argument {next(iter(reading))!r}, and a BaseEnv tells itself what its sensors are."
            )
        from trajtrainer.envs.base_env import BaseEnvEnvironment, BaseEnvWorker

        return BaseEnvEnvironment([BaseEnvWorker(*pair) for pair in zip(envs, channels, strict=True)])
    # Who has made an object of these packages has imported them.
    if "gymnasium" in sys.modules:
        from trajtrainer.envs.gymnasium_environment import GymnasiumEnvironment

        if isinstance(first, sys.modules["gymnasium"].Env):
            return GymnasiumEnvironment(envs, seed=seed, **reading)
        if _is_vectorized(first):
            return _vectorized(first, env_settings, reading, what)
    raise SettingsError(
        f"{what} made a {type(first).__module__}.{type(first).__qualname__}. Expected a gymnasium.Env, a "
        "gymnasium.vector.VectorEnv, a PettingZoo ParallelEnv or AECEnv, or a mlagents_envs BaseEnv (not a vectorized "
        "environment of another kind: --num-envs makes copies)."
    )


def _is_vectorized(env: Any) -> bool:
    """Return whether this is a vectorized environment of Gymnasium."""
    # Who has made an object of a package has imported it.
    return "gymnasium" in sys.modules and isinstance(env, sys.modules["gymnasium"].vector.VectorEnv)


def _vectorized(env: Any, settings: EnvironmentSettings, reading: dict[str, Any], what: str) -> Environment:
    from trajtrainer.envs.gymnasium_vector import VectorEnvironment, copies_of

    copies = copies_of(env, what)
    if settings.num_envs not in (1, copies):
        raise SettingsError(
            f"{what} made a vectorized environment of {copies} copies, which does not fit --num-envs "
            f"{settings.num_envs}. Leave --num-envs out, or give the factory a parameter num_envs that says how many "
            "copies to make."
        )
    return VectorEnvironment(env, seed=settings.seed, **reading)


def _gymnasium(path: str, name: str, settings: RunSettings) -> Environment:
    try:
        import gymnasium
    except ImportError as error:
        raise SettingsError(f"--env {path} needs the package gymnasium, which is not installed. {_INSTALL}") from error
    from trajtrainer.envs.gymnasium_environment import GymnasiumEnvironment

    arguments = keyword_arguments(settings.env_settings.env_args)
    reading = _take_reading(gymnasium.make, arguments)

    env_settings = settings.env_settings

    def make(_: int) -> Any:
        try:
            # The checker would run in the hot loop; what matters of it, the adapter checks itself.
            env = call(gymnasium.make, f"--env {path}", {"id": name, "disable_env_checker": True, **arguments}, {})
        except TrajtrainerError as error:
            if not _is_only_vectorized(name):
                raise _explained(error, path, name) from error
            own = {"id": name, "num_envs": env_settings.num_envs, "vectorization_mode": "vector_entry_point"}
            env = call(gymnasium.make_vec, f"--env {path}", {**own, **arguments}, {})
        return _wrap_made(env, env_settings.wrappers, f"--env {path}")

    envs = _copies(make, env_settings.num_envs)
    if _is_vectorized(envs[0]):
        return _closing(envs, lambda: _vectorized(envs[0], env_settings, reading, f"--env {path}"))
    return _closing(envs, lambda: GymnasiumEnvironment(envs, seed=env_settings.seed, **reading))


def episode_limit(settings: EnvironmentSettings) -> int | None:
    """Return the steps after which an environment of Gymnasium ends each episode, as far as its registration says."""
    scheme, name = _scheme(settings.env_path or "")
    if scheme != "gym":
        return None
    try:
        import gymnasium

        module, _, env_id = name.rpartition(":")
        if module:
            importlib.import_module(module)
        registered = gymnasium.spec(env_id).max_episode_steps
    except Exception:  # not installed here, where only learning takes place, or an id that its own error explains
        return None
    limit = keyword_arguments(settings.env_args).get("max_episode_steps", registered)
    return limit if isinstance(limit, int) and limit > 0 else None


def _is_only_vectorized(name: str) -> bool:
    """Return whether an id of Gymnasium is registered with a vectorized environment alone."""
    from gymnasium.envs.registration import registry

    spec = registry.get(name.rpartition(":")[2])
    return spec is not None and spec.entry_point is None and spec.vector_entry_point is not None


def _envpool(path: str, name: str, settings: RunSettings) -> Environment:
    try:
        import envpool
    except ImportError as error:
        raise SettingsError(
            f"--env {path} needs the package {error.name}, which is not installed. Install it with: pip install "
            "'trajtrainer[envpool]'."
        ) from error
    from trajtrainer.envs.envpool_environment import make_pool

    env = settings.env_settings
    arguments = keyword_arguments(env.env_args)
    reading = _take_smallest_picture(envpool.make, arguments)
    return make_pool(name, env.num_envs, env.seed, arguments, **reading)


def _explained(error: TrajtrainerError, path: str, name: str) -> TrajtrainerError:
    """Return what Gymnasium itself says of ids and dependencies is clear; only its kind is another."""
    from gymnasium import error as gymnasium_error

    cause = error.__cause__
    if isinstance(cause, gymnasium_error.DependencyNotInstalled):
        extra = next((name for name in _GYMNASIUM_EXTRAS if name in str(cause).lower()), None)
        hint = "" if extra is None else f" With trajtrainer: pip install 'trajtrainer[{extra}]'."
        return SettingsError(f"--env {path}: {str(cause).rstrip('.')}.{hint}")
    if isinstance(cause, gymnasium_error.UnregisteredEnv | ModuleNotFoundError):
        hint = "" if "Did you mean" in str(cause) else registration_hint(name)
        return SettingsError(f"--env {path}: {cause}{hint}")
    if isinstance(cause, gymnasium_error.Error):
        return SettingsError(f"--env {path}: {cause}")
    return error


# Extras that Gymnasium and this package have under the same names.
_GYMNASIUM_EXTRAS = ("mujoco", "box2d", "atari")


def _pettingzoo(path: str, name: str, settings: RunSettings) -> Environment:
    try:
        import pettingzoo  # noqa: F401
    except ImportError as error:
        raise SettingsError(f"--env {path} needs the package pettingzoo, which is not installed. {_INSTALL}") from error
    from trajtrainer.envs.pettingzoo_agents import AgentRule
    from trajtrainer.envs.pettingzoo_environment import BASES, PettingZooEnvironment

    family, _, rest = name.removeprefix("pettingzoo.").partition(".")
    # PettingZoo's own mpe only tells where it has moved to.
    names = [f"mpe2.{rest}"] if family == "mpe" else [f"pettingzoo.{family}.{rest}" if rest else name, name]
    module = import_first(names, f"--env {path}")
    entry = next((entry for entry in ("parallel_env", "env", "raw_env") if hasattr(module, entry)), "parallel_env")
    factory = factory_of(module, entry, f"--env {path}")
    arguments = keyword_arguments(settings.env_settings.env_args)
    rule, reading = AgentRule.parse(_take_rule(factory, arguments)), _take_reading(factory, arguments)

    def make(_: int) -> Any:
        return wrap(call(factory, f"--env {path}", arguments, {}), settings.env_settings.wrappers, BASES)

    envs = _copies(make, settings.env_settings.num_envs)
    seed = settings.env_settings.seed
    return _closing(envs, lambda: PettingZooEnvironment(envs, seed=seed, rule=rule, **reading))


def _take_rule(factory: Factory, arguments: dict[str, Any]) -> dict[str, Any]:
    """Take the arguments that tell of behaviours, teams and groups, but those that the factory has itself."""
    own = named_parameters(factory)
    return {name: arguments.pop(name) for name in _RULE_NAMES if name in arguments and name not in own}


def _take_smallest_picture(factory: Factory, arguments: dict[str, Any]) -> dict[str, Any]:
    """Take the argument that tells pictures from vectors, if it is given and the factory has none of its name."""
    if _SMALLEST_PICTURE not in arguments or _SMALLEST_PICTURE in named_parameters(factory):
        return {}
    side = arguments.pop(_SMALLEST_PICTURE)
    if type(side) is not int or side < 1:
        raise SettingsError(
            f"--env-args {_SMALLEST_PICTURE}={side!r}: expected a whole number, the least height and width in pixels "
            "of a Box that is a picture."
        )
    return {_SMALLEST_PICTURE: side}


def _take_reading(factory: Factory, arguments: dict[str, Any]) -> dict[str, Any]:
    """Take the arguments that tell how spaces are read, but those that the factory has itself."""
    taken = _take_smallest_picture(factory, arguments)
    if _MAX_ITEMS not in arguments or _MAX_ITEMS in named_parameters(factory):
        return taken
    most = arguments.pop(_MAX_ITEMS)
    numbers = list(most.values()) if isinstance(most, dict) else [most]
    if not numbers or any(type(number) is not int or number < 1 for number in numbers):
        raise SettingsError(
            f"--env-args {_MAX_ITEMS}={most!r}: expected a whole number, the most items of a Sequence, or a mapping "
            "from the names of sensors such as {tiles: 20, walls: 5}."
        )
    return {**taken, _MAX_ITEMS: most}


def _python(path: str, name: str, settings: RunSettings) -> Environment:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise SettingsError(f"--env {path!r}: expected {_SCHEMES['python'][1]}.")
    factory = factory_of(import_first([module], f"--env {path}"), attribute, f"--env {path}")
    return from_factory(factory, settings, f"--env {path}")


_SCHEMES: dict[str, tuple[Callable[[str, str, RunSettings], Environment], str]] = {
    "gym": (_gymnasium, "gym:ID such as gym:CartPole-v1"),
    "envpool": (_envpool, "envpool:ID such as envpool:Pong-v5"),
    "pettingzoo": (_pettingzoo, "pettingzoo:MODULE such as pettingzoo:butterfly.pistonball_v6"),
    "python": (_python, "python:PACKAGE.MODULE:FACTORY such as python:my_game.training:make_env"),
}


def _copies(make: Callable[[int], Any], count: int) -> list[Any]:
    """Return ``count`` environments, or one that has all copies in it.

    If one cannot be made, those before it are closed.
    """
    envs: list[Any] = []
    for copy in range(count):
        try:
            envs.append(make(copy))
        except BaseException:
            _close(envs)
            raise
        if _is_vectorized(envs[0]):
            break
    return envs


def _closing(envs: list[Any], adapt: Callable[[], Environment]) -> Environment:
    try:
        return adapt()
    except BaseException:
        _close(envs)
        raise


def _close(envs: list[Any]) -> None:
    for env in envs:
        close = getattr(env, "close", None)
        if close is not None:
            close()
