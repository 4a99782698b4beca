"""Finds a player's program, starts it, detects immediately when it exits, and never leaves it running.

See docs/explanation/mlagents-behavior.md#launch.

A player exits on its own when its connection to the trainer breaks, unless it hangs or has not connected yet. For those
cases, each player has a guard.
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

from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.envs.unity.faults import LaunchError, PlayerDiedError, PlayerQuitError, PlayerTimeoutError
from trajtrainer.envs.workers.guard import Guard

if sys.platform == "win32":
    _CREATION_FLAGS = subprocess.CREATE_NEW_PROCESS_GROUP
else:
    _CREATION_FLAGS = 0

_LOGGER = logging.getLogger(__name__)
SIMULATION_PREFIX = "sim:"
# Settings may have been written on another operating system, so a path may have the extension of its builds.
_EXTENSIONS = (".x86_64", ".x86", ".exe", ".app")
_CRASH_HANDLER = "UnityCrashHandler*.exe"  # every Windows build contains this program
_MAX_SHOWN = 8  # maximum number of folder entries in a message
_LOG_FILE_ARGUMENT = "-logfile"  # Unity ignores the case of its arguments
_STANDARD_ERROR = 2
_TERMINATE_GRACE_S = 5.0
_CLOSE_GRACE_S = 10.0
_DEATH_GRACE_S = 2.0
_TAIL_LINES = 15
_TAIL_BYTES = 4096
_LOG_TAIL_BYTES = 1 << 16  # large, because Unity ends its log with a long memory report
_LAST_WORDS_S = 0.5
_KEPT_LOGS = 5
# Text that Unity writes at every exit, normal or not: the heading of the memory report, and the starts of other lines.
_REPORT_AT_THE_END = "Memory Statistics:"
_NOISE = ("##utp:", "UnloadTime:", "Unloading ", "Total: ", "Setting up ", "Thread -> id:")


def is_simulation(env_path: str | None) -> bool:
    """Return whether ``env_path`` names built-in simulations."""
    return env_path is not None and env_path.strip().startswith(SIMULATION_PREFIX)


def command(env_path: str, platform: str = sys.platform) -> list[str]:
    """Return the command that starts a player, without its arguments.

    ``env_path`` is a build, with or without its file extension, absolute or relative to the current folder, or
    ``sim:NAME`` or ``sim:NAME+NAME2`` for built-in simulations. The program that is started checks these names.

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
        LaunchError: there is no such program. The message ends with the result of ``hint`` for the absolute path.
    """
    # The path is absolute, so that the program is not looked up in PATH.
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
    """Return a hint for a path that is not a build. For a folder, it lists the contents."""
    if not folder.is_dir():
        return (
            "Set --env to the path of a build for this system, with or without its file extension, or leave it out to "
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
    """Yield the files that the user may mean, the most likely first."""
    # Remove only a file extension, because folders and names may contain ".app" or ".x86" elsewhere.
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
    """Return the arguments that every player gets. With ``no_graphics_monitor``, only worker 0 has a window."""
    arguments = []
    if no_graphics or (no_graphics_monitor and worker_id != 0):
        arguments += ["-nographics", "-batchmode"]
    arguments += ["--mlagents-port", str(port)]
    if log_folder and not any(argument.lower() == _LOG_FILE_ARGUMENT for argument in additional_args):
        arguments += ["-logFile", str(own_log(log_folder, worker_id))]
    return [*arguments, *additional_args]


def own_log(folder: str, worker_id: int) -> Path:
    """Return the default log file of a player, as an absolute path because the player's current folder may differ."""
    return Path(os.path.abspath(os.path.join(folder, f"Player-{worker_id}.log")))


def output_file(folder: str, worker_id: int) -> Path:
    """Return the file for a player's standard output if it is not shown."""
    return own_log(folder, worker_id).with_name(f"Player-{worker_id}.stdout.log")


def log_file(arguments: Sequence[str]) -> Path | None:
    """Return the log file of a player with these arguments; None if the arguments do not specify a log file."""
    for argument, value in itertools.pairwise(arguments):
        if argument.lower() == _LOG_FILE_ARGUMENT and value != "-":
            return Path(value)
    return None


def set_aside(log: Path) -> None:
    """Rename the log of the previous player from ``Player-0.log`` to ``Player-0.1.log``, and keep a few older logs."""
    if not log.is_file():
        return
    paths = [log, *(log.with_suffix(f".{number}{log.suffix}") for number in range(1, _KEPT_LOGS + 1))]
    for older, newer in itertools.pairwise(reversed(paths)):
        try:
            newer.replace(older)
        except FileNotFoundError:
            pass
        except OSError as error:  # On Windows, another program may have the log open.
            _LOGGER.warning("The log %s cannot be renamed to %s: %s.", newer, older, error.strerror or error)
            return


class PlayerProcess:
    """One running player.

    Args:
        arguments: the complete command.
        show_output: pass the player's output through to ours. Otherwise, only the end of its standard error output is
            kept.
        output: file for the standard output if it is not shown; None discards it. An empty file is removed.
        on_exit: called from another thread as soon as the process has ended.

    Raises:
        LaunchError: the system refuses to start the player.
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
                    # Ctrl-C must reach only the trainer, which then shuts the player down properly.
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
        """Wait for the process to end. Return False after ``timeout_s`` seconds."""
        return self._ended.wait(timeout_s)

    def describe_end(self) -> str:
        """Describe how the process ended (return code or name of a signal), as the predicate of a sentence."""
        code = self._process.returncode
        if code is None:
            return "is still running"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by the signal {signal.Signals(-code).name}"
        return f"exited with return code {code}"

    def last_words(self) -> str:
        """Return the last lines of the standard error output and of the log, for the end of an error message."""
        errors = self._last_words.decode(errors="replace").splitlines()[-_TAIL_LINES:]
        printed = "\n  ".join(["The end of its standard error output:", *errors]) + "\n" if errors else ""
        if self.log_file is None:
            return f"{printed}The location of its log is unknown."
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
        """Give the player ``grace_s`` seconds to exit on its own, then terminate it. Returns when it is gone."""
        if self._ended.wait(grace_s):
            return
        if grace_s > 0:
            _LOGGER.warning(
                "The player (process %d) did not exit on its own within %g s. Terminating it.", self.pid, grace_s
            )
        else:
            _LOGGER.info("Terminating the player (process %d).", self.pid)
        if sys.platform != "win32":
            # Signal the whole group, because the player may have started other programs.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)
            if self._ended.wait(_TERMINATE_GRACE_S):
                return
        self.kill()
        self._ended.wait(_TERMINATE_GRACE_S)

    def kill(self) -> None:
        """Kill the player without waiting for it. Takes no lock, so signal handlers may call it."""
        if self.has_ended:
            return
        self._guard.kill()
        if sys.platform == "win32":  # on Windows, there may be no guard
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
        listener.join(_LAST_WORDS_S)  # This times out if a program that the player started keeps the pipe open.
        self._guard.release()
        if self._output is not None:
            with contextlib.suppress(OSError):
                if not self._output.stat().st_size:
                    self._output.unlink()
        self._ended.set()
        self._on_exit()


class PlayerOwner:
    """Base class of the connections to players: the player's process, and the error that made it unusable.

    The process is None if the player was started by someone else, such as an editor.
    """

    _noun = "The player"
    _where_its_output_is = "See the Editor's console."
    _process: PlayerProcess | None = None
    _fault: EnvironmentFaultError | None = None

    def kill(self) -> None:
        """Kill the player without waiting for it. Takes no lock; ``close`` may still be called afterwards."""
        if self._process is not None:
            self._process.kill()

    def _stop(self, timeout_s: float, *, was_asked: bool) -> None:
        """Wait for the player to quit, and terminate it if it does not quit or was never asked to."""
        if self._process is not None:
            is_deaf = not was_asked or isinstance(self._fault, PlayerTimeoutError)
            self._process.stop(0.0 if is_deaf else min(timeout_s, _CLOSE_GRACE_S))

    def _check_alive(self, reason: str = "") -> None:
        if self._process is not None and self._process.has_ended:
            end = f"{self._noun} {self._process.describe_end()}. {reason}".rstrip()
            raise self._failed(PlayerDiedError(f"{end} {self._process.last_words()}"))

    def _silent(self, failure: str, advice: str) -> EnvironmentFaultError:
        """Return the error for a player that sends nothing."""
        self._check_alive()
        log = self._where_its_output_is if self._process is None else self._process.last_words()
        return self._failed(PlayerTimeoutError(f"{self._noun} {failure} {advice} {log}"))

    def _lost(self, fault: PlayerQuitError) -> EnvironmentFaultError:
        """Return the error for a lost connection. If the player has died, raise the error that says how."""
        if self._process is not None and self._process.wait(_DEATH_GRACE_S):
            self._check_alive()
        return self._failed(fault)

    def _failed(self, fault: EnvironmentFaultError) -> EnvironmentFaultError:
        self._fault = fault
        return fault
