"""Who learns, who plays as whom and when that changes: against ML-Agents' rules written down one by one."""

from __future__ import annotations

import io
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.learning.trainers.rig import Recorder
from trajtrainer.core.queues import PolicyQueue, PolicyUpdate
from trajtrainer.core.spec import BehaviorId
from trajtrainer.core.stats import StatsReporter
from trajtrainer.learning.algos.acting import ActorPolicy, WeightsUpdate
from trajtrainer.learning.trainers.self_play import Player, SelfPlay, TeamRotation
from trajtrainer.settings.trainer import SelfPlaySettings


class Numbered(ActorPolicy):
    """A policy whose only weight is its number."""

    def __init__(self, number: float = 0.0) -> None:
        self.number = torch.tensor([number])

    def weights(self) -> dict[str, Tensor]:
        return {"number": self.number.clone()}

    def load(self, update: WeightsUpdate) -> None:
        self.number = torch.as_tensor(update.weights["number"]).clone()


class Side:
    """The self-play of one behavior, and all it looks at."""

    def __init__(
        self, rotation: TeamRotation, settings: SelfPlaySettings, name: str = "A", files: list[Player] | None = None
    ) -> None:
        self.name, self.steps = name, 0
        self.policy, self.policies = Numbered(), PolicyQueue[Tensor]()
        self.recorder = Recorder()
        self.reporter = StatsReporter(name, [self.recorder])
        self.self_play = SelfPlay(
            settings,
            rotation,
            behavior=name,
            seed=1,
            policy=self.policy,
            policies=self.policies,
            reporter=self.reporter,
            step=lambda: self.steps,
            files=files or [],
        )

    def join(self, team: int) -> None:
        self.self_play.join(BehaviorId.parse(f"{self.name}?team={team}"))

    def publish(self, number: int) -> None:
        self.policies.put(self.name, PolicyUpdate(number, {"number": torch.tensor([float(number)])}))

    def playing(self) -> dict[str, float]:
        """Behavior id -> number of the policy it plays with, of the teams that do not learn."""
        found = {}
        for name, slot in self.self_play.slots.items():
            acts = slot.player.acts
            assert acts is None or isinstance(acts, Numbered)
            found[name] = float(slot.weights["number"] if acts is None else acts.number)
        return found

    def result(self, result: float, times: int = 1) -> None:
        self.self_play.count(0, 1, [result] * times)


RULES = SelfPlaySettings(save_steps=10, team_change=40, swap_steps=15, window=1, play_against_latest_model_ratio=0.0)


@dataclass
class Rules:
    """ML-Agents' rules for one behavior, in its own words."""

    teams: list[int]
    settings: SelfPlaySettings
    step: int = 0
    ghost_step: int = 0
    last_save: int = 0
    last_swap: int = 0
    last_team_change: int = 0
    learning_team: int = 0
    current: float = 0.0
    snapshots: list[float] = field(default_factory=lambda: [0.0])
    snapshot_counter: int = 1
    ghosts: dict[int, float] = field(default_factory=dict)

    def wants_change(self) -> bool:
        if self.step - self.last_team_change > self.settings.team_change:
            self.last_team_change = self.step
            return True
        return False

    def advance(self, next_learning_team: int) -> None:
        if self.step - self.last_save > self.settings.save_steps:
            if self.snapshot_counter % self.settings.window < len(self.snapshots):
                self.snapshots[self.snapshot_counter % self.settings.window] = self.current
            else:
                self.snapshots.append(self.current)
            self.snapshot_counter += 1
            self.last_save = self.step
        if self.learning_team != next_learning_team or self.ghost_step - self.last_swap > self.settings.swap_steps:
            self.learning_team = next_learning_team
            self.ghosts = {}
            for team in self.teams:
                if team != self.learning_team:
                    always_latest = self.settings.play_against_latest_model_ratio == 1.0
                    self.ghosts[team] = self.current if always_latest else self.snapshots[0]
            self.last_swap = self.ghost_step


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([[[0, 1]], [[0], [1]], [[0, 1, 2]], [[5, 2], [3]]]),
    st.sampled_from([0.0, 1.0]),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.booleans()), max_size=60),
)
def test_it_is_learned_saved_and_swapped_when_mlagents_does(
    teams: list[list[int]], ratio: float, messages: list[tuple[int, int, bool]]
) -> None:
    """Each message brings steps of the team that learns and of the others, and perhaps a new policy.

    With a window of one snapshot, or always the latest policy, nothing is left to chance.
    """
    given_settings = evolve(RULES, play_against_latest_model_ratio=ratio)
    rotation = TeamRotation()
    sides = [Side(rotation, given_settings, f"B{i}") for i in range(len(teams))]
    learning = teams[0][0]
    queue = [team for own in teams for team in own if team != learning]
    oracles = [Rules(own, given_settings, learning_team=learning) for own in teams]
    for side, oracle in zip(sides, oracles, strict=True):
        for team in oracle.teams:
            side.join(team)
        oracle.ghosts = {team: 0.0 for team in oracle.teams if team != learning}
    for number, (learned, others, is_new) in enumerate(messages, start=1):
        for side, oracle in zip(sides, oracles, strict=True):
            if learning in oracle.teams:
                side.steps, oracle.step = side.steps + learned, oracle.step + learned
                if is_new:
                    side.publish(number)
                    oracle.current = float(number)
            if oracle.teams != [learning]:
                side.self_play.opponent_steps += others
                oracle.ghost_step += others
            side.self_play.change_team()
            if oracle.wants_change():
                queue.append(learning)
                learning = queue.pop(0)
        assert rotation.learning == learning
        for side, oracle in zip(sides, oracles, strict=True):
            side.self_play.update_opponents()
            oracle.advance(learning)
            state = side.self_play.state()
            assert [float(snapshot["weights"]["number"]) for snapshot in state["snapshots"]] == oracle.snapshots
            assert side.playing() == {f"{side.name}?team={team}": number for team, number in oracle.ghosts.items()}
            assert [side.self_play.learns(team) for team in oracle.teams] == [t == learning for t in oracle.teams]


def test_the_environment_is_reset_when_another_team_learns() -> None:
    rotation = TeamRotation()
    side = Side(rotation, RULES)
    side.join(0)
    side.join(1)
    side.steps = 40
    side.self_play.change_team()
    assert not rotation.take_change()
    side.steps = 41
    side.self_play.change_team()
    assert (rotation.take_change(), rotation.take_change()) == (True, False)


def test_an_opponent_stays_as_it_was_when_it_was_chosen() -> None:
    side = Side(TeamRotation(), evolve(RULES, play_against_latest_model_ratio=1.0))
    side.join(0)
    side.join(1)
    side.publish(1)
    side.self_play.opponent_steps = 16
    side.self_play.update_opponents()
    side.publish(2)
    side.self_play.update_opponents()
    assert side.playing() == {"A?team=1": 1.0}


def test_results_change_the_ratings_of_both() -> None:
    side = Side(TeamRotation(), RULES)
    side.join(0)
    side.join(1)
    side.result(1.0)
    state = side.self_play.state()
    assert (side.self_play.elo, state["snapshots"][0]["elo"]) == (1200.5, 1199.5)
    side.steps = 11
    side.self_play.update_opponents()
    assert side.self_play.state()["snapshots"][0]["elo"] == 1200.5, "a snapshot has the rating of that moment"
    side.result(0.5)
    side.reporter.write(0)
    values = side.recorder.summaries[0][1]["Self-play/ELO"].values
    assert list(values) == pytest.approx([1200.5, side.self_play.elo])


def test_the_rating_of_another_behaviors_team_changes() -> None:
    rotation = TeamRotation()
    striker, goalie = Side(rotation, RULES, "Striker"), Side(rotation, evolve(RULES, initial_elo=1000.0), "Goalie")
    striker.join(0)
    goalie.join(1)
    striker.result(0.0)
    change = 1 / (1 + 10 ** (-200 / 400))
    assert striker.self_play.elo == pytest.approx(1200 - change)
    assert goalie.self_play.state()["snapshots"][0]["elo"] == pytest.approx(1000 + change)
    assert goalie.self_play.elo == 1000.0


def chosen(side: Side, times: int) -> Counter[float]:
    found: Counter[float] = Counter()
    for _ in range(times):
        side.self_play.opponent_steps += 16
        side.self_play.update_opponents()
        found.update(side.playing().values())
    return found


def fill(side: Side, snapshots: int) -> None:
    """Snapshots 1, 2, ... beside the first one, 0."""
    for number in range(1, snapshots + 1):
        side.publish(number)
        side.steps += 11
        side.self_play.update_opponents()


def test_snapshots_are_drawn_evenly_and_the_latest_by_its_ratio() -> None:
    side = Side(TeamRotation(), evolve(RULES, window=3, play_against_latest_model_ratio=0.4, team_change=10**9))
    side.join(0)
    side.join(1)
    fill(side, 4)
    side.publish(9)
    found = chosen(side, 2000)
    assert set(found) == {2.0, 3.0, 4.0, 9.0}, "the window holds the newest three"
    assert found[9.0] == pytest.approx(800, abs=100)
    assert all(found[number] == pytest.approx(400, abs=80) for number in (2.0, 3.0, 4.0))


def test_prioritized_opponents_are_those_that_are_not_beaten() -> None:
    side = Side(TeamRotation(), evolve(RULES, window=3, prioritized=True, team_change=10**9))
    side.join(0)
    side.join(1)
    fill(side, 2)
    for _ in range(400):
        (number,) = chosen(side, 1)
        side.result({0.0: 1.0, 1.0: 0.5, 2.0: 0.0}[number], 5)
    found = chosen(side, 1000)
    assert found[0.0] < 20
    assert found[1.0] == pytest.approx(200, abs=60)
    assert found[2.0] == pytest.approx(800, abs=60)


def test_opponents_of_files_play_beside_the_snapshots() -> None:
    stranger = Player("other/run", 1200.0, acts=Numbered(77.0))
    side = Side(TeamRotation(), evolve(RULES, team_change=10**9), files=[stranger])
    side.join(0)
    side.join(1)
    found = chosen(side, 400)
    assert found[77.0] == pytest.approx(200, abs=60)
    assert found[0.0] == 400 - found[77.0]


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """The state, out of a file that is read without running code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize("prioritized", [True, False])
def test_a_restored_one_goes_on_alike(prioritized: bool) -> None:
    given_settings = evolve(RULES, window=3, play_against_latest_model_ratio=0.3, prioritized=prioritized)
    rng = np.random.default_rng(0)

    def play(side: Side, rotation: TeamRotation, messages: int) -> list[Any]:
        told = []
        for _ in range(messages):
            number, won = rng.integers(100), rng.integers(3)
            side.steps += int(rng.integers(8))
            side.self_play.opponent_steps += int(rng.integers(8))
            side.publish(int(number))
            side.result(float(won) / 2)
            side.self_play.change_team()
            side.self_play.update_opponents()
            told.append((rotation.learning, side.playing(), side.self_play.elo))
        return told

    rotation = TeamRotation()
    side = Side(rotation, given_settings)
    side.join(0)
    side.join(1)
    play(side, rotation, 60)
    state, steps, weights = saved(side.self_play.state()), side.steps, side.policy.weights()
    position = rng.bit_generator.state
    expected = play(side, rotation, 100)
    assert len({learning for learning, _, _ in expected}) == 2

    rng.bit_generator.state = position
    rotation = TeamRotation()
    again = Side(rotation, given_settings)
    again.steps = steps
    again.policy.load(PolicyUpdate(0, weights))
    again.self_play.restore(state)
    again.join(0)
    again.join(1)
    assert again.self_play.state()["elo"] == state["elo"]
    assert play(again, rotation, 100) == expected


def test_who_played_as_a_snapshot_that_is_gone_does_so_again() -> None:
    rotation = TeamRotation()
    side = Side(rotation, evolve(RULES, team_change=10**9))
    side.join(0)
    side.join(1)
    fill(side, 3)
    assert side.playing() == {"A?team=1": 0.0}
    again = Side(TeamRotation(), RULES)
    again.self_play.restore(saved(side.self_play.state()))
    again.join(0)
    again.join(1)
    assert again.playing() == {"A?team=1": 0.0}
    assert [float(each["weights"]["number"]) for each in again.self_play.state()["snapshots"]] == [3.0]


def test_a_smaller_window_keeps_the_newest_and_other_networks_are_left_out() -> None:
    side = Side(TeamRotation(), evolve(RULES, window=4))
    side.join(0)
    side.join(1)
    fill(side, 3)
    state = saved(side.self_play.state())
    state["snapshots"][3]["weights"] = {"number": torch.zeros(2)}
    again = Side(TeamRotation(), evolve(RULES, window=2))
    again.self_play.restore(state)
    assert [float(each["weights"]["number"]) for each in again.self_play.state()["snapshots"]] == [1.0, 2.0]


def test_of_two_behaviors_the_one_saved_last_knows_who_learns() -> None:
    rotation = TeamRotation()
    first, second = Side(rotation, RULES, "A"), Side(rotation, RULES, "B")
    first.join(0)
    second.join(1)
    older = saved(first.self_play.state())
    rotation.change()
    newer = saved(second.self_play.state())
    for states in ((older, newer), (newer, older)):
        rotation = TeamRotation()
        sides = [Side(rotation, RULES, name) for name in ("A", "B")]
        for side, state, team in zip(sides, states, (0, 1), strict=True):
            side.self_play.restore(state)
            side.join(team)
        changed = rotation.take_change()
        for side in sides:
            side.self_play.update_opponents()
        assert rotation.learning == 1
        assert changed is (states[0] is older), "messages may have been taken in for the other team"
        assert [list(side.playing()) for side in sides] == [["A?team=0"], []]


def test_an_older_run_without_any_of_this_goes_on_from_its_step() -> None:
    rotation = TeamRotation()
    side = Side(rotation, RULES)
    side.steps = 5000
    side.self_play.begin_at(5000, 1350.0)
    side.join(0)
    side.join(1)
    side.self_play.change_team()
    side.self_play.update_opponents()
    assert (rotation.learning, side.self_play.elo) == (0, 1350.0)
    assert [each["elo"] for each in side.self_play.state()["snapshots"]] == [1350.0]


@pytest.mark.parametrize(("episodes", "length"), [(10, 1), (0, 11)])
def test_a_single_team_is_warned_of_once_and_meets_a_team_that_comes_late(
    episodes: int, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    side = Side(TeamRotation(), RULES)
    side.join(3)
    for _ in range(2):
        side.self_play.count(episodes, length * max(1, episodes), [1.0])
    (record,) = caplog.records
    expected = r"'A' has self_play, but after 1\d steps .* only one team \(team 3\)"
    assert re.search(expected, record.getMessage())
    assert side.self_play.elo == 1200.0, "it has beaten no one"
    side.join(4)
    assert list(side.self_play.slots) == ["A?team=4"]
    side.self_play.count(1, 1, [1.0])
    assert side.self_play.elo > 1200.0
    caplog.clear()
    other = Side(TeamRotation(), RULES)
    other.join(3)
    other.join(4)
    other.self_play.count(episodes, length * max(1, episodes), [])
    assert not caplog.records
