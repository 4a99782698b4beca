"""Finds a player's program, starts it, notices its end at once and never leaves it behind.

See docs/explanation/mlagents-behavior.md#launch.

A player ends on its own when its connection to the trainer breaks, unless it hangs or has not connected yet. For those
cases each player has a guard.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trajtrainer.envs.unity.faults import LaunchError
from trajtrainer.envs.workers.guard import Guard

if sys.platform == "win32":
    _CREATION_FLAGS = subprocess.CREATE_NEW_PROCESS_GROUP
else:
    _CREATION_FLAGS = 0

_LOGGER = logging.getLogger(__name__)
SIMULATION_PREFIX = "sim:"
# A path may have the extension of another system's build, because the settings file may have been written there.
_EXTENSIONS = (".x86_64", ".x86", ".exe", ".app")
_CRASH_HANDLER = "UnityCrashHandler*.exe"  # comes with every build for Windows
_MAX_SHOWN = 8  # entries of a folder in a message
_LOG_FILE_ARGUMENT = "-logfile"  # Unity ignores case
_STANDARD_ERROR = 2
_TERMINATE_GRACE_S = 5.0
_TAIL_LINES = 15
_TAIL_BYTES = 4096
_LOG_TAIL_BYTES = 1 << 16  # the report of Unity's allocators is long
_LAST_WORDS_S = 0.5
_KEPT_LOGS = 5
# What Unity writes at every end, good or bad; the first is the title of many lines.
_REPORT_AT_THE_END = "Memory Statistics:"
_NOISE = ("##utp:", "UnloadTime:", "Unloading ", "Total: ", "Setting up ", "Thread -> id:")


def is_simulation(env_path: str | None) -> bool:
    """Whether this names built-in simulations."""
    return env_path is not None and env_path.strip().startswith(SIMULATION_PREFIX)


def command(env_path: str, platform: str = sys.platform) -> list[str]:
    """The command that starts a player, without its arguments.

    ``env_path`` is a build, with or without its file extension, absolute or relative to the current folder, or
    ``sim:NAME`` or ``sim:NAME+NAME2`` for built-in simulations, whose program checks the names.

    Raises:
        LaunchError: there is no such build.
    """
    env_path = env_path.strip()
    if is_simulation(env_path):
        return [sys.executable, "-m", "trajtrainer.envs.sim", env_path.removeprefix(SIMULATION_PREFIX)]
    return [str(find(env_path, platform, lambda given: _hint(env_path, given, platform)))]


def find(path: str, platform: str, hint: Callable[[Path], str]) -> Path:
    """Find the program of a build: ``path``, with or without its file extension, absolute or relative.

    Raises:
        LaunchError: there is none. The message ends with ``hint`` of the absolute path.
    """
    # Absolute, so that the program is not looked up in PATH.
    given = Path(os.path.abspath(os.path.expanduser(path)))
    tried = []
    for candidate in _candidates(given, platform):
        if candidate.is_file():
            return candidate
        tried.append(str(candidate))
    raise LaunchError(
        f"Couldn't launch the {path} environment. Provided filename does not match any environments. Tried: "
        f"{', '.join(dict.fromkeys(tried))}. {hint(given)}"
    )


def _hint(env_path: str, folder: Path, platform: str) -> str:
    """What to give instead of something that is not a build; for a folder, what is in it."""
    if not folder.is_dir():
        return (
            "Give --env the path of a build for this system, with or without its file extension, or leave it out to "
            "use the Editor."
        )
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        return f"{env_path} is a folder that cannot be read: {error.strerror}."
    endings = {"darwin": (".app",), "win32": (".exe",)}.get(platform, (".x86_64", ".x86"))
    for name in names:
        if name.endswith(endings) and not fnmatch.fnmatch(name, _CRASH_HANDLER):
            return f"{env_path} is a folder. It contains {name}: --env={os.path.join(env_path, name)}"
    if not names:
        return f"{env_path} is an empty folder."
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    shown = ", ".join(names[:_MAX_SHOWN])
    return f"{env_path} is a folder without a build for {platform}. It contains {shown}{more}."


def _candidates(given: Path, platform: str) -> Iterator[Path]:
    """Files that may be meant, the most probable first."""
    # Only an extension counts: a folder or a name may contain ".app" or ".x86".
    extensions = (each for each in _EXTENSIONS if given.name.endswith(each) and given.name != each)
    base = given.with_name(given.name.removesuffix(next(extensions, "")))
    if platform == "darwin":
        folder = base.with_name(f"{base.name}.app") / "Contents" / "MacOS"
        yield folder / base.name
        yield from _files_in(folder, "*")
    elif platform == "win32":
        yield base.with_name(f"{base.name}.exe")
        for file in _files_in(base, "*.exe"):
            if not fnmatch.fnmatch(file.name, _CRASH_HANDLER):
                yield file
    else:
        yield base.with_name(f"{base.name}.x86_64")
        yield base.with_name(f"{base.name}.x86")
    yield base
    yield given


def _files_in(folder: Path, pattern: str) -> list[Path]:
    return sorted(file for file in folder.glob(pattern) if file.is_file()) if folder.is_dir() else []


def player_arguments(
    port: int,
    *,
    worker_id: int = 0,
    no_graphics: bool = False,
    no_graphics_monitor: bool = False,
    log_folder: str | None = None,
    additional_args: Sequence[str] = (),
) -> list[str]:
    """Arguments of every player. ``no_graphics_monitor`` leaves a window to worker 0 alone."""
    arguments = []
    if no_graphics or (no_graphics_monitor and worker_id != 0):
        arguments += ["-nographics", "-batchmode"]
    arguments += ["--mlagents-port", str(port)]
    if log_folder and not any(argument.lower() == _LOG_FILE_ARGUMENT for argument in additional_args):
        arguments += ["-logFile", str(own_log(log_folder, worker_id))]
    return [*arguments, *additional_args]


def own_log(folder: str, worker_id: int) -> Path:
    """Default log file of a player; absolute, because the player's current folder may differ."""
    return Path(os.path.abspath(os.path.join(folder, f"Player-{worker_id}.log")))


def output_file(folder: str, worker_id: int) -> Path:
    """Where the standard output of a player goes if it is not shown."""
    return own_log(folder, worker_id).with_name(f"Player-{worker_id}.stdout.log")


def log_file(arguments: Sequence[str]) -> Path | None:
    """Where a player with these arguments writes its log; None if they do not say."""
    for argument, value in itertools.pairwise(arguments):
        if argument.lower() == _LOG_FILE_ARGUMENT and value != "-":
            return Path(value)
    return None


def set_aside(log: Path) -> None:
    """Rename the log of the previous player from ``Player-0.log`` to ``Player-0.1.log``, and keep a few older ones."""
    if not log.is_file():
        return
    paths = [log, *(log.with_suffix(f".{number}{log.suffix}") for number in range(1, _KEPT_LOGS + 1))]
    for older, newer in itertools.pairwise(reversed(paths)):
        try:
            newer.replace(older)
        except FileNotFoundError:
            pass
        except OSError as error:  # On Windows another program may have it open.
            _LOGGER.warning("The log %s cannot be renamed to %s: %s.", newer, older, error.strerror or error)
            return


class PlayerProcess:
    """One running player.

    Args:
        arguments: the whole command.
        show_output: pass its output on to ours. Otherwise only the end of its standard error output is kept.
        output: file for its standard output, if that is not shown; None discards it. An empty file is removed.
        on_exit: called from another thread as soon as the process has ended.

    Raises:
        LaunchError: the system refuses to start it.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        show_output: bool,
        on_exit: Callable[[], None],
        output: Path | None = None,
    ) -> None:
        self.log_file = log_file(arguments)
        self._show_output = show_output
        self._output = None if show_output else output
        self._last_words = b""
        _LOGGER.debug("Starting the player: %s", list(arguments))
        try:
            with contextlib.ExitStack() as stack:
                stdout = None if show_output else stack.enter_context(Path(output or os.devnull).open("wb"))
                self._process = subprocess.Popen(  # noqa: S603  (the user asks for this program)
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=subprocess.PIPE,
                    # So that Ctrl-C reaches only the trainer, which then ends the player properly.
                    start_new_session=True,
                    creationflags=_CREATION_FLAGS,
                )
        except PermissionError as error:
            raise LaunchError(
                f"The system does not allow running {arguments[0]}. Make it executable, for example with "
                f'"chmod -R 755 {arguments[0]}".'
            ) from error
        except OSError as error:
            raise LaunchError(
                f"The system cannot run {arguments[0]}: {error.strerror}. Is it a build for this operating system and "
                "processor?"
            ) from error
        self._guard = Guard(self._process.pid, "player", asks=True, grace_s=int(_TERMINATE_GRACE_S))
        self._on_exit = on_exit
        self._ended = threading.Event()
        listener = threading.Thread(target=self._listen, name=f"player-errors-{self.pid}", daemon=True)
        listener.start()
        threading.Thread(target=self._watch, args=(listener,), name=f"player-{self.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False after ``timeout_s`` seconds."""
        return self._ended.wait(timeout_s)

    def describe_end(self) -> str:
        """How it ended: a return code or the name of a signal, as the predicate of a sentence."""
        code = self._process.returncode
        if code is None:
            return "is still running"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by the signal {signal.Signals(-code).name}"
        return f"ended with the return code {code}"

    def last_words(self) -> str:
        """The end of its standard error output and of its log, for the end of an error message."""
        errors = self._last_words.decode(errors="replace").splitlines()[-_TAIL_LINES:]
        printed = "\n  ".join(["The end of its standard error output:", *errors]) + "\n" if errors else ""
        if self.log_file is None:
            return f"{printed}It is not known where it writes its log."
        try:
            with self.log_file.open("rb") as file:
                file.seek(max(0, self.log_file.stat().st_size - _LOG_TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError as error:
            if self.log_file == self._output:
                return f"{printed}It printed nothing else." if printed else "It printed nothing."
            return f"{printed}Its log {self.log_file} cannot be read ({error.strerror})."
        if _REPORT_AT_THE_END in lines:
            lines = lines[: lines.index(_REPORT_AT_THE_END)]
        lines = [line for line in lines if line.strip() and not line.lstrip().startswith(_NOISE)][-_TAIL_LINES:]
        if not lines:
            return f"{printed}Its log {self.log_file} is empty."
        return printed + "\n  ".join([f"The end of its log {self.log_file}:", *lines])

    def stop(self, grace_s: float) -> None:
        """Give the player ``grace_s`` seconds to end on its own, then end it. Returns when it is gone."""
        if self._ended.wait(grace_s):
            return
        if grace_s > 0:
            _LOGGER.warning("The player (process %d) did not end on its own within %g s. Ending it.", self.pid, grace_s)
        else:
            _LOGGER.info("Ending the player (process %d).", self.pid)
        if sys.platform != "win32":
            # The whole group, because it may have started other programs.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)
            if self._ended.wait(_TERMINATE_GRACE_S):
                return
        self.kill()
        self._ended.wait(_TERMINATE_GRACE_S)

    def kill(self) -> None:
        """End the player at once and do not wait for it. Takes no lock, so signal handlers may call it."""
        if self.has_ended:
            return
        self._guard.kill()
        if sys.platform == "win32":  # where the guard may be missing
            with contextlib.suppress(OSError):
                self._process.kill()

    def _listen(self) -> None:
        """Keep the end of the standard error output. If no one read it, the full pipe would block the player."""
        stream = self._process.stderr
        assert stream is not None
        with stream:
            while data := os.read(stream.fileno(), _TAIL_BYTES):
                self._last_words = (self._last_words + data)[-_TAIL_BYTES:]
                if self._show_output:
                    with contextlib.suppress(OSError):
                        os.write(_STANDARD_ERROR, data)

    def _watch(self, listener: threading.Thread) -> None:
        self._process.wait()
        listener.join(_LAST_WORDS_S)  # It ends with the player unless a program that the player started holds the pipe.
        self._guard.release()
        if self._output is not None:
            with contextlib.suppress(OSError):
                if not self._output.stat().st_size:
                    self._output.unlink()
        self._ended.set()
        self._on_exit()
