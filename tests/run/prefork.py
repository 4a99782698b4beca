"""Programs of this package that have imported everything when they start: a process that has imported it forks them.

They are processes as any other, with a number, signals, an environment and an exit code of their own; the seconds that
importing torch takes come once for all runs of a worker of pytest. Where a fork would not be the same (another system,
or what an interpreter reads at its start is another), they are started as usual.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import multiprocessing.util
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol
from unittest import mock

from tests import packages

PRELOADED = (
    "trajtrainer.cli.learn",
    "trajtrainer.run.assembly",
    "trajtrainer.run.session",
    "trajtrainer.policies.onnx.export",
    "trajtrainer.envs.python.gymnasium_environment",
    "trajtrainer.envs.unity_worker",
    # What runs import when they know what they need.
    "trajtrainer.envs.players",
    "trajtrainer.envs.python.factories",
    "trajtrainer.learning.algos.poca.poca",
    "trajtrainer.learning.algos.ppo.ppo",
    "trajtrainer.learning.algos.sac.sac",
    "trajtrainer.learning.algos.xqc.xqc",
    "trajtrainer.learning.nn.encoders",
    "trajtrainer.learning.rewards.curiosity",
    "trajtrainer.learning.rewards.gail",
    "trajtrainer.learning.rewards.rnd",
    "trajtrainer.run.behavior_factory",
    "trajtrainer.run.evaluations",
    "trajtrainer.run.writers",
)


class Program(Protocol):
    """What ``subprocess.Popen`` has of it."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


class _Peer:
    """The other end of ``serve``."""

    def __init__(self, connection: socket.socket) -> None:
        self._lock = threading.Lock()
        self.connection = connection

    def ask(self, descriptors: Sequence[int] = (), **request: Any) -> Any:
        """The answer to a request, with which copies of these descriptors go."""
        content = json.dumps({**request, "descriptors": [*descriptors]}).encode()
        with self._lock:
            if descriptors:
                socket.send_fds(self.connection, [content], descriptors)
            else:
                self.connection.send(content)
            return json.loads(self.connection.recv(_MOST_BYTES))


@functools.cache
def _server() -> _Peer:
    ours, theirs = _pair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.run.prefork", str(theirs.fileno())],
            cwd=Path(__file__).parents[2],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def close() -> None:
        ours.close()
        process.wait()

    atexit.register(close)
    return _Peer(ours)


_MOST_BYTES = 1 << 17  # of a message


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class _Forked:
    """A program whose parent is the server."""

    def __init__(self, server: _Peer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._server.ask(poll=self.pid)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        end_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end_s is not None and time.monotonic() > end_s:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(0.01)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:  # else the number may be another's by now
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}


def _of_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    """What counts at the start of an interpreter and of the libraries. ``become`` follows PYTHONPATH."""
    names = ("PYTHON", "OMP_", "MKL_", "OPENBLAS_", "LD_")
    return {key: value for key, value in environment.items() if key.startswith(names) and key != "PYTHONPATH"}


_USUAL = _of_interpreter(_environment())
_forks_for_runs = False


def start(arguments: Sequence[str], log: IO[str], program: str | None = None) -> Program:
    """``python -m trajtrainer ARGUMENTS`` with one thread and warnings as errors, its output in a file.

    Args:
        arguments: of the program.
        log: the file.
        program: code that takes the place of ``-m trajtrainer``, as by ``python -c``. It can import ``tests``.
    """
    environment = _environment()
    if sys.platform != "linux" or _of_interpreter(environment) != _USUAL:
        if program is not None:
            root = str(Path(__file__).parents[2])
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), root]))
        command = [sys.executable, *(("-m", "trajtrainer") if program is None else ("-c", program)), *arguments]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    server = _server()
    request = {"start": arguments, "program": program, "log": log.name, "environment": environment}
    request["forks"] = _forks_for_runs
    return _Forked(server, server.ask(**request, folder=os.getcwd()))


def run(program: str, *arguments: str, log: Path, timeout_s: float = 300.0) -> tuple[int, str]:
    """The exit code and the output of a program, which is killed when the time is over."""
    with log.open("w") as file:
        started = start(arguments, file, program)
    try:
        code = started.wait(timeout_s)
    finally:
        started.kill()
        started.wait()
    return code, log.read_text()


_PR_SET_CHILD_SUBREAPER = 36
_adopting = threading.Lock()


@contextlib.contextmanager
def children(*, of_runs: bool = False) -> Iterator[None]:
    """Let processes that multiprocessing spawns come from the server, too; ``of_runs``: also those that runs spawn.

    They are children of the process that spawns them. Their command line is another, and everything is imported when
    they begin; what they get is pickled as ever.
    """
    global _forks_for_runs
    if sys.platform != "linux" or _of_interpreter(_environment()) != _USUAL:
        yield
        return
    spawn = functools.partial(_spawned, _server(), multiprocessing.util.spawnv_passfds)
    _forks_for_runs = of_runs
    with mock.patch.object(multiprocessing.util, "spawnv_passfds", spawn):
        try:
            yield
        finally:
            _forks_for_runs = False


def _spawned(
    server: _Peer, usual: Callable[..., int], path: bytes, arguments: Sequence[str], descriptors: Sequence[int]
) -> int:
    """In place of ``multiprocessing.util.spawnv_passfds``, which is ``usual``."""
    if "--multiprocessing-fork" not in arguments:  # such as multiprocessing's resource tracker
        return usual(path, arguments, descriptors)
    adopts = functools.partial(ctypes.CDLL(None).prctl, _PR_SET_CHILD_SUBREAPER)
    with _adopting:
        adopts(1, 0, 0, 0)  # whom its parent leaves becomes a child of this process
        try:
            pid: int = server.ask(
                [0, 1, 2, *sorted(descriptors)],
                spawn=arguments[arguments.index("-c") + 1],
                environment=dict(os.environ),
                folder=os.getcwd(),
                blocked=[int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
            )
        finally:
            adopts(0, 0, 0, 0)
    return pid


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Answer requests. In a process that was forked return what it is to do, in the server None at the end."""
    while True:
        content, received, _, _ = socket.recv_fds(connection, _MOST_BYTES, 64)
        if not content:
            return None
        request = json.loads(content)
        answer: int | None = None
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif "spawn" in request:
            reader, writer = os.pipe()
            between = os.fork()
            if between == 0:
                child = os.fork()
                if child == 0:
                    return {**request, "received": received}
                os.write(writer, str(child).encode())
                os._exit(0)
            os.waitpid(between, 0)
            answer = int(os.read(reader, 20))
            for descriptor in (reader, writer, *received):
                os.close(descriptor)
        else:
            answer = os.fork()
            if answer == 0:
                return dict(request)
        connection.send(json.dumps(answer).encode())


def with_server(request: dict[str, Any]) -> dict[str, Any]:
    """Fork a server for the processes that this one spawns. In such a process return what it is to do."""
    ours, theirs = _pair()
    if os.fork() == 0:
        ours.close()
        with theirs:
            spawned = serve(theirs)
        if spawned is None:
            os._exit(0)
        return spawned
    theirs.close()
    atexit.register(ours.close)
    spawn = functools.partial(_spawned, _Peer(ours), multiprocessing.util.spawnv_passfds)
    setattr(multiprocessing.util, "spawnv_passfds", spawn)  # noqa: B010
    return request


def _begin_anew(request: Mapping[str, Any]) -> None:
    """What each interpreter has of its own: environment, folder, and generators that no other's repeat."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def become(request: Mapping[str, Any]) -> None:
    """Make this process one that has just been started."""
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, number)
    os.close(log)
    os.close(nothing)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _begin_anew(request)
    added = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each and each not in sys.path]
    sys.path[:1] = [request["folder"], *added]
    packages.forget_all()  # installed packages may be others
    sys.argv = ["trajtrainer" if request["program"] is None else "-c", *request["start"]]


def become_child(request: Mapping[str, Any]) -> None:
    """Make this process one that multiprocessing has just spawned."""
    high = [fcntl.fcntl(each, fcntl.F_DUPFD, 1000) for each in request["received"]]
    os.closerange(3, 1000)
    for descriptor, number in zip(high, request["descriptors"], strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    _begin_anew(request)
    packages.forget_all()
    if os.environ.get("PYTHONWARNINGS") != "error":  # else as in the server
        warnings.resetwarnings()
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    sys.argv = ["-c", "--multiprocessing-fork"]


if __name__ == "__main__":
    import fcntl

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in PRELOADED:
        with contextlib.suppress(ImportError):  # of an extra that is not there
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what all share is not copied by collections
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        given = serve(requests)
    if given is not None and given.get("forks"):
        given = with_server(given)
    if given is not None:
        if "spawn" in given:
            become_child(given)
            given["program"] = given["spawn"]
        else:
            become(given)
        if given["program"] is None:
            runpy.run_module("trajtrainer", run_name="__main__", alter_sys=True)
        else:
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(given["program"], "<string>", "exec"), sys.modules["__main__"].__dict__)
