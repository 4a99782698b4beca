"""The columns against the per-agent oracle, and each rule by itself."""

from __future__ import annotations

from threading import Thread

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.experience.harness import Harness, Round
from tests.experience.oracle import pack
from tests.experience.packing import concatenate
from tests.experience.streams import (
    STREAMS,
    Message,
    Numbers,
    assert_same,
    random_stream,
    vector_spec,
)
from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.queues import TrajectoryQueue
from trajtrainer.core.steps import StepBatch
from trajtrainer.experience import agent_processor
from trajtrainer.experience.agent_processor import AgentProcessor
from trajtrainer.experience.rows import RowPool
from trajtrainer.experience.trajectory import PackedSteps, TrajectoryBatch, gather, release


@settings(max_examples=200, deadline=None)
@given(STREAMS, st.integers(1, 5), st.sampled_from([0, 3]), st.lists(st.booleans(), min_size=40, max_size=40))
def test_trajectories_equal_those_of_the_oracle(
    stream: list[Round], horizon: int, memory_size: int, drained: list[bool]
) -> None:
    harness = Harness(horizon, memory_size)
    waiting: list[TrajectoryBatch] = []
    packed: list[PackedSteps] = []
    for round_, drain in zip(stream, drained, strict=False):
        waiting += harness.play(round_)
        if drain and waiting:
            packed.append(gather(harness.pool, waiting))
            release(harness.pool, waiting)
            waiting = []
    if waiting:
        packed.append(gather(harness.pool, waiting))
        release(harness.pool, waiting)
    assert harness.episode_lengths == harness.oracle.episode_lengths
    assert bool(packed) == bool(harness.expected)
    if packed:
        assert_same(concatenate(packed), pack(harness.expected))
    harness.processor.drop()
    assert harness.pool.num_free == harness.pool.capacity


def test_producer_and_consumer_threads() -> None:
    """The consumer lags behind, and nothing is lost or overwritten."""
    harness = Harness(horizon=7, memory_size=2)
    queue: TrajectoryQueue[TrajectoryBatch] = TrajectoryQueue()
    packed: list[PackedSteps] = []

    def consume() -> None:
        while queue.wait(30) or len(queue):
            batches = [item for item in queue.drain() if isinstance(item, TrajectoryBatch)]
            packed.append(gather(harness.pool, batches))
            release(harness.pool, batches)

    consumer = Thread(target=consume)
    consumer.start()
    for round_ in random_stream(2000, seed=1):
        for batch in harness.play(round_):
            queue.put(batch)
    queue.close()
    consumer.join(30)
    assert not consumer.is_alive()
    assert_same(concatenate(packed), pack(harness.expected))
    harness.processor.drop()
    assert harness.pool.num_free == harness.pool.capacity


def test_rows_are_used_again_and_the_pool_does_not_grow() -> None:
    harness = Harness(horizon=7, memory_size=0)
    capacities = []
    for round_ in random_stream(1500, seed=2):
        release(harness.pool, harness.play(round_))
        capacities.append(harness.pool.capacity)
    assert capacities[-1] == capacities[200]


def test_processors_that_share_a_pool_do_not_disturb_each_other() -> None:
    first, second = Harness(horizon=3, memory_size=2), Harness(horizon=5, memory_size=2)
    pool = second.pool = first.pool
    second.processor = AgentProcessor(pool, 5)
    waiting: dict[int, list[TrajectoryBatch]] = {0: [], 1: []}
    for i, round_ in enumerate(random_stream(200, seed=4)):
        waiting[i % 2] += (first, second)[i % 2].play(round_)
    for i, harness in enumerate((first, second)):
        assert_same(gather(pool, waiting[i]), pack(harness.expected))
        release(pool, waiting[i])
        harness.processor.drop()
    assert pool.num_free == pool.capacity


class Simple:
    """One agent processor with scalar observations, rewards and actions that tell where they come from."""

    def __init__(self, horizon: int = 100, memory_size: int = 0) -> None:
        self.pool = RowPool(vector_spec(), [np.float32], memory_size=memory_size, poison=True)
        self.processor = AgentProcessor(self.pool, horizon)
        self.numbers = Numbers(vector_spec(), memory_size)
        self.lengths: list[int] = []

    def send(
        self,
        obs: dict[int, float] | None = None,
        *,
        ended: dict[int, float] | None = None,
        interrupted: bool = False,
        reward: float = 0.0,
        worker: int = 0,
    ) -> PackedSteps | None:
        """One message (agent -> observation) and its answer (action = 10 x observation); trajectories that end."""
        deciding, ended = obs or {}, ended or {}
        batch = self.numbers.steps(Message(worker, tuple((a, interrupted) for a in ended), tuple(deciding)))
        batch.obs[0][:, 0] = [*ended.values(), *deciding.values()]
        batch.reward[:] = reward
        recorded = self.processor.record(batch)
        self.lengths += recorded.episode_lengths
        actions = self.numbers.actions(len(deciding))
        actions.continuous[:] = 10 * batch.obs[0][len(ended) :]
        if actions.memory.size:
            actions.memory[:] = 100 * batch.obs[0][len(ended) :]
        self.processor.acted(recorded.rows[len(ended) :], actions)
        if recorded.trajectories is None:
            return None
        packed = gather(self.pool, [recorded.trajectories])
        release(self.pool, [recorded.trajectories])
        return packed


def test_step_has_the_reward_that_comes_with_the_next_record() -> None:
    game = Simple()
    assert game.send({5: 1.0}, reward=99.0) is None
    assert game.send({5: 2.0}, reward=0.5) is None
    packed = game.send(ended={5: 3.0}, reward=-1.0)
    assert packed is not None
    assert packed.obs[0][:, 0].tolist() == [1.0, 2.0]
    assert packed["continuous"][:, 0].tolist() == [10.0, 20.0]
    assert packed["reward"].tolist() == [0.5, -1.0]
    assert packed["done"].tolist() == [False, True]
    assert packed.bootstrap.obs[0].tolist() == [[3.0]]
    assert packed.terminated.tolist() == packed.ended.tolist() == [True]
    assert packed["version"].tolist() == [1, 2]
    assert game.lengths == [1]


def test_interrupted_episode_ends_without_terminating() -> None:
    game = Simple()
    game.send({5: 1.0})
    packed = game.send(ended={5: 3.0}, interrupted=True)
    assert packed is not None
    assert packed["done"].tolist() == packed["interrupted"].tolist() == packed.ended.tolist() == [True]
    assert packed.terminated.tolist() == [False]
    assert game.lengths == [0]


def test_same_id_ends_and_begins_in_one_message() -> None:
    game = Simple(memory_size=1)
    game.send({5: 1.0})
    first = game.send({5: 4.0}, ended={5: 3.0})
    second = game.send(ended={5: 6.0})
    assert first is not None
    assert second is not None
    assert first.obs[0].tolist() == [[1.0]]
    assert first.bootstrap.obs[0].tolist() == [[3.0]]
    assert first.bootstrap["memory"].tolist() == [[100.0]]
    assert second.obs[0].tolist() == [[4.0]]
    assert second["memory"].tolist() == [[0.0]]
    assert game.lengths == [0, 0]


def test_horizon_cut_shares_its_bootstrap_and_carries_memory_and_length_on() -> None:
    game = Simple(horizon=2, memory_size=1)
    assert game.send({5: 1.0}) is None
    assert game.send({5: 2.0}) is None
    first = game.send({5: 3.0})
    second = game.send(ended={5: 4.0})
    assert first is not None
    assert second is not None
    assert first.obs[0][:, 0].tolist() == [1.0, 2.0]
    assert first["memory"][:, 0].tolist() == [0.0, 100.0]
    assert first.bootstrap.obs[0].tolist() == second.obs[0].tolist() == [[3.0]]
    assert first.bootstrap["memory"].tolist() == second["memory"].tolist() == [[200.0]]
    assert first.ended.tolist() == [False]
    assert game.lengths == [2]


def test_terminal_record_of_an_unseen_agent_is_ignored() -> None:
    game = Simple()
    assert game.send(ended={7: 1.0}) is None
    game.send({5: 1.0})
    assert game.send({5: 2.0}, ended={7: 1.0}) is None
    assert game.lengths == []
    game.processor.drop()
    assert game.pool.num_free == game.pool.capacity


def test_agent_that_skips_messages_goes_on_where_it_was() -> None:
    game = Simple()
    game.send({5: 1.0, 6: 10.0})
    game.send({6: 20.0})
    game.send({6: 30.0})
    packed = game.send(ended={5: 2.0}, reward=0.25)
    assert packed is not None
    assert packed.obs[0].tolist() == [[1.0]]
    assert packed["reward"].tolist() == [0.25]


def test_ended_trajectories_come_before_cuts_in_message_order() -> None:
    game = Simple(horizon=1)
    game.send({1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0})
    packed = game.send({3: 33.0, 1: 11.0}, ended={4: 40.0, 2: 20.0})
    assert packed is not None
    assert packed.agent.tolist() == [4, 2, 3, 1]
    assert packed.ended.tolist() == [True, True, False, False]


def test_drop_forgets_one_worker_only() -> None:
    game = Simple()
    game.send({5: 1.0}, worker=0)
    game.send({5: 2.0}, worker=1)
    game.processor.drop(1)
    assert game.send(ended={5: 3.0}, worker=1) is None
    packed = game.send(ended={5: 4.0}, worker=0)
    assert packed is not None
    assert packed.obs[0].tolist() == [[1.0]]
    game.processor.drop(9)  # unknown workers have nothing to forget


def test_slots_of_agents_that_are_gone_are_used_again() -> None:
    game = Simple()
    for agent in range(0, 3000, 3):
        game.send({agent: 1.0, agent + 1: 2.0, agent + 2: 3.0})
        game.send(ended={agent: 1.0, agent + 1: 2.0, agent + 2: 3.0})
    assert len(game.processor._histories.count) <= 16
    assert len(game.processor._rosters[0, 0].slots) == 0


def test_long_horizons_widen_the_table() -> None:
    game = Simple(horizon=1000)
    for i in range(300):
        game.send({5: float(i)})
    packed = game.send(ended={5: 300.0})
    assert packed is not None
    assert packed.obs[0][:, 0].tolist() == list(range(300))


def test_agent_twice_among_the_decisions_is_an_error() -> None:
    game = Simple()
    game.send({5: 1.0})
    batch = game.numbers.steps(Message(3, (), (7, 7)))
    with pytest.raises(InvalidDataError, match="Agent 7 of environment 3 asks for two decisions"):
        game.processor.record(batch)
    game.processor.drop()
    assert game.pool.num_free == game.pool.capacity


def test_empty_message_and_bad_horizon() -> None:
    game = Simple()
    empty: StepBatch = game.numbers.steps(Message(0))
    recorded = game.processor.record(empty)
    assert len(recorded.rows) == 0
    assert recorded.trajectories is None
    with pytest.raises(ValueError, match="time_horizon is 0"):
        AgentProcessor(game.pool, 0)


def test_agents_that_vanish_without_a_word_do_not_fill_the_memory() -> None:
    """500 new ids per message, and none ever ends."""
    spec = vector_spec()
    pool = RowPool(spec, [np.float32], poison=True)
    processor, numbers = AgentProcessor(pool, 64), Numbers(spec, 0)
    given_up = 0
    for message in range(100):
        batch = numbers.steps(Message(0, (), tuple(range(500 * message, 500 * message + 500))))
        recorded = processor.record(batch)
        processor.acted(recorded.rows, numbers.actions(500))
        given_up += recorded.num_given_up
    held = pool.capacity - pool.num_free
    assert held == 50_000 - given_up
    assert 7_500 <= held <= 10_000
    assert pool.capacity <= 2 * 10_000
    processor.drop()
    assert pool.num_free == pool.capacity


@pytest.fixture
def at_most_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_processor, "_FEWEST_KEPT", 8)
    monkeypatch.setattr(agent_processor, "_MOST_KEPT", 8)


@pytest.mark.usefixtures("at_most_8")
def test_those_who_were_silent_for_the_longest_time_are_given_up() -> None:
    spec = vector_spec()
    pool = RowPool(spec, [np.float32], poison=True)
    processor, numbers = AgentProcessor(pool, 64), Numbers(spec, 0)

    def decide(*agents: int, ended: tuple[tuple[int, bool], ...] = ()) -> tuple[int, list[int]]:
        batch = numbers.steps(Message(0, ended, agents))
        recorded = processor.record(batch)
        processor.acted(recorded.rows[batch.num_terminal :], numbers.actions(len(agents)))
        return recorded.num_given_up, recorded.episode_lengths

    for _ in range(3):  # the same message again and again: 1 is seen until its end
        assert decide(1, 2) == (0, [])
    for agent in (3, 4, 5, 6, 7, 8, 2):
        assert decide(agent) == (0, [])
    assert decide(9) == (3, [])  # of nine, six are kept: 1, 3 and 4 go
    ended = tuple((agent, False) for agent in range(1, 10))
    assert decide(ended=ended) == (0, [3, 0, 0, 0, 0, 0])  # 2 has decided four times, 5 to 9 once each
    assert pool.capacity - pool.num_free == 5 + 4 + 6  # what the trajectories have
    assert decide(1, ended=((3, False),)) == (0, [])  # who comes back begins anew


@pytest.mark.usefixtures("at_most_8")
def test_many_agents_in_turn_and_many_teams_are_all_kept() -> None:
    spec = vector_spec()
    pool = RowPool(spec, [np.float32])
    processor, numbers = AgentProcessor(pool, 64), Numbers(spec, 0)
    for _ in range(5):
        for part in range(4):  # each message names a quarter of the agents of its team
            for team in range(20):
                first = 100 * team + 4 * part
                batch = numbers.steps(Message(0, (), tuple(range(first, first + 4))))
                assert processor.record(batch, team).num_given_up == 0
    assert pool.capacity - pool.num_free == 5 * 4 * 20 * 4
