"""Tournaments with players whose games can be foretold."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlagents_envs.base_env import ActionTuple

from tests.tools.bids import SPEC, Bids, one_team, roles
from trajtrainer.core.errors import CheckpointError, SettingsError, UnsupportedError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import ActionBatch, BoolArray, EnvironmentEvent, FloatArray, ObservationArray
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.python.base_env import BaseEnvEnvironment, BaseEnvWorker
from trajtrainer.learning.algos.acting import Policy
from trajtrainer.policies.play.models import Loaded, Model, PolicyFile
from trajtrainer.tools.tournament.play import GameResult, play
from trajtrainer.tools.tournament.tournament import standings

Choose = Callable[[np.random.Generator, Any, BoolArray, FloatArray], Any]


class Bidder(PolicyFile):
    """Bids what ``choose(random numbers, [N, 3] observations, masks, memories)`` says; remembers its last bid."""

    def __init__(self, choose: Choose, *, fault: str = "") -> None:
        super().__init__(Path("nowhere"))
        self.choose = choose
        self.fault = fault
        self.policies: list[Bidding] = []

    def load(self, agents: BehaviorSpec | None = None) -> Loaded:
        if self.fault:
            raise CheckpointError(self.fault)
        return Loaded(SPEC, self.policy)

    def policy(self, seed: int, *, deterministic: bool | None = None) -> Policy:
        self.policies.append(Bidding(self.choose, seed))
        return self.policies[-1]


class Bidding:
    memory_size = 1

    def __init__(self, choose: Choose, seed: int) -> None:
        self.choose = choose
        self.random = np.random.default_rng(seed)

    def act(self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray) -> ActionBatch:
        rows = len(mask)
        bids = np.broadcast_to(self.choose(self.random, obs[0], mask, memory), rows)
        empty = np.zeros((rows, 0), np.float32)
        return ActionBatch(
            continuous=empty,
            discrete=bids.reshape(rows, 1).astype(np.int32),
            env_continuous=empty,
            log_prob=np.zeros((rows, 1), np.float32),
            entropy=np.zeros(rows, np.float32),
            memory=bids.reshape(rows, 1).astype(np.float32),
            version=0,
        )


def always(bid: int) -> Choose:
    return lambda *_: bid


def gamble(random: np.random.Generator, obs: FloatArray, *_: object) -> Any:
    return random.integers(0, 3, len(obs))


def entrant(name: str, choose: Choose, *behaviors: str) -> Model:
    return Model(name, {behavior: Bidder(choose) for behavior in behaviors or ("Bids",)})


def environment(*envs: Bids) -> Environment:
    return BaseEnvEnvironment([BaseEnvWorker(env) for env in envs])


def tournament(world: Environment, entrants: Sequence[Model], games: int, seed: int = 0) -> list[GameResult]:
    results: list[GameResult] = []
    play(world, entrants, results, games=games, seed=seed)
    assert sorted(result.match.number or 0 for result in results) == list(range(len(results)))
    return sorted(results, key=lambda result: result.match.number or 0)


@pytest.mark.parametrize("tables", [1, 2, 5])
@pytest.mark.parametrize("workers", [1, 3])
def test_the_higher_bid_wins_on_either_side(tables: int, workers: int) -> None:
    entrants = [entrant("low", always(0)), entrant("high", always(2)), entrant("middle", always(1))]
    results = tournament(environment(*(Bids(tables, worker_id=n) for n in range(workers))), entrants, games=6)

    found = Counter((result.match.sides, result.outcome) for result in results)
    worth = [0, 2, 1]
    wanted = {(a, b): 1 if worth[a] > worth[b] else -1 for a in range(3) for b in range(3) if a != b}
    assert found == dict.fromkeys(wanted.items(), 3)


def test_equal_bids_are_draws() -> None:
    results = tournament(environment(Bids(3)), [entrant("a", always(1)), entrant("b", always(1))], games=7)

    assert [result.outcome for result in results] == [0] * 7
    assert Counter(result.match.sides for result in results) == {(0, 1): 4, (1, 0): 3}


def test_a_seed_repeats_the_games_whoever_is_quicker() -> None:
    def games(seed: int, order: int) -> list[int]:
        world = Shuffled([Bids(2, worker_id=n) for n in range(3)], order)
        names = ("a", "b", "c")
        results = tournament(world, [entrant(name, gamble) for name in names], games=20, seed=seed)
        return [result.outcome for result in results]

    assert games(1, 0) == games(1, 1)
    assert games(1, 0) != games(2, 0)
    assert set(games(1, 0)) == {-1, 0, 1}


class Shuffled(BaseEnvEnvironment):
    """Hands out its workers' messages one at a time, in an order of chance."""

    def __init__(self, envs: Sequence[Bids], order: int) -> None:
        super().__init__([BaseEnvWorker(env) for env in envs])
        self.random = np.random.default_rng(order)
        self.kept: list[EnvironmentEvent] = []

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        self.kept += super().wait(timeout_s)
        return [self.kept.pop(self.random.integers(len(self.kept)))] if self.kept else []


def test_an_environment_that_is_started_anew_plays_its_games_again() -> None:
    env = Bids(2)
    world = environment(env)
    entrants = [entrant("low", always(0)), entrant("high", always(1))]
    results: list[GameResult] = []
    steps = itertools.count()

    def stopped() -> bool:
        if next(steps) == 5:
            world.reset({})  # as a worker that was started again
        return False

    play(world, entrants, results, games=9, seed=0, stopped=stopped)
    outcomes = [(result.match.number, result.outcome) for result in results]

    assert sorted(number or 0 for number, _ in outcomes) == list(range(9))
    assert all(outcome == (1 if number and number % 2 else -1) for number, outcome in outcomes)


def test_two_behaviors_are_two_roles() -> None:
    clever = Model("clever", {"Striker": Bidder(always(2)), "Goalie": Bidder(always(1))})
    simple = Model("simple", {"Striker": Bidder(always(1)), "Goalie": Bidder(always(0))})
    results = tournament(environment(roles()), [clever, simple], games=4)

    # clever attacks: 2 against 0; simple attacks: 1 against 1.
    assert [(result.match.sides, result.outcome) for result in results] == [((0, 1), 1), ((1, 0), 0)] * 2


def test_of_three_teams_the_first_and_third_are_one_side() -> None:
    world = environment(Bids(behaviors=["Bids?team=4", "Bids?team=7", "Bids?team=9"]))
    results = tournament(world, [entrant("high", always(2)), entrant("low", always(1))], games=2)

    # With the first and third team "high" has two equal highest bids, so nobody gets anything; with the second it wins.
    assert [(result.match.sides, result.outcome) for result in results] == [((0, 1), 0), ((1, 0), -1)]


def test_memories_are_of_an_agent_and_an_episode() -> None:
    def alternate(random: object, obs: FloatArray, mask: object, memory: FloatArray) -> Any:
        team, _, step = obs.T
        assert (memory[:, 0] == np.where(step == 0, 0, 1 + (step + team) % 2)).all(), "the bid of the step before"
        return 1 + (step + 1 + team) % 2

    tournament(environment(Bids(3)), [entrant("a", alternate), entrant("b", alternate)], games=30)


def test_masks_reach_the_policies() -> None:
    def obey(random: object, obs: FloatArray, mask: BoolArray, memory: FloatArray) -> Any:
        assert mask.tolist() == [[False, False, True]] * len(obs)
        return 1

    tournament(environment(Bids(2, forbidden=2)), [entrant("a", obey), entrant("b", obey)], games=3)


def test_one_team_plays_nobody() -> None:
    with pytest.raises(UnsupportedError, match=r"has one team \(0\).*Team Id"):
        tournament(environment(one_team()), [entrant("a", gamble), entrant("b", gamble)], games=2)


def test_all_that_does_not_fit_is_told() -> None:
    entrants = [
        entrant("good", gamble, "Striker", "Goalie"),
        Model("bad", {"Striker": Bidder(gamble, fault="It sees other things."), "Goalie": Bidder(gamble)}),
        entrant("half", gamble, "Striker"),
    ]
    with pytest.raises(SettingsError) as caught:
        tournament(environment(roles()), entrants, games=2)

    lines = str(caught.value).splitlines()
    assert lines[0] == "bad cannot play 'Striker': It sees other things."
    assert lines[1].startswith("half cannot play 'Goalie': half has no policy for the behavior 'Goalie', only for Str")
    assert len(lines) == 2


def test_a_single_policy_of_another_name_plays_any_role() -> None:
    any_role = entrant("any", always(2), "loose-files")
    results = tournament(environment(roles()), [any_role, entrant("low", always(0), "Striker", "Goalie")], games=2)

    assert [result.outcome for result in results] == [1, -1]


def test_a_worker_without_games_left_rests() -> None:
    asked: Mapping[int, list[int]] = {0: [], 1: []}

    class Counting(BaseEnvEnvironment):
        def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
            asked[worker].append(1)
            super().send(worker, actions)

    world = Counting([BaseEnvWorker(Bids()), BaseEnvWorker(Bids())])
    results = tournament(world, [entrant("a", always(0)), entrant("b", always(1))], games=1)

    assert len(results) == 1
    assert (len(asked[0]), len(asked[1])) == (0, 3)


class Endless(Bids):
    """Its odd games do not end, and the bids of each step are paid at once."""

    def step(self) -> None:
        self.ended = {}
        for number, table in enumerate(self.tables):
            table.step += 1
            if table.game % 2 == 0 and table.step == 2:
                self.ended[number] = [0.0] * len(self.behaviors)
                table.game, table.step = table.game + 1, 0

    def set_actions(self, behavior_name: str, action: ActionTuple) -> None:
        self.bids = getattr(self, "bids", {}) | {self.behaviors.index(behavior_name): action.discrete[:, 0].tolist()}

    def _decisions(self, team: int) -> Any:
        steps = super()._decisions(team)
        played = np.array([table.step > 0 for table in self.tables])
        steps.reward[:] = np.where(played, getattr(self, "bids", {}).get(team, 0), 0)
        return steps


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("tables", [1, 2])
def test_a_game_that_does_not_end_is_truncated_and_who_is_ahead_has_won(workers: int, tables: int) -> None:
    world = environment(*(Endless(tables, worker_id=n) for n in range(workers)))
    entrants = [entrant("low", always(0)), entrant("high", always(2)), entrant("none", always(0))]
    results: list[GameResult] = []
    play(world, entrants, results, games=3, seed=0, max_decisions=5)

    assert sorted(result.match.number or 0 for result in results) == list(range(9))
    assert all(result.truncated for result in results)
    worth = [0, 2, 0]
    for result in results:
        first, second = (worth[side] for side in result.match.sides)
        assert result.outcome == (first > second) - (first < second)
    table = {row.entrant.name: row.score for row in standings(entrants, results)}
    assert (table["high"].wins, table["low"].losses, table["low"].draws, table["low"].truncated) == (6, 3, 3, 6)


def test_a_limit_that_no_game_exceeds_changes_nothing() -> None:
    entrants = [entrant("a", gamble), entrant("b", gamble)]
    without: list[GameResult] = []
    limited: list[GameResult] = []
    for limit, results in ((1000, without), (5, limited)):
        play(environment(Bids(2)), entrants, results, games=9, seed=1, max_decisions=limit)
    assert limited == without
    assert not any(result.truncated for result in limited)
