"""Settings to begin with: the rules, and the file that explains them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from trajtrainer.core.errors import UnsupportedError
from trajtrainer.core.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from trajtrainer.envs.sim.simulation import entities_sensor, picture_sensor, vector_sensor
from trajtrainer.settings.suggestions import BREAK_EVEN_MS, WHICH_ALGORITHM, Choice, Exchange, Seen, suggest

VECTOR = vector_sensor(8)
FAST, SLOW = Exchange(BREAK_EVEN_MS - 1), Exchange(BREAK_EVEN_MS + 1)


def seen(
    *sensors: ObservationSpec,
    name: str = "Walker",
    continuous: int = 0,
    branches: tuple[int, ...] | None = None,
    teams: Iterable[int] = (0,),
    agents: int = 4,
    group: int = 1,
    largest: float = 0.0,
) -> Seen:
    branches = (() if continuous else (3,)) if branches is None else branches
    spec = BehaviorSpec(list(sensors or [VECTOR]), ActionSpec(continuous, branches))
    return Seen(name, spec, set(teams), agents, group, largest)


def chosen(*behaviors: Seen, exchange: Exchange = FAST) -> dict[str, Any]:
    """The values that were chosen for the first of them, by path."""
    section = suggest(behaviors, exchange)[behaviors[0].name]
    found: dict[str, Any] = {}

    def walk(section: dict[str, Any], path: str) -> None:
        for key, value in section.items():
            if isinstance(value, Choice):
                found[path + key] = value.value
            else:
                walk(value, f"{path}{key}.")

    walk(section, "")
    return found


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (seen(), {"trainer_type": "ppo", "hyperparameters.batch_size": 128, "hyperparameters.buffer_size": 2048}),
        (seen(), {"time_horizon": 64, "max_steps": 500_000, "network_settings.memory": None}),
        (seen(continuous=2), {"hyperparameters.batch_size": 256, "hyperparameters.buffer_size": 10240}),
        (seen(continuous=2), {"time_horizon": 1000}),
        (seen(agents=17), {"hyperparameters.batch_size": 128, "hyperparameters.buffer_size": 2176}),
        (seen(agents=1000), {"hyperparameters.batch_size": 2048, "hyperparameters.buffer_size": 129024}),
        (seen(group=3), {"trainer_type": "poca"}),
        (seen(largest=1.0), {"network_settings.normalize": False, "network_settings.hidden_units": 128}),
        (seen(largest=2.5), {"network_settings.normalize": True}),
        (seen(vector_sensor(101)), {"network_settings.hidden_units": 256}),
        (seen(VECTOR, picture_sensor(3, 84, 20, "c")), {"network_settings.vis_encode_type": "simple"}),
        (seen(picture_sensor(3, 84, 84, "c")), {"max_steps": 1_000_000, "hyperparameters.batch_size": 256}),
        (seen(picture_sensor(1, 9, 8, "board")), {"network_settings.vis_encode_type": "match3"}),
        (seen(picture_sensor(1, 4, 9, "board")), {"network_settings.vis_encode_type": "fully_connected"}),
        (seen(VECTOR, vector_sensor(2, goal=True)), {"network_settings.goal_conditioning_type": "hyper"}),
        (seen(teams={0, 1}), {"self_play.save_steps": 20_000, "hyperparameters.learning_rate_schedule": "constant"}),
        (seen(teams={0, 1}), {"max_steps": 2_000_000, "trainer_type": "ppo"}),
        (seen(teams={0, 1}, group=2), {"self_play.window": 10, "trainer_type": "poca"}),
    ],
)
def test_the_rules(what: Seen, expected: dict[str, Any]) -> None:
    found = chosen(what)
    assert {key: found[key] for key in expected} == expected
    assert ("network_settings.vis_encode_type" in found) == any(len(s.shape) == 3 for s in what.spec.observation_specs)
    assert ("self_play.window" in found) == (len(what.teams) > 1)


def test_behaviors_of_different_teams_play_each_other() -> None:
    assert "self_play.window" in chosen(seen(name="Striker", teams={0}), seen(name="Goalie", teams={1}))
    assert "self_play.window" not in chosen(seen(name="Car"), seen(name="Boat"))


@pytest.mark.parametrize(
    ("exchange", "algorithm"),
    [
        (Exchange(), "ppo"),
        (Exchange(BREAK_EVEN_MS), "ppo"),
        (Exchange(BREAK_EVEN_MS + 1), "sac"),
        (Exchange(4 * BREAK_EVEN_MS, players=4), "ppo"),
        (Exchange(4 * BREAK_EVEN_MS + 1, players=4), "sac"),
        (Exchange(BREAK_EVEN_MS + 1, players=0), "sac"),
    ],
)
def test_the_time_between_two_exchanges_decides(exchange: Exchange, algorithm: str) -> None:
    assert chosen(seen(continuous=2), exchange=exchange)["trainer_type"] == algorithm


@pytest.mark.parametrize(
    ("what", "algorithm", "reason"),
    [
        (seen(continuous=2), "sac", "so it pays to learn more from fewer steps"),
        (seen(continuous=3, branches=(3, 2)), "sac", "so it pays to learn more from fewer steps"),
        (seen(VECTOR, picture_sensor(3, 84, 84, "c"), continuous=3), "sac", "so it pays to learn more"),
        (seen(), "ppo", "sac may be worth a try"),
        (seen(VECTOR, entities_sensor(20, 4, "list"), continuous=2), "ppo", "sac may be worth a try"),
        (seen(continuous=2, teams={0, 1}), "ppo", "agents are rewarded individually, and one exchange takes 21 ms"),
        (seen(continuous=2, group=3), "poca", "groups of 3 agents share a reward"),
    ],
)
def test_what_a_slow_environment_is_trained_with(what: Seen, algorithm: str, reason: str) -> None:
    choice = suggest([what], Exchange(21.0))[what.name]["trainer_type"]
    assert choice.value == algorithm
    assert reason in choice.reason
    if algorithm != "sac":  # and nothing else changes
        slow, fast = chosen(what, exchange=SLOW), chosen(what, exchange=FAST)
        assert slow == fast


@pytest.mark.parametrize(
    ("what", "exchange", "expected"),
    [
        (seen(continuous=2), SLOW, {"hyperparameters.steps_per_update": "auto", "network_settings.num_layers": 2}),
        (seen(continuous=2), SLOW, {"hyperparameters.batch_size": 64, "network_settings.hidden_units": 64}),
        (seen(continuous=2), SLOW, {"hyperparameters.learning_rate": 1e-3, "max_steps": 100_000, "time_horizon": 64}),
        (seen(continuous=2, largest=3.0), SLOW, {"network_settings.normalize": True}),
        (seen(picture_sensor(3, 84, 84, "c"), continuous=2), SLOW, {"hyperparameters.learning_rate": 6e-4}),
        (seen(picture_sensor(3, 84, 84, "c"), continuous=2), SLOW, {"hyperparameters.buffer_size": 23_620}),
        (seen(picture_sensor(1, 20, 20, "c"), continuous=2), SLOW, {"hyperparameters.buffer_size": 100_000}),
        (seen(continuous=1, agents=50), SLOW, {"max_steps": 250_000}),
        (seen(continuous=1), Exchange(SLOW.ms, players=0), {"threaded": True}),
    ],
)
def test_the_rules_for_slow_environments(what: Seen, exchange: Exchange, expected: dict[str, Any]) -> None:
    found = chosen(what, exchange=exchange)
    assert {key: found[key] for key in expected} == expected
    assert ("threaded" in found) == (exchange.players == 0)
    assert "network_settings.normalize" in found


def test_the_page_has_the_break_even() -> None:
    page = (Path(__file__).parents[2] / WHICH_ALGORITHM).read_text(encoding="utf-8")
    assert f"an exchange takes at most {BREAK_EVEN_MS:g} ms, use `ppo`" in page


def test_a_sensor_for_which_there_is_no_encoder() -> None:
    odd = ObservationSpec((2, 2), (DimensionProperty.NONE,) * 2, ObservationType.DEFAULT, "odd")
    with pytest.raises(UnsupportedError, match="'odd'"):
        suggest([seen(odd)], FAST)
