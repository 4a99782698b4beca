"""The user's Python code: found by name, called with what it accepts, and distinguished from ours in tracebacks."""

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

# As in the frames of code, with unresolved links.
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_PATHS = sysconfig.get_paths()
_STDLIB_FOLDERS = {_PATHS["stdlib"], _PATHS["platstdlib"], str(Path(os.__file__).parent)}
_PACKAGE_FOLDERS = {_PATHS["purelib"], _PATHS["platlib"], *site.getsitepackages(), site.getusersitepackages()}
_STDLIB, _PACKAGES = (
    tuple(f"{Path(folder)}{os.sep}" for folder in folders) for folders in (_STDLIB_FOLDERS, _PACKAGE_FOLDERS)
)
# Frames without a file that belong to Python, unlike "<stdin>" and a notebook's cells.
_INTERNAL = ("<frozen ", "<__array_function__")
# Libraries that we call with the environment's data. What they raise is their caller's fault.
_NEUTRAL = ("numpy", "torch")
_DEBUGGERS = ("bdb", "pdb", "pydevd", "_pydevd_bundle")

Factory = Callable[..., Any]

# What Gymnasium asks for when its Atari preprocessing is used, as options of ours.
_HINTS = {"frame-skip": " Give --env-args frameskip=1.", "opencv-python": " Or: pip install 'trajtrainer[atari]'."}


def _owner(frame: FrameType) -> str:
    """Whose code a frame runs: ``ours``, that of the ``user`` or of a ``package``, or that of ``nobody``.

    ``nobody`` stands for Python, and for libraries that are only called with the environment's data.
    """
    file = frame.f_code.co_filename
    if file.startswith(_OURS):
        return "ours"
    is_installed = file.startswith(_PACKAGES)
    if _package_of(frame) in _NEUTRAL or (file.startswith((*_STDLIB, *_INTERNAL)) and not is_installed):
        return "nobody"
    return "package" if is_installed else "user"


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _user_place(places: Iterable[tuple[FrameType, int]]) -> str:
    """The innermost place in the user's code as "file:line, in function".

    Args:
        places: frames and line numbers, the innermost first.

    Returns:
        A place in an installed package where the user has no frame of their own. Empty if there is none either.
    """
    innermost: dict[str, str] = {}
    for frame, line in places:
        innermost.setdefault(_owner(frame), f"{frame.f_code.co_filename}:{line}, in {frame.f_code.co_qualname}")
    return innermost.get("user", innermost.get("package", ""))


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

    The frame that caught it is ignored: it only calls the user's code.
    """
    if isinstance(error, SyntaxError):
        return False
    owners = [_owner(frame) for frame, _ in list(walk_tb(error.__traceback__))[1:]]
    return [owner for owner in owners if owner != "nobody"][-1:] == ["ours"]


def blame(what: str, error: BaseException) -> EnvironmentFaultError:
    """Turn an exception from the user's code into a fault whose message says where it came from.

    Args:
        what: what went wrong, such as "The environment pole failed in its step".
        error: the exception.
    """
    reason = (
        "it called sys.exit()" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}".rstrip(".: ")
    )
    place = place_of_error(error)
    if not is_our_bug(error):
        return EnvironmentFaultError(f"{what}: {reason}{place and f' ({place})'}.")
    frame, line = [each for each in walk_tb(error.__traceback__) if _owner(each[0]) == "ours"][-1]
    ours = f"trajtrainer/{Path(frame.f_code.co_filename).relative_to(_OURS).as_posix()}:{line}"
    through = f" It was called from your code at {place}." if place else ""
    return EnvironmentFaultError(
        f"{what}: {reason} ({ours}, in {frame.f_code.co_qualname}).{through} This is a bug in trajtrainer, not in the "
        "environment. Please report it with the traceback that --debug shows."
    )


def keyword_arguments(env_args: Sequence[str] | None, option: str = "--env-args") -> dict[str, Any]:
    """Parse ``--env-args key=value ...``, or those of another option, as keyword arguments.

    The values are read as JSON or YAML: numbers, true, [1, 2], text.

    >>> keyword_arguments(["gravity=9.8", "continuous=true", "name=moon"])
    {'gravity': 9.8, 'continuous': True, 'name': 'moon'}

    Raises:
        SettingsError: something other than ``key=value``.
    """
    arguments: dict[str, Any] = {}
    for text in env_args or ():
        key, equals, value = text.removeprefix("--").partition("=")
        if not equals or not key.isidentifier():
            raise SettingsError(
                f"{option} has {text!r}. For Python environments each must be key=value, an argument of the "
                "environment's constructor."
            )
        try:
            arguments[key] = json.loads(value)  # first, because YAML reads 1e-3 as text
        except ValueError:
            try:
                arguments[key] = yaml.safe_load(value) if value else ""
            except yaml.YAMLError as error:
                raise SettingsError(f"{option} {text!r}: the value is not valid YAML; quote it.") from error
    return arguments


def to_keywords(arguments: Mapping[str, Any]) -> list[str]:
    """Write keyword arguments as text that ``keyword_arguments`` reads.

    Raises:
        SettingsError: a value that cannot be written as text.
    """
    try:
        return [f"{key}={json.dumps(value, default=_plain)}" for key, value in arguments.items()]
    except TypeError as error:
        raise SettingsError(
            f"env_args {dict(arguments)!r} cannot be written as text ({error}). Pass such values to a factory: "
            "environment=functools.partial(make_env, ...)."
        ) from error


def to_options(arguments: Mapping[str, Any]) -> list[str]:
    """Write arguments as options of a player's command line; True is an option without a value.

    >>> to_options({"agents": 2, "-batchmode": True, "png": False, "map": None})
    ['--agents', '2', '-batchmode']

    Raises:
        SettingsError: a name that is not text, or a value that is neither text nor a number.
    """
    options = []
    for name, value in arguments.items():
        value = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(name, str) or not name:
            raise SettingsError(f"env_args has the name {name!r}. For a player, expected the name of an option.")
        if not isinstance(value, str | int | float | None):
            raise SettingsError(
                f"env_args[{name!r}] is a {type(value).__name__}. An option of a player takes text, a number or true. "
                'Write it as the player reads it, such as "20,20".'
            )
        if value is not None and value is not False:
            options.append(name if name.startswith("-") else f"--{name}")
            options += [] if value is True else [str(value)]
    return options


def _plain(value: Any) -> Any:
    """Turn a numpy value into a Python one."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is not a number, text, list or mapping")


def import_first(names: Sequence[str], what: str) -> ModuleType:
    """Import the first module that exists. The current folder is searched too, as with ``python -m``.

    Args:
        names: candidates, the most probable first.
        what: the option, for messages.

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
    """Import a module; None if it does not exist."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing == name or name.startswith(f"{missing}."):
            return None
        raise SettingsError(f"{what} needs the Python package {missing!r}, which is not installed.") from error
    except (Exception, SystemExit) as error:
        raise blame(f"{what}: the module {name} cannot be imported", error) from error


def find_factory(target: str, what: str) -> Factory:
    """The callable named ``package.module:path``. Errors as ``import_first`` and ``factory_of``."""
    module, _, path = target.partition(":")
    return factory_of(import_first([module], what), path, what)


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
    """Call a factory.

    Args:
        factory: makes the environment.
        what: the factory, for messages.
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
    """Check that a factory takes these arguments, as far as its signature shows. ``how`` says how to pass them.

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


def wrap(env: Any, wrappers: Sequence[str] | None, bases: tuple[type, ...]) -> Any:
    """Wrap an environment; the first wrapper is the innermost.

    Args:
        env: the environment.
        wrappers: each as ``package.module:Wrapper key=value ...``: a class or a function that is called with the
            environment and the arguments.
        bases: what an environment of this kind is an instance of, wrapped or not.

    Raises:
        SettingsError: a wrapper does not exist, is not a wrapper, or refuses its arguments or the environment.
        EnvironmentFaultError: the code of its module fails.
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
    wrapper: Any = find_factory(target, what)
    expected = f"a wrapper of {' or '.join(f'{base.__module__}.{base.__qualname__}' for base in bases)}"
    if isinstance(wrapper, type) and not issubclass(wrapper, bases):
        raise SettingsError(f"{what} is not a wrapper of such environments. Expected {expected}.")
    arguments = keyword_arguments(words, what)
    check_signature(partial(wrapper, env), what, arguments, f"behind it: --wrapper {target} key=value")
    try:
        wrapped = wrapper(env, **arguments)
    except Exception as error:
        hint = next((hint for word, hint in _HINTS.items() if word in str(error)), "")
        reason, place = str(error).rstrip("."), place_of_error(error)
        where = f" ({place})" if place else ""
        raise SettingsError(f"{what} cannot wrap {env}: {type(error).__name__}: {reason}{where}.{hint}") from error
    if not isinstance(wrapped, bases):
        raise SettingsError(
            f"{what} is not a wrapper: it returned a {type(wrapped).__qualname__}. Expected {expected}."
        )
    return wrapped
