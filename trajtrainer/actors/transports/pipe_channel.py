"""An actor's end of a pipe: orders and reports in messages, experience and weights in shared memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple

from trajtrainer.actors.messages import ActorEndedError, Buffer, End, Order, Report
from trajtrainer.actors.transports.remote_channel import RemoteChannel, Room
from trajtrainer.workers import messages
from trajtrainer.workers.blocks import Blocks
from trajtrainer.workers.messages import LockedPipe
from trajtrainer.workers.shared_memory import MemoryAddress, SharedMemory

# Besides END, FAULT and LOG of ``workers.messages``.
ORDER = b"o"
FREE = b"v"  # number of a block that was read
REPORT = b"r"


class WeightsPlace(NamedTuple):
    """The place of weights: memory that the learner has made, one for each behavior.

    Attributes:
        behavior: its name.
        address: of the memory, the first time it is used.
    """

    behavior: str
    address: MemoryAddress | None


class PipeChannel(RemoteChannel):
    """See ``Channel``. A thread reads, so that the learner never waits for an actor that is at work.

    Blocks are made as they are needed. There are never many, as the actor's allowance bounds what waits in them.
    """

    def __init__(self, pipe: LockedPipe) -> None:
        super().__init__()
        self._pipe = pipe
        self._incoming: SimpleQueue[Order | None] = SimpleQueue()
        self._is_over = False
        self._blocks = Blocks()
        self._weights: dict[str, SharedMemory] = {}
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    def orders(self, *, wait: bool) -> Sequence[Order]:
        """See ``Channel``."""
        if self._is_over:
            raise ActorEndedError
        found: list[Order] = []
        try:
            while True:
                order = self._incoming.get(block=wait and not found)
                if order is None:
                    self._is_over = True
                    break
                found.append(order)
        except Empty:
            pass
        if self._is_over and not found:
            raise ActorEndedError
        return found

    def report(self, report: Report) -> None:
        """See ``Channel``."""
        try:
            self._pipe.post(REPORT, report)
        except OSError:
            raise ActorEndedError from None

    def room(self, size: int) -> Room:
        """See ``RemoteChannel``."""
        return Room(*self._blocks.reserve(size))

    def weights(self, place: WeightsPlace) -> Buffer:
        """See ``RemoteChannel``."""
        if place.address is not None:
            self._weights[place.behavior] = SharedMemory.open(place.address)
        return self._weights[place.behavior].buffer

    def _read(self) -> None:
        try:
            while True:
                kind, content = messages.read(self._pipe.connection)
                if kind == FREE:
                    self._blocks.take_back(content)
                else:
                    self._incoming.put(content)
        except (EOFError, OSError):
            self._incoming.put(End())
            self._incoming.put(None)
            self._pipe.connection.close()
