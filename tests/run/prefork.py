"""Programs of this package that have imported everything when they start: a process that has imported it forks them.

They are processes as any other, with a number, signals, an environment and an exit code of their own; the seconds that
importing torch takes come once for all runs of a worker of pytest. Where a fork would not be the same (another system,
or what an interpreter reads at its start is another), they are started as usual.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import random
import runpy
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

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


class _Server:
    """The other end of ``serve``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.run.prefork"],
            cwd=Path(__file__).parents[2],
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.close)

    def ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(f"{json.dumps(request)}\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


class _Forked:
    """A program whose parent is the server."""

    def __init__(self, server: _Server, pid: int) -> None:
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
_server = functools.cache(_Server)


def start(
    arguments: Sequence[str],
    log: IO[str],
    program: str | None = None,
    *,
    module: str = "trajtrainer",
    needs: Sequence[str] = (),
) -> Program:
    """Start ``python -m MODULE ARGUMENTS`` with one thread and warnings as errors, and its output in a file.

    Args:
        arguments: arguments of the program.
        log: the file.
        program: code to run instead of the module, as with ``python -c``. It can import ``tests``.
        module: a module that none of the preloaded ones imports.
        needs: modules to import beforehand.
    """
    environment = _environment()
    if sys.platform != "linux" or _of_interpreter(environment) != _USUAL:
        if program is not None:
            root = str(Path(__file__).parents[2])
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), root]))
        command = [sys.executable, *(("-m", module) if program is None else ("-c", program)), *arguments]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    server = _server()
    place = {"log": log.name, "environment": environment, "folder": os.getcwd()}
    return _Forked(server, server.ask(start=arguments, program=program, module=module, needs=needs, **place))


def run(program: str, *arguments: str, log: Path, timeout_s: float = 300.0) -> tuple[int, str]:
    """Run code as with ``python -c``. Return its exit code and output; it is killed after ``timeout_s`` seconds."""
    with log.open("w") as file:
        started = start(arguments, file, program)
    try:
        code = started.wait(timeout_s)
    finally:
        started.kill()
        started.wait()
    return code, log.read_text()


def serve() -> dict[str, Any] | None:
    """Answer requests. In a process that was forked return what it is to do, in the server None at the end."""
    for line in iter(sys.stdin.buffer.readline, b""):
        request = json.loads(line)
        answer: int | None = None
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            for name in request["needs"]:
                importlib.import_module(name)
            answer = os.fork()
            if answer == 0:
                return dict(request)
        os.write(1, f"{json.dumps(answer)}\n".encode())
    return None


def become(request: Mapping[str, Any]) -> None:
    """Make this process one that has just been started."""
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, number)
    os.close(log)
    os.close(nothing)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    added = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each and each not in sys.path]
    sys.path[:1] = [request["folder"], *added]
    packages.forget_all()  # installed packages may be others
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    sys.argv = [request["module"] if request["program"] is None else "-c", *request["start"]]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in PRELOADED:
        with contextlib.suppress(ImportError):  # of an extra that is not there
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what all share is not copied by collections
    if (given := serve()) is not None:
        become(given)
        if given["program"] is None:
            runpy.run_module(given["module"], run_name="__main__", alter_sys=True)
        else:
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(given["program"], "<string>", "exec"), sys.modules["__main__"].__dict__)
