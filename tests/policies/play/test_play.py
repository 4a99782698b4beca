"""Which episodes count, and what is counted of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policies.play.scripted import Begun, Policies, Scripted, Slot
from trajtrainer.policies.play.loop import play
from trajtrainer.policies.play.result import Episode, EvaluationResult
from trajtrainer.settings.environment import ConstantSettings

LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=4)
SLOTS = st.lists(st.tuples(LENGTHS, st.integers(0, 2)), min_size=1, max_size=4)


def found(episodes: Sequence[Episode]) -> list[tuple[int, float, float, bool]]:
    return [(each.length, each.reward, round(each.group_reward, 4), each.interrupted) for each in episodes]


def expected(begun: Sequence[Begun], count: int) -> list[tuple[int, float, float, bool]]:
    """The first that began, whenever they ended."""
    return [(each.length, each.reward, each.group_reward, each.slot % 2 == 1) for each in begun[:count]]


@settings(max_examples=60, deadline=None)
@given(st.lists(SLOTS, min_size=1, max_size=3), st.integers(1, 20), st.integers(0, 2))
def test_the_first_that_begin_count_in_each_copy_equally(
    workers: list[list[tuple[list[int], int]]], episodes: int, memory_size: int
) -> None:
    world = Scripted(*([Slot(lengths, waits=waits) for lengths, waits in slots] for slots in workers))
    result = play(world, Policies(2 if memory_size else 0), episodes, seed=3).get("Dancer")

    assert result is not None
    assert len(result.episodes) == episodes
    for worker, begun in enumerate(world.begun):
        share = episodes // len(workers) + (worker < episodes % len(workers))
        own = [episode for episode in result.episodes if episode.worker == worker]
        assert [episode.number for episode in own] == list(range(share))
        assert found(own) == expected(begun, share)
    assert result.decisions >= sum(episode.length for episode in result.episodes)


def test_short_episodes_are_not_favoured() -> None:
    """Two agents whose episodes are short and long in turn: half of those that begin are short."""
    world = Scripted([Slot([1, 99]), Slot([99, 1])])
    result = play(world, Policies(), 100, seed=0)["Dancer"]

    assert result.lengths.mean == pytest.approx(50.0, abs=1.0)


def test_a_copy_that_has_played_its_share_rests() -> None:
    world = Scripted([Slot([3])], [Slot([2])], [Slot([1])])
    result = play(world, Policies(), 2, seed=0)["Dancer"]

    assert [(episode.worker, episode.length) for episode in result.episodes] == [(0, 3), (1, 2)]
    assert world.sent == [3, 2, 0]


def test_each_team_and_behavior_plays_as_many() -> None:
    world = Scripted([Slot([2], "Duel?team=0"), Slot([3], "Duel?team=1"), Slot([5], "Judge")])
    policies = Policies()
    results = play(world, policies, 4, seed=0)

    assert list(results) == ["Duel", "Judge"]
    assert {team: len(result.episodes) for team, result in results["Duel"].teams.items()} == {0: 4, 1: 4}
    assert {team: result.lengths.mean for team, result in results["Duel"].teams.items()} == {0: 2.0, 1: 3.0}
    assert len(results["Judge"].episodes) == 4
    assert [name for name, _ in policies.made] == ["Duel?team=0", "Duel?team=1", "Judge"]


def test_groups_count_once_and_whole() -> None:
    group = [Slot([2, 4], group=5, waits=3), Slot([4, 2], group=5, waits=3)]
    world = Scripted([*group, Slot([1])])
    result = play(world, Policies(), 9, seed=0)["Dancer"]

    # The ninth and last episode that counts begins between the members' second ones, of which the group's is no whole.
    assert [(group.number, round(group.reward, 4)) for group in result.groups] == [(0, 1.0)]
    assert [episode.number for episode in result.episodes if episode.group_reward] == [0, 1, 7]
    assert result.returns.values == tuple(episode.reward + episode.group_reward for episode in result.episodes)
    assert result.episodes[1].group_reward == pytest.approx(1.0)


def test_episodes_that_a_restart_cuts_off_are_played_again() -> None:
    world = Scripted([Slot([3]), Slot([5])])
    waits = itertools.count()

    def stopped() -> bool:
        if next(waits) == 5:  # one of 3 is over, another has begun
            world.reset({})
        return False

    episodes = play(world, Policies(), 4, seed=0, stopped=stopped)["Dancer"].episodes

    assert [(episode.number, episode.length) for episode in episodes] == [(0, 3), (1, 3), (2, 5), (3, 3)]


def test_a_seed_for_each_copy_and_team() -> None:
    def seeds(seed: int) -> list[int]:
        policies = Policies()
        play(Scripted([Slot([1]), Slot([1], "Dancer?team=1")], [Slot([1])]), policies, 2, seed=seed)
        return [policy.seed for _, policy in policies.made]

    assert seeds(1) == seeds(1)
    assert len({*seeds(1), *seeds(2)}) == 6


def test_it_ends_early_with_what_is_over() -> None:
    world = Scripted([Slot([2])])
    answers = iter([False, False, False, False, True])
    result = play(world, Policies(), 100, seed=0, stopped=lambda: next(answers))["Dancer"]

    assert [episode.length for episode in result.episodes] == [2]


def test_parameters_reach_the_environment() -> None:
    world = Scripted([Slot([1])])
    parameters = {"wall": ConstantSettings(value=2.0)}
    play(world, Policies(), 1, seed=0, parameters=parameters)

    assert world.parameters == parameters


def test_nothing_has_no_mean() -> None:
    assert EvaluationResult("B", (), (), 0, 0.0).to_json()["mean"] is None


FOREVER = 10_000  # an episode is made as a whole


def test_an_episode_that_does_not_end_is_truncated_and_the_next_begins_after_a_reset() -> None:
    world = Scripted([Slot([2, FOREVER, 4, 3])])
    result = play(world, Policies(), 5, seed=0, max_decisions=4)["Dancer"]

    assert [(each.number, each.length, each.truncated) for each in result.episodes] == [
        (0, 2, False),
        (1, 4, True),
        (2, 4, False),
        (3, 3, False),
        (4, 2, False),
    ]
    assert [each.reward for each in result.episodes] == [3.0, 10.0, 10.0, 6.0, 3.0]
    assert not any(each.interrupted for each in result.episodes)
    assert result.num_truncated == 1
    assert result.returns.mean == 6.4, "it counts in the mean"
    assert result.to_json()["truncated"] == 1


def test_while_others_play_on_nothing_is_reset_and_each_number_is_played_once() -> None:
    world = Scripted([Slot([FOREVER]), Slot([3]), Slot([5])])
    result = play(world, Policies(), 8, seed=0, max_decisions=10)["Dancer"]

    assert [each.number for each in result.episodes] == list(range(8))
    assert [each.number for each in result.episodes if each.truncated] == [0]
    assert sorted(each.length for each in result.episodes) == [3, 3, 3, 3, 5, 5, 5, 10]


def test_copies_that_are_stuck_wait_for_the_others_so_that_no_episode_is_lost() -> None:
    """A reset is one of all copies: the second one, whose episodes end, is at work until its share is played."""
    world = Scripted([Slot([FOREVER, 2])], [Slot([6, 7, 8])])
    result = play(world, Policies(), 6, seed=0, max_decisions=9)["Dancer"]

    found = [(each.worker, each.number, each.length, each.truncated) for each in result.episodes]
    assert found == [
        (0, 0, 9, True),
        (0, 1, 2, False),
        (0, 2, 9, True),
        (1, 0, 6, False),
        (1, 1, 7, False),
        (1, 2, 8, False),
    ]


def test_of_teams_and_groups_that_do_not_end_all_that_was_asked_for_is_there() -> None:
    sides = [Slot([FOREVER], f"Duel?team={team}", group=team + 1) for team in (0, 0, 1)]
    result = play(Scripted(sides), Policies(), 4, seed=0, max_decisions=3)["Duel"]

    assert {team: len(own.episodes) for team, own in result.teams.items()} == {0: 4, 1: 4}
    assert result.num_truncated == 8
    assert [round(group.reward, 4) for group in result.groups] == [0.6] * 6, "two of team 0, which has two members"


@given(st.integers(1, 9), st.integers(1, 9))
def test_a_limit_that_no_episode_exceeds_changes_nothing(length: int, more: int) -> None:
    worlds = [Scripted([Slot([length, 1])], [Slot([length])]) for _ in range(2)]
    without, limited = (
        play(world, Policies(), 5, seed=0, max_decisions=limit)["Dancer"]
        for world, limit in zip(worlds, (None, length + more - 1), strict=True)
    )
    assert limited.episodes == without.episodes
