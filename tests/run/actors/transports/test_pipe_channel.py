"""Blocks of shared memory between an actor and the learner."""

from __future__ import annotations

import os
from multiprocessing import Pipe
from typing import Any, cast

import numpy as np
import pytest

from tests.learning.trainers.rig import vector_spec
from trajtrainer.core.timers import Timers
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.messages import LockedPipe
from trajtrainer.experience.source import Counts, PackedChunk, PackedLayout
from trajtrainer.run.actors.messages import Experience
from trajtrainer.run.actors.transports.pipe import PipeTransport, _Member
from trajtrainer.run.actors.transports.pipe_channel import PipeChannel

LAYOUT = PackedLayout(vector_spec(), [np.float32])


class Here:
    """An actor at the other end of a pipe."""

    def __init__(self) -> None:
        self.pipe, other = Pipe()
        self.channel = PipeChannel(LockedPipe(other))

    def post(self, kind: bytes, *content: Any) -> None:
        messages.post(self.pipe, kind, *content)

    def kill(self) -> None:
        self.pipe.close()

    def bury(self, timeout_s: float = 0.0) -> str:
        return "is gone"


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files by /proc")
def test_blocks_that_become_larger_are_forgotten_at_both_ends() -> None:
    transport, runs = PipeTransport(lambda _: pytest.fail("nobody is started"), 1, Timers()), Here()
    transport._members[0] = _Member(cast(Any, runs))
    files = len(os.listdir("/proc/self/fd"))
    for turn in range(40):
        counts = Counts(40 * 2 ** (turn % 10), 1)
        buffer, place = runs.channel.reserve(LAYOUT.size(counts))
        LAYOUT.over(buffer, counts)["reward"][0] = turn
        runs.channel.report(Experience("Walker", 1, (counts, place)))
        ((_, report),) = transport.reports(1.0)
        assert isinstance(report, Experience)
        chunk = report.chunk(LAYOUT, 0)
        assert isinstance(chunk, PackedChunk)
        assert chunk.packed["reward"][0] == turn
        chunk.free()
        while not runs.channel._blocks._free:
            pass
        del buffer, report, chunk
    assert len(os.listdir("/proc/self/fd")) <= files + 2
    transport.drop(0)
