"""Starts a player's process, notices its end at once and never leaves it behind (docs/mlagents-behavior.md#launch).

A player ends by itself when its connection to the trainer breaks, unless it hangs or has not connected yet. For those
cases, on POSIX systems, a guard stands beside each player: a shell that waits for the end of a pipe which this process
holds open. Whatever kills this process closes the pipe, and the guard then ends the player. (The kernel's own signal on
a parent's death, PR_SET_PDEATHSIG, comes with the death of the launching thread already, and needs code between fork
and exec, which is unsafe beside gRPC's threads.) On Windows the system does it for a job object.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trajtrainer.envs.gymnasium_ids import option_for
from trajtrainer.sim.registry import simulation_kind, simulation_of
from trajtrainer.unity.faults import LaunchError

SIMULATION_PREFIX = "sim:"
# A path may bear the ending of another system's build, as the settings file may have been written there.
_ENDINGS = (".x86_64", ".x86", ".exe", ".app")
_CRASH_HANDLER = "UnityCrashHandler*.exe"  # stands beside every build for Windows
_SHOWN = 8  # entries of a folder that are named


def is_simulation(env_path: str | None) -> bool:
    """Return whether this names simulations of our own."""
    return env_path is not None and env_path.strip().startswith(SIMULATION_PREFIX)


def command(env_path: str, platform: str = sys.platform) -> list[str]:
    """Return the command that starts the player, without its arguments.

    ``env_path`` is a build, with or without its ending, absolute or from the current folder, or ``sim:NAME`` or
    ``sim:NAME+NAME2`` for simulations of our own.

    Raises:
        LaunchError: there is no such build or simulation.
    """
    env_path = env_path.strip()
    if is_simulation(env_path):
        return [sys.executable, "-m", "trajtrainer.sim", _simulations(env_path)]
    return [str(find(env_path, platform, lambda given: _meant(env_path, given, platform)))]


def find(path: str, platform: str, meant: Callable[[Path], str]) -> Path:
    """Return the program of a build: ``path``, with or without its ending, absolute or from the current folder.

    Raises:
        LaunchError: there is none. ``meant`` ends its message with what to give instead.
    """
    # Absolute, so that no program of that name is looked for elsewhere.
    given = Path(os.path.abspath(os.path.expanduser(path)))
    tried = []
    for candidate in _candidates(given, platform):
        if candidate.is_file():
            return candidate
        tried.append(str(candidate))
    raise LaunchError(
        f"Couldn't launch the {path} environment. Provided filename does not match any environments. Tried: "
        f"{', '.join(dict.fromkeys(tried))}. {meant(given)}"
    )


def _simulations(env_path: str) -> str:
    """Return the names behind ``sim:``, all of which there are."""
    names = env_path.removeprefix(SIMULATION_PREFIX)
    if not names:
        raise LaunchError(f"--env {env_path} names no simulation. Expected sim:NAME, as in sim:3DBall.")
    try:
        for name in names.split("+"):
            simulation_kind(name)
    except ValueError as error:
        raise LaunchError(f"--env {env_path}: {error}") from error
    return names


def _meant(env_path: str, given: Path, platform: str) -> str:
    """Return what to give instead of something that is no build."""
    if given.is_dir():
        return _contents(env_path, given, platform)
    option = option_for(env_path)
    if option:
        return f"For the Gymnasium environment of this name: {option}."
    simulation = simulation_of(given.name)
    if simulation is not None:
        return f"For the built-in simulation: --env=sim:{simulation}."
    return (
        "Give --env the path of a build for this system, with or without its ending, leave it out to train in the "
        "Editor, or train on a built-in simulation with --env=sim:3DBall."
    )


def _contents(env_path: str, folder: Path, platform: str) -> str:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        return f"{env_path} is a folder that cannot be read: {error.strerror}."
    build = next((name for name in names if _is_build(name, platform)), None)
    if build is not None:
        return f"{env_path} is a folder. It holds {build}: --env={os.path.join(env_path, build)}"
    if not names:
        return f"{env_path} is an empty folder."
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{env_path} is a folder with no build for {platform}, but {', '.join(names[:_SHOWN])}{more}."


def _is_build(name: str, platform: str) -> bool:
    endings = {"darwin": (".app",), "win32": (".exe",)}.get(platform, (".x86_64", ".x86"))
    return name.endswith(endings) and not fnmatch.fnmatch(name, _CRASH_HANDLER)


def _candidates(given: Path, platform: str) -> Iterator[Path]:
    """Yield files that may be meant, the likeliest first."""
    base = _without_ending(given)
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


def _without_ending(path: Path) -> Path:
    """Return the path without its ending.

    Only an ending counts: a folder or a name may have ``.app`` or ``.x86`` in the middle.
    """
    for ending in _ENDINGS:
        if path.name.endswith(ending) and path.name != ending:
            return path.with_name(path.name.removesuffix(ending))
    return path


def _files_in(folder: Path, pattern: str) -> list[Path]:
    return sorted(file for file in folder.glob(pattern) if file.is_file()) if folder.is_dir() else []


if sys.platform == "win32":
    from trajtrainer.unity.windows_job import Job

    _CREATION_FLAGS = subprocess.CREATE_NEW_PROCESS_GROUP
else:
    _CREATION_FLAGS = 0

_LOGGER = logging.getLogger(__name__)
_LOG_FILE_ARGUMENT = "-logfile"  # Unity does not care about upper and lower case
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
_GUARD_SCRIPT = 'read -r word || { kill -s TERM -- "-$1"; sleep 5; kill -s KILL -- "-$1"; } 2>/dev/null'


def player_arguments(
    port: int,
    *,
    worker_id: int = 0,
    no_graphics: bool = False,
    no_graphics_monitor: bool = False,
    log_folder: str | None = None,
    additional_args: Sequence[str] = (),
) -> list[str]:
    """Return what every player gets after its own name. ``no_graphics_monitor`` leaves only worker 0 its window."""
    arguments = []
    if no_graphics or (no_graphics_monitor and worker_id != 0):
        arguments += ["-nographics", "-batchmode"]
    arguments += ["--mlagents-port", str(port)]
    if log_folder and not any(argument.lower() == _LOG_FILE_ARGUMENT for argument in additional_args):
        arguments += ["-logFile", str(own_log(log_folder, worker_id))]
    return [*arguments, *additional_args]


def own_log(folder: str, worker_id: int) -> Path:
    """Return where a player writes its log unless it is told otherwise; absolute, as its current folder may differ."""
    return Path(os.path.abspath(os.path.join(folder, f"Player-{worker_id}.log")))


def output_file(folder: str, worker_id: int) -> Path:
    """Return where the standard output of a player goes that is not to be seen."""
    return own_log(folder, worker_id).with_name(f"Player-{worker_id}.stdout.log")


def log_file(arguments: Sequence[str]) -> Path | None:
    """Return where a player with these arguments writes its log; None if it is not known."""
    for argument, value in itertools.pairwise(arguments):
        if argument.lower() == _LOG_FILE_ARGUMENT and value != "-":
            return Path(value)
    return None


def set_aside(log: Path) -> None:
    """Keep the log of the player before, as ``Player-0.1.log`` beside ``Player-0.log``, and a few older ones."""
    if not log.is_file():
        return
    paths = [log, *(log.with_suffix(f".{number}{log.suffix}") for number in range(1, _KEPT_LOGS + 1))]
    for older, newer in itertools.pairwise(reversed(paths)):
        try:
            newer.replace(older)
        except FileNotFoundError:
            pass
        except OSError as error:  # on Windows somebody may have it open
            _LOGGER.warning("The log %s cannot be set aside as %s: %s.", newer, older, error.strerror or error)
            return


class PlayerProcess:
    """One running player.

    Args:
        arguments: the whole command.
        show_output: let its output through to ours. Otherwise only the end of its standard error output is kept.
        output: the file of its standard output, if that is not shown; None drops it. An empty one is removed.
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
                    # So that Ctrl-C reaches the trainer alone, which then ends the player in order.
                    start_new_session=True,
                    creationflags=_CREATION_FLAGS,
                )
        except PermissionError as error:
            raise LaunchError(
                f"The system does not allow to run {arguments[0]}. Make it executable, for example with "
                f'"chmod -R 755 {arguments[0]}".'
            ) from error
        except OSError as error:
            raise LaunchError(
                f"The system cannot run {arguments[0]}: {error.strerror}. Is it a build for this operating system and "
                "processor?"
            ) from error
        self._guard = _start_guard(self._process.pid)
        self._on_exit = on_exit
        self._ended = threading.Event()
        listener = threading.Thread(target=self._listen, name=f"player-errors-{self.pid}", daemon=True)
        listener.start()
        threading.Thread(target=self._watch, args=(listener,), name=f"player-{self.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._ended.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end. Returns whether it has ended."""
        return self._ended.wait(timeout_s)

    def describe_end(self) -> str:
        """Return how it ended: a return code or the name of a signal."""
        code = self._process.returncode
        if code is None:
            return "is still running"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by the signal {signal.Signals(-code).name}"
        return f"ended with the return code {code}"

    def last_words(self) -> str:
        """Return what the player wrote last, standard error output and log, as the end of an error message."""
        lines = self._last_words.decode(errors="replace").splitlines()[-_TAIL_LINES:]
        log = self._log_tail()
        return "\n  ".join(["The end of its standard error output:", *lines]) + f"\n{log}" if lines else log

    def _log_tail(self) -> str:
        if self.log_file is None:
            return "It writes no log that is known here."
        try:
            with self.log_file.open("rb") as file:
                file.seek(max(0, self.log_file.stat().st_size - _LOG_TAIL_BYTES))
                lines = _without_noise(file.read().decode(errors="replace").splitlines())[-_TAIL_LINES:]
        except OSError as error:
            if self.log_file == self._output:
                return "It printed nothing else."
            return f"Its log {self.log_file} cannot be read ({error.strerror})."
        if not lines:
            return f"Its log {self.log_file} is empty."
        return "\n  ".join([f"The end of its log {self.log_file}:", *lines])

    def stop(self, grace_s: float) -> None:
        """Wait ``grace_s`` seconds for the player to end by itself, then end it. Returns when it is gone."""
        if self._ended.wait(grace_s):
            return
        if grace_s > 0:
            _LOGGER.warning("The player (process %d) did not end by itself within %g s: ending it.", self.pid, grace_s)
        else:
            _LOGGER.info("Ending the player (process %d).", self.pid)
        if sys.platform != "win32":
            self._signal(signal.SIGTERM)
            if self._ended.wait(_TERMINATE_GRACE_S):
                return
        self.kill()
        self._ended.wait(_TERMINATE_GRACE_S)

    def kill(self) -> None:
        """End the player at once and do not wait for it. Takes no lock, so signal handlers may call it."""
        if self.has_ended:
            return
        if sys.platform != "win32":
            self._signal(signal.SIGKILL)
        elif self._guard is not None:
            self._guard.kill()
        else:
            self._process.kill()

    def _listen(self) -> None:
        """Keep the end of the standard error output; unread, a full pipe would stop the player."""
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
        listener.join(_LAST_WORDS_S)  # longer only if something that it started holds the pipe
        if self._guard is not None:
            self._guard.release()
        if self._output is not None:
            with contextlib.suppress(OSError):
                if not self._output.stat().st_size:
                    self._output.unlink()
        self._ended.set()
        self._on_exit()

    if sys.platform != "win32":

        def _signal(self, number: int) -> None:
            """Send a signal to the player and whatever it has started: its process group, which is its own."""
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def _without_noise(lines: list[str]) -> list[str]:
    """Drop what Unity writes at every end."""
    if _REPORT_AT_THE_END in lines:
        lines = lines[: lines.index(_REPORT_AT_THE_END)]
    return [line for line in lines if line.strip() and not line.lstrip().startswith(_NOISE)]


if sys.platform == "win32":
    _Guard = Job
else:

    class _Guard:
        """A shell that ends a process group when this process ends.

        Raises:
            OSError: there is no shell, or the system refuses to start it.
        """

        def __init__(self, pid: int) -> None:
            self._shell = subprocess.Popen(  # noqa: S603
                [shutil.which("sh") or "/bin/sh", "-c", _GUARD_SCRIPT, "player-guard", str(pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

        def release(self) -> None:
            """End the guard: the process is gone."""
            with contextlib.suppress(OSError):  # it may be gone, if somebody ended it
                self._shell.communicate(b"done\n")


def _start_guard(pid: int) -> _Guard | None:
    try:
        return _Guard(pid)
    except OSError as error:
        _LOGGER.warning(
            "The player (process %d) has no guard and may outlive a trainer that is killed: %s.", pid, error
        )
        return None
