"""Whose statistics are whose, and behaviors that cannot be collected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike

from trajtrainer.core.errors import UnsupportedError
from trajtrainer.core.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from trajtrainer.core.stats import StatsReporter, StatsSummary, StatsWriter
from trajtrainer.core.steps import ActionBatch, Aggregation, EnvironmentEvent, FloatArray, Statistic, StepBatch
from trajtrainer.core.timers import Timers
from trajtrainer.envs.protocol import Parameters
from trajtrainer.experience.agent_processor import AgentProcessor
from trajtrainer.experience.opponents import OpponentTracker
from trajtrainer.experience.rows import RowPool
from trajtrainer.learning.algos.acting import ActorPolicy
from trajtrainer.run.actors import collector as collector_module
from trajtrainer.run.actors.collector import CollectedBehavior, Collector, Outbox, Sides
from trajtrainer.run.actors.messages import Assignment, NewBehavior, Opponent
from trajtrainer.settings.trainer import SelfPlaySettings


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

    def __init__(self, events: Sequence[EnvironmentEvent], *, at_once: int = 1) -> None:
        self.answers: list[dict[str, ActionBatch]] = []
        self._events = list(events)
        self._at_once = at_once

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        found, self._events = self._events[: self._at_once], self._events[self._at_once :]
        return found

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        self.answers.append(dict(actions))

    def reset(self, parameters: Parameters) -> None: ...

    def set_parameters(self, parameters: Parameters) -> None: ...

    def close(self) -> None: ...

    def kill(self) -> None: ...


class Idle(ActorPolicy):
    def __init__(self) -> None: ...

    def act(self, obs: Sequence[Any], mask: Any, memory: FloatArray) -> ActionBatch:
        zeros = np.zeros((len(obs[0]), 1), np.float32)
        return ActionBatch(zeros, zeros[:, :0].astype(np.int32), zeros, zeros, zeros[:, 0], zeros[:, :0], 0)


class Telling(Idle):
    """Tells its number as the first continuous action, and remembers how many agents it was asked for."""

    def __init__(self, number: float) -> None:
        self.number = number
        self.asked: list[int] = []

    def act(self, obs: Sequence[Any], mask: Any, memory: FloatArray) -> ActionBatch:
        self.asked.append(len(obs[0]))
        chosen = super().act(obs, mask, memory)
        chosen.env_continuous[:] = self.number
        return chosen


class Kept(StatsWriter):
    def __init__(self) -> None:
        self.values: dict[str, dict[str, list[float]]] = {}

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        self.values[category] = {tag: list(summary.values) for tag, summary in values.items() if "Policy" not in tag}


def acting(found: NewBehavior, policy: ActorPolicy, *writers: StatsWriter) -> CollectedBehavior:
    pool = RowPool(found.spec, found.obs_dtypes)
    return CollectedBehavior(
        spec=found.spec,
        pool=pool,
        processor=AgentProcessor(pool, 64),
        tracker=OpponentTracker(64, 0),
        policy=policy,
        trajectories=Outbox(),
        reporter=StatsReporter(found.behavior_id.name, writers),
    )


def collected(*events: EnvironmentEvent) -> dict[str, dict[str, list[float]]]:
    """What the behaviors' reporters have of statistics in the end."""
    kept = Kept()
    collector = Collector(Events(events), lambda found: acting(found, Idle(), kept), Timers())
    for _ in events:
        collector.collect()
    for behavior in collector.behaviors.values():
        behavior.reporter.write(0)
    return kept.values


def reported(*values: float, key: str = "Goals") -> list[Statistic]:
    return [Statistic(key, value, Aggregation.SUM) for value in values]


def test_each_team_acts_with_its_own_policy() -> None:
    """One forward per policy over the agents of both workers."""
    both, usual, opponent = spec(), Telling(1.0), Telling(2.0)
    steps = {"A?team=0": agents(both, 2), "A?team=1": agents(both, 3), "A?team=2": agents(both, 4)}
    specs = dict.fromkeys(steps, both)
    events = [EnvironmentEvent(worker, steps, specs) for worker in (0, 1)]
    Collector(Events(events, at_once=2), lambda found: acting(found, usual), Timers()).collect()
    assert usual.asked == [18], "without self-play all teams act with the behavior's"
    opponents = {name: Opponent({}, opponent, 0) for name in ("A?team=1", "A?team=2")}
    sides = Sides(SelfPlaySettings(), usual, lambda _: Assignment("A", 0, 0, opponents))
    environment = Events(events, at_once=2)
    Collector(environment, lambda found: replace(acting(found, usual), sides=sides), Timers()).collect()
    assert (usual.asked, opponent.asked) == ([18, 4], [14])
    for answer in environment.answers:
        assert {name: actions.env_continuous.tolist() for name, actions in answer.items()} == {
            "A?team=0": [[1.0]] * 2,
            "A?team=1": [[2.0]] * 3,
            "A?team=2": [[2.0]] * 4,
        }


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
    assert caplog.text.count("agents of environment 3 have sent nothing") == 1
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
