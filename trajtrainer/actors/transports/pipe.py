"""Actors of this machine, in processes or threads, at the other ends of pipes."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import Pipe
from typing import Any, Protocol

import torch

from trajtrainer.actors.actor import Host
from trajtrainer.actors.messages import (
    ActorDiedError,
    ActorTask,
    Buffer,
    End,
    Experience,
    Failed,
    Order,
    Report,
    Weights,
)
from trajtrainer.actors.transports.pipe_channel import FREE, ORDER, PipeChannel, WeightsPlace
from trajtrainer.actors.transports.remote_transport import RemoteTransport
from trajtrainer.core.timers import Timers
from trajtrainer.data.packed_layout import PackedLayout
from trajtrainer.data.source import Chunk, PackedChunk
from trajtrainer.data.trajectory import of_workers
from trajtrainer.workers import messages
from trajtrainer.workers.blocks import BlockPlace, OpenedBlocks
from trajtrainer.workers.log_relay import relay_log
from trajtrainer.workers.messages import LockedPipe
from trajtrainer.workers.process import ChildProcess, begin_child, wait_for_any
from trajtrainer.workers.shared_memory import SharedMemory

# For players to quit by themselves.
_CLOSE_GRACE_S = 16.0
_LONGEST_WAIT_S = 1.0


class Runs(Protocol):
    """A process or a thread in which an actor runs."""

    pipe: messages.Pipe

    def post(self, kind: bytes, *content: object) -> None:
        """Send a message. That it is gone shows when its pipe is read."""

    def kill(self) -> None:
        """End it at once and do not wait."""

    def bury(self) -> str:
        """Wait for its end and free what belongs to it; return how it ended."""


def run_actor(task: ActorTask, connection: messages.Pipe, lifeline: messages.Pipe) -> None:
    """Run an actor in a process of its own, until the learner says that this is the end, or is gone."""
    torch.set_num_threads(1)
    pipe = LockedPipe(connection)
    host = Host(task, PipeChannel(pipe))
    begin_child(pipe, lifeline, task.log_level, host.kill)
    _run(host, pipe)


def _run(host: Host, pipe: LockedPipe) -> None:
    try:
        host.run()
    except Exception as error:
        # First told, and only then closed, which may take seconds.
        with contextlib.suppress(OSError):
            pipe.post(messages.FAULT, messages.portable(error))
    finally:
        with contextlib.suppress(Exception):
            host.close()


class _InThread:
    """An actor in a thread of this process."""

    def __init__(self, task: ActorTask) -> None:
        self.pipe, other = Pipe()
        pipe = LockedPipe(other)
        self._host = Host(task, PipeChannel(pipe))

        def run() -> None:
            _run(self._host, pipe)
            with contextlib.suppress(OSError):  # its end of the pipe stays open for as long as somebody reads there
                pipe.post(messages.END)

        self._thread: threading.Thread | None = threading.Thread(target=run, name=f"actor {task.number}", daemon=True)
        self._thread.start()

    def post(self, kind: bytes, *content: object) -> None:
        with contextlib.suppress(OSError):
            messages.post(self.pipe, kind, *content)

    def kill(self) -> None:
        self._host.kill()

    def bury(self) -> str:
        self.pipe.close()
        if self._thread is not None:
            self._thread.join(_CLOSE_GRACE_S)
            self._thread = None
        return "has ended"


class _Member:
    """One actor with its shared memory.

    Attributes:
        end: its last message, or what stands for it; None before that.
    """

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.end: tuple[bytes, Any] | None = None
        self.blocks = OpenedBlocks()
        self.weights: dict[str, SharedMemory] = {}

    def forget_memory(self) -> None:
        self.blocks.close()
        for memory in self.weights.values():
            memory.close()
        self.weights = {}


class PipeTransport(RemoteTransport):
    """See ``Transport``.

    Args:
        make_task: the task of each actor.
        count: of actors.
        timers: of the run.
        threads: whether they run in threads of this process.
    """

    def __init__(
        self, make_task: Callable[[int], ActorTask], count: int, timers: Timers, *, threads: bool = False
    ) -> None:
        self._make_task = make_task
        super().__init__(timers)
        self._threads = threads
        self._members: list[_Member | None] = [None] * count

    def __len__(self) -> int:
        return len(self._members)

    def start(self, number: int) -> None:
        """See ``Transport``."""
        self.drop(number)
        task = self._make_task(number)
        self._members[number] = _Member(
            _InThread(task)
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
        """See ``Transport``."""
        member = self._members[number]
        if member is not None:
            member.runs.post(ORDER, order)

    def publish(self, number: int, behavior: str, version: int, weights: Callable[[], Buffer]) -> None:
        """See ``Transport``."""
        member = self._members[number]
        if member is None:
            return
        newest = weights()
        memory, address = member.weights.get(behavior), None
        if memory is None:
            memory = member.weights[behavior] = SharedMemory.create(len(newest))
            address = memory.address
        else:
            memory.unlink()  # the last ones were read
        memory.buffer[:] = newest
        self.post(number, Weights(behavior, version, WeightsPlace(behavior, address)))

    def chunk(self, number: int, report: Experience, layout: PackedLayout, first_worker: int) -> Chunk | None:
        """See ``Transport``."""
        member = self._members[number]
        counts, place = report.place
        assert isinstance(place, BlockPlace)
        if member is None:
            return None
        try:
            buffer = member.blocks.buffer(place)
        except OSError:  # the actor is gone, and with it the block
            return None
        packed = of_workers(layout.over(buffer, counts), first_worker)
        return PackedChunk(packed, report.rows, partial(member.runs.post, FREE, place.number))

    @property
    def present(self) -> Sequence[int]:
        """See ``Transport``."""
        return [number for number, member in enumerate(self._members) if member is not None]

    def reports(self, timeout_s: float | None) -> Sequence[tuple[int, Report]]:
        """See ``RemoteTransport``."""
        ended = [number for number, member in enumerate(self._members) if member is not None and member.end]
        buried = [(number, self._bury(number)) for number in ended]
        pipes = {member.runs.pipe: number for number, member in enumerate(self._members) if member is not None}
        if buried:
            timeout_s = 0.0
        ready = wait_for_any(pipes, _LONGEST_WAIT_S if timeout_s is None else timeout_s)
        return [*buried, *((number, report) for number in ready for report in self._read(number))]

    def _read(self, number: int) -> list[Report]:
        """Return all that an actor has sent. Waits for one message at least.

        Its end is kept for the next time, if there is something else: with it goes the memory of what it has sent.
        """
        member = self._members[number]
        assert member is not None
        found: list[Report] = []
        while member.end is None:
            try:
                kind, content = messages.read(member.runs.pipe)
            except (EOFError, OSError):
                member.end = messages.END, None
                break
            if kind == messages.LOG:
                relay_log(content, f"Actor {number}", logging.DEBUG)
            elif kind in (messages.END, messages.FAULT):
                member.end = kind, content
            else:
                found.append(content)
            if not _has_more(member.runs.pipe):
                break
        return found if found or member.end is None else [self._bury(number)]

    def _bury(self, number: int) -> Failed:
        member = self._members[number]
        assert member is not None
        assert member.end is not None
        kind, content = member.end
        if kind == messages.FAULT:
            self.drop(number)
            return Failed(content)
        self._members[number] = None
        how = member.runs.bury()
        member.forget_memory()
        return Failed(ActorDiedError(f"The process of actor {number} {how}."))

    def drop(self, number: int) -> None:
        """See ``Transport``."""
        member, self._members[number] = self._members[number], None
        if member is not None:
            member.runs.kill()
            member.runs.bury()
            member.forget_memory()

    def close(self) -> None:
        """See ``Transport``."""
        for number in range(len(self)):
            self.post(number, End())
        deadline_s = time.monotonic() + _CLOSE_GRACE_S
        while any(self._members) and (remaining_s := deadline_s - time.monotonic()) > 0:
            self.reports(remaining_s)  # for the log, and the end of the pipes
        for number in range(len(self)):
            self.drop(number)

    def kill(self) -> None:
        """See ``Transport``."""
        for member in self._members:
            if member is not None:
                member.runs.kill()


def _has_more(pipe: messages.Pipe) -> bool:
    try:
        return pipe.poll()
    except OSError:  # on Windows, if the other end is gone: reading tells it, too
        return True


def log_level(number: int, *, debug: bool) -> int:
    """Return the level of one actor's log: all say the same as they start, so one is enough. Warnings come from all."""
    level = logging.getLogger("trajtrainer").getEffectiveLevel()
    return level if number == 0 or debug else max(level, logging.WARNING)
