"""Finds the user's Python code by name, calls it with the arguments it accepts, and recognizes it in tracebacks."""

import importlib
import inspect
import json
import os
import shlex
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

# As spelled in stack frames: symlinks are not resolved.
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_PATHS = sysconfig.get_paths()
_STDLIB_FOLDERS = {_PATHS["stdlib"], _PATHS["platstdlib"], str(Path(os.__file__).parent)}
_PACKAGE_FOLDERS = {_PATHS["purelib"], _PATHS["platlib"], *site.getsitepackages(), site.getusersitepackages()}
_STDLIB, _PACKAGES = (
    tuple(f"{Path(folder)}{os.sep}" for folder in folders) for folders in (_STDLIB_FOLDERS, _PACKAGE_FOLDERS)
)
# Python's own frames without a file. Other frames without a file, such as "<stdin>" and notebook cells, are user code.
_INTERNAL = ("<frozen ", "<__array_function__")
# Libraries that we call with the environment's data. The caller is to blame for errors that they raise.
_NEUTRAL = ("numpy", "torch")
_DEBUGGERS = ("bdb", "pdb", "pydevd", "_pydevd_bundle")

Factory = Callable[..., Any]

# Maps words in error messages of Gymnasium's Atari preprocessing to the option of ours that fixes the error.
_HINTS = {"frame-skip": " Pass --env-args frameskip=1.", "opencv-python": " Or: pip install 'trajtrainer[atari]'."}


def _owner(frame: FrameType) -> str:
    """Return the owner of the code that a frame runs: ``ours``, ``user``, ``package`` or ``nobody``.

    ``nobody`` means Python itself, or a library that is only called with the environment's data.
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
    """Return the innermost place in the user's code as "file:line, in function".

    Args:
        places: frames and line numbers, the innermost first.

    Returns:
        The place. If no frame runs user code, the place is in an installed package. If no frame runs such code either,
        the string is empty.
    """
    innermost: dict[str, str] = {}
    for frame, line in places:
        innermost.setdefault(_owner(frame), f"{frame.f_code.co_filename}:{line}, in {frame.f_code.co_qualname}")
    return innermost.get("user", innermost.get("package", ""))


def place_of_error(error: BaseException) -> str:
    """Return the innermost place in the user's code that an exception passed through, or an empty string."""
    return _user_place(reversed(list(walk_tb(error.__traceback__))))


def place_of_thread(thread: int) -> str:
    """Return the place in the user's code that a thread (given by its identifier) is executing, or an empty string."""
    frame = sys._current_frames().get(thread)
    return "" if frame is None else _user_place(walk_stack(frame))


def is_debugged(thread: int) -> bool:
    """Return whether a thread is waiting at a debugger prompt."""
    frame = sys._current_frames().get(thread)
    return frame is not None and any(_package_of(each) in _DEBUGGERS for each, _ in walk_stack(frame))


def is_our_bug(error: BaseException) -> bool:
    """Return whether an exception was raised by our code, or by a library that our code called with wrong values.

    The frame that caught the exception is ignored, because it only calls the user's code.
    """
    if isinstance(error, SyntaxError):
        return False
    owners = [_owner(frame) for frame, _ in list(walk_tb(error.__traceback__))[1:]]
    return [owner for owner in owners if owner != "nobody"][-1:] == ["ours"]


def blame(what: str, error: BaseException) -> EnvironmentFaultError:
    """Convert an exception from the user's code to a fault whose message says where it was raised.

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
    """Parse the words of ``--env-args key=value ...`` or of another option as keyword arguments.

    Values are parsed as JSON or YAML: numbers, true, [1, 2], text.

    >>> keyword_arguments(["gravity=9.8", "continuous=true", "name=moon"])
    {'gravity': 9.8, 'continuous': True, 'name': 'moon'}

    Raises:
        SettingsError: a word is not ``key=value``, or its value is not valid YAML.
    """
    arguments: dict[str, Any] = {}
    for text in env_args or ():
        key, equals, value = text.removeprefix("--").partition("=")
        if not equals or not key.isidentifier():
            raise SettingsError(
                f"{option} has {text!r}. For Python environments, each word must be key=value, where key is an "
                "argument of the environment's constructor."
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
    """Convert keyword arguments to text that ``keyword_arguments`` can parse.

    Raises:
        SettingsError: a value cannot be written as text.
    """
    try:
        return [f"{key}={json.dumps(value, default=_plain)}" for key, value in arguments.items()]
    except TypeError as error:
        raise SettingsError(
            f"env_args {dict(arguments)!r} cannot be converted to text ({error}). Pass such values to a factory: "
            "environment=functools.partial(make_env, ...)."
        ) from error


def to_options(arguments: Mapping[str, Any]) -> list[str]:
    """Convert arguments to command-line options of a player. True becomes an option without a value.

    >>> to_options({"agents": 2, "-batchmode": True, "png": False, "map": None})
    ['--agents', '2', '-batchmode']

    Raises:
        SettingsError: a name is not text, or a value is neither text nor a number.
    """
    options = []
    for name, value in arguments.items():
        value = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(name, str) or not name:
            raise SettingsError(f"env_args has the key {name!r}. For a player, each key must be the name of an option.")
        if not isinstance(value, str | int | float | None):
            raise SettingsError(
                f"env_args[{name!r}] is a {type(value).__name__}. An option of a player must be text, a number or "
                'true. Write it in the form that the player expects, such as "20,20".'
            )
        if value is not None and value is not False:
            options.append(name if name.startswith("-") else f"--{name}")
            options += [] if value is True else [str(value)]
    return options


def _plain(value: Any) -> Any:
    """Convert a numpy value to a Python value."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is not a number, text, list or mapping")


def import_first(names: Sequence[str], what: str) -> ModuleType:
    """Import the first module that exists. The current folder is also searched, as with ``python -m``.

    Args:
        names: candidates, the most likely first.
        what: the option, for messages.

    Raises:
        SettingsError: no module exists, or the one that exists needs a package that is not installed.
        EnvironmentFaultError: the code of the module fails.
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
    """Import a module. Return None if it does not exist."""
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
    """Return the callable named ``package.module:path``. Raises what ``import_first`` and ``factory_of`` raise."""
    module, _, path = target.partition(":")
    return factory_of(import_first([module], what), path, what)


def factory_of(module: ModuleType, path: str, what: str) -> Factory:
    """Return the callable at a dotted path within a module.

    Raises:
        SettingsError: there is no such callable.
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
    """Call a factory with the user's arguments, and with any of our own arguments that it accepts.

    Args:
        factory: makes the environment.
        what: the factory, for messages.
        arguments: keyword arguments from the user.
        offers: parameter name -> function that returns our value. It is passed if the factory has a parameter of this
            name and the user did not set it.

    Raises:
        SettingsError: the factory does not take the user's arguments.
        EnvironmentFaultError: the factory fails.
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
    """Return the factory's parameters that can be passed by keyword."""
    try:
        found = inspect.signature(factory).parameters
    except (ValueError, TypeError):  # raised for some callables written in C
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: parameter for name, parameter in found.items() if parameter.kind in named}


def check_signature(factory: Factory, what: str, arguments: Mapping[str, Any], how: str) -> None:
    """Check that the signature of a factory accepts these arguments. For messages, ``how`` says how to pass them.

    Raises:
        SettingsError: the signature does not accept them.
    """
    try:
        signature = inspect.signature(factory)
    except (ValueError, TypeError):
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise SettingsError(
            f"{what} cannot be called with the arguments {dict(arguments)}: {error}. It accepts {signature}; pass "
            f"arguments {how}."
        ) from error


def wrap(env: Any, wrappers: Sequence[str] | None, bases: tuple[type, ...]) -> Any:
    """Wrap an environment. The first wrapper is the innermost.

    Args:
        env: the environment.
        wrappers: each as ``package.module:Wrapper key=value ...``, which names a class or function that is called with
            the environment and the arguments.
        bases: base classes of such environments, wrapped or not.

    Raises:
        SettingsError: a wrapper does not exist, is not a wrapper, or refuses its arguments or the environment.
        EnvironmentFaultError: the code of a wrapper's module fails.
    """
    try:
        for text in wrappers or ():
            env = _wrapped(env, text, bases)
    except BaseException:
        env.close()
        raise
    return env


def _wrapped(env: Any, text: str, bases: tuple[type, ...]) -> Any:
    target, *words = shlex.split(text)
    what = f"--wrapper {target}"
    wrapper: Any = find_factory(target, what)
    expected = f"a wrapper for {' or '.join(f'{base.__module__}.{base.__qualname__}' for base in bases)}"
    if isinstance(wrapper, type) and not issubclass(wrapper, bases):
        raise SettingsError(f"{what} is not a wrapper for this kind of environment. Expected {expected}.")
    arguments = keyword_arguments(words, what)
    check_signature(partial(wrapper, env), what, arguments, f"after its name: --wrapper {target} key=value")
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
