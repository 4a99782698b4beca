"""The loop that plays without training, and the game that counts episodes.

All features that act without training use this loop: evaluations, recordings, videos, tournaments, the survey of a new
environment, and the contract tests of environments. They differ in the :class:`Game`. Training has its own loop,
``run.actors.collector``, which writes columns and acts for all workers in one pass.

``EpisodeCounter`` decides at the start of an episode whether it counts. The first episodes of each copy of the
environment count (docs/measure/evaluation.md#which-episodes-count). Counting the first episodes to end instead would
favor short ones.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from trajtrainer.core.seeds import derived_seeds
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.learning.algos.acting import Policy
from trajtrainer.policies.play.agents import Agent, AgentTable, MakePolicy, Turn, act
from trajtrainer.policies.play.result import Episode, EvaluationResult, GroupEpisode, place

logger = logging.getLogger(__name__)

# Maximum duration of one wait for messages. It is short, so that a stop is noticed while no messages arrive.
_WAIT_S = 0.25
_REPORT_EVERY_S = 10.0

Announce = Callable[[Mapping[str, BehaviorSpec]], None]
Exchange = tuple[EnvironmentEvent, Sequence[Turn], Mapping[str, ActionBatch]]
"""A message from an environment, the agents' turns, and the answers by behavior id (empty if the worker rests)."""


class Game(Protocol):
    """Decides which policies act and which episodes count."""

    @property
    def is_over(self) -> bool:
        """True if the game has ended."""

    def rests(self, worker: int) -> bool:
        """Return whether a worker is paused, that is, gets no answers for now.

        Once all workers rest, they are reset, unless the game is over.
        """

    def start_over(self, worker: int) -> None:
        """Abort all episodes of a worker, because it was reset or restarted."""

    def observe(self, event: EnvironmentEvent, turns: Sequence[Turn]) -> None:
        """Process a message. Afterwards, all deciding agents must have a policy, unless the worker rests."""

    def progress(self) -> str:
        """Return a sentence about the progress for the log."""


def exchanges(
    environment: Environment,
    game: Game,
    parameters: Parameters | None = None,
    *,
    announce: Announce = lambda _: None,
    specs: dict[str, BehaviorSpec] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Exchange]:
    """Reset the environment, play a game, and yield each message of the environment before its answers are sent.

    Args:
        environment: the environment, which is not closed. It may reuse the arrays of a message once it has the answers.
        game: the game to play.
        parameters: environment parameters.
        announce: called with new behaviors when the environment announces them, before the game sees them.
        specs: specs by behavior id that the environment announced before this call. New specs are added.
        stopped: called after each wait for messages; returns whether to stop before the game is over.

    Raises:
        EnvironmentFaultError: an environment failed permanently.
        PolicyDivergedError: a policy returns NaN.
    """
    specs = {} if specs is None else specs
    workers = range(environment.num_workers)
    tables = [AgentTable() for _ in workers]

    def start_over(worker: int) -> None:
        tables[worker].clear()
        game.start_over(worker)

    environment.reset(parameters or {})
    report_s = time.monotonic() + _REPORT_EVERY_S
    while not game.is_over and not stopped():
        events = environment.wait(_WAIT_S)
        for event in events:
            specs.update(event.new_specs)
            announce(event.new_specs)
            if event.is_reset:
                start_over(event.worker)
            turns = tables[event.worker].update(event, specs)
            game.observe(event, turns)
            rests = game.rests(event.worker)
            answers = {} if rests else {turn.behavior.full: act(turn) for turn in turns if turn.deciding}
            yield event, turns, answers
            if not rests:
                environment.send(event.worker, answers)
        if not game.is_over and all(map(game.rests, workers)):
            for worker in workers:
                start_over(worker)
            environment.reset(parameters or {})
        if time.monotonic() > report_s:
            report_s += _REPORT_EVERY_S
            logger.info("%s", game.progress())


def play(
    environment: Environment,
    policies: MakePolicy,
    episodes: int,
    parameters: Parameters | None = None,
    *,
    seed: int,
    max_decisions: int | None = None,
    announce: Announce = lambda _: None,
    specs: dict[str, BehaviorSpec] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, EvaluationResult]:
    """Play episodes and return the results by behavior. The exceptions are those of ``exchanges``.

    Args:
        environment: the environment, which is not closed.
        policies: called once for each worker and behavior id, so that the random numbers of a worker's policies do not
            depend on the speed of other workers.
        episodes: number of episodes that count for each behavior and team, at least 1. The results contain fewer if
            ``stopped`` ended the game.
        parameters: environment parameters.
        seed: random seed for all policies.
        max_decisions: maximum number of decisions per episode; longer episodes are truncated. None for no limit.
        announce, specs, stopped: see ``exchanges``.
    """
    counter = EpisodeCounter(environment.num_workers, policies, episodes, seed=seed, max_decisions=max_decisions)
    begin_s = time.monotonic()
    for _ in exchanges(environment, counter, parameters, announce=announce, specs=specs, stopped=stopped):
        pass
    return counter.results(time.monotonic() - begin_s)


class EpisodeCounter:
    """A game that ends after a number of episodes; see :func:`play`.

    Because some episodes never end, their number of decisions may be limited. After the limit, an agent's decisions no
    longer count. If all remaining agents of a worker have reached the limit, the worker needs a reset to start another
    episode. A reset affects all workers of the environment, so this worker rests until every other worker has played
    its share or also needs a reset. This way, no episode that counts is lost.
    """

    def __init__(
        self, workers: int, policies: MakePolicy, episodes: int, *, seed: int, max_decisions: int | None = None
    ) -> None:
        self._policies = policies
        self._shares = [episodes // workers + (worker < episodes % workers) for worker in range(workers)]
        self._seed = seed
        self._limit = math.inf if max_decisions is None else max_decisions
        self._sides: list[dict[str, _Side]] = [{} for _ in range(workers)]

    @property
    def is_over(self) -> bool:
        """True if all episodes that count have ended."""
        return all(map(self._is_over, range(len(self._shares))))

    def _is_over(self, worker: int) -> bool:
        sides, share = self._sides[worker].values(), self._shares[worker]
        return not share or (bool(sides) and all(len(side.episodes) == share for side in sides))

    def rests(self, worker: int) -> bool:
        """Return whether a worker has played its share, or all its remaining agents have reached the limit."""
        sides = self._sides[worker].values()
        is_stuck = any(side.beyond for side in sides) and not any(side.counting for side in sides)
        return is_stuck or self._is_over(worker)

    def start_over(self, worker: int) -> None:
        """Abort a worker's current episodes. Later episodes reuse their numbers."""
        for side in self._sides[worker].values():
            side.start_over()

    def observe(self, event: EnvironmentEvent, turns: Sequence[Turn]) -> None:
        """Count the episodes and decisions in a message."""
        worker = event.worker
        if self._is_over(worker):
            return
        sides = self._sides[worker]
        for turn in turns:
            name = turn.behavior.full
            if name not in sides:
                seed = derived_seeds(self._seed, f"{worker} {name}")[0]
                policy = self._policies(turn.behavior, turn.spec, seed)
                sides[name] = _Side(turn.behavior, policy, worker, self._shares[worker])
            sides[name].count(turn, self._limit)
        if not self.rests(worker):
            for turn in turns:
                sides[turn.behavior.full].decisions += len(turn.deciding)

    def progress(self) -> str:
        """Return a sentence with the number of finished episodes."""
        return f"{sum(len(side.episodes) for sides in self._sides for side in sides.values())} episodes have finished."

    def results(self, seconds: float) -> dict[str, EvaluationResult]:
        """Return the results so far by behavior name, in order of appearance, given the elapsed ``seconds``."""
        found: dict[str, list[_Side]] = {}
        for sides in self._sides:
            for side in sides.values():
                found.setdefault(side.behavior.name, []).append(side)
        results = {}
        for name, own in found.items():
            episodes = tuple(sorted((episode for side in own for episode in side.episodes), key=place))
            groups = tuple(group for side in own for group in side.groups)
            results[name] = EvaluationResult(name, episodes, groups, sum(side.decisions for side in own), seconds)
        return results


class _Side:
    """The episodes of one behavior id in one worker.

    Attributes:
        counting: agents whose current episodes count.
        beyond: agents whose episodes continue beyond the limit.
    """

    def __init__(self, behavior: BehaviorId, policy: Policy, worker: int, episodes: int) -> None:
        self.behavior = behavior
        self.episodes: list[Episode] = []
        self.groups: list[GroupEpisode] = []
        self.decisions = 0
        self.counting: set[Agent] = set()
        self.beyond: set[Agent] = set()
        self._policy = policy
        self._worker = worker
        self._due = deque(range(episodes))
        # Each group's agents, and the number of its first member's episode; None if any member's episode does not
        # count.
        self._groups: dict[int, tuple[set[Agent], int | None]] = {}

    def start_over(self) -> None:
        lost = sorted(agent.episode for agent in self.counting if agent.episode is not None)
        self._due.extendleft(reversed(lost))
        self.counting.clear()
        self.beyond.clear()
        self._groups.clear()

    def count(self, turn: Turn, limit: float) -> None:
        for row, agent in turn.ended:
            self.beyond.discard(agent)
            self._end(agent, interrupted=bool(turn.batch.interrupted[row]))
        self._end_groups([agent for _, agent in turn.ended])
        truncated = []
        for agent in turn.deciding:
            if agent.policy is None:
                agent.play_with(self._policy)
                if self._due:
                    agent.episode = self._due.popleft()
                    self.counting.add(agent)
                if agent.group:
                    agents, number = self._groups.get(agent.group, (set(), agent.episode))
                    agents.add(agent)
                    self._groups[agent.group] = agents, None if agent.episode is None else number
            elif agent.episode is not None and agent.length >= limit:
                self._end(agent, truncated=True)
                self.beyond.add(agent)
                truncated.append(agent)
        self._end_groups(truncated)
        for agent in truncated:
            agent.episode, agent.group = None, 0

    def _end(self, agent: Agent, *, interrupted: bool = False, truncated: bool = False) -> None:
        if agent.episode is not None:
            self.counting.remove(agent)
            rewards = agent.reward, agent.group_reward
            where = self._worker, self.behavior.team, agent.episode
            self.episodes.append(Episode(*where, *rewards, agent.length, interrupted, truncated))

    def _end_groups(self, ended: Sequence[Agent]) -> None:
        """Count the groups that have no members left after these episodes, which ended at the same time."""
        for group in sorted({agent.group for agent in ended} & self._groups.keys()):
            agents, number = self._groups[group]
            agents.difference_update(ended)
            if not agents:
                del self._groups[group]
                if number is not None:
                    last = max((agent for agent in ended if agent.group == group), key=lambda agent: agent.length)
                    self.groups.append(GroupEpisode(self._worker, self.behavior.team, number, last.group_reward))
