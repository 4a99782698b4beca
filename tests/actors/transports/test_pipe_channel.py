"""Blocks of shared memory between an actor and the learner."""

from __future__ import annotations

import os
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest

from tests.trainers.rig import vector_spec
from trajtrainer.actors.messages import Experience
from trajtrainer.actors.transports.pipe import PipeTransport, _Member
from trajtrainer.actors.transports.pipe_channel import PipeChannel
from trajtrainer.core.timers import Timers
from trajtrainer.data.packed_layout import Counts, PackedLayout
from trajtrainer.data.source import PackedChunk
from trajtrainer.workers import messages
from trajtrainer.workers.messages import LockedPipe

LAYOUT = PackedLayout(vector_spec(), [np.float32])


class Here:
    """An actor at the other end of a pipe."""

    pid = None
    is_alive = True

    def __init__(self) -> None:
        self.pipe, other = Pipe()
        self.channel = PipeChannel(LockedPipe(other))

    def post(self, kind: bytes, *content: Any) -> None:
        messages.post(self.pipe, kind, *content)

    def kill(self) -> None:
        self.pipe.close()

    def bury(self) -> str:
        return "is gone"


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files by /proc")
def test_blocks_that_become_larger_are_forgotten_at_both_ends() -> None:
    transport, runs = PipeTransport(lambda _: pytest.fail("nobody is started"), 1, Timers()), Here()
    transport._members[0] = _Member(runs)
    files = len(os.listdir("/proc/self/fd"))
    for turn in range(40):
        counts = Counts(40 * 2 ** (turn % 10), 1)
        room = runs.channel.room(LAYOUT.size(counts))
        LAYOUT.over(room.buffer, counts)["reward"][0] = turn
        chunk = transport.chunk(0, Experience("Walker", 1, (counts, room.place)), LAYOUT, 0)
        assert isinstance(chunk, PackedChunk)
        assert chunk.packed["reward"][0] == turn
        chunk.free()
        while not runs.channel._blocks._free:
            pass
        del room, chunk
    assert len(os.listdir("/proc/self/fd")) <= files + 2
    transport.drop(0)
