"""Records a policy's actions, or those of an expert in the same states, as trajectories.

The episodes are the same as in an evaluation (docs/measure/evaluation.md#which-episodes-count): the first ones that
start in each copy of the environment.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trajtrainer.core.columns import Columns, sensor_name
from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.core.seeds import derived_seeds
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.steps import WORKER_SHIFT, ActionBatch, EnvironmentEvent, FloatArray, StepBatch
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.experience.recordings.pairing import Trajectory
from trajtrainer.learning.algos.acting import Policy
from trajtrainer.policies.play.agents import Agent, MakePolicy, Turn, decide
from trajtrainer.policies.play.loop import Announce, EpisodeCounter, exchanges

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recording:
    """Complete episodes of one behavior.

    Attributes:
        name: name of the behavior.
        spec: spec of the behavior's observations and actions.
        trajectories: the episodes, ordered by copy and start, regardless of which finished first.
        failure: the environment's failure, if the recording ended early because of it.
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
    """Reset the environment, play episodes, and return a recording for each behavior name.

    Args:
        environment: the environment, which stays open.
        policies: makes the policies that act; called once for each worker and behavior id.
        episodes: number of episodes for each behavior and team, at least 1.
        seed: seed for the random numbers of all policies.
        experts: makes the policies whose decisions are recorded, in the states that the acting policies reach. If None,
            the actions of ``policies`` are recorded.
        parameters: environment parameters.
        announce: called with new behaviors when the environment announces them.
        stopped: called after each step; returns whether to end early and keep only the finished episodes.

    Raises:
        EnvironmentFaultError: an environment failed and could not be restarted before any episode ended.
        PolicyDivergedError: a policy's actions are NaN.
    """
    recorder = _Recorder(experts, seed)
    counter = EpisodeCounter(environment.num_workers, policies, episodes, seed=seed)
    failure = None
    try:
        for exchange in exchanges(environment, counter, parameters, announce=announce, stopped=stopped):
            recorder.add(*exchange)
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
class _Side:
    """The recorded episodes of one behavior id in one worker, with their numbers."""

    spec: BehaviorSpec
    expert: Policy | None
    finished: list[tuple[int, Trajectory]] = field(default_factory=list)


@dataclass(slots=True)
class _Tape:
    """The steps of an unfinished episode.

    Attributes:
        memory: the expert's memory.
        rows: column -> one value per step.
    """

    memory: FloatArray | None = None
    rows: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))


class _Recorder:
    """Records the exchanges with an environment. Experts decide for all agents, even if an episode is not recorded."""

    def __init__(self, experts: MakePolicy | None, seed: int) -> None:
        self.sides: dict[tuple[int, str], _Side] = {}
        self._experts = experts
        self._seed = seed
        self._tapes: dict[Agent, _Tape] = {}

    def add(self, event: EnvironmentEvent, turns: Sequence[Turn], answers: Mapping[str, ActionBatch]) -> None:
        if event.is_reset:
            self._tapes = {each: tape for each, tape in self._tapes.items() if each.id >> WORKER_SHIFT != event.worker}
        for turn in turns:
            batch, key = turn.batch, (event.worker, turn.behavior.full)
            if key not in self.sides:
                expert = None
                if self._experts is not None:
                    seed = derived_seeds(self._seed, f"expert {key[0]} {key[1]}")[0]
                    expert = self._experts(turn.behavior, turn.spec, seed)
                self.sides[key] = _Side(turn.spec, expert)
            side = self.sides[key]
            for row, agent in turn.ended:
                tape = self._tapes.pop(agent)
                if agent.episode is not None:
                    _add_rewards(tape, batch, row)
                    steps = {name: np.stack(values) for name, values in tape.rows.items()}
                    for name, value in (("done", True), ("interrupted", bool(batch.interrupted[row]))):
                        steps[name] = np.zeros(len(steps["reward"]), np.bool_)
                        steps[name][-1] = value
                    after = {sensor_name(i): column[row : row + 1].copy() for i, column in enumerate(batch.obs)}
                    side.finished.append((agent.episode, Trajectory(Columns(steps), Columns(after))))
            for row, agent in enumerate(turn.deciding, batch.num_terminal):
                tape = self._tapes.setdefault(agent, _Tape())
                if agent.episode is not None:
                    if tape.rows:
                        _add_rewards(tape, batch, row)
                    # Copy the values, because the environment may reuse its arrays.
                    for number, column in enumerate(batch.obs):
                        tape.rows[sensor_name(number)].append(column[row].copy())
                    tape.rows["mask"].append(batch.mask[row].copy())
                    tape.rows["group"].append(batch.group[row])
            actions = answers.get(turn.behavior.full)
            tapes = [self._tapes[agent] for agent in turn.deciding]
            if side.expert is not None and tapes:
                rows = slice(batch.num_terminal, None)
                actions = decide(side.expert, batch, rows, [tape.memory for tape in tapes])
                if side.expert.memory_size:
                    for tape, memory in zip(tapes, actions.memory, strict=True):
                        tape.memory = memory
            for row, (agent, tape) in enumerate(zip(turn.deciding, tapes, strict=True)):
                if agent.episode is not None and actions is not None:
                    tape.rows["continuous"].append(actions.env_continuous[row].copy())
                    tape.rows["discrete"].append(actions.discrete[row].copy())


def _add_rewards(tape: _Tape, batch: StepBatch, row: int) -> None:
    tape.rows["reward"].append(batch.reward[row])
    tape.rows["group_reward"].append(batch.group_reward[row])
