"""Tell the user's code from ours and from libraries, in tracebacks and in what threads are doing."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType

from trajtrainer.core.errors import EnvironmentFaultError

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
    """Return whether a frame is of an installed package."""
    return frame.f_code.co_filename.startswith(_PACKAGES)


def _is_python(frame: FrameType) -> bool:
    """Return whether a frame is of Python itself."""
    return frame.f_code.co_filename.startswith((*_STDLIB, *_INTERNAL)) and not _is_installed(frame)


def _is_neutral(frame: FrameType) -> bool:
    return _is_python(frame) or _package_of(frame) in _NEUTRAL


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _user_place(places: Iterable[_Place]) -> str:
    """Return the innermost place in the user's code as "file:line, in function".

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
    """Return the innermost place in the user's code that an exception came through, or an empty text."""
    return _user_place(reversed(list(walk_tb(error.__traceback__))))


def place_of_thread(thread: int) -> str:
    """Return where in the user's code a thread is, by its identifier, or an empty text."""
    frame = sys._current_frames().get(thread)
    return "" if frame is None else _user_place(walk_stack(frame))


def is_debugged(thread: int) -> bool:
    """Return whether a thread waits at the prompt of a debugger."""
    frame = sys._current_frames().get(thread)
    return frame is not None and any(_package_of(each) in _DEBUGGERS for each, _ in walk_stack(frame))


def is_our_bug(error: BaseException) -> bool:
    """Return whether an exception was raised by our code, or by what our code called with wrong values.

    The frame that caught it does not count: it only calls the user's code.
    """
    if isinstance(error, SyntaxError):
        return False
    places = [frame for frame, _ in list(walk_tb(error.__traceback__))[1:] if not _is_neutral(frame)]
    return bool(places) and _is_ours(places[-1])


def blame(what: str, error: BaseException) -> EnvironmentFaultError:
    """Return an exception that was raised while the user's code ran, as a message that says whose it is.

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
