"""Tell the user's code from ours and from libraries, in tracebacks and in what threads are doing."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType, ModuleType
from typing import Any

import yaml

from trajtrainer.core.errors import EnvironmentFaultError, SettingsError, TrajtrainerError
from trajtrainer.settings.environment import wrapper_words

# As they stand in the frames of code, links and all.
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_PATHS = sysconfig.get_paths()
_STDLIB = tuple(
    f"{Path(folder)}{os.sep}" for folder in {_PATHS["stdlib"], _PATHS["platstdlib"], str(Path(os.__file__).parent)}
)
_PACKAGES = tuple(
    f"{Path(folder)}{os.sep}"
    for folder in {_PATHS["purelib"], _PATHS["platlib"], *site.getsitepackages(), site.getusersitepackages()}
)
# Frames without a file that belong to Python, unlike "<stdin>" and a notebook's cells.
_INTERNAL = ("<frozen ", "<__array_function__")
# Libraries that we call with the environment's data. What they raise is the fault of whoever called them.
_NEUTRAL = ("numpy", "torch")
_DEBUGGERS = ("bdb", "pdb", "pydevd", "_pydevd_bundle")

_Place = tuple[FrameType, int]


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OURS)


def _is_installed(frame: FrameType) -> bool:
    """Whether a frame is of an installed package."""
    return frame.f_code.co_filename.startswith(_PACKAGES)


def _is_python(frame: FrameType) -> bool:
    """Whether a frame is of Python itself."""
    return frame.f_code.co_filename.startswith((*_STDLIB, *_INTERNAL)) and not _is_installed(frame)


def _is_neutral(frame: FrameType) -> bool:
    return _is_python(frame) or _package_of(frame) in _NEUTRAL


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _user_place(places: Iterable[_Place]) -> str:
    """The innermost place in the user's code as "file:line, in function".

    Args:
        places: frames and line numbers, the innermost first.

    Returns:
        A place in an installed package where the user has no frame of their own. Empty if there is none either.
    """
    others = [place for place in places if not _is_ours(place[0]) and not _is_neutral(place[0])]
    own = (place for place in others if not _is_installed(place[0]))
    found = next(own, others[0] if others else None)
    if found is None:
        return ""
    frame, line = found
    return f"{frame.f_code.co_filename}:{line}, in {frame.f_code.co_qualname}"


def place_of_error(error: BaseException) -> str:
    """The innermost place in the user's code that an exception came through, or an empty text."""
    return _user_place(reversed(list(walk_tb(error.__traceback__))))


def place_of_thread(thread: int) -> str:
    """Where in the user's code a thread is, by its identifier, or an empty text."""
    frame = sys._current_frames().get(thread)
    return "" if frame is None else _user_place(walk_stack(frame))


def is_debugged(thread: int) -> bool:
    """Whether a thread waits at the prompt of a debugger."""
    frame = sys._current_frames().get(thread)
    return frame is not None and any(_package_of(each) in _DEBUGGERS for each, _ in walk_stack(frame))


def is_our_bug(error: BaseException) -> bool:
    """Whether an exception was raised by our code, or by what our code called with wrong values.

    The frame that caught it does not count: it only calls the user's code.
    """
    if isinstance(error, SyntaxError):
        return False
    places = [frame for frame, _ in list(walk_tb(error.__traceback__))[1:] if not _is_neutral(frame)]
    return bool(places) and _is_ours(places[-1])


def blame(what: str, error: BaseException) -> EnvironmentFaultError:
    """An exception that was raised while the user's code ran, as a message that says whose it is.

    Args:
        what: went wrong, such as "The environment pole failed in its step".
        error: the exception.
    """
    told = "it called sys.exit()" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}".rstrip(".: ")
    place = place_of_error(error)
    if not is_our_bug(error):
        return EnvironmentFaultError(f"{what}: {told}{place and f' ({place})'}.")
    frame, line = [each for each in walk_tb(error.__traceback__) if _is_ours(each[0])][-1]
    ours = f"trajtrainer/{Path(frame.f_code.co_filename).relative_to(_OURS).as_posix()}:{line}"
    through = f" It was called from your code at {place}." if place else ""
    return EnvironmentFaultError(
        f"{what}: {told} ({ours}, in {frame.f_code.co_qualname}).{through} This is a bug in trajtrainer and not in the "
        "environment. Please report it, with the traceback that --debug shows."
    )


Factory = Callable[..., Any]


def keyword_arguments(env_args: Sequence[str] | None, option: str = "--env-args") -> dict[str, Any]:
    """``--env-args key=value ...``, or those of another option, as keyword arguments.

    The values are read as JSON or YAML: numbers, true, [1, 2], text.

    >>> keyword_arguments(["gravity=9.8", "continuous=true", "name=moon"])
    {'gravity': 9.8, 'continuous': True, 'name': 'moon'}

    Raises:
        SettingsError: something else than ``key=value``.
    """
    arguments = {}
    for text in env_args or ():
        key, equals, value = text.removeprefix("--").partition("=")
        if not equals or not key.isidentifier():
            raise SettingsError(
                f"{option} has {text!r}; for Python environments each must be key=value, an argument of the "
                "environment's constructor."
            )
        arguments[key] = _value(value, f"{option} {text!r}")
    return arguments


def _value(text: str, whole: str) -> Any:
    try:
        return json.loads(text)  # first, because YAML takes 1e-3 for text
    except ValueError:
        pass
    try:
        return yaml.safe_load(text) if text else ""
    except yaml.YAMLError as error:
        raise SettingsError(f"{whole}: the value is not readable as YAML; quote it.") from error


def to_keywords(arguments: Mapping[str, Any]) -> list[str]:
    """Write keyword arguments down as the texts that ``keyword_arguments`` reads.

    Raises:
        SettingsError: a value that text cannot carry.
    """
    try:
        return [f"{key}={json.dumps(value, default=_plain)}" for key, value in arguments.items()]
    except TypeError as error:
        raise SettingsError(
            f"env_args {dict(arguments)!r} cannot be written down ({error}). Give such values to a factory: "
            "environment=functools.partial(make_env, ...)."
        ) from error


def to_options(arguments: Mapping[str, Any]) -> list[str]:
    """Write arguments down as options of a player's command line; True is an option without a value.

    >>> to_options({"agents": 2, "-batchmode": True, "png": False, "map": None})
    ['--agents', '2', '-batchmode']

    Raises:
        SettingsError: a name that is no text, or a value that is neither text nor a number.
    """
    options = []
    for name, value in arguments.items():
        value = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(name, str) or not name:
            raise SettingsError(f"env_args has the name {name!r}; for a player each is the name of an option, a text.")
        if not isinstance(value, str | int | float | None):
            raise SettingsError(
                f"env_args[{name!r}] is a {type(value).__name__}; an option of a player takes text, a number or true. "
                'Write it as the player reads it, such as "20,20".'
            )
        if value is not None and value is not False:
            options.append(name if name.startswith("-") else f"--{name}")
            options += [] if value is True else [str(value)]
    return options


def _plain(value: Any) -> Any:
    """A value of numpy as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is no number, text, list or mapping")


def import_first(names: Sequence[str], what: str) -> ModuleType:
    """The first module that exists. The current directory counts too, as it does for ``python -m``.

    Args:
        names: candidates, the likeliest first.
        what: that was asked for, for messages.

    Raises:
        SettingsError: none exists, or the one that does needs a package that is not installed.
        EnvironmentFaultError: its code fails.
    """
    for name in names:
        module = _import(name, what)
        if module is not None:
            return module
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
        importlib.invalidate_caches()
        module = _import(names[-1], what)
        if module is not None:
            return module
    raise SettingsError(f"{what}: there is no Python module {' or '.join(names)}. Install it or correct the name.")


def _import(name: str, what: str) -> ModuleType | None:
    """The module, or None if there is none of this name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing == name or name.startswith(f"{missing}."):
            return None
        raise SettingsError(f"{what} needs the Python package {missing!r}, which is not installed.") from error
    except (Exception, SystemExit) as error:
        raise blame(f"{what}: the module {name} cannot be imported", error) from error


def factory_of(module: ModuleType, path: str, what: str) -> Factory:
    """The callable at a dotted path within a module.

    Raises:
        SettingsError: there is none.
    """
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None)
    if not callable(found):
        raise SettingsError(
            f"{what}: the module {module.__name__} has no function or class {path!r}. Expected one that returns an "
            "environment."
        )
    return found  # type: ignore[no-any-return]


def call(factory: Factory, what: str, arguments: Mapping[str, Any], offers: Mapping[str, Callable[[], Any]]) -> Any:
    """The factory's environment.

    Args:
        factory: to be called.
        what: it is, for messages.
        arguments: keyword arguments of the user.
        offers: parameter name -> value, for parameters that the factory has under these names and the user did not set.

    Raises:
        SettingsError: the factory does not take the user's arguments.
        EnvironmentFaultError: it fails.
    """
    accepted = {name: offer() for name, offer in offers.items() if name in named_parameters(factory)}
    try:
        check_signature(factory, what, accepted | dict(arguments), "with --env-args key=value")
        return factory(**(accepted | dict(arguments)))
    except TrajtrainerError:
        raise
    except (Exception, SystemExit) as error:
        raise blame(f"{what} could not be made", error) from error


def named_parameters(factory: Factory) -> Mapping[str, inspect.Parameter]:
    """The parameters that can be given by name."""
    try:
        found = inspect.signature(factory).parameters
    except (ValueError, TypeError):  # written in C
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: parameter for name, parameter in found.items() if parameter.kind in named}


def check_signature(factory: Factory, what: str, arguments: Mapping[str, Any], how: str) -> None:
    """See that a factory takes these arguments, as far as it tells. ``how`` says how they are given.

    Raises:
        SettingsError: it does not.
    """
    try:
        signature = inspect.signature(factory)
    except (ValueError, TypeError):
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise SettingsError(
            f"{what} cannot be called with the arguments {dict(arguments)}: {error}. It takes {signature}; pass "
            f"arguments {how}."
        ) from error


# What Gymnasium asks of who uses its Atari preprocessing, as an option of ours.
_HINTS = {"frame-skip": " Give --env-args frameskip=1.", "opencv-python": " Or: pip install 'trajtrainer[atari]'."}


def wrap(env: Any, wrappers: Sequence[str] | None, bases: tuple[type, ...]) -> Any:
    """An environment within its wrappers, the first one innermost.

    Args:
        env: to be wrapped.
        wrappers: each as ``package.module:Wrapper key=value ...``: a class or a function that is called with the
            environment and the arguments.
        bases: what an environment of this kind is an instance of, wrapped or not.

    Raises:
        SettingsError: a wrapper is not there, is none, does not take its arguments, or refuses the environment.
        EnvironmentFaultError: its module cannot be imported, as its code fails.
    """
    try:
        for text in wrappers or ():
            env = _wrapped(env, text, bases)
    except BaseException:
        env.close()
        raise
    return env


def _wrapped(env: Any, text: str, bases: tuple[type, ...]) -> Any:
    target, *words = wrapper_words(text)
    what = f"--wrapper {target}"
    module, _, name = target.partition(":")
    wrapper: Any = factory_of(import_first([module], what), name, what)
    expected = f"a wrapper of {' or '.join(f'{base.__module__}.{base.__qualname__}' for base in bases)}"
    if isinstance(wrapper, type) and not issubclass(wrapper, bases):
        raise SettingsError(f"{what} is no wrapper of such environments: expected {expected}.")
    arguments = keyword_arguments(words, what)
    check_signature(partial(wrapper, env), what, arguments, f"behind it: --wrapper {target} key=value")
    try:
        wrapped = wrapper(env, **arguments)
    except Exception as error:
        hint = next((hint for word, hint in _HINTS.items() if word in str(error)), "")
        told, place = str(error).rstrip("."), place_of_error(error)
        where = f" ({place})" if place else ""
        raise SettingsError(
            f"{what} cannot be put around {env}: {type(error).__name__}: {told}{where}.{hint}"
        ) from error
    if not isinstance(wrapped, bases):
        raise SettingsError(f"{what} is no wrapper: it returned a {type(wrapped).__qualname__}, expected {expected}.")
    return wrapped
