"""Groups of real sessions with Unity, recorded in ``data/wire``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.experience.drain import Drain
from tests.experience.harness import Harness
from trajtrainer.core.spec import (
    ActionSpec,
    BehaviorId,
    BehaviorSpec,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
)
from trajtrainer.core.steps import StepBatch
from trajtrainer.experience.trajectory import PackedGroups, PackedSteps


class Session:
    """What an independent decoder made of a recorded session."""

    def __init__(self, shared_data: Path, name: str) -> None:
        with np.load(shared_data / "wire" / f"{name}.npz") as file:
            self._arrays = dict(file)
        self._behaviors = sorted({key.split("/")[1] for key in self._arrays})
        self._steps = sorted({int(key.split("/")[0]) for key in self._arrays})
        first = f"{self._steps[0]}/{self._behaviors[0]}/d"
        self._obs = [self._arrays[key] for key in self._arrays if key.startswith(f"{first}/obs")]
        self._num_masked = self._arrays[f"{first}/mask"].shape[1] if f"{first}/mask" in self._arrays else 0

    @property
    def spec(self) -> BehaviorSpec:
        none, default = DimensionProperty.NONE, ObservationType.DEFAULT
        sensors = [ObservationSpec(one.shape[1:], (none,) * (one.ndim - 1), default, "") for one in self._obs]
        return BehaviorSpec(sensors, ActionSpec(1, (self._num_masked,) if self._num_masked else ()))

    def messages(self) -> Iterator[list[tuple[StepBatch, int]]]:
        """The batches of each message, with their teams."""
        for step in self._steps:
            yield [
                (self._batch(f"{step}/{behavior}"), BehaviorId.parse(behavior).team)
                for behavior in self._behaviors
                if f"{step}/{behavior}/d/id" in self._arrays or f"{step}/{behavior}/t/id" in self._arrays
            ]

    def _batch(self, key: str) -> StepBatch:
        def column(name: str, *shape: int) -> NDArray[Any]:
            empty = np.zeros((0, *shape), np.float32)
            return np.concatenate([self._arrays.get(f"{key}/{part}/{name}", empty) for part in "td"])

        ended = len(self._arrays.get(f"{key}/t/id", ()))
        agent = column("id").astype(np.int64)
        mask = np.zeros((len(agent), self._num_masked), np.bool_)
        if self._num_masked:
            mask[ended:] = self._arrays.get(f"{key}/d/mask", mask[:0])
        return StepBatch(
            agent=agent,
            obs=tuple(column(f"obs{i}", *one.shape[1:]).astype(np.float32) for i, one in enumerate(self._obs)),
            reward=column("reward").astype(np.float32),
            group=column("group_id").astype(np.int32),
            group_reward=column("group_reward").astype(np.float32),
            mask=mask,
            interrupted=self._arrays.get(f"{key}/t/interrupted", np.zeros(0, np.bool_)).copy(),
            num_terminal=ended,
        )


def _play(session: Session, horizon: int, drain_every: int = 7) -> list[PackedSteps]:
    """All that was drained, after it was compared with the oracle."""
    harness = Harness(horizon, 0, groups=(), spec=session.spec)
    drain = Drain(harness)
    drained: list[PackedSteps | None] = []
    for number, messages in enumerate(session.messages()):
        drain.take(harness.record(messages))
        if number % drain_every == 0:
            drained.append(drain.drain(number))
    drained.append(drain.end())
    return [one for one in drained if one is not None]


def _ended(packed: PackedSteps) -> tuple[PackedGroups, NDArray[np.intp]]:
    assert packed.groups is not None
    return packed.groups, np.flatnonzero(packed.ended)


@pytest.mark.parametrize("horizon", [4, 1000])
@pytest.mark.parametrize(
    "name", ["pkg2.3_soccer", "pkg2.3_coop", "pkg1.3_multi", "pkg3.0_group", "pkg3.0_duel", "pkg3.0_respawn"]
)
def test_sessions_equal_the_oracle(shared_data: Path, name: str, horizon: int) -> None:
    assert _play(Session(shared_data, name), horizon)


def test_soccer_groups_are_interrupted_whole(shared_data: Path) -> None:
    seen = 0
    for packed in _play(Session(shared_data, "pkg2.3_soccer"), 1000):
        groups, ended = _ended(packed)
        assert groups.all_done[ended].all()
        assert not packed.terminated.any()
        assert ((groups.next_mates[ended] >= 0).sum(1) == 1).all(), "the mate's last observation"
        seen += len(ended)
    assert seen == 24


def test_members_that_leave_a_group_of_three_leave_two(shared_data: Path) -> None:
    left = 0
    for packed in _play(Session(shared_data, "pkg2.3_coop"), 1000):
        groups, ended = _ended(packed)
        assert not groups.all_done.any()
        assert ((groups.next_mates[ended] >= 0).sum(1) == 2).all()
        np.testing.assert_allclose(packed["groupmate_reward"][packed["group"] > 0], -0.002, rtol=1e-5)
        left += len(ended)
    assert left == 2
