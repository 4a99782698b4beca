"""The transport to actors in processes or threads: pipes for messages, shared memory for experience and weights.

::

    actor                               learner's loop
    PipeChannel    <-- ORDER, FREE --   PipeTransport
      reads in a    -- REPORT, ... -->    waits for all pipes at once
      thread        -- experience: the actor's blocks, each given back by FREE -->
                   <-- weights: the learner's blocks, each given back by Synchronized --
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pipe

from trajtrainer.core.errors import SettingsError
from trajtrainer.core.timers import Timers
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.messages import LockedPipe, relay_log
from trajtrainer.envs.workers.process import ChildProcess, wait_for_any, without_main_module
from trajtrainer.envs.workers.shared_memory import Blocks, OpenedBlocks
from trajtrainer.run.actors.actor import Host
from trajtrainer.run.actors.messages import (
    ActorDiedError,
    ActorTask,
    Buffer,
    End,
    Experience,
    Failed,
    LoadWeights,
    Order,
    Report,
)
from trajtrainer.run.actors.process import run_actor
from trajtrainer.run.actors.transports.pipe_channel import FREE, PipeChannel
from trajtrainer.run.actors.transports.remote import RemoteTransport, run_host
from trajtrainer.settings.run import RunSettings

ORDER = b"o"

# Time for players to quit before they are killed.
_CLOSE_GRACE_S = 16.0
_LONGEST_WAIT_S = 1.0


class ActorThread:
    """Runs an actor in a thread. Has the methods of ``ChildProcess`` that ``PipeTransport`` uses."""

    def __init__(self, task: ActorTask) -> None:
        self.pipe, other = Pipe()
        pipe = LockedPipe(other)
        self._host = Host(task)
        self._thread = threading.Thread(
            target=run_host, args=(self._host, PipeChannel(pipe), pipe.post), name=f"actor {task.number}", daemon=True
        )
        self._thread.start()

    def post(self, kind: bytes, *content: object) -> None:
        with suppress(OSError):
            messages.post(self.pipe, kind, *content)

    def kill(self) -> None:
        self._host.kill()

    def bury(self, timeout_s: float = _CLOSE_GRACE_S) -> str:
        self.pipe.close()
        self._thread.join(timeout_s)
        return "has ended"


@dataclass
class _Member:
    """One actor, the memory blocks that it writes (``experience``), and those that it reads (``weights``).

    ``sent``: behavior -> the block in which its weights were last sent. ``is_cut``: True if some experience has been
    lost.
    """

    host: ChildProcess | ActorThread
    experience: OpenedBlocks = field(default_factory=OpenedBlocks)
    weights: Blocks = field(default_factory=Blocks)
    sent: dict[str, int] = field(default_factory=dict)
    is_cut: bool = False


class PipeTransport(RemoteTransport):
    """The learner's end. With ``threads``, actors run in threads of this process instead of their own processes."""

    def __init__(
        self, make_task: Callable[[int], ActorTask], count: int, timers: Timers, *, threads: bool = False
    ) -> None:
        super().__init__(timers)
        self._make_task = make_task
        self._count = count
        self._threads = threads
        self._members: dict[int, _Member] = {}
        self._dropped: list[ChildProcess | ActorThread] = []  # killed, but not joined yet

    def __len__(self) -> int:
        return self._count

    @property
    def present(self) -> Sequence[int]:
        return sorted(self._members)

    def start(self, number: int) -> None:
        if not self._threads:  # A thread cannot be killed.
            self._bury_dropped(0.0)  # A suspended process may still use the ports of its players.
        task = self._make_task(number)
        self._members[number] = _Member(
            ActorThread(task)
            if self._threads
            else ChildProcess(
                run_actor,
                task,
                f"actor-{number}",
                title=f"process of actor {number}",
                log_as=f"Actor {number}",
                log_from=logging.DEBUG,
            )
        )

    def post(self, number: int, order: Order) -> None:
        if number in self._members:
            self._members[number].host.post(ORDER, order)

    def publish(self, number: int, behavior: str, version: int, weights: Callable[[], Buffer]) -> None:
        member = self._members.get(number)
        if member is None:
            return
        if behavior in member.sent:  # The actor has loaded the previous weights, so their block is free.
            member.weights.take_back(member.sent[behavior])
        newest = weights()
        buffer, place = member.weights.reserve(len(newest))
        buffer[:] = newest
        member.sent[behavior] = place.number
        member.host.post(ORDER, LoadWeights(behavior, version, place))

    def reports(self, timeout_s: float | None) -> Iterator[tuple[int, Report]]:
        pipes = {member.host.pipe: number for number, member in self._members.items()}
        ready = wait_for_any(pipes, _LONGEST_WAIT_S if timeout_s is None else timeout_s)
        return ((number, report) for number in ready for report in self._read(number))

    def _read(self, number: int) -> Iterator[Report]:
        """Yield all reports that an actor has sent, and ``Failed`` if it has died. Waits for at least one message."""
        member = self._members.get(number)
        while member is not None:
            try:
                kind, content = messages.read(member.host.pipe)
            except (EOFError, OSError):
                kind, content = messages.END, None
            if kind == messages.LOG:
                relay_log(content, f"Actor {number}", logging.DEBUG)
            elif kind == messages.FAULT:
                self.drop(number)
                yield Failed(content)
            elif kind == messages.END:
                yield Failed(ActorDiedError(f"The process of actor {number} {self._remove(number).bury()}."))
            else:
                if isinstance(content, Experience):
                    counts, place = content.place
                    try:
                        buffer = member.experience.buffer(place)
                    except OSError:  # The actor died, and its block no longer exists.
                        member.is_cut = True
                    if member.is_cut:  # Skip later experience, which would leave a gap.
                        continue
                    content.place = counts, buffer, partial(member.host.post, FREE, place.number)
                yield content
            if self._members.get(number) is not member or not wait_for_any({member.host.pipe: number}, 0.0):
                return

    def _remove(self, number: int) -> ChildProcess | ActorThread:
        member = self._members.pop(number)
        member.weights.close()
        return member.host

    def drop(self, number: int) -> None:
        if number in self._members:
            host = self._remove(number)
            host.kill()
            host.pipe.close()
            self._dropped.append(host)

    def _bury_dropped(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        for host in self._dropped:
            host.bury(max(0.0, deadline_s - time.monotonic()))
        self._dropped.clear()

    def close(self) -> None:
        for number in self._members:
            self.post(number, End())
        self.read_while(lambda: self._members, _CLOSE_GRACE_S)
        for number in self.present:
            self.drop(number)
        self._bury_dropped(_CLOSE_GRACE_S)

    def kill(self) -> None:
        for member in list(self._members.values()):
            member.host.kill()


def thread_transport(
    settings: RunSettings, make_task: Callable[[int], ActorTask], _log_folder: object, timers: Timers
) -> PipeTransport:
    """Create a transport to actors in threads. For the arguments, see ``ActorBackend.transport``."""
    assert settings.actors is not None
    return PipeTransport(make_task, settings.actors.count, timers, threads=True)


def process_transport(
    settings: RunSettings, make_task: Callable[[int], ActorTask], _log_folder: object, timers: Timers
) -> PipeTransport:
    """Create a transport to actors in processes. For the arguments, see ``ActorBackend.transport``.

    Raises:
        SettingsError: the environments cannot be created in another process.
    """
    assert settings.actors is not None
    try:
        with without_main_module():
            pickle.dumps(make_task(0))
    except Exception as error:
        raise SettingsError(
            f"actors.backend is process, but the function that makes the environment cannot be pickled ({error}), so "
            "it cannot be sent to another process. Use a function at the top level of a module that can be imported, "
            "or backend thread."
        ) from error
    return PipeTransport(make_task, settings.actors.count, timers)
