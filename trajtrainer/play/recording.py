"""Records what a policy does, or what an expert would have done where it got to, as trajectories.

The episodes are those that an evaluation counts (docs/evaluation.md#which-episodes-count): the first ones that begin in
each copy of the environment.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.algos.acting import Acts
from trajtrainer.core.columns import Columns, sensor_name
from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, FloatArray, StepBatch
from trajtrainer.demos.pairing import Trajectory
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.nn.init import derived_seeds
from trajtrainer.play.agents import MakePolicy, act
from trajtrainer.play.loop import Announce, play

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recording:
    """Whole episodes of one behaviour.

    Attributes:
        name: of the behaviour.
        spec: what was observed and done.
        trajectories: in the order of the copies and of their beginnings, whatever was quicker.
        failure: the environment's, if it ended the recording before all episodes were over.
    """

    name: str
    spec: BehaviorSpec
    trajectories: list[Trajectory]
    failure: EnvironmentFaultError | None = None


def record(
    environment: Environment,
    policies: MakePolicy,
    episodes: int,
    *,
    seed: int,
    experts: MakePolicy | None = None,
    parameters: Parameters | None = None,
    announce: Announce = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Recording]:
    """Play episodes from a reset on, and return them by behaviour name.

    Args:
        environment: not closed.
        policies: of those who act, asked once for each worker and behaviour id.
        episodes: of each behaviour and team, at least 1.
        seed: of all policies' random numbers.
        experts: whose decisions are recorded; those of ``policies`` if None. They see what the acting policy led to.
        parameters: of the environment.
        announce: told of behaviours as the environment announces them.
        stopped: asked after each step whether to end early, with the episodes that are over by then.

    Raises:
        EnvironmentFaultError: an environment failed for good before any episode was over.
        PolicyDivergedError: a policy gives NaN.
    """
    recorder = _Recorder(environment, episodes, experts, seed, announce)
    failure = None
    try:
        play(recorder, policies, episodes, seed=seed, parameters=parameters, stopped=stopped)
    except EnvironmentFaultError as fault:
        if not any(side.finished for side in recorder.sides.values()):
            raise
        failure = fault
    found: dict[str, Recording] = {}
    for (_, behavior_id), side in sorted(recorder.sides.items()):
        name = BehaviorId.parse(behavior_id).name
        recording = found.setdefault(name, Recording(name, side.spec, [], failure))
        recording.trajectories.extend(trajectory for _, trajectory in sorted(side.finished, key=lambda each: each[0]))
    return found


@dataclass(slots=True)
class _Running:
    """An episode that goes on; its ``number`` is None if it is not recorded."""

    number: int | None
    memory: FloatArray | None = None  # of the expert
    rows: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, name: str, value: Any) -> None:
        self.rows.setdefault(name, []).append(value)


class _Recorder:
    """An environment that remembers what goes through it."""

    def __init__(
        self, environment: Environment, episodes: int, experts: MakePolicy | None, seed: int, announce: Announce
    ) -> None:
        self.sides: dict[tuple[int, str], _Side] = {}
        self._environment = environment
        workers = environment.num_workers
        self._due = [episodes // workers + (worker < episodes % workers) for worker in range(workers)]
        self._experts = experts
        self._seed = seed
        self._announce = announce
        self._specs: dict[str, BehaviorSpec] = {}
        self.set_parameters, self.close, self.kill = environment.set_parameters, environment.close, environment.kill

    @property
    def num_workers(self) -> int:
        return self._environment.num_workers

    def reset(self, parameters: Parameters) -> None:
        self._environment.reset(parameters)

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        events = self._environment.wait(timeout_s)
        for event in events:
            self._announce(event.new_specs)  # of which experts are asked for at once, before play sees the event
            self._specs |= event.new_specs
            if event.is_reset:
                for (worker, _), side in self.sides.items():
                    if worker == event.worker:
                        side.start_over()
            for behavior_id, batch in event.steps.items():
                self._side(event.worker, behavior_id).take(batch)
        return events

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        for behavior_id, batch in actions.items():
            self._side(worker, behavior_id).answer(batch)
        self._environment.send(worker, actions)

    def _side(self, worker: int, behavior_id: str) -> _Side:
        key = worker, behavior_id
        if key not in self.sides:
            spec, expert = self._specs[behavior_id], None
            if self._experts is not None:
                seed = derived_seeds(self._seed, f"expert {worker} {behavior_id}")[0]
                expert = self._experts(BehaviorId.parse(behavior_id), spec, seed)
            self.sides[key] = _Side(spec, self._due[worker], expert)
        return self.sides[key]


class _Side:
    """The agents of one behaviour id in one worker."""

    def __init__(self, spec: BehaviorSpec, episodes: int, expert: Acts | None) -> None:
        self.spec = spec
        self.finished: list[tuple[int, Trajectory]] = []
        self._expert = expert
        self._due = deque(range(episodes))
        self._running: dict[int, _Running] = {}
        self._deciding: list[_Running] = []

    def start_over(self) -> None:
        """Give up the episodes that go on; others take their numbers."""
        lost = sorted(running.number for running in self._running.values() if running.number is not None)
        self._due.extendleft(reversed(lost))
        self._running, self._deciding = {}, []

    def take(self, batch: StepBatch) -> None:
        """Take in a message."""
        agents, first = batch.agent.tolist(), batch.num_terminal
        for row in range(first):
            running = self._running.pop(agents[row], None)
            if running is not None and running.number is not None:
                _add_rewards(running, batch, row)
                trajectory = _trajectory(running, batch, row, bool(batch.interrupted[row]))
                self.finished.append((running.number, trajectory))
        self._deciding = []
        for row in range(first, len(agents)):
            running = self._running.get(agents[row])
            if running is None:
                running = self._running[agents[row]] = _Running(self._due.popleft() if self._due else None)
            elif running.number is not None:
                _add_rewards(running, batch, row)
            self._deciding.append(running)
            if running.number is not None:
                # Copies: the environment may write over what it sent.
                for number, column in enumerate(batch.obs):
                    running.add(sensor_name(number), column[row].copy())
                running.add("mask", batch.mask[row].copy())
                running.add("group", batch.group[row])
        if self._expert is not None and self._deciding:
            self._write(act(self._expert, batch, slice(first, None), self._deciding))

    def answer(self, actions: ActionBatch) -> None:
        """Take in what is sent to the agents that asked for a decision."""
        if self._expert is None:
            self._write(actions)

    def _write(self, actions: ActionBatch) -> None:
        for row, running in enumerate(self._deciding):
            if running.number is not None:
                running.add("continuous", actions.env_continuous[row].copy())
                running.add("discrete", actions.discrete[row].copy())


def _add_rewards(running: _Running, batch: StepBatch, row: int) -> None:
    running.add("reward", batch.reward[row])
    running.add("group_reward", batch.group_reward[row])


def _trajectory(running: _Running, batch: StepBatch, row: int, interrupted: bool) -> Trajectory:
    steps: dict[str, NDArray[Any]] = {name: np.stack(values) for name, values in running.rows.items()}
    count = len(steps["reward"])
    for name, value in (("done", True), ("interrupted", interrupted)):
        steps[name] = np.zeros(count, np.bool_)
        steps[name][-1] = value
    after = {sensor_name(number): column[row : row + 1].copy() for number, column in enumerate(batch.obs)}
    return Trajectory(Columns(steps), Columns(after))
