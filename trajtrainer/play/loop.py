"""Plays episodes in an environment and counts what they bring (docs/evaluation.md#which-episodes-count).

Which episodes count is settled when they begin, by their order alone: the first ones of each copy of the environment.
Counting those that end first would favour short ones.

An episode may have a limit of decisions, as some never end. What its agent does after that counts no more. Once a copy
has nothing left but such agents, it needs a reset to begin another episode. The environment resets all its copies, so
it waits until the others have played their share or are in the same place: no episode that counts is lost.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trajtrainer.algos.acting import Acts
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, FloatArray, StepBatch
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.nn.init import derived_seeds
from trajtrainer.play.agents import MakePolicy, act
from trajtrainer.play.result import Episode, EvaluationResult, GroupEpisode, in_order

logger = logging.getLogger(__name__)

# Upper bound of one wait for messages, so that a stop is seen while the environment is silent.
_WAIT_S = 0.25
_TELL_EVERY_S = 10.0

Announce = Callable[[Mapping[str, BehaviorSpec]], None]


def _nobody_is_told(specs: Mapping[str, BehaviorSpec]) -> None: ...


def play(
    environment: Environment,
    policies: MakePolicy,
    episodes: int,
    *,
    seed: int,
    max_decisions: int | None = None,
    parameters: Parameters | None = None,
    announce: Announce = _nobody_is_told,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, EvaluationResult]:
    """Play episodes from a reset on, and return what came out by behaviour.

    Args:
        environment: not closed.
        policies: asked once for each worker and behaviour id, so that what a worker's policies draw does not depend on
            how quick the others are.
        episodes: that count, of each behaviour and team, at least 1.
        seed: of all policies' random numbers.
        max_decisions: of an episode; a longer one is truncated. None for no limit.
        parameters: of the environment.
        announce: told of behaviours as the environment announces them, before any of their policies is asked for.
        stopped: asked after each step whether to end early, with the episodes that are over by then.

    Raises:
        EnvironmentFaultError: an environment failed for good.
        PolicyDivergedError: a policy gives NaN.
    """
    game = Play(environment, policies, episodes, seed=seed, max_decisions=max_decisions, announce=announce)
    game.begin(parameters)
    while not game.is_over and not stopped():
        game.step()
    return game.results()


class Play:
    """Episodes that are being played; for whoever does something else in between. See :func:`play`."""

    def __init__(
        self,
        environment: Environment,
        policies: MakePolicy,
        episodes: int,
        *,
        seed: int,
        max_decisions: int | None = None,
        announce: Announce = _nobody_is_told,
    ) -> None:
        self._environment = environment
        self._announce = announce
        self._parameters: Parameters = {}
        workers = environment.num_workers
        self._workers = [
            _Worker(worker, policies, episodes // workers + (worker < episodes % workers), seed, max_decisions)
            for worker in range(workers)
        ]
        self._begin_s = self._end_s = self._tell_s = time.monotonic()

    def begin(self, parameters: Parameters | None = None) -> None:
        """Reset the environment."""
        self._parameters = parameters or {}
        self._environment.reset(self._parameters)
        self._begin_s = self._end_s = time.monotonic()
        self._tell_s = self._begin_s + _TELL_EVERY_S

    @property
    def is_over(self) -> bool:
        """Whether all episodes that count are over."""
        return all(worker.is_over for worker in self._workers)

    def step(self, timeout_s: float = _WAIT_S) -> None:
        """Answer the messages that are there; wait for the first of them at most so long."""
        for event in self._environment.wait(timeout_s):
            worker = self._workers[event.worker]
            self._announce(event.new_specs)
            if not worker.is_over:
                waiting = worker.take(event)
                if not (worker.is_over or worker.is_stuck):  # otherwise it may rest
                    self._environment.send(event.worker, worker.act(waiting))
        if not self.is_over and all(worker.is_over or worker.is_stuck for worker in self._workers):
            for worker in self._workers:
                worker.start_over()
            self._environment.reset(self._parameters)
        self._end_s = time.monotonic()
        if self._end_s > self._tell_s:
            self._tell_s += _TELL_EVERY_S
            over = sum(len(side.episodes) for worker in self._workers for side in worker.sides.values())
            logger.info("%d episodes are over.", over)

    def results(self) -> dict[str, EvaluationResult]:
        """Return what came out so far, by behaviour name in order of appearance."""
        sides: dict[str, list[_Side]] = {}
        for worker in self._workers:
            for side in worker.sides.values():
                sides.setdefault(side.id.name, []).append(side)
        return {
            name: EvaluationResult(
                behavior=name,
                episodes=in_order([episode for side in own for episode in side.episodes]),
                groups=tuple(group for side in own for group in side.groups),
                decisions=sum(side.decisions for side in own),
                seconds=self._end_s - self._begin_s,
            )
            for name, own in sides.items()
        }


class _Worker:
    """One copy of the environment."""

    def __init__(self, number: int, policies: MakePolicy, episodes: int, seed: int, max_decisions: int | None) -> None:
        self.sides: dict[str, _Side] = {}
        self._number = number
        self._policies = policies
        self._episodes = episodes
        self._seed = seed
        self._max_decisions = max_decisions
        self._specs: dict[str, BehaviorSpec] = {}

    @property
    def is_over(self) -> bool:
        if not self._episodes:
            return True
        return bool(self.sides) and all(len(side.episodes) == self._episodes for side in self.sides.values())

    @property
    def is_stuck(self) -> bool:
        """Whether only agents whose episodes were truncated are left to go on, if any that count are still due."""
        sides = self.sides.values()
        return any(side.num_truncated for side in sides) and not any(side.num_counting for side in sides)

    def start_over(self) -> None:
        for side in self.sides.values():
            side.start_over()

    def take(self, event: EnvironmentEvent) -> list[_Waiting]:
        """Take in a message; return the agents that ask for decisions."""
        self._specs |= event.new_specs
        if event.is_reset:
            self.start_over()
        sides = [(self._side(behavior_id), batch) for behavior_id, batch in event.steps.items()]
        return [_Waiting(side, batch, side.take(batch)) for side, batch in sides]

    def act(self, waiting: Sequence[_Waiting]) -> dict[str, ActionBatch]:
        """Decide for the agents that ask for it."""
        return {each.side.id.full: each.side.act(each.batch, each.agents) for each in waiting if each.agents}

    def _side(self, behavior_id: str) -> _Side:
        if behavior_id not in self.sides:
            parsed = BehaviorId.parse(behavior_id)
            seed = derived_seeds(self._seed, f"{self._number} {behavior_id}")[0]
            policy = self._policies(parsed, self._specs[behavior_id], seed)
            self.sides[behavior_id] = _Side(parsed, policy, self._number, self._episodes, self._max_decisions)
        return self.sides[behavior_id]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Agents of one message that ask for a decision."""

    side: _Side
    batch: StepBatch
    agents: list[_Running]


@dataclass(slots=True)
class _Running:
    """An episode that goes on.

    Attributes:
        number: None if it does not count.
        group: of its agent, 0 for none.
        truncated: it goes on after the limit.
    """

    number: int | None
    group: int
    truncated: bool = False
    memory: FloatArray | None = None
    reward: float = 0.0
    group_reward: float = 0.0
    length: int = 0


class _Side:
    """The agents of one behaviour id in one worker.

    Attributes:
        num_counting: agents whose episodes count.
        num_truncated: agents whose episodes go on after the limit.
    """

    def __init__(
        self, behavior_id: BehaviorId, policy: Acts, worker: int, episodes: int, max_decisions: int | None
    ) -> None:
        self.id = behavior_id
        self.episodes: list[Episode] = []
        self.groups: list[GroupEpisode] = []
        self.decisions = self.num_counting = self.num_truncated = 0
        self._limit = math.inf if max_decisions is None else max_decisions
        self._policy = policy
        self._worker = worker
        self._due = deque(range(episodes))
        self._running: dict[int, _Running] = {}
        # Group -> number of the episode of its first member; None if a member's episode does not count.
        self._open_groups: dict[int, int | None] = {}

    def start_over(self) -> None:
        """Give up the episodes that go on; others take their numbers."""
        lost = sorted(running.number for running in self._running.values() if running.number is not None)
        self._due.extendleft(reversed(lost))
        self._running, self._open_groups = {}, {}
        self.num_counting = self.num_truncated = 0

    def take(self, batch: StepBatch) -> list[_Running]:
        """Take in a message; return the agents that ask for a decision."""
        agents, groups = batch.agent.tolist(), batch.group.tolist()
        rewards, group_rewards = batch.reward.tolist(), batch.group_reward.tolist()
        first = batch.num_terminal
        ended = []
        for row in range(first):
            running = self._running.pop(agents[row], None)
            if running is not None:  # else it ended before its first decision: nobody has played it
                running.reward += rewards[row]
                running.group_reward += group_rewards[row]
                self.num_truncated -= running.truncated
                ended.append((running, bool(batch.interrupted[row])))
        self._finish(ended)
        deciding, truncated = [], []
        for row in range(first, len(agents)):
            running = self._running.get(agents[row])
            if running is None:
                # A reward that comes with the first decision is none for it, as in training.
                running = self._begin(agents[row], groups[row])
            else:
                running.reward += rewards[row]
                running.group_reward += group_rewards[row]
                if running.number is not None and running.length >= self._limit:
                    truncated.append((running, False))
                    running = self._go_on_uncounted(agents[row], running)
            running.length += 1
            deciding.append(running)
        if truncated:
            self._finish(truncated, truncated=True)
        return deciding

    def act(self, batch: StepBatch, agents: Sequence[_Running]) -> ActionBatch:
        """Decide for the agents that ask for it."""
        self.decisions += len(agents)
        return act(self._policy, batch, slice(batch.num_terminal, None), agents)

    def _begin(self, agent: int, group: int) -> _Running:
        running = self._running[agent] = _Running(self._due.popleft() if self._due else None, group)
        self.num_counting += running.number is not None
        if group:
            known = self._open_groups.setdefault(group, running.number)
            self._open_groups[group] = None if running.number is None else known
        return running

    def _go_on_uncounted(self, agent: int, running: _Running) -> _Running:
        self.num_truncated += 1
        self._running[agent] = _Running(None, group=0, truncated=True, memory=running.memory)
        return self._running[agent]

    def _finish(self, ended: Sequence[tuple[_Running, bool]], *, truncated: bool = False) -> None:
        for running, interrupted in ended:
            if running.number is not None:
                self.num_counting -= 1
                self.episodes.append(
                    Episode(
                        worker=self._worker,
                        team=self.id.team,
                        number=running.number,
                        reward=running.reward,
                        group_reward=running.group_reward,
                        length=running.length,
                        interrupted=interrupted,
                        truncated=truncated,
                    )
                )
        over = {running.group for running, _ in ended} & self._open_groups.keys()
        if over:
            over -= {running.group for running in self._running.values()}
        for group in sorted(over):
            number = self._open_groups.pop(group)
            if number is not None:
                last = max((each for each, _ in ended if each.group == group), key=lambda each: each.length)
                self.groups.append(GroupEpisode(self._worker, self.id.team, number, last.group_reward))
