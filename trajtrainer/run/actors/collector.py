"""The acting side: receives messages from environments, writes rows, runs one forward pass per policy, sends actions.

The collector only waits for environments (``Environment.wait``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trajtrainer.core.errors import UnsupportedError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.queues import EpisodesAborted, PolicyUpdate
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.stats import StatsReporter
from trajtrainer.core.steps import (
    ActionBatch,
    Aggregation,
    EnvironmentEvent,
    LongArray,
    StepBatch,
)
from trajtrainer.core.timers import Timers
from trajtrainer.envs.protocol import Environment
from trajtrainer.experience.agent_processor import AgentProcessor, match_results
from trajtrainer.experience.opponents import OpponentTracker
from trajtrainer.experience.rows import RowPool
from trajtrainer.experience.trajectory import TrajectoryBatch
from trajtrainer.run.actors.messages import Assignment, Matches, NewBehavior
from trajtrainer.settings.trainer import SelfPlaySettings

if TYPE_CHECKING:  # as in ``messages``
    from trajtrainer.learning.algos.acting import ActorPolicy, Policy

_LOGGER = logging.getLogger(__name__)
# Each name becomes a TensorBoard tag that is kept in memory, so names that contain numbers would use up the memory.
MOST_STATISTICS = 1000
_LONGEST_KEY = 1000


class Outbox:
    """A queue of finished trajectories and aborted episodes that the actor has not handed over yet.

    Attributes:
        num_steps: number of steps in the queued trajectories.
        is_needed: True if an abort is queued, so that everything should be handed over without waiting for more steps.
        num_put: number of steps in all trajectories put into the queue so far.
        rows: number of rows that these steps take up in the learner's buffer (recurrent policies pad to whole
            sequences).
    """

    def __init__(self, sequence_length: int = 1) -> None:
        self.items: list[TrajectoryBatch | EpisodesAborted] = []
        self.num_steps = self.num_put = self.rows = 0
        self.is_needed = False
        self._length = sequence_length

    def put(self, batch: TrajectoryBatch) -> None:
        self.items.append(batch)
        self.num_steps += batch.num_steps
        self.num_put += batch.num_steps
        self.rows += self.rows_of([batch])

    def abort_episodes(self, worker: int) -> None:
        """Append a marker that the unfinished episodes of a worker were aborted at this point."""
        self.items.append(EpisodesAborted(worker))
        self.is_needed = True

    def drain(self) -> list[TrajectoryBatch | EpisodesAborted]:
        """Remove and return everything, oldest first."""
        items, self.items = self.items, []
        self.num_steps, self.is_needed = 0, False
        return items

    def rows_of(self, batches: Sequence[TrajectoryBatch]) -> int:
        """Return the number of rows that trajectories take up in the learner's buffer."""
        if self._length == 1:
            return sum(batch.num_steps for batch in batches)
        return sum(int((-(-batch.lengths // self._length)).sum()) for batch in batches) * self._length


class Sides:
    """The teams of a behavior with self-play, in one actor. The learner decides which policies play against each other.

    Args:
        settings: self-play settings of the behavior.
        policy: the policy of the learning team.
        ask: reports a new team to the learner, and returns the assignment that includes it.

    Attributes:
        policies: behavior id -> policy of a team that does not learn.
    """

    def __init__(
        self, settings: SelfPlaySettings, policy: ActorPolicy, ask: Callable[[BehaviorId], Assignment]
    ) -> None:
        self.settings = settings
        self.policies: dict[str, Policy] = {}
        self._matches: list[Matches] = []
        self._policy = policy
        self._ask = ask
        self._learning: int | None = None
        self._number = 0
        self._twins: dict[str, tuple[int, ActorPolicy]] = {}  # behavior id -> seed and policy

    def learns(self, team: int) -> bool:
        return team == self._learning

    def add_team(self, behavior_id: BehaviorId) -> None:
        """Ask the learner for the assignment of a new team."""
        self.apply(self._ask(behavior_id))

    def count(self, trajectories: TrajectoryBatch, results: Sequence[float]) -> None:
        """Record the steps and finished episodes in one message of the learning team."""
        ended = int(np.count_nonzero(trajectories.ended))
        self._matches.append(Matches(self._number, ended, trajectories.num_steps, results))

    def take_matches(self) -> Sequence[Matches]:
        """Return and clear the matches recorded since the last call."""
        matches, self._matches = self._matches, []
        return matches

    def apply(self, assignment: Assignment) -> None:
        self._learning, self._number = assignment.learning, assignment.number
        self.policies = {}
        for name, opponent in assignment.opponents.items():
            player = opponent.acts
            if player is None:
                seed, twin = self._twins.get(name, (None, None))
                if twin is None or seed != opponent.seed:
                    twin = self._policy.twin(seed=opponent.seed)
                    self._twins[name] = opponent.seed, twin
                twin.load(PolicyUpdate(0, opponent.weights))
                player = twin
            self.policies[name] = player


@dataclass(frozen=True, slots=True)
class CollectedBehavior:
    """The collector's objects for one behavior, shared by all teams with the same behavior name."""

    spec: BehaviorSpec
    pool: RowPool
    processor: AgentProcessor  # writes rows to ``pool`` and cuts them into trajectories
    tracker: OpponentTracker  # keeps the memories of agents whose experience is not recorded
    policy: ActorPolicy  # acts for all teams that have no policy in ``sides``
    trajectories: Outbox  # finished trajectories
    reporter: StatsReporter
    learns: bool = True  # False to discard the experience
    sides: Sides | None = None  # set if only one team learns

    def recorder(self, team: int) -> AgentProcessor | OpponentTracker:
        """Return the recorder for a team's steps. Only the experience of learning teams is kept."""
        learns = self.learns if self.sides is None else self.sides.learns(team)
        return self.processor if learns else self.tracker

    def acts(self, behavior_id: str) -> Policy:
        """Return the policy that acts for a team."""
        return self.policy if self.sides is None else self.sides.policies.get(behavior_id, self.policy)

    def drop(self, worker: int) -> None:
        """Abort all unfinished episodes of one worker."""
        self.tracker.drop(worker)
        self.processor.drop(worker)
        if self.learns:
            self.trajectories.abort_episodes(worker)


class _WaitingAgents(NamedTuple):
    """Agents of one message that wait for an action."""

    behavior: CollectedBehavior
    recorder: AgentProcessor | OpponentTracker
    worker: int
    behavior_id: str
    batch: StepBatch
    rows: LongArray


class Collector:
    """Steps every ready environment once per ``collect``.

    Attributes:
        behaviors: behaviors by name, each added when its first agents appear.
        specs: behavior id -> spec, as reported by the environment.
    """

    def __init__(
        self,
        environment: Environment,
        make_behavior: Callable[[NewBehavior], CollectedBehavior],
        timers: Timers,
        before_answers: Callable[[int], bool] | None = None,
    ) -> None:
        """Create a collector that has no behaviors yet.

        Args:
            environment: the environment to step.
            make_behavior: called when the first agents of a behavior appear.
            timers: timers of the actor.
            before_answers: called with the number of recorded messages before they are answered. Returns False if it
                has reset the environment, so that the messages need no answers.
        """
        self.behaviors: dict[str, CollectedBehavior] = {}
        self.specs: dict[str, BehaviorSpec] = {}
        self.num_messages = 0
        self._environment = environment
        self._make_behavior = make_behavior
        self._before_answers = before_answers
        self._timers = timers
        self._ids: dict[str, BehaviorId] = {}
        self._raw_images: dict[str, RawImageOrder] = {}
        self._statistic_keys: set[str] = set()
        self._warned: set[str] = set()

    def collect(self, timeout_s: float | None = None) -> int:
        """Wait for messages, record them, choose actions for all waiting agents in one batch, and send the actions.

        Returns:
            The number of recorded messages; 0 if none arrived within ``timeout_s`` seconds.

        Raises:
            EnvironmentFaultError: an environment failed, and restarting it is not possible.
        """
        with self._timers("env_step") as step:
            step.part("env_wait")
            events = self._environment.wait(timeout_s)
            step.part("record")
            waiting: dict[Policy, list[_WaitingAgents]] = {}
            for event in events:
                self._record(event, waiting)
            self.num_messages += len(events)
            if events and self._before_answers is not None and not self._before_answers(len(events)):
                return len(events)
            step.part("TorchPolicy.evaluate")
            answers = self._act(waiting)
            step.part("env_send")
            for event in events:
                self._environment.send(event.worker, answers.get(event.worker, {}))
        return len(events)

    def _record(self, event: EnvironmentEvent, waiting: dict[Policy, list[_WaitingAgents]]) -> None:
        self.specs.update(event.new_specs)
        self._raw_images.update(event.raw_images)
        if event.is_reset:
            for behavior in self.behaviors.values():
                behavior.drop(event.worker)
        for behavior_id, batch in event.steps.items():
            parsed = self._ids.get(behavior_id) or self._add(behavior_id, batch)
            behavior, team = self.behaviors[parsed.name], parsed.team
            recorder = behavior.recorder(team)
            recorded = recorder.record(batch, team)
            if recorded.num_given_up:
                self._warn_once(
                    f"agents of {parsed.name}",
                    "Behavior %r: %d agents of environment %d have sent nothing for a long time, while new agents kept "
                    "appearing. Their unfinished episodes are dropped, now and in the future, so that they do not fill "
                    "the memory. A destroyed agent sends a last record automatically; if agents get a new id at "
                    "every step, fix that in the game.",
                    parsed.name,
                    recorded.num_given_up,
                    event.worker,
                )
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
                    _WaitingAgents(behavior, recorder, event.worker, behavior_id, batch, rows)
                )
        if event.statistics and self.behaviors:
            # Always use the same behavior's reporter, no matter which behaviors are in the message. Otherwise, sums
            # would be split between behaviors or counted twice.
            owner = next(iter(self.behaviors.values()))
            for statistic in event.statistics:
                self._add_statistic(owner.reporter, event.worker, *statistic)

    def _add(self, behavior_id: str, batch: StepBatch) -> BehaviorId:
        """Add a new team, and its behavior if this is its first team.

        Raises:
            UnsupportedError: the team has no actions, or differs from the other teams of its behavior.
        """
        parsed = self._ids[behavior_id] = BehaviorId.parse(behavior_id)
        spec, dtypes = self.specs[behavior_id], [column.dtype for column in batch.obs]
        if not (spec.action_spec.continuous_size or spec.action_spec.discrete_size):
            raise UnsupportedError(
                f"Behavior {behavior_id!r} has no actions, so there is nothing to learn. Give it continuous "
                "actions or discrete branches in Unity (Behavior Parameters, Actions)."
            )
        behavior = self.behaviors.get(parsed.name)
        if behavior is None:
            order = self._raw_images.get(behavior_id, RawImageOrder.AUTO)
            behavior = self.behaviors[parsed.name] = self._make_behavior(NewBehavior(parsed, spec, dtypes, order))
        found, expected = describe(spec, dtypes), describe(behavior.spec, [obs.dtype for obs in behavior.pool.obs])
        if found != expected:
            raise UnsupportedError(
                f"Behavior {behavior_id!r} has {found}, but other teams of {parsed.name!r} have {expected}. "
                "Teams that share a Behavior Name share one policy: give them the same sensors and actions in Unity, "
                "or different names."
            )
        if behavior.sides is not None:
            behavior.sides.add_team(parsed)
        return parsed

    def _add_statistic(
        self, reporter: StatsReporter, worker: int, key: str, value: float, aggregation: Aggregation
    ) -> None:
        if key not in self._statistic_keys:
            if len(self._statistic_keys) == MOST_STATISTICS or len(key) > _LONGEST_KEY:
                self._warn_once(
                    "statistics",
                    "The environment reports statistics with more than %d names, or names longer than %d characters. "
                    "New names are dropped, starting with %.100r. Put numbers into the value of a statistic, not into "
                    "its name.",
                    MOST_STATISTICS,
                    _LONGEST_KEY,
                    key,
                )
                return
            self._statistic_keys.add(key)
        if aggregation is not Aggregation.MOST_RECENT:
            reporter.add(key, value, aggregation)
        elif worker == 0:
            reporter.set(key, value)

    def _warn_once(self, about: str, message: str, *arguments: object) -> None:
        if about not in self._warned:
            self._warned.add(about)
            _LOGGER.warning(message, *arguments)

    def _act(self, waiting: Mapping[Policy, list[_WaitingAgents]]) -> dict[int, dict[str, ActionBatch]]:
        """Choose actions with one forward pass per policy, over the agents of all workers.

        Returns worker -> behavior id -> actions.
        """
        answers: dict[int, dict[str, ActionBatch]] = {}
        for policy, parts in waiting.items():
            behavior, recorder = parts[0].behavior, parts[0].recorder
            rows = parts[0].rows if len(parts) == 1 else np.concatenate([part.rows for part in parts])
            # A single message needs no copy; several messages are concatenated.
            obs = [tuple(column[part.batch.num_terminal :] for column in part.batch.obs) for part in parts]
            masks = [part.batch.mask[part.batch.num_terminal :] for part in parts]
            if len(parts) == 1:
                actions = policy.act(obs[0], masks[0], recorder.memory_of(rows))
            else:
                columns = tuple(np.concatenate(column) for column in zip(*obs, strict=True))
                actions = policy.act(columns, np.concatenate(masks), recorder.memory_of(rows))
            recorder.acted(rows, actions)
            # The entropy is NaN for exported models, which do not output it.
            if policy is behavior.policy or not np.isnan(actions.entropy[0]):
                behavior.reporter.add_many("Policy/Entropy", actions.entropy)
            start = 0
            for part in parts:
                stop = start + len(part.rows)
                answers.setdefault(part.worker, {})[part.behavior_id] = actions.part(start, stop)
                start = stop
        return answers


def describe(spec: BehaviorSpec, obs_dtypes: Sequence[np.dtype[Any]]) -> str:
    """Describe observations and actions, for error messages and comparisons. Sensor names are left out."""
    sensors = [
        f"{tuple(sensor.shape)} {dtype}" for sensor, dtype in zip(spec.observation_specs, obs_dtypes, strict=True)
    ]
    action = spec.action_spec
    return (
        f"the observations [{', '.join(sensors)}], {action.continuous_size} continuous actions and the discrete "
        f"branches {list(action.discrete_branches)}"
    )
