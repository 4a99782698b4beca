"""Blocks of shared memory between an actor and the learner."""

from __future__ import annotations

import os
from multiprocessing import Pipe
from typing import Any

import pytest

from trajtrainer.actors.pipe_channel import PipeChannel
from trajtrainer.actors.pipe_transport import PipeTransport, _Member
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.child import LockedPipe


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
    transport, runs = PipeTransport(lambda _: pytest.fail("nobody is started"), 1), Here()
    transport._members[0] = _Member(runs)
    files = len(os.listdir("/proc/self/fd"))
    for turn in range(40):
        room = runs.channel.room(1000 * 2 ** (turn % 10))
        room.buffer[0] = turn
        buffer, release = transport.experience(0, room.place)
        assert buffer[0] == turn
        release()
        while not runs.channel._free:
            pass
        del room, buffer
    assert len(os.listdir("/proc/self/fd")) <= files + 2
    transport.drop(0)
