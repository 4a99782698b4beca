"""How an actor follows its learner, which is played by the test."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from trajtrainer.core.spec import BehaviorId
from trajtrainer.core.timers import Timers
from trajtrainer.run.actors.actor import ActorLoop
from trajtrainer.run.actors.messages import Allowance, Assignment, NewTeam, Opponent, Order, Report

NAME = "Duel"
OPPONENT = Opponent({}, None, 0)


class Learner:
    """Sends orders in the order given, some at a time."""

    def __init__(self, *orders: Sequence[Order]) -> None:
        self.reports: list[Report] = []
        self._orders = deque(orders)

    def report(self, report: Report) -> None:
        self.reports.append(report)

    def orders(self, *, wait: bool) -> Sequence[Order]:
        assert wait
        return self._orders.popleft()


def team(number: int) -> BehaviorId:
    return BehaviorId.parse(f"{NAME}?team={number}")


def assignment(number: int, *teams: int, learning: int = 0, behavior: str = NAME) -> Assignment:
    return Assignment(behavior, learning, number, {team(each).full: OPPONENT for each in teams})


def actor(*orders: Sequence[Order]) -> tuple[ActorLoop, Learner]:
    learner: Any = Learner(*orders)
    return ActorLoop(None, learner, Timers()), learner  # type: ignore[arg-type]


def test_an_assignment_without_the_new_team_is_not_the_answer() -> None:
    """The learner sends one to everybody when another actor has met a team."""
    made, learner = actor([assignment(1, 1)], [assignment(2, 1), Allowance(NAME)], [assignment(3, 1, 2)])
    assert made._ask_for_sides(team(2)) == assignment(3, 1, 2)
    assert learner.reports == [NewTeam(team(2))]
    assert list(made._orders) == [Allowance(NAME)]


def test_the_team_that_learns_has_no_opponent_of_its_own() -> None:
    made, _ = actor([assignment(1, 1, learning=0)])
    assert made._ask_for_sides(team(0)) == assignment(1, 1)


def test_an_answer_replaces_what_it_has_overtaken() -> None:
    made, _ = actor([assignment(5, 1, 2)])
    other = assignment(1, behavior="Chase")
    made._orders.extend([assignment(4, 1), other, Allowance(NAME)])
    assert made._ask_for_sides(team(2)).number == 5
    assert list(made._orders) == [other, Allowance(NAME)]
