"""The tournament as a game of the play loop: which model plays which team, until all games are over.

A game that does not end is truncated, and its agents continue without counting. Once a copy of the environment plays no
game that counts any more although some are due, it rests until the others are done or in the same place. Then all of
them are reset.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trajtrainer.core.errors import UnsupportedError
from trajtrainer.core.seeds import derived_seeds
from trajtrainer.core.steps import ActionBatch, BoolArray, EnvironmentEvent, FloatArray, ObservationArray
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.learning.algos.acting import Policy, PolicyDivergedError
from trajtrainer.policies.play.agents import Turn
from trajtrainer.policies.play.loop import exchanges
from trajtrainer.policies.play.models import Model, Roles
from trajtrainer.settings.evaluation import MAX_DECISIONS
from trajtrainer.tools.tournament.games import NUM_SIDES, Areas, Match, Queue, all_matches

# Sums of 32-bit floats that differ by less are equal.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class GameResult:
    """One game.

    Attributes:
        match: who played, on which side.
        outcome: 1: the first of ``match.sides`` won, -1: the other, 0: a draw.
        truncated: it had not ended; the side that was in the lead has won.
    """

    match: Match
    outcome: int
    truncated: bool = False


def play(
    environment: Environment,
    entrants: Sequence[Model],
    results: list[GameResult],
    *,
    games: int,
    seed: int,
    max_decisions: int = MAX_DECISIONS,
    num_areas: int = 1,
    parameters: Parameters | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Play games of every pair, and append their results as they end.

    Args:
        environment: of two or more teams; not closed.
        entrants: at least two.
        results: receives those of the games; those before a fault stay.
        games: of each pair.
        seed: of all policies' random numbers.
        max_decisions: of an agent in one game; a longer game is truncated.
        num_areas: training areas of each environment; 1 if that is to be found out.
        parameters: of the environment.
        stopped: asked after each step whether to end early.

    Raises:
        UnsupportedError: the environment has one team.
        SettingsError: a model does not fit the environment.
        EnvironmentFaultError: an environment failed for good.
        PolicyDivergedError: a model gives NaN.
    """
    matches = all_matches(len(entrants), games)
    tournament = _Tournament(entrants, matches, results, environment.num_workers, seed, max_decisions, num_areas)
    for _ in exchanges(environment, tournament, parameters, announce=tournament.roles.announce, stopped=stopped):
        pass


@dataclass(slots=True, eq=False)
class _Tournament:
    """The games of all workers, and the policies that play them.

    Random numbers are those of a worker, a model and a behavior, so that games repeat whatever other workers do.
    """

    entrants: Sequence[Model]
    matches: Sequence[Match]
    results: list[GameResult]
    workers: int
    seed: int
    max_decisions: int
    num_areas: int
    roles: Roles = field(init=False)
    _queues: list[Queue] = field(init=False)
    _areas: list[Areas] = field(init=False)
    _policies: dict[tuple[int, int, str], _NamedPolicy] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.roles = Roles(self.entrants)
        starts = [worker * len(self.matches) // self.workers for worker in range(self.workers + 1)]
        self._queues = [Queue(self.matches[start:end]) for start, end in itertools.pairwise(starts)]
        self._areas = [Areas(self.num_areas) for _ in range(self.workers)]

    @property
    def is_over(self) -> bool:
        return all(queue.is_done for queue in self._queues)

    def rests(self, worker: int) -> bool:
        """Whether a worker's games are over, or only truncated games continue and its next one needs a reset."""
        queue, areas = self._queues[worker], self._areas[worker]
        waits = queue.has_due and areas.has_game(counting=False) and not areas.has_game(counting=True)
        return queue.is_done or waits

    def start_over(self, worker: int) -> None:
        self._queues[worker].start_over()
        self._areas[worker] = Areas(self.num_areas)

    def observe(self, event: EnvironmentEvent, turns: Sequence[Turn]) -> None:
        worker = event.worker
        areas, queue = self._areas[worker], self._queues[worker]
        for finished in areas.update(event):
            match, finished.area.match = finished.area.match, None
            if finished.parted_from is not None and finished.parted_from.match is not None:
                match = queue.another(finished.parted_from.match)
            self._count(worker, match, finished.returns)
        for longer in areas.longer_than(self.max_decisions):
            match = longer.area.match
            assert match is not None
            longer.area.match = replace(match, number=None)
            self._count(worker, match, longer.returns, truncated=True)
        for turn in turns:
            for agent in turn.deciding:
                area = areas.agents[agent.id].area
                if area.match is None and not queue.is_done:
                    area.match = queue.next()
                if area.match is not None:
                    model = area.match.model(areas.teams.index(turn.behavior.team))
                    agent.play_with(self._policy(worker, model, turn.behavior.name))

    def _count(
        self, worker: int, match: Match | None, returns: Mapping[int, float], *, truncated: bool = False
    ) -> None:
        teams = self._areas[worker].teams
        if len(teams) < NUM_SIDES:
            raise UnsupportedError(
                f"The environment has one team ({teams[0]}), but a tournament needs two or more that play against each "
                "other. In Unity, set the team in Behavior Parameters (Team Id)."
            )
        if match is not None and self._queues[worker].over(match):
            self.results.append(GameResult(match, _outcome(returns, teams), truncated))

    def _policy(self, worker: int, model: int, behavior: str) -> Policy:
        key = (worker, model, behavior)
        if key not in self._policies:
            seed = derived_seeds(self.seed, f"{worker} {model} {behavior}")[0]
            policy = self.roles.policy(model, behavior, seed)
            self._policies[key] = _NamedPolicy(self.entrants[model].name, policy)
        return self._policies[key]

    def progress(self) -> str:
        return f"{len(self.results)} of {len(self.matches)} games are over."


class _NamedPolicy:
    """A policy whose errors name the model."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.memory_size = policy.memory_size
        self._name = name
        self._policy = policy

    def act(self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray) -> ActionBatch:
        try:
            return self._policy.act(obs, mask, memory)
        except PolicyDivergedError as error:
            raise PolicyDivergedError(f"{self._name}: {error}") from error


def _outcome(returns: Mapping[int, float], teams: Sequence[int]) -> int:
    """The sign of the difference between the mean returns of both sides' teams."""
    sides = [[returns[team] for team in teams[side::NUM_SIDES]] for side in range(NUM_SIDES)]
    first, second = (sum(side) / len(side) for side in sides)
    if math.isclose(first, second, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
        return 0
    return 1 if first > second else -1
