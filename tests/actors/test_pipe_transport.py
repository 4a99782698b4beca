"""What comes from an actor over its pipe, up to its end."""

from __future__ import annotations

from multiprocessing import Pipe

import numpy as np
import pytest

from trajtrainer.actors.messages import ActorDiedError, Experience, Failed
from trajtrainer.actors.pipe_channel import REPORT, BlockPlace
from trajtrainer.actors.pipe_transport import PipeTransport, _Member
from trajtrainer.core.errors import SettingsError
from trajtrainer.data.packed_layout import Counts
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.shared_memory import SharedMemory


class Ended:
    """An actor that has said all it had to say."""

    pid = None
    is_alive = True

    def __init__(self) -> None:
        self.pipe, self.other = Pipe()

    def post(self, kind: bytes, *content: object) -> None:
        pass

    def kill(self) -> None:
        pass

    def bury(self) -> str:
        return "fell"


@pytest.mark.parametrize("end", ["died", "said why", "said no more"])
def test_what_was_handed_over_before_the_end_is_read_before_it(end: str) -> None:
    transport, runs, block = (
        PipeTransport(lambda _: pytest.fail("nobody is started"), 1),
        Ended(),
        SharedMemory.create(8),
    )
    transport._members[0] = _Member(runs)
    block.buffer[:] = 7
    messages.post(runs.other, REPORT, Experience("Walker", Counts(1, 1), BlockPlace(0, block.address)))
    if end == "said why":
        messages.post(runs.other, messages.FAULT, SettingsError("A mistake."))
    elif end == "said no more":
        messages.post(runs.other, messages.END)
    if end == "died":
        runs.other.close()
    ((_, report),) = transport.reports(1.0)
    assert isinstance(report, Experience)
    assert np.array_equal(transport.experience(0, report.place)[0], np.full(8, 7, np.uint8))
    ((_, failed),) = transport.reports(1.0)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, SettingsError if end == "said why" else ActorDiedError)
    assert transport.reports(0.0) == []
