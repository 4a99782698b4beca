"""The acting side: environment messages in, rows written, one forward per policy, actions out.

The collector waits for nothing but environments (``Environment.wait``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trajtrainer.actors.messages import NewBehavior
from trajtrainer.actors.sides import Sides
from trajtrainer.algos.acting import Acts, Policy
from trajtrainer.core.errors import UnsupportedError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.queues import EpisodesAborted
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.stats import StatsReporter
from trajtrainer.core.steps import (
    ActionBatch,
    Aggregation,
    BoolArray,
    EnvironmentEvent,
    LongArray,
    ObservationArray,
    StepBatch,
)
from trajtrainer.core.timers import Timers
from trajtrainer.data.agent_processor import AgentProcessor
from trajtrainer.data.opponents import OpponentTracker
from trajtrainer.data.results import match_results
from trajtrainer.data.rows import RowPool
from trajtrainer.data.trajectory import TrajectoryBatch
from trajtrainer.envs.protocol import Environment

_LOGGER = logging.getLogger(__name__)
# Each is kept as a tag of the event file; a key with a number in it would fill the memory.
MOST_STATISTICS = 1000
_LONGEST_KEY = 1000


class Outbox:
    """Finished trajectories on their way out of an actor, and where unfinished episodes were aborted, in order.

    Attributes:
        items: what waits.
        num_steps: of the trajectories that wait.
        is_needed: whether what waits should go out however little it is: an abort is among it.
        num_put: steps of all trajectories that ever came.
        rows: the same, as the learner's buffer counts them: with a memory, those of whole sequences.
    """

    def __init__(self, sequence_length: int = 1) -> None:
        """Begin empty."""
        self.items: list[TrajectoryBatch | EpisodesAborted] = []
        self.num_steps = self.num_put = self.rows = 0
        self.is_needed = False
        self._length = sequence_length

    def put(self, batch: TrajectoryBatch) -> None:
        """Append the trajectories of one message."""
        self.items.append(batch)
        self.num_steps += batch.num_steps
        self.num_put += batch.num_steps
        self.rows += self.rows_of([batch])

    def abort_episodes(self, worker: int) -> None:
        """Append the end of a worker's unfinished episodes."""
        self.items.append(EpisodesAborted(worker))
        self.is_needed = True

    def drain(self) -> list[TrajectoryBatch | EpisodesAborted]:
        """Take all there is, oldest first."""
        items, self.items = self.items, []
        self.num_steps, self.is_needed = 0, False
        return items

    def rows_of(self, batches: Sequence[TrajectoryBatch]) -> int:
        """Return the rows of the learner's buffer that trajectories take, each of whole sequences."""
        if self._length == 1:
            return sum(batch.num_steps for batch in batches)
        return sum(int((-(-batch.lengths // self._length)).sum()) for batch in batches) * self._length


@dataclass(frozen=True, slots=True)
class ActingBehavior:
    """The collector's part of one behavior. All teams of a name share it.

    Attributes:
        spec: what its agents see and do.
        pool: the rows of their steps.
        processor: writes these and cuts them into trajectories.
        tracker: keeps the memories of agents whose experience nobody wants.
        policy: acts for all teams but those that ``sides`` has policies for.
        trajectories: the finished ones.
        reporter: of its statistics.
        learns: whether anything learns from the experience.
        sides: the teams, if only one of them learns; None if all do.
    """

    spec: BehaviorSpec
    pool: RowPool
    processor: AgentProcessor
    tracker: OpponentTracker
    policy: Policy
    trajectories: Outbox
    reporter: StatsReporter
    learns: bool = True
    sides: Sides | None = None

    def keeper(self, team: int) -> AgentProcessor | OpponentTracker:
        """Return what takes the messages of a team: only experience of a team that learns is kept."""
        learns = self.learns if self.sides is None else self.sides.learns(team)
        return self.processor if learns else self.tracker

    def acts(self, behavior_id: str) -> Acts:
        """Return who decides for a team."""
        return self.policy if self.sides is None else self.sides.policies.get(behavior_id, self.policy)

    def drop(self, worker: int) -> None:
        """Break off all episodes of one environment."""
        self.tracker.drop(worker)
        self.processor.drop(worker)
        if self.learns:
            self.trajectories.abort_episodes(worker)


BehaviorFactory = Callable[[NewBehavior], ActingBehavior]
"""Makes what the collector needs of a behavior. Called once per name, when it first appears."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Agents of one message that wait for an action."""

    behavior: ActingBehavior
    keeper: AgentProcessor | OpponentTracker
    worker: int
    behavior_id: str
    batch: StepBatch
    rows: LongArray


class Collector:
    """Steps every ready environment once per ``collect``."""

    def __init__(self, environment: Environment, make_behavior: BehaviorFactory, timers: Timers) -> None:
        self.behaviors: dict[str, ActingBehavior] = {}
        self.num_messages = 0
        self._environment = environment
        self._make_behavior = make_behavior
        self._timers = timers
        self._ids: dict[str, BehaviorId] = {}
        self.specs: dict[str, BehaviorSpec] = {}  # behavior id -> what the environment has announced
        self._raw_images: dict[str, RawImageOrder] = {}
        self._statistic_keys: set[str] = set()
        self._dropped_statistics = False
        self._gave_up: set[str] = set()

    def collect(self, timeout_s: float | None = None) -> int:
        """Wait for messages, record them, decide for all waiting agents at once and answer.

        Returns:
            How many messages were answered; 0 after ``timeout_s`` seconds without any.

        Raises:
            EnvironmentFaultError: an environment failed for good.
        """
        with self._timers("env_step") as step:
            step.part("env_wait")
            events = self._environment.wait(timeout_s)
            step.part("record")
            waiting: dict[Acts, list[_Waiting]] = {}
            for event in events:
                self._record(event, waiting)
            step.part("TorchPolicy.evaluate")
            answers = self._act(waiting)
            step.part("env_send")
            for event in events:
                self._environment.send(event.worker, answers.get(event.worker, {}))
        self.num_messages += len(events)
        return len(events)

    def _record(self, event: EnvironmentEvent, waiting: dict[Acts, list[_Waiting]]) -> None:
        self.specs.update(event.new_specs)
        self._raw_images.update(event.raw_images)
        if event.is_reset:
            for behavior in self.behaviors.values():
                behavior.drop(event.worker)
        for behavior_id, batch in event.steps.items():
            name, behavior = self._behavior(behavior_id, batch)
            team = self._ids[behavior_id].team
            keeper = behavior.keeper(team)
            recorded = keeper.record(batch, team)
            if recorded.num_given_up:
                self._warn_of_silent_agents(name, event.worker, recorded.num_given_up)
            trajectories = recorded.trajectories
            if trajectories is not None:
                if behavior.sides is not None:
                    per_match = behavior.sides.settings.elo_per_match
                    results = match_results(behavior.pool, behavior.processor, recorded, team, per_match=per_match)
                    behavior.sides.count(trajectories, results)
                behavior.trajectories.put(trajectories)
            if recorded.episode_lengths:
                behavior.reporter.add_many("Environment/Episode Length", recorded.episode_lengths)
            if batch.num_decisions:
                rows = recorded.rows[batch.num_terminal :]
                waiting.setdefault(behavior.acts(behavior_id), []).append(
                    _Waiting(behavior, keeper, event.worker, behavior_id, batch, rows)
                )
        if event.statistics and self.behaviors:
            # Of one behavior, whichever are in a message: else sums would be counted twice or split.
            owner = next(iter(self.behaviors.values()))
            for statistic in event.statistics:
                self._add_statistic(owner.reporter, event.worker, *statistic)

    def _add_statistic(
        self, reporter: StatsReporter, worker: int, key: str, value: float, aggregation: Aggregation
    ) -> None:
        if key not in self._statistic_keys:
            if len(self._statistic_keys) == MOST_STATISTICS or len(key) > _LONGEST_KEY:
                self._warn_of_statistics(key)
                return
            self._statistic_keys.add(key)
        if aggregation is not Aggregation.MOST_RECENT:
            reporter.add(key, value, aggregation)
        elif worker == 0:
            reporter.set(key, value)

    def _warn_of_silent_agents(self, name: str, worker: int, count: int) -> None:
        if name not in self._gave_up:
            self._gave_up.add(name)
            _LOGGER.warning(
                "Behavior %r: %d agents of environment %d have been silent for long while ever new ones came. Their "
                "unfinished episodes are dropped, now and from now on: they would fill the memory. An agent that is "
                "destroyed sends a last record by itself; one with a new id in every step is a mistake of the player.",
                name,
                count,
                worker,
            )

    def _warn_of_statistics(self, key: str) -> None:
        if not self._dropped_statistics:
            self._dropped_statistics = True
            _LOGGER.warning(
                "The environment reports statistics under more than %d names, or names of more than %d characters. New "
                "ones are dropped, from %.100r on. Numbers belong into a statistic's value, not into its name.",
                MOST_STATISTICS,
                _LONGEST_KEY,
                key,
            )

    def _behavior(self, behavior_id: str, batch: StepBatch) -> tuple[str, ActingBehavior]:
        parsed = self._ids.get(behavior_id)
        if parsed is None:
            parsed = self._ids[behavior_id] = BehaviorId.parse(behavior_id)
            self._check(parsed, batch)
            self._add_team(parsed, batch)
        return parsed.name, self.behaviors[parsed.name]

    def _add_team(self, behavior_id: BehaviorId, batch: StepBatch) -> None:
        """Make the behavior of a team that appears for the first time, unless another team has brought it."""
        behavior = self.behaviors.get(behavior_id.name)
        if behavior is None:
            dtypes = [column.dtype for column in batch.obs]
            order = self._raw_images.get(behavior_id.full, RawImageOrder.AUTO)
            found = NewBehavior(behavior_id, self.specs[behavior_id.full], dtypes, order)
            behavior = self.behaviors[behavior_id.name] = self._make_behavior(found)
        if behavior.sides is not None:
            behavior.sides.join(behavior_id)

    def _check(self, behavior_id: BehaviorId, batch: StepBatch) -> None:
        """Refuse a behavior without actions, and a team that is not like the others of its name.

        Raises:
            UnsupportedError: see above.
        """
        spec = self.specs[behavior_id.full]
        if not (spec.action_spec.continuous_size or spec.action_spec.discrete_size):
            raise UnsupportedError(
                f"Behavior {behavior_id.full!r} has no actions, so there is nothing to learn. Give it continuous "
                "actions or discrete branches in Unity (Behavior Parameters, Actions)."
            )
        known = self.behaviors.get(behavior_id.name)
        if known is None:
            return
        found = look(spec, [column.dtype for column in batch.obs])
        expected = look(known.spec, [column.dtype for column in known.pool.obs])
        if found != expected:
            raise UnsupportedError(
                f"Behavior {behavior_id.full!r} has {found}, but other teams of {behavior_id.name!r} have {expected}. "
                "Teams that share a Behavior Name share one policy: give them the same sensors and actions in Unity, "
                "or another name."
            )

    def _act(self, waiting: Mapping[Acts, list[_Waiting]]) -> dict[int, dict[str, ActionBatch]]:
        """Decide by one forward per policy over the agents of all workers. Return worker -> behavior id -> actions."""
        answers: dict[int, dict[str, ActionBatch]] = {}
        for policy, parts in waiting.items():
            behavior, keeper = parts[0].behavior, parts[0].keeper
            rows = parts[0].rows if len(parts) == 1 else np.concatenate([part.rows for part in parts])
            actions = policy.act(*_inputs(parts), keeper.memory_of(rows))
            keeper.acted(rows, actions)
            # Exported models do not tell it.
            if policy is behavior.policy or not np.isnan(actions.entropy[0]):
                behavior.reporter.add_many("Policy/Entropy", actions.entropy)
            start = 0
            for part in parts:
                stop = start + len(part.rows)
                answers.setdefault(part.worker, {})[part.behavior_id] = actions.part(start, stop)
                start = stop
        return answers


def look(spec: BehaviorSpec, obs_dtypes: Sequence[np.dtype[Any]]) -> str:
    """Describe what agents see and do, for comparison and for messages. Names of sensors do not matter."""
    sensors = [
        f"{tuple(sensor.shape)} {dtype}" for sensor, dtype in zip(spec.observation_specs, obs_dtypes, strict=True)
    ]
    action = spec.action_spec
    return (
        f"the observations [{', '.join(sensors)}], {action.continuous_size} continuous actions and the discrete "
        f"branches {list(action.discrete_branches)}"
    )


def _inputs(parts: list[_Waiting]) -> tuple[tuple[ObservationArray, ...], BoolArray]:
    """Return observations and masks of the deciding agents: views of a single message, one copy for several."""
    observations = [tuple(o[part.batch.num_terminal :] for o in part.batch.obs) for part in parts]
    masks = [part.batch.mask[part.batch.num_terminal :] for part in parts]
    if len(parts) == 1:
        return observations[0], masks[0]
    return tuple(np.concatenate(columns) for columns in zip(*observations, strict=True)), np.concatenate(masks)
