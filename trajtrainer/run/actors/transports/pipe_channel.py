"""The actor's end of the pipe to the learner; see ``pipe``."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace

from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.messages import LockedPipe
from trajtrainer.envs.workers.shared_memory import BlockPlace, Blocks, OpenedBlocks
from trajtrainer.run.actors.messages import REPORT, ActorEndedError, Buffer, End, LoadWeights, Report
from trajtrainer.run.actors.transports.remote import RemoteChannel

FREE = b"v"  # frees a block: the learner has read it


class PipeChannel(RemoteChannel):
    """The actor's end. It allocates memory blocks as needed; the allowance limits their number."""

    def __init__(self, pipe: LockedPipe) -> None:
        super().__init__()
        self._pipe = pipe
        self._blocks = Blocks()
        self._weights = OpenedBlocks()
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    def report(self, report: Report) -> None:
        try:
            self._pipe.post(REPORT, report)
        except OSError:
            raise ActorEndedError from None

    def reserve(self, size: int) -> tuple[Buffer, BlockPlace]:
        return self._blocks.reserve(size)

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                kind, content = messages.read(self._pipe.connection)
                if kind == FREE:
                    self._blocks.take_back(content)
                    continue
                if isinstance(content, LoadWeights):
                    content = replace(content, place=self._weights.buffer(content.place))
                self.incoming.put(content)
        self.incoming.put(End())  # The learner has ended.
        self._pipe.close()
