"""Who may collect how much."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trajtrainer.experience.source import ExperienceSource
from trajtrainer.run.actors.pacing import Account, ByUpdates, Shared


class Learner(ExperienceSource):
    """A learner that has consumed as much as the test says."""

    consumed = 0


class Rig:
    """Actors that collect what they may, trajectory by trajectory, and a learner that consumes."""

    def __init__(self, actors: int, lead: int, *, in_updates: bool = False, in_turn: bool = False) -> None:
        self.source = Learner()
        self.pacing = Shared("Walker", self.source, lead)
        if in_updates or in_turn:
            trainer: Any = SimpleNamespace(
                context=SimpleNamespace(behavior="Walker", settings=SimpleNamespace(buffer_size=10**9)),
                source=self.source,
                publisher=SimpleNamespace(version=0),
                is_due=lambda: True,
            )
            self.pacing = ByUpdates(trainer, 0 if in_turn else 1, lambda: 10**9)
            self.pacing.lead = lead
        self.may = dict.fromkeys(range(actors), 0)
        self.has = dict.fromkeys(range(actors), 0)
        for actor in self.may:
            self.pacing.accounts[actor] = Account()  # all come at once
        self.grant()

    def join(self, actor: int) -> None:
        self.has[actor] = 0
        self.may[actor] = self.pacing.add_actor(actor).rows

    def consume(self, rows: int) -> None:
        self.source.consumed = self.pacing.consumed = rows

    def grant(self) -> dict[int, int]:
        given = {actor: allowance.rows for actor, allowance in self.pacing.raised(list(self.pacing.accounts))}
        for actor, rows in given.items():
            assert rows > self.may[actor], "what was given is never taken back"
            self.may[actor] = rows
        return given

    def collect(self, actor: int, rows: int) -> None:
        self.has[actor] += rows
        self.pacing.count(actor, rows, rows)

    def leave(self, actor: int) -> None:
        del self.may[actor], self.has[actor], self.pacing.accounts[actor]

    @property
    def outstanding(self) -> int:
        return sum(max(0, self.may[actor] - self.has[actor]) for actor in self.may)


KINDS = ["collect", "collect", "collect", "consume", "leave", "join"]
EVENTS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 3)))


@given(actors=st.integers(1, 4), lead=st.integers(1, 50), flags=st.tuples(st.booleans(), st.booleans()), events=EVENTS)
def test_nobody_gets_ahead_and_somebody_can_always_go_on(
    actors: int, lead: int, flags: tuple[bool, bool], events: list[tuple[str, int]]
) -> None:
    rig = Rig(actors, lead, in_updates=flags[0], in_turn=flags[1])
    pacing = rig.pacing
    for kind, number in events:
        actor = number % actors
        if kind == "collect" and actor in rig.may and rig.may[actor] > rig.has[actor]:
            rig.collect(actor, min(number + 1, rig.may[actor] - rig.has[actor]))
        elif kind == "consume":
            rig.consume(pacing.collected)
        elif kind == "leave" and actor in rig.may and len(rig.may) > 1:
            rig.leave(actor)
        elif kind == "join" and actor not in rig.may:
            rig.join(actor)
        rig.grant()
        assert pacing.collected + rig.outstanding <= pacing.consumed + lead
        assert [actor for actor in rig.may if pacing.may_collect(actor)] == [
            actor for actor in rig.may if rig.may[actor] > rig.has[actor]
        ]
        if not rig.outstanding:
            assert pacing.collected == pacing.consumed + lead, "nobody may go on, although there is something left"


def test_what_is_left_is_shared_out_ahead_of_time() -> None:
    rig = Rig(4, 400)
    assert rig.may == {0: 100, 1: 100, 2: 100, 3: 100}
    rig.collect(0, 100)
    assert rig.grant() == {}
    rig.consume(100)
    assert rig.grant() == {0: 200}


def test_a_little_is_worth_a_message_when_an_update_has_made_room_for_it() -> None:
    paced, rig = Rig(1, 20), Rig(1, 20, in_updates=True)
    for each in (paced, rig):
        each.collect(0, 5)
        assert each.grant() == {}
        each.consume(2)
    assert paced.grant() == {}
    assert rig.grant() == {0: 22}, "the next update may lack no more than this"
    rig.consume(2)
    assert rig.grant() == {}


def test_in_turn_half_is_kept_for_who_is_done_first() -> None:
    rig = Rig(2, 100, in_turn=True)
    assert rig.may == {0: 25, 1: 25}
    rig.collect(0, 25)
    assert rig.grant() == {0: 44}
    rig.collect(0, 19)
    assert rig.grant() == {0: 58}, "a slow one does not hold the other"


def test_one_actor_in_turn_gets_all() -> None:
    rig = Rig(1, 100, in_turn=True)
    assert rig.may == {0: 100}
    rig.collect(0, 130)  # trajectories are as long as they are
    assert rig.grant() == {}
    rig.consume(130)
    assert rig.grant() == {0: 230}


def test_the_credit_of_who_is_gone_is_that_of_the_others() -> None:
    rig = Rig(2, 100)
    rig.collect(0, 50)
    assert rig.grant() == {}
    rig.leave(1)
    assert rig.grant() == {0: 100}


def test_one_may_collect_what_others_cannot() -> None:
    rig = Rig(2, 100, in_turn=True)
    rig.collect(0, 25)
    rig.grant()
    rig.collect(0, 19)
    ((actor, allowance),) = rig.pacing.lend(0)
    assert (actor, allowance.rows) == (0, 100)
    assert list(rig.pacing.lend(0)) == [], "it has all there is"
    rig.collect(0, 56)
    assert list(rig.pacing.lend(1)) == [], "nothing is left"
    assert rig.grant() == {}


def test_nobody_collects_beyond_the_end() -> None:
    pacing = Shared("Walker", Learner(), 100, most_steps=lambda: 30)
    first = pacing.add_actor(0)
    assert (first.rows, first.steps) == (100, 30)
