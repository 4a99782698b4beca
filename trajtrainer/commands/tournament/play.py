"""The loop of a tournament: messages in, actions of the models that play out, until all games are over.

A game that does not end is truncated, and its players go on without counting. Once a copy of the environment plays no
game that counts any more although some are due, it waits until the others are done or in the same place. Then all of
them are reset.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trajtrainer.algos.acting import Acts, PolicyDivergedError
from trajtrainer.commands.tournament.games import NUM_SIDES, Agent, Areas, FinishedGame, Match, Queue, all_matches
from trajtrainer.core.errors import UnsupportedError
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, StepBatch
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.nn.init import derived_seeds
from trajtrainer.play.agents import act
from trajtrainer.play.models import Model, Roles
from trajtrainer.settings.evaluation import MAX_DECISIONS

logger = logging.getLogger(__name__)

# Upper bound of one wait for messages, so that a stop is seen while the environment is silent.
_WAIT_S = 0.25
_TELL_EVERY_S = 10.0
# Sums of 32-bit floats that differ by less are equal.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Result:
    """One game.

    Attributes:
        match: who played, on which side.
        outcome: 1: the first of ``match.sides`` won, -1: the other, 0: a draw.
        truncated: it had not ended; who was ahead has won.
    """

    match: Match
    outcome: int
    truncated: bool = False


def play(
    environment: Environment,
    entrants: Sequence[Model],
    *,
    games: int,
    seed: int,
    max_decisions: int = MAX_DECISIONS,
    num_areas: int = 1,
    parameters: Parameters | None = None,
) -> Iterator[Result | None]:
    """Play games of every pair, and yield their results as they are over.

    None comes now and then, so that the caller may stop.

    Args:
        environment: of two or more teams; not closed.
        entrants: at least two.
        games: of each pair.
        seed: of all policies' random numbers.
        max_decisions: of an agent in one game; a longer game is truncated.
        num_areas: training areas of each environment; 1 if that is to be found out.
        parameters: of the environment.

    Raises:
        UnsupportedError: the environment has one team.
        SettingsError: a model does not fit the environment.
        EnvironmentFaultError: an environment failed for good.
    """
    matches = all_matches(len(entrants), games)
    tournament = _Tournament(environment, Cast(entrants, seed), matches, num_areas, max_decisions)
    environment.reset(parameters or {})
    while not tournament.is_over:
        yield from tournament.step()
        yield None
        if tournament.is_stuck:
            tournament.start_over()
            environment.reset(parameters or {})


class _Tournament:
    def __init__(
        self, environment: Environment, cast: Cast, matches: Sequence[Match], num_areas: int, max_decisions: int
    ) -> None:
        self._environment = environment
        self._cast = cast
        self._num_matches, self._num_over = len(matches), 0
        workers = environment.num_workers
        starts = [worker * len(matches) // workers for worker in range(workers + 1)]
        self._queues = [Queue(matches[starts[worker] : starts[worker + 1]]) for worker in range(workers)]
        self._num_areas = num_areas
        self._areas = [Areas(num_areas) for _ in range(workers)]
        self._max_decisions = max_decisions
        self._tell_s = time.monotonic() + _TELL_EVERY_S

    @property
    def is_over(self) -> bool:
        return all(queue.is_done for queue in self._queues)

    @property
    def is_stuck(self) -> bool:
        """Whether nothing that counts is played any more, though not all games are over."""
        workers = range(len(self._queues))
        return not self.is_over and all(self._queues[worker].is_done or self._waits(worker) for worker in workers)

    def start_over(self) -> None:
        """Get ready for a reset of all workers."""
        for worker in range(len(self._queues)):
            self._start_over(worker)

    def _start_over(self, worker: int) -> None:
        self._queues[worker].start_over()
        self._areas[worker] = Areas(self._num_areas)

    def _waits(self, worker: int) -> bool:
        """Return whether only truncated games go on in a worker, whose next game needs a reset."""
        areas = self._areas[worker]
        return self._queues[worker].has_due and areas.has_game(counting=False) and not areas.has_game(counting=True)

    def step(self) -> Iterator[Result]:
        """Answer the messages that are there; yield the results that they bring."""
        for event in self._environment.wait(_WAIT_S):
            self._cast.announce(event.new_specs)
            if event.is_reset:
                self._start_over(event.worker)
            areas = self._areas[event.worker]
            for finished in areas.take(event):
                yield from self._finish(event.worker, finished)
            for longer in areas.longer_than(self._max_decisions):
                yield from self._truncate(event.worker, longer)
            self._begin_games(event)
            if not (self._queues[event.worker].is_done or self._waits(event.worker)):  # otherwise it may rest
                self._environment.send(event.worker, self._act(event))
        if time.monotonic() > self._tell_s:
            self._tell_s += _TELL_EVERY_S
            logger.info("%d of %d games are over.", self._num_over, self._num_matches)

    def _finish(self, worker: int, finished: FinishedGame) -> Iterator[Result]:
        teams, queue = self._teams(worker), self._queues[worker]
        match, finished.area.match = finished.area.match, None
        if finished.parted_from is not None and finished.parted_from.match is not None:
            match = queue.another(finished.parted_from.match)
        if match is not None and queue.over(match):
            self._num_over += 1
            yield Result(match, _outcome(finished.returns, teams))

    def _truncate(self, worker: int, longer: FinishedGame) -> Iterator[Result]:
        match = longer.area.match
        assert match is not None
        longer.area.match = replace(match, number=None)
        if self._queues[worker].over(match):
            self._num_over += 1
            yield Result(match, _outcome(longer.returns, self._teams(worker)), truncated=True)

    def _teams(self, worker: int) -> Sequence[int]:
        teams = self._areas[worker].teams
        if len(teams) < NUM_SIDES:
            raise UnsupportedError(
                f"The environment has one team ({teams[0]}), and a tournament needs two or more that play against each "
                "other. In Unity the team is set in Behavior Parameters (Team Id)."
            )
        return teams

    def _begin_games(self, event: EnvironmentEvent) -> None:
        """Let the areas play their next games of which agents ask for a decision without having one."""
        areas, queue = self._areas[event.worker], self._queues[event.worker]
        for batch in event.steps.values():
            for id_ in batch.agent[batch.num_terminal :].tolist():
                area = areas.agents[id_].area
                if area.match is None and not queue.is_done:
                    area.match = queue.next()

    def _act(self, event: EnvironmentEvent) -> Mapping[str, ActionBatch]:
        areas = self._areas[event.worker]
        answers = {}
        for behavior_id, batch in event.steps.items():
            if not batch.num_decisions:
                continue
            agents = [areas.agents[id_] for id_ in batch.agent[batch.num_terminal :].tolist()]
            name = BehaviorId.parse(behavior_id).name
            answers[behavior_id] = self._cast.act(event.worker, name, batch, agents, areas.teams)
        return answers


def _outcome(returns: Mapping[int, float], teams: Sequence[int]) -> int:
    """Return the sign of the difference between the mean returns of both sides' teams."""
    sides = [[returns[team] for team in teams[side::NUM_SIDES]] for side in range(NUM_SIDES)]
    first, second = (sum(side) / len(side) for side in sides)
    if math.isclose(first, second, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
        return 0
    return 1 if first > second else -1


class Cast:
    """Decides for agents with the model that plays their team.

    Random numbers are those of a worker, a model and a behavior, so that games repeat whatever other workers do.

    Args:
        entrants: the models.
        seed: of the tournament.
    """

    def __init__(self, entrants: Sequence[Model], seed: int) -> None:
        self._entrants = entrants
        self._roles = Roles(entrants)
        self._seed = seed
        self._policies: dict[tuple[int, int, str], Acts] = {}

    def announce(self, specs: Mapping[str, BehaviorSpec]) -> None:
        """Look whether every model can play the behaviors that an environment names; see ``Roles``."""
        self._roles.announce(specs)

    def act(
        self, worker: int, behavior: str, batch: StepBatch, agents: Sequence[Agent], teams: Sequence[int]
    ) -> ActionBatch:
        """Decide for all agents of a batch that ask for it.

        Args:
            worker: whose message it is.
            behavior: name, without team.
            batch: the agents' observations.
            agents: those that ask, in the order of the batch; each one's area has a match.
            teams: of the worker, in the order in which they are given to the sides.

        Raises:
            PolicyDivergedError: a model gives NaN.
        """
        rows: dict[int, list[int]] = {}
        for row, agent in enumerate(agents):
            assert agent.area.match is not None
            rows.setdefault(agent.area.match.model(teams.index(agent.team)), []).append(row)
        parts = []
        for model, own in rows.items():
            parts.append(self._act(worker, model, behavior, batch, own, [agents[row] for row in own]))
        return parts[0] if len(parts) == 1 else _in_order(parts, np.concatenate([*map(np.asarray, rows.values())]))

    def _act(
        self, worker: int, model: int, behavior: str, batch: StepBatch, rows: list[int], agents: Sequence[Agent]
    ) -> ActionBatch:
        try:
            return act(self._policy(worker, model, behavior), batch, batch.num_terminal + np.array(rows), agents)
        except PolicyDivergedError as error:
            raise PolicyDivergedError(f"{self._entrants[model].name}: {error}") from error

    def _policy(self, worker: int, model: int, behavior: str) -> Acts:
        key = (worker, model, behavior)
        if key not in self._policies:
            seed = derived_seeds(self._seed, f"{worker} {model} {behavior}")[0]
            self._policies[key] = self._roles.policy(model, behavior, seed)
        return self._policies[key]


def _in_order(parts: Sequence[ActionBatch], rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> ActionBatch:
    """Return the decisions of several models as those of one batch, without the memories, which may differ in size."""
    order = np.argsort(rows)

    def joined(name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return np.concatenate([getattr(part, name) for part in parts])[order]

    return ActionBatch(
        continuous=joined("continuous"),
        discrete=np.concatenate([part.discrete for part in parts])[order],
        env_continuous=joined("env_continuous"),
        log_prob=joined("log_prob"),
        entropy=joined("entropy"),
        memory=np.zeros((len(rows), 0), np.float32),
        version=0,
    )
