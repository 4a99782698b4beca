"""Whose statistics are whose, and behaviours that cannot be collected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike

from trajtrainer.algos.acting import Policy
from trajtrainer.data.agent_processor import AgentProcessor
from trajtrainer.data.rows import RowPool
from trajtrainer.envs.protocol import Parameters
from trajtrainer.errors import UnsupportedError
from trajtrainer.queues import PolicyQueue, TrajectoryQueue
from trajtrainer.runtime import collector as collector_module
from trajtrainer.runtime.collector import ActingBehavior, Collector
from trajtrainer.spec import ActionSpec, BehaviorId, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from trajtrainer.stats import StatsReporter, StatsSummary, StatsWriter
from trajtrainer.steps import ActionBatch, Aggregation, EnvironmentEvent, FloatArray, Statistic, StepBatch
from trajtrainer.timers import Timers


def spec(*shapes: tuple[int, ...], actions: ActionSpec | None = None, name: str = "Eye") -> BehaviorSpec:
    sensors = [
        ObservationSpec(shape, (DimensionProperty.NONE,) * len(shape), ObservationType.DEFAULT, name)
        for shape in shapes or ((2,),)
    ]
    return BehaviorSpec(sensors, ActionSpec(1, ()) if actions is None else actions)


def agents(behavior: BehaviorSpec, count: int = 2, dtype: DTypeLike = np.float32) -> StepBatch:
    return StepBatch(
        agent=np.arange(count),
        obs=tuple(np.zeros((count, *sensor.shape), dtype) for sensor in behavior.observation_specs),
        reward=np.zeros(count, np.float32),
        group=np.zeros(count, np.int32),
        group_reward=np.zeros(count, np.float32),
        mask=np.zeros((count, sum(behavior.action_spec.discrete_branches)), np.bool_),
        interrupted=np.zeros(0, np.bool_),
        num_terminal=0,
    )


class Events:
    """An environment that sends what it was given, one event at a time."""

    num_workers = 1

    def __init__(self, events: Sequence[EnvironmentEvent]) -> None:
        self._events = list(events)

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        return [self._events.pop(0)]

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None: ...

    def reset(self, parameters: Parameters) -> None: ...

    def set_parameters(self, parameters: Parameters) -> None: ...

    def close(self) -> None: ...

    def kill(self) -> None: ...


class Idle(Policy):
    def __init__(self) -> None: ...

    def act(self, obs: Sequence[Any], mask: Any, memory: FloatArray) -> ActionBatch:
        zeros = np.zeros((len(obs[0]), 1), np.float32)
        return ActionBatch(zeros, zeros[:, :0].astype(np.int32), zeros, zeros, zeros[:, 0], zeros[:, :0], 0)


class Kept(StatsWriter):
    def __init__(self) -> None:
        self.values: dict[str, dict[str, list[float]]] = {}

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        self.values[category] = {tag: list(summary.values) for tag, summary in values.items() if "Policy" not in tag}


def collected(*events: EnvironmentEvent) -> dict[str, dict[str, list[float]]]:
    """What the behaviours' reporters have of statistics in the end."""
    kept = Kept()

    def make(
        behavior_id: BehaviorId, spec: BehaviorSpec, first: StepBatch, *, misread_elsewhere: bool
    ) -> ActingBehavior:
        pool = RowPool(spec, [column.dtype for column in first.obs])
        return ActingBehavior(
            spec=spec,
            pool=pool,
            processor=AgentProcessor(pool, 64),
            policy=Idle(),
            trajectories=TrajectoryQueue(),
            policies=PolicyQueue(),
            reporter=StatsReporter(behavior_id.name, [kept]),
        )

    collector = Collector(Events(events), make, Timers())
    for _ in events:
        collector.collect()
    for behavior in collector.behaviors.values():
        behavior.reporter.write(0)
    return kept.values


def reported(*values: float, key: str = "Goals") -> list[Statistic]:
    return [Statistic(key, value, Aggregation.SUM) for value in values]


def test_statistics_go_to_one_behavior_whoever_is_in_a_message() -> None:
    both = spec()
    found = collected(
        EnvironmentEvent(0, {"A": agents(both), "B": agents(both)}, {"A": both, "B": both}, reported(1.0)),
        EnvironmentEvent(0, {"B": agents(both)}, statistics=reported(2.0, 4.0)),
        EnvironmentEvent(0, {"B": agents(both), "A": agents(both)}, statistics=reported(8.0)),
        EnvironmentEvent(0, {}, statistics=reported(16.0)),
    )
    assert found == {"A": {"Goals": [1.0, 2.0, 4.0, 8.0, 16.0]}, "B": {}}


def test_new_names_of_statistics_end_somewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(collector_module, "MOST_STATISTICS", 3)
    only = spec()
    found = collected(
        EnvironmentEvent(0, {"A": agents(only)}, {"A": only}, reported(1.0, key="k0") + reported(2.0, key="x" * 1001)),
        EnvironmentEvent(0, {"A": agents(only)}, statistics=[s for i in range(5) for s in reported(i, key=f"k{i}")]),
    )
    assert found == {"A": {"k0": [1.0, 0.0], "k1": [1.0], "k2": [2.0]}}
    assert caplog.text.count("are dropped") == 1
    assert len(caplog.text) < 700


def test_agents_that_are_given_up_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    only = spec()
    events = []
    for message in range(24):
        batch = agents(only, 1000)
        batch.agent += (3 << 32) + 1000 * message
        events.append(EnvironmentEvent(3, {"A": batch}, {} if message else {"A": only}))
    collected(*events)
    assert caplog.text.count("agents of environment 3 have been silent") == 1
    assert "'A'" in caplog.text


@pytest.mark.parametrize(
    ("other", "dtype", "text"),
    [
        (spec((3,)), np.float32, r"has the observations \[\(3,\) float32\].*have the observations \[\(2,\) float32\]"),
        (spec((2,), (2,)), np.float32, r"\[\(2,\) float32, \(2,\) float32\]"),
        (spec(), np.uint8, r"\[\(2,\) uint8\]"),
        (spec(actions=ActionSpec(2, ())), np.float32, "2 continuous actions"),
        (spec(actions=ActionSpec(1, (3,))), np.float32, r"branches \[3\]"),
    ],
)
def test_teams_of_one_name_must_be_alike(other: BehaviorSpec, dtype: DTypeLike, text: str) -> None:
    first, second = "A?team=0", "A?team=1"
    with pytest.raises(UnsupportedError, match=rf"'A\?team=1' .*{text}.*share one policy"):
        collected(
            EnvironmentEvent(0, {first: agents(spec())}, {first: spec(), second: other}),
            EnvironmentEvent(0, {second: agents(other, dtype=dtype)}),
        )


def test_names_of_sensors_may_differ_between_teams() -> None:
    first, second = "A?team=0", "A?team=1"
    collected(
        EnvironmentEvent(0, {first: agents(spec())}, {first: spec(), second: spec(name="Ear")}),
        EnvironmentEvent(0, {second: agents(spec())}),
    )


def test_a_behavior_without_actions_is_refused() -> None:
    idle = spec(actions=ActionSpec(0, ()))
    with pytest.raises(UnsupportedError, match="'A' has no actions"):
        collected(EnvironmentEvent(0, {"A": agents(idle)}, {"A": idle}))
