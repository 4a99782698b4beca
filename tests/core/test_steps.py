"""Messages between an environment and the collector."""

from __future__ import annotations

import numpy as np

from tests.learning.nn.specs import behavior, vector
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.steps import ActionBatch, Aggregation, EnvironmentEvent, Statistic, agent_ids


def test_agents_of_two_workers_never_share_an_id() -> None:
    local = np.array([0, 1, (1 << 31) - 1])
    ids = np.concatenate([agent_ids(worker, local) for worker in (0, 1, 2)])
    assert len(set(ids.tolist())) == 9
    np.testing.assert_array_equal(ids >> 32, [0, 0, 0, 1, 1, 1, 2, 2, 2])


def test_a_part_of_a_batch_has_the_same_agents_in_every_array() -> None:
    rows = np.arange(5, dtype=np.float32)
    batch = ActionBatch(
        continuous=rows[:, None],
        discrete=rows[:, None].astype(np.int32) + 10,
        env_continuous=rows[:, None] * np.float32(0.1),
        log_prob=rows[:, None] - 10,
        entropy=rows + 20,
        memory=rows[:, None] + 30,
        version=7,
    )
    part = batch.part(1, 3)
    assert (len(batch), len(part), part.version) == (5, 2, 7)
    np.testing.assert_array_equal(part.discrete[:, 0], [11, 12])
    np.testing.assert_array_equal(part.log_prob[:, 0], [-9, -8])
    np.testing.assert_array_equal(part.entropy, [21, 22])
    np.testing.assert_array_equal(part.memory[:, 0], [31, 32])
    assert np.shares_memory(part.continuous, batch.continuous)
    assert np.shares_memory(part.env_continuous, batch.env_continuous)


def test_an_event_takes_over_an_earlier_one_that_no_one_has_read() -> None:
    early, late = behavior([vector(2)], 1), behavior([vector(3)], 1)
    unseen = EnvironmentEvent(
        worker=1,
        steps={},
        new_specs={"Ball": early, "Wall": early},
        statistics=[Statistic("Goals", 1.0, Aggregation.SUM)],
        raw_images={"Ball": RawImageOrder.CHW},
    )
    event = EnvironmentEvent(
        worker=1,
        steps={},
        new_specs={"Wall": late},
        statistics=[Statistic("Goals", 2.0, Aggregation.SUM)],
        is_reset=True,
    )
    event.take_over(unseen)
    assert event.new_specs == {"Ball": early, "Wall": late}
    assert [statistic.value for statistic in event.statistics] == [1.0, 2.0]
    assert event.raw_images == {"Ball": RawImageOrder.CHW}
    event.take_over(None)
    assert event.new_specs == {"Ball": early, "Wall": late}
