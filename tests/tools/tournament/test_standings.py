"""The table: counts are exact, and ratings say what the games say."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from trajtrainer.policies.play.models import Model
from trajtrainer.tools.pictures import check_picture
from trajtrainer.tools.tournament.games import Match, Queue, all_matches
from trajtrainer.tools.tournament.play import GameResult
from trajtrainer.tools.tournament.tournament import pairs, plot, standings

ENTRANTS = [Model(name, {}) for name in ("a", "b", "c")]


def results(games: int, better: list[int]) -> list[GameResult]:
    """Who is better wins; equals draw."""
    outcomes = {(a, b): (better[a] > better[b]) - (better[a] < better[b]) for a in range(3) for b in range(3)}
    return [GameResult(match, outcomes[match.sides]) for match in all_matches(3, games)]


def test_wins_draws_and_losses() -> None:
    table = standings(ENTRANTS, results(10, [1, 2, 1]))

    assert table[0].entrant.name == "b"
    scores = {row.entrant.name: (row.score.wins, row.score.draws, row.score.losses) for row in table}
    assert scores == {"a": (0, 10, 10), "b": (20, 0, 0), "c": (0, 10, 10)}


def test_ratings_order_models_and_grow_certain() -> None:
    few, many = standings(ENTRANTS, results(4, [1, 3, 2])), standings(ENTRANTS, results(100, [1, 3, 2]))

    for table in (few, many):
        assert [row.entrant.name for row in table] == ["b", "c", "a"]
    assert all(row.uncertainty < other.uncertainty for row, other in zip(many, few, strict=True))


def test_when_a_game_was_won_does_not_matter() -> None:
    """The same wins, first all of one model and then all of the other."""
    games = [GameResult(Match((0, 1), number), 1 if number < 50 else -1) for number in range(100)]
    table = standings(ENTRANTS[:2], games)

    assert abs(table[0].rating - table[1].rating) < 0.5 * table[0].uncertainty


def test_equal_models_are_rated_equal() -> None:
    table = standings(ENTRANTS, results(50, [1, 1, 1]))
    sideways = [GameResult(match, 1) for match in all_matches(2, 100)]  # whoever has the first side wins

    assert [row.rating for row in table] == pytest.approx([25.0] * 3)
    first, second = standings(ENTRANTS[:2], sideways)
    assert first.rating - second.rating < first.uncertainty
    assert [score["wins"] for score in pairs(ENTRANTS[:2], sideways)[0]["by_side"]] == [50, 0]


def test_pairs() -> None:
    (ab, ac, bc) = pairs(ENTRANTS, results(5, [1, 2, 1]))

    assert ab == {
        "models": ["a", "b"], "games": 5, "wins": 0, "draws": 0, "losses": 5, "truncated": 0,
        "by_side": [
            {"games": 3, "wins": 0, "draws": 0, "losses": 3, "truncated": 0},
            {"games": 2, "wins": 0, "draws": 0, "losses": 2, "truncated": 0},
        ],
    }  # fmt: skip
    assert (ac["models"], ac["draws"]) == (["a", "c"], 5)
    assert (bc["models"], bc["wins"]) == (["b", "c"], 5)


@pytest.mark.parametrize("games", [1, 2, 7])
def test_every_pair_changes_sides(games: int) -> None:
    matches = all_matches(4, games)

    assert [match.number for match in matches] == list(range(6 * games))
    for a, b in itertools.combinations(range(4), 2):
        sides = [match.sides for match in matches if set(match.sides) == {a, b}]
        assert sides == [(a, b) if number % 2 == 0 else (b, a) for number in range(games)]


def test_a_queue_counts_each_game_once() -> None:
    queue = Queue(all_matches(2, 3))
    first = queue.next()
    twin = queue.another(first)  # the third: the second has other sides
    beyond = queue.another(first)
    assert (first.number, twin.number, beyond.number) == (0, 2, None)
    assert twin.sides == beyond.sides == first.sides

    assert [queue.over(match) for match in (first, twin, beyond, first)] == [True, True, False, False]
    last = queue.next()
    queue.start_over()
    assert queue.next() == last == Match((1, 0), 1)
    assert [queue.is_done, queue.over(last), queue.is_done] == [False, True, True]
    assert queue.next() == Match((1, 0), None)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture(tmp_path: Path, suffix: str) -> None:
    entrants = [Model(f"run/{n}", {}, "run", 10 * n) for n in range(3)] + [
        Model("alone", {}, steps=15),
        Model("?", {}),
    ]
    path = tmp_path / f"ratings.{suffix}"
    check_picture(path, "--plot")
    plot(standings(entrants, [GameResult(match, 1) for match in all_matches(5, 4)]), path)

    assert path.read_bytes()[:4] in (b"\x89PNG", b"<?xm")
    assert list(tmp_path.iterdir()) == [path]
    if suffix == "svg":
        drawn = path.read_text(encoding="utf-8")
        assert all(f"<!-- {text} -->" in drawn for text in ("run", "alone", "steps", "rating"))
