"""PettingZoo agents that come, go, return and come late, where all act at once and where they act in turns."""

from __future__ import annotations

import numpy as np
import pytest

from tests.envs.python.gymnasium_samples import action_batch
from tests.envs.python.pettingzoo_samples import Circle, Visits
from tests.envs.python.test_pettingzoo_environment import act, begin, records
from trajtrainer.core.steps import EnvironmentEvent
from trajtrainer.envs.python.pettingzoo_environment import PettingZooEnvironment


def asked(env: Visits) -> list[str]:
    """The numbers of the agents that acted in each step."""
    return ["".join(agent[-1] for agent in actions) for actions in env.received]


def play(environment: PettingZooEnvironment, num_steps: int) -> list[EnvironmentEvent]:
    """Steps in which each agent takes the first choice that its mask allows."""
    event = begin(environment)
    events = [event]
    for _ in range(num_steps):
        choices = {
            name: (~batch.mask[batch.num_terminal :]).argmax(axis=1)[:, None]
            for name, batch in event.steps.items()
            if batch.num_decisions
        }
        environment.send(0, {name: action_batch(np.zeros((len(c), 0)), c) for name, c in choices.items()})
        (event,) = environment.wait()
        events.append(event)
    return events


def test_an_agent_that_returns_begins_a_new_episode_without_rewards_of_its_absence() -> None:
    env = Visits(["01", "0", "0", "01", "01", ""], {1: "1", 5: "01"})
    environment = PettingZooEnvironment([env], seed=0)
    begin(environment)
    assert records(act(environment, a=[0, 0]).steps["a"]) == [(1, [1, 1, 1], 101, True), (0, [0, 1, 1], 1, False)]
    act(environment, a=[0])
    assert records(act(environment, a=[0]).steps["a"]) == [(0, [0, 1, 3], 3, False), (1, [1, 1, 3], 0, False)]
    assert records(act(environment, a=[0, 0]).steps["a"]) == [(0, [0, 1, 4], 4, False), (1, [1, 1, 4], 104, False)]
    assert records(act(environment, a=[0, 0]).steps["a"])[:2] == [(0, [0, 1, 5], 5, True), (1, [1, 1, 5], 105, True)]
    assert asked(env) == ["01", "0", "0", "01", "01"]
    assert env.episode == 2


def test_an_environment_whose_agents_have_all_ended_once_is_not_reset_before_the_last_one_leaves() -> None:
    env = Visits(["01", "1", "01", "0", "01", "1", ""], {1: "0", 3: "1", 5: "0", 6: "1"})
    play(PettingZooEnvironment([env], seed=0), 7)
    assert asked(env) == ["01", "1", "01", "0", "01", "1", "01"]
    assert env.episode == 2


def test_an_agent_that_left_without_an_end_returns_too() -> None:
    env = Visits(["01", "0", "01", ""], {3: "01"})
    events = play(PettingZooEnvironment([env], seed=0), 2)
    assert events[1].steps["a"].interrupted.tolist() == [True]
    assert records(events[2].steps["a"]) == [(0, [0, 1, 2], 2, False), (1, [1, 1, 2], 0, False)]


def test_agents_that_come_late_are_asked_from_then_on() -> None:
    env = Visits(["0", "0", "012", "12", ""], {3: "0", 4: "12"})
    events = play(PettingZooEnvironment([env], seed=0), 4)
    assert asked(env) == ["0", "0", "012", "12"]
    assert [agent for agent, *_ in records(events[-1].steps["a"])] == [1, 2, 0]
    assert env.episode == 2


def test_an_episode_that_begins_without_agents_waits_for_the_first() -> None:
    env = Visits(["", "", "0", "0", ""], {4: "0"})
    events = play(PettingZooEnvironment([env], seed=0), 7)
    assert asked(env) == ["", "", "0", "0", "", "", "0"]
    assert [len(event.steps) for event in events] == [0, 0, 1, 1, 1, 0, 1, 1]
    assert env.episode == 2


def test_an_agent_that_is_never_observed_does_not_keep_an_episode_open_after_its_end() -> None:
    env = Visits(["01", "1", "1"], {1: "0", 2: "1"}, hidden="1")
    play(PettingZooEnvironment([env], seed=0), 3)
    assert asked(env) == ["0", "", "0"]
    assert env.episode == 2


@pytest.mark.parametrize("waits", [False, True])
def test_the_mask_of_the_player_after_an_elimination_is_the_one_of_its_turn(waits: bool) -> None:
    env = Circle({4: "2", 8: "01"}, waits=waits)
    play(PettingZooEnvironment([env], seed=0), 40)
    assert env.moves[:8] == [(f"p_{number}", True) for number in (0, 1, 2, 0, 1, 0, 1, 0)]
    assert len(env.moves) == 40
    assert all(is_allowed for _, is_allowed in env.moves)
    assert env.num_resets == 6


@pytest.mark.parametrize(
    ("comes", "expected"),
    [
        # p_1 is out after p_2's first move, and back before its turn, when it would be removed, or after it.
        ({4: "1"}, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]),
        ({6: "1"}, [0, 1, 2, 0, 2, 0, 2, 1, 0, 2]),
    ],
)
def test_a_player_that_returns_gets_its_turns_again(comes: dict[int, str], expected: list[int]) -> None:
    env = Circle({3: "1", 10: "012"}, comes, waits=True)
    events = play(PettingZooEnvironment([env], seed=0), 10)
    assert [int(player[-1]) for player, _ in env.moves] == expected
    assert all(is_allowed for _, is_allowed in env.moves)
    ends = [event.steps[name].num_terminal for event in events for name in event.steps if name.endswith("=1")]
    assert sum(ends) == 2, "its end, and the end of all"


def test_a_player_that_comes_late_gets_its_turns() -> None:
    env = Circle({8: "0123"}, {2: "3"}, waits=False)
    events = play(PettingZooEnvironment([env], seed=0), 8)
    assert [int(player[-1]) for player, _ in env.moves] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert all(is_allowed for _, is_allowed in env.moves)
    assert records(events[3].steps["p?team=3"]) == [(3, [3, 3], 0, False)]


def test_agents_that_come_and_go_in_a_game_that_is_converted_to_parallel() -> None:
    env = Circle({2: "1", 6: "0123"}, {3: "3", 4: "1"}, waits=False, at_once=True)
    events = play(PettingZooEnvironment([env], seed=0), 6)
    rounds = [[int(agent) for agent, _, _, is_end in records(event.steps["p"]) if not is_end] for event in events]
    assert rounds[:6] == [[0, 1, 2], [0, 1, 2], [0, 2], [0, 2, 3], [0, 2, 3, 1], [0, 2, 3, 1]]
    assert all(is_allowed for _, is_allowed in env.moves)
    assert env.num_resets == 2
