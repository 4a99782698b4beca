"""A tournament in the play loop, which assigns the models to teams until all games are over.

A game that is too long is truncated; its agents continue to play, but no longer count. If a copy of the environment
only plays games that do not count, although it has games left, it waits until the other copies are done or in the same
state. Then all copies are reset.
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

# Sums of 32-bit floats that differ by less than this are considered equal.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class GameResult:
    """The result of one game.

    Attributes:
        match: the models that played, and their sides.
        outcome: 1 if the first model in ``match.sides`` won, -1 if the other one won, 0 for a draw.
        truncated: True if the game was truncated; the side that was in the lead won.
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
    """Play the games of every pair, and append each result when its game is over.

    Args:
        environment: an environment with two or more teams; it is not closed.
        entrants: at least two models.
        results: list to which results are appended. After a fault, it contains the results so far.
        games: games per pair.
        seed: seed for the random numbers of all policies.
        max_decisions: maximum number of an agent's decisions in a game; a longer game is truncated.
        num_areas: number of training areas in each environment; 1 to detect them.
        parameters: environment parameters.
        stopped: called after each step; returns True to stop early.

    Raises:
        UnsupportedError: the environment has only one team.
        SettingsError: a model does not fit the environment.
        EnvironmentFaultError: an environment failed permanently.
        PolicyDivergedError: a model outputs NaN.
    """
    matches = all_matches(len(entrants), games)
    tournament = _Tournament(entrants, matches, results, environment.num_workers, seed, max_decisions, num_areas)
    for _ in exchanges(environment, tournament, parameters, announce=tournament.roles.announce, stopped=stopped):
        pass


@dataclass(slots=True, eq=False)
class _Tournament:
    """The games of all workers, and the policies that play them.

    Each combination of worker, model and behavior has its own random numbers, so that games are reproducible regardless
    of what other workers do.
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
        """Return whether a worker is done, or needs a reset because it plays only truncated games."""
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
        return f"{len(self.results)} of {len(self.matches)} games have finished."


class _NamedPolicy:
    """A policy whose error messages contain the name of the model."""

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
    """Return the sign of the difference between the two sides' mean team returns."""
    sides = [[returns[team] for team in teams[side::NUM_SIDES]] for side in range(NUM_SIDES)]
    first, second = (sum(side) / len(side) for side in sides)
    if math.isclose(first, second, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
        return 0
    return 1 if first > second else -1
