"""Settings to begin with: the rules, and the file that explains them."""

from __future__ import annotations

import argparse
import itertools
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajtrainer.core.errors import UnsupportedError
from trajtrainer.core.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from trajtrainer.envs.sim.simulation import entities_sensor, picture_sensor, vector_sensor
from trajtrainer.settings.suggestions import BREAK_EVEN_MS, WHICH_ALGORITHM, Choice, Exchange, Seen, suggest
from trajtrainer.settings.yaml.convert import load
from trajtrainer.tools.init.init import configuration, described, paced

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
        (seen(continuous=2, teams={0, 1}), "ppo", "agents earn their rewards alone, and one exchange takes 21 ms"),
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


def test_the_speed_in_words() -> None:
    behaviors = [seen(agents=12), seen(name="Other", agents=3)]
    assert paced(behaviors, Exchange(21.4)) == "One exchange takes 21 ms (15 agents)."
    assert paced(behaviors[1:], Exchange(4.26, players=0)) == "One exchange takes 4.3 ms (3 agents)."
    assert paced(behaviors[1:], Exchange(0.02, players=0)) == "One exchange takes less than 0.1 ms (3 agents)."
    together = "One exchange takes 84 ms, with 4 players one every 21 ms (15 agents)."
    assert paced(behaviors, Exchange(84.0, players=4)) == together
    assert paced(behaviors, Exchange()) == "No exchange was seen, so it is not known how fast the environment is."


def test_the_page_has_the_break_even() -> None:
    page = (Path(__file__).parents[2] / WHICH_ALGORITHM).read_text(encoding="utf-8")
    assert f"an exchange takes at most {BREAK_EVEN_MS:g} ms: `ppo`" in page


def test_a_sensor_for_which_there_is_no_encoder() -> None:
    odd = ObservationSpec((2, 2), (DimensionProperty.NONE,) * 2, ObservationType.DEFAULT, "odd")
    with pytest.raises(UnsupportedError, match="'odd'"):
        suggest([seen(odd)], FAST)


def given_options(**options: Any) -> argparse.Namespace:
    return argparse.Namespace(**options)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
sensors = st.sampled_from([VECTOR, entities_sensor(20, 4, "list"), picture_sensor(3, 20, 20, "c")])


@given(
    name=names,
    path=names,
    arguments=st.lists(names, max_size=3),
    sensor=sensors,
    continuous=st.integers(0, 3),
    agents=st.integers(1, 5000),
    group=st.integers(1, 3),
    teams=st.sets(st.integers(0, 3), min_size=1),
    largest=st.floats(0, 1e6),
    exchange=st.builds(Exchange, st.floats(0, 1e3), st.integers(0, 4)),
)
@hypothesis.settings(max_examples=25)
def test_every_file_is_read_as_it_was_meant(
    name: str, path: str, arguments: list[str], sensor: Any, continuous: int, exchange: Exchange, **more: Any
) -> None:
    behaviors = [seen(sensor, name=name, continuous=continuous, **more), seen(name=f"{name}2")]
    options = given_options(env=path, env_args=arguments, no_graphics=True, quiet=True)
    text = configuration(behaviors, exchange, options, Path("a b.yaml"))
    settings = load(text, "again.yaml")
    assert list(settings.behaviors) == [name, f"{name}2"]
    for key, value in chosen(*behaviors, exchange=exchange).items():
        at: Any = settings.behaviors[name]
        for part in key.split("."):
            at = at[part] if isinstance(at, dict) else getattr(at, part)
        assert getattr(at, "value", at) == value, key
    assert (settings.env_settings.env_path, settings.env_settings.env_args) == (path, arguments)
    assert settings.engine_settings.no_graphics


@pytest.mark.parametrize("exchange", [FAST, Exchange(SLOW.ms, players=0)])
def test_every_line_is_explained(exchange: Exchange, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    behaviors = [
        seen(VECTOR, picture_sensor(3, 20, 20, "c"), vector_sensor(2, goal=True), teams={0, 1}, group=2),
        seen(name="Other", continuous=2),
    ]
    options = given_options(env="Builds/Game", num_envs=2, time_scale=10.0)
    text = configuration(behaviors, exchange, options, Path("a.yaml"))
    lines = text.splitlines()
    bare = [
        line
        for before, line in itertools.pairwise(lines)
        if not line.lstrip().startswith("#") and not before.lstrip().startswith("#")
    ]
    assert bare == []
    assert max(map(len, lines)) <= 120
    assert "``" not in text
    assert "# Here: groups of 2 agents share a reward." in text
    settings = load(text, "a.yaml")
    assert (settings.env_settings.num_envs, settings.engine_settings.time_scale) == (2, 10.0)
    assert caplog.records == []  # nothing in it is advised against


def test_what_a_behavior_is() -> None:
    seeing = [VECTOR, entities_sensor(20, 4, "list"), picture_sensor(3, 84, 84, "eye\n")]
    spec = BehaviorSpec(seeing, ActionSpec(2, (3, 2)))
    assert list(described(Seen("A", spec, teams={1, 0}, agents=6, group=3))) == [
        "6 agents in the teams 0, 1, groups of up to 3",
        "sees VectorSensor_size8 (8 numbers), list (a list of up to 20 with 4 numbers each), "
        "eye\\n (a picture (3, 84, 84))",
        "does 2 continuous actions and discrete branches of 3, 2",
    ]
    alone = Seen("B", BehaviorSpec([vector_sensor(1, "g", goal=True)], ActionSpec(1, (4,))), {0}, 1)
    assert list(described(alone)) == [
        "1 agent",
        "sees g (1 number, a goal signal)",
        "does 1 continuous action and a discrete branch of 4",
    ]
