"""PettingZoo environments: types of agents as behaviors, agents that die, players that take turns."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.envs.python.gymnasium_samples import action_batch
from tests.envs.python.pettingzoo_samples import Arena, Nim, Relay
from tests.envs.test_select import NoLogs
from trajtrainer.core.errors import EnvironmentFaultError, InvalidDataError, SettingsError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import EnvironmentEvent, StepBatch
from trajtrainer.envs.python.pettingzoo_agents import AgentRule, AgentTypes, agent_type
from trajtrainer.envs.python.pettingzoo_environment import PettingZooEnvironment
from trajtrainer.envs.select import make_environment
from trajtrainer.settings.environment import ConstantSettings, EnvironmentSettings, UniformSettings
from trajtrainer.settings.run import RunSettings


def begin(environment: PettingZooEnvironment, **parameters: Any) -> EnvironmentEvent:
    environment.reset(parameters)
    (event,) = environment.wait()
    return event


def act(environment: PettingZooEnvironment, **choices: list[int]) -> EnvironmentEvent:
    batches = {name: action_batch(np.zeros((len(c), 0)), np.array(c)[:, None]) for name, c in choices.items()}
    environment.send(0, batches)
    (event,) = environment.wait()
    return event


def records(batch: StepBatch) -> list[tuple[int, list[float], float, bool]]:
    """(agent, observation, reward, is an end) of each row."""
    return [
        (int(agent), obs.tolist(), float(reward), row < batch.num_terminal)
        for row, (agent, obs, reward) in enumerate(zip(batch.agent, batch.obs[0], batch.reward, strict=True))
    ]


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("adversary_0", "adversary"),
        ("good_agent_12", "good_agent"),
        ("walker1", "walker"),
        ("solo", "solo"),
        ("7", "agent"),
        (3, "agent"),
        (("red", 3), "red"),
    ],
)
def test_agent_types(agent: str | int, expected: str) -> None:
    assert agent_type(agent) == expected


def test_agents_of_one_type_with_other_spaces_are_behaviors_of_their_own() -> None:
    arena = Arena({"a_0": 1, "a_1": 1, "b_0": 1, "b_1": 1, "b_2": 1}, {"b_1": 5})
    types = AgentTypes(arena, arena.possible_agents, "arena")
    assert [types.behavior(agent) for agent in arena.possible_agents] == ["a", "a", "b_0", "b_1", "b_2"]
    assert types.spaces("b_1").spec.action_spec.discrete_branches == (5,)
    assert types.spaces("b_0").spec.action_spec.discrete_branches == (3,)


def test_agents_that_nobody_announced() -> None:
    types = AgentTypes(Arena({"a_0": 1}, {"a_2": 5, "c_1": 4}), ["a_0"], "arena")
    assert [types.behavior(agent) for agent in ("a_1", "a_2", "c_0", "c_1", "a_2")] == ["a", "a_2", "c", "c_1", "a_2"]


def test_types_become_behaviors_and_copies_share_them() -> None:
    first, second = (Arena({"cat_0": 9, "mouse_0": 9, "mouse_1": 9}) for _ in range(2))
    environment = PettingZooEnvironment([first, second], seed=5)
    event = begin(environment)
    assert event.is_reset
    assert set(event.new_specs) == {"cat", "mouse"}
    assert event.steps["cat"].agent.tolist() == [0, 3]
    assert event.steps["mouse"].agent.tolist() == [1, 2, 4, 5]
    assert (first.seeds, second.seeds) == ([5], [6])
    event = act(environment, cat=[0, 1], mouse=[1, 2, 0, 1])
    assert first.received == [{"cat_0": 0, "mouse_0": 1, "mouse_1": 2}]
    assert second.received == [{"cat_0": 1, "mouse_0": 0, "mouse_1": 1}]
    assert event.new_specs == {}
    assert records(event.steps["mouse"])[:2] == [(1, [1, 1, 1], 111, False), (2, [2, 1, 1], 121, False)]


def test_agents_die_and_come_back_with_the_next_episode() -> None:
    arena = Arena({"a_0": 2, "a_1": -1, "a_2": 3})
    environment = PettingZooEnvironment([arena], seed=0)
    begin(environment)
    batch = act(environment, a=[0, 0, 0]).steps["a"]
    assert records(batch) == [(1, [1, 1, 1], 111, True), (0, [0, 1, 1], 101, False), (2, [2, 1, 1], 121, False)]
    assert batch.interrupted.tolist() == [True]
    batch = act(environment, a=[0, 0]).steps["a"]
    assert records(batch) == [(0, [0, 1, 2], 102, True), (2, [2, 1, 2], 122, False)]
    assert batch.interrupted.tolist() == [False]
    batch = act(environment, a=[0]).steps["a"]
    # The last one ends, and all three begin anew under their old ids.
    assert records(batch) == [
        (2, [2, 1, 3], 123, True),
        (0, [0, 2, 0], 0, False),
        (1, [1, 2, 0], 0, False),
        (2, [2, 2, 0], 0, False),
    ]
    assert arena.seeds == [0, None]


class ReusingArena(Arena):
    """Hands out the same arrays every time."""

    def __init__(self, lives: dict[str, int]) -> None:
        super().__init__(lives)
        self.arrays = {agent: np.zeros(3, np.float32) for agent in lives}

    def _observations(self, agents: list[str]) -> dict[str, Any]:
        for agent, observation in super()._observations(agents).items():
            self.arrays[agent][:] = observation
        return {agent: self.arrays[agent] for agent in agents}


def test_final_observations_are_not_overwritten_by_the_reset() -> None:
    environment = PettingZooEnvironment([ReusingArena({"a_0": 1, "a_1": 2})], seed=0)
    begin(environment)
    assert records(act(environment, a=[0, 0]).steps["a"]) == [(0, [0, 1, 1], 101, True), (1, [1, 1, 1], 111, False)]
    assert records(act(environment, a=[0]).steps["a"]) == [
        (1, [1, 1, 2], 112, True),
        (0, [0, 2, 0], 0, False),
        (1, [1, 2, 0], 0, False),
    ]


def test_an_agent_that_vanishes_without_a_word_is_interrupted() -> None:
    class Leaky(Arena):
        def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
            results = super().step(actions)
            if self.steps == 2:
                self.agents.remove("a_1")
                for part in results:
                    del part["a_1"]
            return results

    environment = PettingZooEnvironment([Leaky({"a_0": 5, "a_1": 5})], seed=0)
    begin(environment)
    act(environment, a=[0, 0])
    batch = act(environment, a=[0, 0]).steps["a"]
    assert records(batch) == [(1, [1, 1, 1], 0, True), (0, [0, 1, 2], 102, False)]
    assert batch.interrupted.tolist() == [True]


def test_an_agent_that_stays_listed_after_its_end_is_not_asked() -> None:
    class Sticky(Arena):
        def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
            everyone = list(self.agents)
            self.received.append(actions)
            results = super().step({agent: actions.get(agent) for agent in everyone})
            self.agents = everyone
            return results

    environment = PettingZooEnvironment([Sticky({"a_0": 1, "a_1": 2})], seed=0)
    begin(environment)
    batch = act(environment, a=[0, 0]).steps["a"]
    assert records(batch) == [(0, [0, 1, 1], 101, True), (1, [1, 1, 1], 111, False)]
    batch = act(environment, a=[0]).steps["a"]
    assert [record[0] for record in records(batch)] == [1, 0, 1]


def test_parameters_go_to_each_episode() -> None:
    arena = Arena({"a_0": 1})
    environment = PettingZooEnvironment([arena], seed=0)
    begin(environment, size=ConstantSettings(value=2))
    environment.set_parameters({"size": ConstantSettings(value=3)})
    act(environment, a=[0])
    assert arena.options == [{"size": 2}, {"size": 3}]


def test_each_copy_draws_parameters_of_its_own() -> None:
    arenas = [Arena({"a_0": 1}) for _ in range(2)]
    begin(PettingZooEnvironment(arenas, seed=0), size=UniformSettings(seed=0))
    drawn = [arena.options[0]["size"] for arena in arenas]
    assert len({*drawn, np.random.default_rng(0).random(), np.random.default_rng(1).random()}) == 4


def test_players_of_a_board_game_are_asked_in_turns() -> None:
    environment = PettingZooEnvironment([Nim()], seed=0)
    first, second = "player?team=0", "player?team=1"
    steps = begin(environment).steps
    assert set(steps) == {first}
    assert records(steps[first]) == [(0, [0, 5], 0, False)]
    assert steps[first].mask.tolist() == [[False, False]]
    steps = act(environment, **{first: [1]}).steps  # 3 left
    assert set(steps) == {second}
    assert records(steps[second]) == [(1, [1, 3], 0.5, False)]
    steps = act(environment, **{second: [1]}).steps  # 1 left
    # What the player earned with the own move and during the other's.
    assert set(steps) == {first}
    assert records(steps[first]) == [(0, [0, 1], 0.75, False)]
    assert steps[first].mask.tolist() == [[False, True]]
    steps = act(environment, **{first: [0]}).steps
    assert records(steps[first]) == [(0, [0, 0], 1.0, True), (0, [0, 5], 0, False)]
    assert records(steps[second]) == [(1, [1, 0], 0.25 - 1.0, True)]
    for batch in steps.values():
        assert batch.interrupted.tolist() == [False]
        assert batch.mask[0].tolist() == [False, False]
        assert not batch.group.any(), "who has no mates has no group"


def test_players_without_teams_are_one_behavior_and_a_group() -> None:
    environment = PettingZooEnvironment([Nim(), Nim()], seed=0, rule=AgentRule(teams="none"))
    batch = begin(environment).steps["player"]
    assert records(batch) == [(0, [0, 5], 0, False), (1, [0, 5], 0, False)]
    batch = act(environment, player=[1, 0]).steps["player"]
    assert batch.agent.tolist() == [2, 3]
    assert batch.group.tolist() == [1, 2]


@pytest.mark.parametrize("teams", ["each", "none"])
def test_a_game_ends_with_the_last_records_of_both_players(teams: str) -> None:
    """Every player's rewards of an episode are those of the game, and both end in one message."""
    environment = PettingZooEnvironment([Nim(), Nim(), Nim()], seed=0, rule=AgentRule(teams=teams))
    generator = np.random.default_rng(0)
    environment.reset({})
    earned: dict[int, float] = {}
    ended = 0
    for _ in range(60):
        (event,) = environment.wait()
        ends = []
        actions = {}
        for name, batch in event.steps.items():
            for row, agent in enumerate(batch.agent.tolist()):
                earned[agent] = earned.get(agent, 0.0) + float(batch.reward[row])
                if row < batch.num_terminal:
                    ends.append((agent, earned.pop(agent), float(batch.reward[row])))
            allowed = ~batch.mask[batch.num_terminal :]
            if batch.num_decisions:
                choices = [[generator.choice(np.flatnonzero(row))] for row in allowed]
                actions[name] = action_batch(np.zeros((len(choices), 0)), choices)
        assert sum(batch.num_decisions for batch in event.steps.values()) == 3, "one of each game"
        copies = environment_copies(environment)
        games = sorted((copies[agent], total, last) for agent, total, last in ends)
        assert [copy for copy, _, _ in games[::2]] == [copy for copy, _, _ in games[1::2]], "both or none"
        for (_, low, lost), (_, high, won) in zip(games[::2], games[1::2], strict=True):
            assert lost < 0 < won == 1.0, "who moved last"
            assert low < high
        ended += len(games)
        environment.send(0, actions)
    assert ended > 40


def environment_copies(environment: PettingZooEnvironment) -> dict[int, int]:
    """Agent id -> copy."""
    return {agent: copy for (copy, _), (agent, _) in environment._ids.items()}


def test_agents_that_act_at_once_are_groups_by_type_and_copy() -> None:
    arenas = [Arena({"cat_0": 9, "mouse_0": 1, "mouse_1": 9}) for _ in range(2)]
    environment = PettingZooEnvironment(arenas, seed=5)
    steps = begin(environment).steps
    assert steps["cat"].group.tolist() == [0, 0]
    assert steps["mouse"].group.tolist() == [1, 1, 2, 2]
    batch = act(environment, cat=[0, 0], mouse=[0, 0, 0, 0]).steps["mouse"]
    assert (batch.num_terminal, batch.agent.tolist()) == (2, [1, 4, 2, 5])
    assert batch.group.tolist() == [1, 2, 1, 2], "also of those that end before their mates"


ANIMALS = ["cat_0", "cat_1", "mouse_0", "mouse_1", "mouse_2", "dog_0"]


@pytest.mark.parametrize(
    ("rule", "ids", "groups"),
    [
        ({}, ["cat", "cat", "mouse", "mouse", "mouse", "dog"], "aabbb-"),
        ({"groups": "none"}, ["cat", "cat", "mouse", "mouse", "mouse", "dog"], "------"),
        ({"behaviors": "animal", "teams": "type"}, [f"animal?team={t}" for t in (0, 0, 1, 1, 1, 2)], "aabbb-"),
        (
            {"teams": "each"},
            ["cat?team=0", "cat?team=1", "mouse?team=2", "mouse?team=3", "mouse?team=4", "dog?team=5"],
            "------",
        ),
        (
            {"behaviors": {"dog": "cat"}, "teams": {"mouse_2": 4}, "groups": {"mouse": 1, "cat_0": 2, "dog_0": 2}},
            ["cat?team=0", "cat?team=0", "mouse?team=0", "mouse?team=0", "mouse?team=4", "cat?team=0"],
            "a-bbca",
        ),
    ],
)
def test_the_rule_can_be_changed(rule: dict[str, Any], ids: list[str], groups: str) -> None:
    types = AgentTypes(Arena(dict.fromkeys(ANIMALS, 1)), ANIMALS, "arena", AgentRule.parse(rule))
    assert [types.behavior(agent) for agent in ANIMALS] == ids
    found: dict[Any, str] = {None: "-"}
    letters = [found.setdefault(types.group(agent), "abcdef"[len(found) - 1]) for agent in ANIMALS]
    assert "".join(letters) == groups


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"teams": "all"}, "--env-args teams='all': expected none, each, type, or a mapping"),
        ({"teams": 2}, "--env-args teams=2"),
        ({"teams": {"cat": "red"}}, "expected none, each, type, or a mapping"),
        ({"groups": {"cat": True}}, "expected none, team, or a mapping"),
        ({"behaviors": {"cat": 1}}, "expected a name, or a mapping"),
        ({"teams": {"cow": 1}}, "teams: there is no agent or type 'cow'. The environment has the agents cat_0, cat_1,"),
    ],
)
def test_rules_that_cannot_be_followed_are_refused(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        AgentTypes(Arena(dict.fromkeys(ANIMALS, 1)), ANIMALS, "arena", AgentRule.parse(rule))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("module", ["connect_four_v3", "tictactoe_v3"])
def test_board_games_of_pettingzoo(module: str) -> None:
    """Their pictures need pygame, which is not installed with trajtrainer but with its extra ``dev``."""
    pytest.importorskip("pygame")
    env_settings = EnvironmentSettings(env_path=f"pettingzoo:classic.{module}", num_envs=4, seed=1)
    environment = make_environment(RunSettings(env_settings=env_settings), NoLogs())
    generator = np.random.default_rng(1)
    environment.reset({})
    results: list[list[float]] = []
    for _ in range(200):
        (event,) = environment.wait()
        actions, ends = {}, []
        for name, batch in event.steps.items():
            assert name in {"player?team=0", "player?team=1"}
            ends += batch.reward[: batch.num_terminal].tolist()
            assert not batch.reward[batch.num_terminal :].any(), "nothing is earned before the end"
            allowed = ~batch.mask[batch.num_terminal :]
            assert allowed.any(axis=1).all()
            if batch.num_decisions:
                choices = [[generator.choice(np.flatnonzero(row))] for row in allowed]
                actions[name] = action_batch(np.zeros((len(choices), 0)), choices)
        assert len(ends) % 2 == 0, "both players end in one message"
        assert sum(ends) == 0.0
        results += [ends] if ends else []
        environment.send(0, actions)
    environment.close()
    assert len(results) > 10
    assert any(1.0 in ends for ends in results), "a move that is not allowed would end with -1 and 0"


def test_parallelizable_aec_environments_are_converted() -> None:
    environment = PettingZooEnvironment([Relay()], seed=0)
    batch = begin(environment).steps["player"]
    assert records(batch) == [(0, [0, 0], 0, False), (1, [1, 0], 0, False)]
    batch = act(environment, player=[0, 1]).steps["player"]
    assert records(batch) == [(0, [0, 1], 1, False), (1, [1, 1], 2, False)]
    batch = act(environment, player=[0, 1]).steps["player"]
    assert records(batch)[:2] == [(0, [0, 2], 1, True), (1, [1, 2], 2, True)]
    assert batch.interrupted.tolist() == [True, True]


def test_continuous_actions_and_dict_observations() -> None:
    class Skies(Arena):
        def observation_space(self, agent: str) -> spaces.Space[Any]:
            return spaces.Dict({"at": super().observation_space(agent), "kind": spaces.Discrete(2)})

        def action_space(self, agent: str) -> spaces.Space[Any]:
            return spaces.Box(0, 10, (2,))

        def _observations(self, agents: list[str]) -> dict[str, Any]:
            return {agent: {"at": at, "kind": 1} for agent, at in super()._observations(agents).items()}

    arena = Skies({"bird_0": 2})
    environment = PettingZooEnvironment([arena], seed=0)
    batch = begin(environment).steps["bird"]
    assert [column.tolist() for column in batch.obs] == [[[0, 1, 0]], [[0, 1]]]
    environment.send(0, {"bird": action_batch([[-1, 1]], np.zeros((1, 0)))})
    environment.wait()
    assert arena.received[0]["bird_0"].tolist() == [0, 10]


def test_faults_are_told() -> None:
    class Broken(Arena):
        def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
            raise RuntimeError("floor gave way")

    environment = PettingZooEnvironment([Broken({"a_0": 1})], seed=0)
    begin(environment)
    with pytest.raises(EnvironmentFaultError, match="arena failed in its step: RuntimeError: floor gave way"):
        act(environment, a=[0])


def test_rewards_must_be_finite() -> None:
    class Broken(Arena):
        def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
            observations, rewards, *rest = super().step(actions)
            return observations, {**rewards, "a_0": float("nan")}, *rest

    environment = PettingZooEnvironment([Broken({"a_0": 3})], seed=0)
    begin(environment)
    with pytest.raises(InvalidDataError, match="The environment arena sent nan as a reward: behavior 'a'"):
        act(environment, a=[0])


def test_a_reward_may_be_in_an_array_or_list_of_one_number_but_not_text() -> None:
    class Arrays(Arena):
        def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
            observations, _, *rest = super().step(actions)
            return observations, {"a_0": np.array([7.0]), "a_1": [8.0] if self.steps < 2 else "8"}, *rest

    environment = PettingZooEnvironment([Arrays({"a_0": 5, "a_1": 5})], seed=0)
    begin(environment)
    assert act(environment, a=[0, 0]).steps["a"].reward.tolist() == [7, 8]
    with pytest.raises(InvalidDataError, match="a number for each reward"):
        act(environment, a=[0, 0])


class Mismatch(Arena):
    """Returns what an environment of PettingZoo does not."""

    def __init__(self, call: str, change: Callable[[list[Any]], Any]) -> None:
        super().__init__({"a_0": 1, "a_1": 5})
        self.call, self.change = call, change

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        found = super().reset(seed, options)
        return self.change(list(found)) if self.call == "reset" else found

    def step(self, actions: dict[str, Any]) -> Any:
        found = super().step(actions)
        return self.change(list(found)) if self.call == "step" else found


def put(place: int, value: Any) -> Callable[[list[Any]], Any]:
    return lambda found: (*found[:place], value, *found[place + 1 :])


@pytest.mark.parametrize(
    ("call", "change", "expected"),
    [
        ("reset", lambda found: found[0], r"\(observations, infos\), each a dict"),
        ("reset", put(1, None), r"\(observations, infos\), each a dict"),
        ("step", lambda _: None, r"\(observations, rewards, terminations, truncations, infos\), each a dict"),
        ("step", lambda found: (*found[:3], found[4]), "truncations, infos"),
        ("step", put(1, None), "each a dict with an entry for each agent"),
        ("step", put(1, [1.0, 2.0]), "each a dict with an entry for each agent"),
        ("step", put(1, {"a_0": None, "a_1": 1.0}), "a number for each reward"),
        ("step", put(1, {"a_0": "much", "a_1": 1.0}), "a number for each reward"),
        ("step", put(1, {"a_0": np.ones(3), "a_1": 1.0}), "a number for each reward"),
        ("step", put(1, {"a_0": [1.0, 2.0], "a_1": 1.0}), "a number for each reward"),
        ("step", put(1, {"a_0": [[1.0], 2.0], "a_1": 1.0}), "a number for each reward"),
        ("step", put(2, {"a_0": "no", "a_1": False}), "True or False for each termination"),
    ],
)
def test_what_calls_return_is_checked(call: str, change: Callable[[list[Any]], Any], expected: str) -> None:
    environment = PettingZooEnvironment([Mismatch(call, change)], seed=0)

    def play() -> None:
        begin(environment)
        act(environment, a=[0, 0])

    with pytest.raises(InvalidDataError, match=rf"(?s)The {call}\(\) of the environment arena returned .*{expected}"):
        play()


def test_an_environment_must_tell_its_agents() -> None:
    class Shy(Arena):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            found = super().reset(seed, options)
            del self.agents
            return found

    with pytest.raises(InvalidDataError, match=r"arena has no list of agents: found None\. Set self\.agents in reset"):
        begin(PettingZooEnvironment([Shy({"a_0": 3})], seed=0))


def test_copies_must_be_alike() -> None:
    with pytest.raises(InvalidDataError, match="different spaces"):
        PettingZooEnvironment([Arena({"a_0": 1}), Arena({"a_0": 1}, {"a_0": 5})], seed=0)


@pytest.mark.parametrize(
    ("module", "at_once"),
    [
        ("generated_agents_parallel_v0", True),
        ("generated_agents_parallel_cust_agentid_v0", True),
        ("generated_agents_env_v0", False),
        ("generated_agents_env_action_mask_info_v0", False),
    ],
)
def test_environments_that_pettingzoo_is_tested_with(module: str, at_once: bool) -> None:
    """New agents, new types and deaths at random. Part of one episode only: every reset makes up new spaces."""
    env_settings = EnvironmentSettings(env_path=f"pettingzoo:test.example_envs.{module}", seed=1)
    environment = make_environment(RunSettings(env_settings=env_settings), NoLogs())
    generator = np.random.default_rng(1)
    environment.reset({})
    specs: dict[str, BehaviorSpec] = {}
    alive: set[int] = set()
    num_ended = 0
    for _ in range(95 if at_once else 400):
        (event,) = environment.wait()
        specs |= event.new_specs
        actions = {}
        for name, batch in event.steps.items():
            ended = set(batch.agent[: batch.num_terminal].tolist())
            num_ended += len(ended)
            alive |= set(batch.agent.tolist())
            alive -= ended
            allowed = ~batch.mask[batch.num_terminal :]
            if batch.num_decisions:
                choices = [[generator.choice(np.flatnonzero(row))] for row in allowed]
                actions[name] = action_batch(np.zeros((len(choices), 0)), choices)
        assert sum(batch.num_decisions for batch in event.steps.values()) == (len(alive) if at_once else 1)
        environment.send(0, actions)
    environment.close()
    assert len(specs) > 3, "types appear while it runs"
    assert num_ended > 3 or not at_once


def test_close() -> None:
    arenas = [Arena({"a_0": 1}) for _ in range(2)]
    environment = PettingZooEnvironment(arenas, seed=0)
    environment.close()
    environment.close()
    assert [arena.closed for arena in arenas] == [True, True]
