"""Groupmates: the columns against the per-agent oracle, and each rule by itself."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Thread

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.experience.drain import Drain, check
from tests.experience.harness import Harness, Round
from tests.experience.streams import TEAM_STREAMS, Message, Numbers, random_stream, vector_spec
from trajtrainer.core.queues import EpisodesAborted
from trajtrainer.experience import agent_processor
from trajtrainer.experience.agent_processor import AgentProcessor
from trajtrainer.experience.rows import RowPool
from trajtrainer.experience.source import ExperienceSource, RowsChunk
from trajtrainer.experience.trajectory import PackedSteps, gather, release

# Three together, one alone, one without a group.
STEADY = (1, 1, 1, 2, 0)


@settings(max_examples=100, deadline=None)
@given(
    TEAM_STREAMS,
    st.integers(1, 5),
    st.sampled_from([STEADY, ()]),
    st.lists(st.tuples(st.booleans(), st.integers(0, 9)), min_size=40, max_size=40),
)
def test_groups_equal_those_of_the_oracle(
    stream: list[Round], horizon: int, groups: Sequence[int], drains: list[tuple[bool, int]]
) -> None:
    harness = Harness(horizon, 0, groups=groups)
    drain = Drain(harness)
    for round_, (is_drained, cut) in zip(stream, drains, strict=False):
        drain.take(harness.play(round_))
        if is_drained:
            drain.drain(cut)
    drain.end()


@pytest.mark.parametrize("groups", [STEADY, (1, 1, 1, 1, 1, 1), (3, 3, 4, 4, 4, 4)])
def test_long_streams_equal_the_oracle(groups: Sequence[int]) -> None:
    harness = Harness(horizon=16, memory_size=2, groups=groups)
    drain = Drain(harness)
    for number, round_ in enumerate(random_stream(300, seed=7)):
        drain.take(harness.play(round_))
        if number % 37 == 0:
            drain.drain(number)
    drain.end()


def test_acting_and_learning_at_the_same_time() -> None:
    harness = Harness(horizon=7, memory_size=0, groups=STEADY)
    source = ExperienceSource()
    drained: list[PackedSteps] = []

    def learn() -> None:
        while source.wait(30) or len(source):
            parts = source.drain_into(lambda _: None, hold=False)
            drained.extend(part for part in parts if isinstance(part, PackedSteps))

    learner = Thread(target=learn)
    learner.start()
    for round_ in random_stream(600, seed=1):
        for batch in harness.play(round_):
            source.add(RowsChunk(harness.pool, [batch], batch.num_steps, batch.num_steps))
    source.close()
    learner.join(30)
    assert not learner.is_alive()
    checked = 0
    for packed in drained:
        check(packed, harness.expected[checked : checked + packed.num_trajectories])
        checked += packed.num_trajectories
    assert checked == len(harness.expected)
    harness.processor.drop()
    assert harness.pool.num_free == harness.pool.capacity


class Game:
    """One processor with observations that tell who sees when, rewards and groups as given in each message."""

    def __init__(self, horizon: int = 100) -> None:
        self.pool = RowPool(vector_spec(), [np.float32], groups=True, poison=True)
        self.processor = AgentProcessor(self.pool, horizon)
        self.numbers = Numbers(vector_spec(), 0)

    def send(
        self,
        obs: dict[int, float],
        *,
        ended: dict[int, float] | None = None,
        interrupted: bool = False,
        reward: dict[int, float] | None = None,
        group: dict[int, int] | None = None,
        worker: int = 0,
        team: int = 0,
    ) -> PackedSteps | None:
        """One message (agent -> observation) and its answer (action = 10 x observation); trajectories that end.

        Rewards are 0 and groups 1 unless given.
        """
        ended = ended or {}
        batch = self.numbers.steps(Message(worker, tuple((agent, interrupted) for agent in ended), tuple(obs)))
        ids = [*ended, *obs]
        batch.obs[0][:, 0] = [*ended.values(), *obs.values()]
        batch.reward[:] = [(reward or {}).get(agent, 0.0) for agent in ids]
        batch.group[:] = [(group or {}).get(agent, 1) for agent in ids]
        recorded = self.processor.record(batch, team)
        actions = self.numbers.actions(len(obs))
        actions.continuous[:] = 10 * batch.obs[0][len(ended) :]
        self.processor.acted(recorded.rows[len(ended) :], actions)
        if recorded.trajectories is None:
            return None
        packed = gather(self.pool, [recorded.trajectories])
        release(self.pool, [recorded.trajectories])
        return packed

    def assert_all_free(self) -> None:
        self.processor.drop()
        assert self.pool.num_free == self.pool.capacity


def _mates(packed: PackedSteps | None) -> list[list[tuple[float, float]]]:
    """What the mates of each step saw and did."""
    assert packed is not None
    assert packed.groups is not None
    groups = packed.groups
    obs = np.concatenate([packed.obs[0], groups.others.obs[0]])[:, 0]
    did = np.concatenate([packed["continuous"], groups.others["continuous"]])[:, 0]
    return [[(float(obs[mate]), float(did[mate])) for mate in row if mate >= 0] for row in groups.mates]


def _next(packed: PackedSteps | None) -> list[list[float]]:
    """What those who are left after each trajectory see."""
    assert packed is not None
    assert packed.groups is not None
    obs = np.concatenate([packed.obs[0], packed.groups.others.obs[0]])[:, 0]
    return [[float(obs[mate]) for mate in row if mate >= 0] for row in packed.groups.next_mates]


def _all_done(packed: PackedSteps | None) -> list[bool]:
    assert packed is not None
    assert packed.groups is not None
    done: list[bool] = packed.groups.all_done.tolist()
    return done


def test_a_member_that_ends_early_knows_who_is_left_and_its_steps_stay_for_the_others() -> None:
    game = Game()
    game.send({1: 1.0, 2: 2.0, 3: 3.0})
    early = game.send({2: 20.0, 3: 30.0}, ended={1: 10.0}, reward={1: -1.0, 2: 0.5})
    assert _mates(early) == [[(2.0, 20.0), (3.0, 30.0)]]
    assert _next(early) == [[20.0, 30.0]]
    assert _all_done(early) == [False]
    last = game.send({}, ended={2: 200.0, 3: 300.0}, reward={2: 4.0})
    assert last is not None
    assert _mates(last) == [[(1.0, 10.0), (3.0, 30.0)], [(30.0, 300.0)], [(1.0, 10.0), (2.0, 20.0)], [(20.0, 200.0)]]
    assert _next(last) == [[], []]
    assert _all_done(last) == [True, True]
    assert early is not None
    assert early["groupmate_reward"].tolist() == [0.5]
    assert last["groupmate_reward"].tolist() == [-1.0, 0.0, -0.5, 4.0]
    assert last.groups is not None
    assert len(last.groups.others) == 1, "only the step of the one that ended; the others' are steps"
    game.assert_all_free()


def test_a_group_that_is_interrupted_goes_on_together() -> None:
    game = Game()
    game.send({1: 1.0, 2: 2.0})
    packed = game.send({1: 5.0, 2: 6.0}, ended={1: 10.0, 2: 20.0}, interrupted=True)
    assert packed is not None
    assert packed.terminated.tolist() == [False, False]
    assert _next(packed) == [[20.0], [10.0]], "who begins with the same message is not of that episode"
    assert _all_done(packed) == [True, True]
    game.assert_all_free()


def test_a_cut_is_followed_by_all_who_are_there_then() -> None:
    game = Game(horizon=1)
    game.send({1: 1.0, 2: 2.0})
    packed = game.send({1: 10.0, 3: 30.0}, ended={2: 20.0})
    assert packed is not None
    assert packed.agent.tolist() == [2, 1]
    assert _mates(packed) == [[(1.0, 10.0)], [(2.0, 20.0)]]
    assert _next(packed) == [[10.0], [30.0]]
    assert _all_done(packed) == [False, False]
    game.assert_all_free()


def test_members_that_decide_in_turn_see_each_other_by_what_was_seen_last() -> None:
    game = Game()
    game.send({1: 1.0})
    game.send({2: 2.0})
    game.send({1: 3.0}, reward={1: 0.25})
    game.send({2: 4.0}, reward={2: 0.5})
    packed = game.send({}, ended={1: 5.0}, reward={1: 8.0})
    assert packed is not None
    assert _mates(packed) == [[], [(2.0, 20.0)]], "2 had not come when 1 decided first"
    assert packed["reward"].tolist() == [0.25, 8.0]
    assert packed["groupmate_reward"].tolist() == [0.0, 0.5]
    packed = game.send({}, ended={2: 6.0})
    assert packed is not None
    assert _mates(packed) == [[(1.0, 10.0)], [(3.0, 30.0)]]
    assert packed["groupmate_reward"].tolist() == [0.25, 8.0], "1 ended while 2 was silent"
    assert _all_done(packed) == [True]
    game.assert_all_free()


def test_an_agent_may_change_its_group() -> None:
    game = Game()
    group = {1: 1, 2: 1, 3: 2}
    game.send({1: 1.0, 2: 2.0, 3: 3.0}, group=group)
    group[1] = 2
    game.send({1: 10.0, 2: 20.0, 3: 30.0}, group=group, reward={1: 1.0, 2: 2.0, 3: 4.0})
    packed = game.send({}, ended={1: 100.0, 2: 200.0, 3: 300.0}, group=group, reward={1: 1.0, 2: 2.0, 3: 4.0})
    assert packed is not None
    assert _mates(packed) == [[(2.0, 20.0)], [(30.0, 300.0)], [(1.0, 10.0)], [], [], [(10.0, 100.0)]]
    assert packed["groupmate_reward"].tolist() == [2.0, 4.0, 1.0, 0.0, 0.0, 1.0]
    assert packed["group"].tolist() == [1, 2, 1, 1, 2, 2]
    game.assert_all_free()


def test_without_a_group_in_another_worker_or_team_nobody_is_a_mate() -> None:
    game = Game()
    nobody = {1: 0, 2: 0}
    game.send({1: 1.0, 2: 2.0}, group=nobody)
    game.send({3: 3.0}, worker=1)
    game.send({4: 4.0}, team=1)
    game.send({5: 5.0})
    for packed in (
        game.send({}, ended={1: 0.0, 2: 0.0}, group=nobody, reward={1: 1.0, 2: 1.0}),
        game.send({}, ended={3: 0.0}, reward={3: 1.0}, worker=1),
        game.send({}, ended={4: 0.0}, reward={4: 1.0}, team=1),
        game.send({}, ended={5: 0.0}, reward={5: 1.0}),
    ):
        assert packed is not None
        assert not any(_mates(packed))
        assert not any(_next(packed))
        assert all(_all_done(packed))
        assert not packed["groupmate_reward"].any()
    game.assert_all_free()


def test_actions_that_are_not_decided_yet_are_zeros() -> None:
    """Whoever reads them must not find what an earlier owner of the row left, or no number at all."""
    game = Game(horizon=2)
    game.send({1: 1.0, 2: 2.0})
    packed = game.send({1: 10.0}, ended={2: 20.0})
    assert packed is not None
    assert packed.groups is not None
    assert packed.groups.others["continuous"].tolist() == [[10.0], [0.0]]
    game.assert_all_free()


def test_rows_that_only_a_mate_keeps_are_given_back_with_it() -> None:
    """An agent with a long trajectory keeps the steps of all that come and go meanwhile."""
    game = Game(horizon=1000)
    game.send({0: 0.0, 1: 1.0})
    for other in range(1, 200):
        assert game.send({0: float(other), other + 1: 1.0}, ended={other: 1.0}) is not None
    assert game.pool.capacity - game.pool.num_free > 2 * 199
    packed = game.send({}, ended={0: 0.0})
    assert [len(row) for row in _mates(packed)] == [1] * 200
    assert game.pool.capacity - game.pool.num_free <= 2
    game.assert_all_free()


def test_a_reset_leaves_what_waits_whole() -> None:
    game = Game(horizon=3)
    for number in range(2):
        game.send({1: 10.0 + number, 2: 20.0 + number})
    batch = game.numbers.steps(Message(0, ((1, False),), ()))
    batch.group[:] = 1
    trajectories = game.processor.record(batch).trajectories
    assert trajectories is not None
    game.processor.drop(0)
    game.send({1: 0.0, 2: 0.0})  # takes rows that the reset gave back
    packed = gather(game.pool, [trajectories])
    assert _mates(packed) == [[(20.0, 200.0)], [(21.0, 210.0)]]
    assert _next(packed) == [[21.0]]
    release(game.pool, [trajectories])
    game.assert_all_free()


def test_mates_that_are_given_up_stay_for_those_who_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_processor, "_FEWEST_KEPT", 8)
    monkeypatch.setattr(agent_processor, "_MOST_KEPT", 8)
    game = Game()
    game.send({1: 1.0, 2: 2.0})
    for other in range(3, 20):
        game.send({1: float(other), other: -1.0}, group={other: other})
    packed = game.send({}, ended={1: 0.0})
    assert [row[:1] for row in _mates(packed)][:5] == [[(2.0, 20.0)]] * 5
    assert _mates(packed)[-1] == []
    game.assert_all_free()


def test_a_source_drains_groups_over_aborts_and_gives_all_back() -> None:
    game = Game(horizon=2)
    source = ExperienceSource()
    numbers = Numbers(vector_spec(), 0, groups=(1,))
    for number in range(6):
        batch = numbers.steps(Message(0, (), (1, 2, 3)))
        batch.obs[0][:, 0] = [10 * number + agent for agent in (1, 2, 3)]
        recorded = game.processor.record(batch)
        game.processor.acted(recorded.rows, numbers.actions(3))
        if recorded.trajectories is not None:
            source.add(RowsChunk(game.pool, [recorded.trajectories], *[recorded.trajectories.num_steps] * 2))
        if number == 2:
            source.abort_episodes(7)
    first, aborted, second = source.drain_into(lambda _: None, hold=True)
    assert isinstance(first, PackedSteps)
    assert isinstance(second, PackedSteps)
    assert aborted == EpisodesAborted(7)
    assert _next(first) == [[22.0, 23.0], [21.0, 23.0], [21.0, 22.0]]
    assert [[seen for seen, _ in row] for row in _mates(second)] == [
        [22.0, 23.0], [32.0, 33.0], [21.0, 23.0], [31.0, 33.0], [21.0, 22.0], [31.0, 32.0]
    ]  # fmt: skip
    game.assert_all_free()


def test_a_pool_without_groups_has_nothing_of_them() -> None:
    harness = Harness(horizon=2, memory_size=0)
    waiting = [batch for round_ in random_stream(20, seed=1) for batch in harness.play(round_)]
    packed = gather(harness.pool, waiting)
    assert packed.groups is packed.trajectories(0, 1).groups is None
    assert "groupmate_reward" not in packed.steps
