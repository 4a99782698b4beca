"""What comes from an actor over its pipe, up to its end."""

from __future__ import annotations

from multiprocessing import Pipe
from typing import Any, cast

import numpy as np
import pytest

from tests.learning.trainers.rig import vector_spec
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.steps import WORKER_SHIFT
from trajtrainer.core.timers import Timers
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.messages import LockedPipe
from trajtrainer.envs.workers.shared_memory import BlockPlace, SharedMemory
from trajtrainer.experience.source import Counts, PackedChunk, PackedLayout
from trajtrainer.run.actors.messages import (
    REPORT,
    ActorDiedError,
    ActorEndedError,
    End,
    Experience,
    Failed,
    Hello,
    Report,
    SetParameters,
)
from trajtrainer.run.actors.transports.pipe import ORDER, PipeTransport, _Member
from trajtrainer.run.actors.transports.pipe_channel import PipeChannel


class Ended:
    """An actor that has said all it had to say."""

    def __init__(self) -> None:
        self.pipe, self.other = Pipe()
        self.told: list[str] = []

    def post(self, kind: bytes, *content: object) -> None:
        pass

    def kill(self) -> None:
        self.told.append("kill")

    def bury(self, timeout_s: float = 0.0) -> str:
        self.told.append("bury")
        return "fell"


@pytest.mark.parametrize("end", ["died", "said why", "said no more"])
def test_what_was_handed_over_before_the_end_is_read_before_it(end: str) -> None:
    transport = PipeTransport(lambda _: pytest.fail("nobody is started"), 1, Timers())
    layout, counts, runs = PackedLayout(vector_spec(), [np.float32]), Counts(1, 1), cast(Any, Ended())
    block = SharedMemory.create(layout.size(counts))
    transport._members[0] = _Member(runs)
    layout.over(block.buffer, counts)["reward"][:] = 7
    messages.post(runs.other, REPORT, Experience("Walker", 1, (counts, BlockPlace(0, block.address))))
    if end == "said why":
        messages.post(runs.other, messages.FAULT, SettingsError("A mistake."))
    elif end == "said no more":
        messages.post(runs.other, messages.END)
    if end == "died":
        runs.other.close()
    reports: list[Report] = []
    assert transport.poll(60.0, lambda _, report: reports.append(report)) == 2
    report, failed = reports
    assert isinstance(report, Experience)
    chunk = report.chunk(layout, 3)
    assert isinstance(chunk, PackedChunk)
    assert chunk.packed["reward"].tolist() == [7.0]
    assert chunk.packed.agent[0] >> WORKER_SHIFT == 3
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, SettingsError if end == "said why" else ActorDiedError)
    assert transport.poll(0.0, lambda _, report: reports.append(report)) == 0


def test_nothing_counts_that_a_dead_actor_sent_after_what_is_lost() -> None:
    """A block that nobody has opened dies with the actor. What it wrote later into an open one would leave a gap."""
    transport = PipeTransport(lambda _: pytest.fail("nobody is started"), 1, Timers())
    layout, counts, runs = PackedLayout(vector_spec(), [np.float32]), Counts(1, 1), cast(Any, Ended())
    block = SharedMemory.create(layout.size(counts))
    gone = block.address._replace(name=f"{block.address.name}0000")
    transport._members[0] = _Member(runs)
    for place in (BlockPlace(0, block.address), BlockPlace(1, gone), BlockPlace(0, None)):
        messages.post(runs.other, REPORT, Experience("Walker", 1, (counts, place)))
    runs.other.close()
    reports: list[Report] = []
    transport.poll(60.0, lambda _, report: reports.append(report))
    assert [type(report) for report in reports] == [Experience, Failed]


def test_dropping_an_actor_waits_for_nothing_and_nothing_more_comes_of_it() -> None:
    transport, hosts = PipeTransport(lambda _: pytest.fail("nobody is started"), 2, Timers()), [Ended(), Ended()]
    for number, host in enumerate(hosts):
        transport._members[number] = _Member(cast(Any, host))
        for _ in range(2):
            messages.post(host.other, REPORT, Hello("0"))
    seen: list[int] = []

    def take(number: int, _report: Report) -> None:
        seen.append(number)
        if number == 0:
            transport.drop(0)

    assert transport.poll(60.0, take) == 3
    assert sorted(seen) == [0, 1, 1]
    assert transport.present == [1]
    assert [host.told for host in hosts] == [["kill"], []]
    hosts[1].other.close()
    assert transport.poll(60.0, take) == 1
    transport.close()
    assert [host.told for host in hosts] == [["kill", "bury"], ["bury"]]


def test_the_end_is_the_answer_to_every_later_question() -> None:
    learner, actor = Pipe()
    channel = PipeChannel(LockedPipe(actor))
    messages.post(learner, ORDER, SetParameters({}))
    learner.close()
    found = [*channel.orders(wait=True)]
    while found[-1] != End():
        found += channel.orders(wait=True)
    assert found == [SetParameters({}), End()]
    assert channel.orders(wait=True) == channel.orders(wait=False) == [End()]
    with pytest.raises(ActorEndedError):
        channel.report(Hello("0"))
