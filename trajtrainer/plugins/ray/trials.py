"""Trials on a cluster of Ray: each is a process as on this machine, kept by a Ray actor on some node.

Ray ends the process that is connected with it when its raylet or GCS is gone. So that process is not the search's::

    search                      driver                                node
    _RemoteTrial   -- pipe -->  run_driver: the main thread  -- Ray -->  _TrialProcess, trial's process
                   <-- pipe --  _follow: a thread per trial  <-- Ray --
"""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from queue import SimpleQueue
from typing import Any

from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.process import ChildProcess, begin_child
from trajtrainer.plugins.ray.cluster import Cluster, ClusterLostError, connect

_THREADS = 4  # of a trial's actor: one waits for messages while others stop and kill
_CLOSE_GRACE_S = 10.0

Start = Callable[[Any], Any]
"""Starts a trial from its task, in a process on the machine where it is called."""

_LOST = (
    "Ray has ended, and the search with it. To continue from the last checkpoints of its trials, run the same "
    "command with --resume."
)

# Messages besides those that all processes share; each has the number of a trial and this.
START = b"S"  # to the driver: its task
CALL = b"k"  # to the driver: "stop" or "kill"
MESSAGE = b"t"  # from the driver: a message of the trial
ENDED = b"e"  # from the driver: how it ended


class _TrialProcess:
    """A Ray actor that keeps the process of a trial on its node. If it dies, the process saves everything and ends."""

    def __init__(self, start: Start, task: object) -> None:
        self._process = start(task)
        self._messages = self._process.messages()

    def next(self) -> dict[str, Any] | None:
        return next(self._messages, None)

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> str:
        return str(self._process.end())


def run_driver(given: tuple[Start, int, int], connection: messages.Pipe, lifeline: messages.Pipe) -> None:
    """Connect with Ray, with a core for each trial, and keep trials there until the search sends END."""
    start, parallel, log_level = given
    pipe = messages.LockedPipe(connection)
    begin_child(pipe, lifeline, log_level, lambda: None)
    nowhere = os.open(os.devnull, os.O_WRONLY)  # for what Ray prints: the search reports its end in its own words
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    # Ray lets workers import from the folder of the script that runs, which it finds by this.
    sys.modules["__main__"].__file__ = sys.argv[0]
    with contextlib.suppress(EOFError, OSError):  # the search is gone
        try:
            cluster = connect(None, parallel, "--backend ray")
        except Exception as error:
            pipe.post(messages.FAULT, messages.portable(error))
            return
        try:
            pipe.post(messages.CONNECTED)
            _serve(cluster, pipe, start)
        finally:
            cluster.close()


def _serve(cluster: Cluster, pipe: messages.LockedPipe, start: Start) -> None:
    ray = cluster.ray
    make_process = ray.remote(num_cpus=1, max_concurrency=_THREADS)(_TrialProcess)
    processes: dict[int, Any] = {}
    while (message := messages.read(pipe.connection))[0] != messages.END:
        kind, (number, content) = message
        with contextlib.suppress(ray.exceptions.RayError):
            if kind == START:
                processes[number] = make_process.remote(start, content)
                threading.Thread(target=_follow, args=(cluster, processes[number], number, pipe), daemon=True).start()
            else:
                getattr(processes[number], content).remote()


def _follow(cluster: Cluster, process: Any, number: int, pipe: messages.LockedPipe) -> None:
    ray = cluster.ray
    here = cluster.here
    with contextlib.suppress(OSError):  # the search is gone
        with contextlib.suppress(ray.exceptions.RayError):
            while message := ray.get(process.next.remote()):
                pipe.post(MESSAGE, (number, message))
        try:
            how = ray.get(process.end.remote())
            ray.kill(process)
        except ray.exceptions.RayError as error:
            if not cluster.is_alive(here):
                os._exit(1)  # as Ray does when it sees that its raylet is gone, but it may take minutes
            how = f"is lost with its node ({str(error).splitlines()[0]})"
        pipe.post(ENDED, (number, how))


class _RemoteTrial:
    """A trial on some node."""

    def __init__(self, number: int, post: Callable[..., None]) -> None:
        self.incoming: SimpleQueue[tuple[bytes, Any]] = SimpleQueue()
        self._number = number
        self._post = post
        self._how = ""

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield its messages; raise ``ClusterLostError`` if Ray ends first."""
        while True:
            kind, content = self.incoming.get()
            if kind == ENDED:
                self._how = content
                return
            if kind == messages.FAULT:
                raise content
            yield content

    def stop(self) -> None:
        self._post(CALL, (self._number, "stop"))

    def kill(self) -> None:
        self._post(CALL, (self._number, "kill"))

    def end(self) -> str:
        return self._how


@contextlib.contextmanager
def starter(start_here: Start, parallel: int) -> Iterator[Callable[[object], _RemoteTrial]]:
    """Connect with the cluster of ``RAY_ADDRESS``, or start Ray on this machine; yield the function that starts trials.

    Args:
        start_here: starts a trial on the node where it is called, from its task.
        parallel: how many trials run at once. A core is reserved for each.

    Raises:
        SettingsError: Ray is not installed, or there is no cluster at the address.
    """
    level = logging.getLogger("trajtrainer").getEffectiveLevel()
    process = ChildProcess(
        run_driver,
        (start_here, parallel, level),
        "ray",
        title="process that is connected with Ray",
        log_as="Ray",
        log_from=logging.CRITICAL,
    )
    trials: dict[int, _RemoteTrial] = {}
    numbers = count()
    lock = threading.RLock()  # of the pipe's writing end; a signal handler may interrupt it
    lost: list[tuple[bytes, Any]] = []

    def post(kind: bytes, content: object) -> None:
        with lock:
            process.post(kind, content)

    def start(task: object) -> _RemoteTrial:
        number = next(numbers)
        trial = trials[number] = _RemoteTrial(number, post)
        post(START, (number, task))
        for fault in lost:
            trial.incoming.put(fault)
        return trial

    def read() -> None:
        try:
            while True:
                message = process.read()
                if message is not None:
                    kind, (number, content) = message
                    trials[number].incoming.put((kind, content))
                    if kind == ENDED:
                        del trials[number]
        except (EOFError, OSError):
            lost.append((messages.FAULT, ClusterLostError(_LOST)))
            for trial in list(trials.values()):
                trial.incoming.put(lost[0])

    try:
        try:
            while (message := process.read()) is None:
                pass
        except (EOFError, OSError):
            raise ClusterLostError(f"Ray cannot be used. {process.death()}") from None
        if message[0] == messages.FAULT:
            raise message[1]
        reader = threading.Thread(target=read, name="Ray", daemon=True)
        reader.start()
        yield start
    finally:
        process.end(_CLOSE_GRACE_S)
