"""What trajectories tell of groups, compared with the oracle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.experience.harness import Harness
from tests.experience.mates import expected_mates, mates_of
from tests.experience.oracle import Trajectory, pack
from tests.experience.streams import assert_same
from trajtrainer.core.columns import Columns
from trajtrainer.experience.trajectory import PackedSteps, TrajectoryBatch, gather, release


def _without_groups(packed: PackedSteps) -> PackedSteps:
    steps = Columns({name: column for name, column in packed.steps.items() if name != "groupmate_reward"})
    return PackedSteps(steps, packed.bootstrap, packed.offset, packed.terminated, packed.ended, packed.agent)


def check(packed: PackedSteps, expected: Sequence[Trajectory]) -> None:
    """Everything that ``packed`` tells is what the oracle says of these trajectories."""
    assert_same(_without_groups(packed), pack(list(expected)))
    assert mates_of(packed) == expected_mates(expected)
    rewards = [step.groupmate_reward for trajectory in expected for step in trajectory.steps]
    np.testing.assert_allclose(packed["groupmate_reward"], rewards, rtol=1e-6, atol=1e-6)
    assert packed.groups is not None
    assert packed.groups.all_done.tolist() == [trajectory.all_done for trajectory in expected]


class Drain:
    """Takes what a harness finished and compares it, whole and cut in two."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._waiting: list[TrajectoryBatch] = []
        self._checked = 0

    def take(self, finished: list[TrajectoryBatch]) -> None:
        """They wait for the next drain."""
        self._waiting += finished

    def drain(self, cut: int = 0) -> PackedSteps | None:
        """Everything that waits, after it was compared."""
        if not self._waiting:
            return None
        packed = gather(self._harness.pool, self._waiting)
        release(self._harness.pool, self._waiting)
        count, expected = packed.num_trajectories, self._harness.expected
        expected = expected[self._checked : self._checked + count]
        cut %= count + 1
        for start, stop in ((0, count), (0, cut), (cut, count)):
            if start < stop:
                check(packed.trajectories(start, stop), expected[start:stop])
        self._waiting, self._checked = [], self._checked + count
        return packed

    def end(self) -> PackedSteps | None:
        """The same, and everything was compared and is given back."""
        packed = self.drain()
        pool, moments = self._harness.pool, self._harness.pool.moments
        assert moments is not None
        assert self._checked == len(self._harness.expected)
        self._harness.processor.drop()
        assert pool.num_free == pool.capacity
        assert moments._num_free == len(moments._uses)
        return packed
