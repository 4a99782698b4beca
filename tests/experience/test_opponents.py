"""Agents that are not learned from, against those that are: the same steps and lengths; and who has won."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.experience.oracle import Record, records_of
from tests.experience.streams import OBS_DTYPES, STREAMS, Message, Numbers, Reset, mixed_spec, part_of
from trajtrainer.core.steps import StepBatch
from trajtrainer.experience.agent_processor import AgentProcessor, match_results
from trajtrainer.experience.opponents import OpponentTracker
from trajtrainer.experience.rows import RowPool
from trajtrainer.experience.trajectory import release

Round = Sequence[Message] | Reset


@settings(max_examples=100, deadline=None)
@given(STREAMS, st.integers(1, 5), st.sampled_from([0, 3]))
def test_a_tracker_counts_and_remembers_as_a_processor_does(
    stream: list[Round], horizon: int, memory_size: int
) -> None:
    spec = mixed_spec()
    pool = RowPool(spec, OBS_DTYPES, memory_size=memory_size)
    processor, tracker = AgentProcessor(pool, horizon), OpponentTracker(horizon, memory_size)
    numbers, num_steps = Numbers(spec, memory_size), 0
    for round_ in stream:
        if isinstance(round_, Reset):
            processor.drop(round_.worker)
            tracker.drop(round_.worker)
            continue
        expected_rows, rows = [], []
        for message in round_:
            batch = numbers.steps(message)
            expected, recorded = processor.record(batch), tracker.record(batch)
            assert recorded.trajectories is None
            assert recorded.episode_lengths == expected.episode_lengths
            if expected.trajectories is not None:
                num_steps += expected.trajectories.num_steps
                release(pool, [expected.trajectories])
            assert tracker.num_steps == num_steps
            expected_rows.append(expected.rows[batch.num_terminal :])
            rows.append(recorded.rows[batch.num_terminal :])
        actions = numbers.actions(sum(map(len, rows)))
        every, own = np.concatenate(expected_rows), np.concatenate(rows)
        assert np.array_equal(tracker.memory_of(own), processor.memory_of(every))
        processor.acted(every, actions)
        tracker.acted(own, part_of(actions, 0, len(actions)))


def test_agents_that_never_end_do_not_fill_the_memory() -> None:
    tracker, numbers = OpponentTracker(5, 4), Numbers(mixed_spec(), 4)
    for message in range(2000):
        tracker.record(numbers.steps(Message(0, (), tuple(range(10 * message, 10 * message + 10)))))
    assert len(tracker.memory_of(np.arange(0))) == 0
    assert len(tracker._steps) <= 4096


class StatusByAgent:
    """The slow, obvious way: for each group the last known state of each of its agents."""

    def __init__(self) -> None:
        self.has_decided: set[int] = set()
        self.status: defaultdict[tuple[int, int], dict[int, bool]] = defaultdict(dict)

    def results(self, batch: StepBatch, *, per_match: bool) -> list[float]:
        worker = int(batch.agent[0]) >> 32 if len(batch) else 0
        records = records_of(batch, 0)
        ended: dict[int, Record] = {}
        for record in records:
            if record.terminal and record.agent in self.has_decided:
                ended.setdefault(record.agent, record)  # Of several ends of one agent, the first counts.
        for record in ended.values():
            self.status[worker, record.group][record.agent] = True
        found: dict[object, float] = {}
        for record in ended.values():
            mates = self.status[worker, record.group] if record.group else {}
            if not record.interrupted and all(done for agent, done in mates.items() if agent != record.agent):
                key = record.group if per_match and record.group else (record.agent,)
                found[key] = found.get(key, 0.0) + float(np.float32(record.reward) + np.float32(record.group_reward))
        for record in ended.values():
            self.status[worker, record.group].pop(record.agent, None)
            self.has_decided.discard(record.agent)
        for record in records:
            if not record.terminal:
                self.status[worker, record.group][record.agent] = False
                self.has_decided.add(record.agent)
        return sorted(1.0 if reward > 0 else 0.0 if reward < 0 else 0.5 for reward in found.values())

    def drop(self, worker: int | None) -> None:
        self.has_decided = {agent for agent in self.has_decided if worker is not None and agent >> 32 != worker}
        for key in list(self.status):
            if worker is None or key[0] == worker:
                del self.status[key]


@settings(max_examples=150, deadline=None)
@given(STREAMS, st.integers(1, 5), st.booleans())
def test_results_are_those_of_whole_groups(stream: list[Round], horizon: int, per_match: bool) -> None:
    spec = mixed_spec()
    pool = RowPool(spec, OBS_DTYPES)
    processor, oracle, numbers = AgentProcessor(pool, horizon), StatusByAgent(), Numbers(spec, 0)
    for round_ in stream:
        if isinstance(round_, Reset):
            processor.drop(round_.worker)
            oracle.drop(round_.worker)
            continue
        for message in round_:
            batch = numbers.steps(message)
            batch.group[:] = (batch.agent & 0xFF) % 3
            batch.reward[:] = np.round(batch.reward)
            batch.group_reward[:] = 0.0
            recorded = processor.record(batch)
            found = match_results(pool, processor, recorded, 0, per_match=per_match)
            if recorded.trajectories is not None:
                release(pool, [recorded.trajectories])
            assert sorted(found) == oracle.results(batch, per_match=per_match)
            rows = recorded.rows[batch.num_terminal :]
            processor.acted(rows, numbers.actions(len(rows)))
