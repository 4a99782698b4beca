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

from trajtrainer.commands.init import configuration, described
from trajtrainer.core.errors import UnsupportedError
from trajtrainer.core.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from trajtrainer.settings.suggestions import Choice, Seen, suggest
from trajtrainer.settings.yaml.convert import load
from trajtrainer.sim.simulation import entities_sensor, picture_sensor, vector_sensor

VECTOR = vector_sensor(8)


def seen(
    *sensors: ObservationSpec,
    name: str = "Walker",
    continuous: int = 0,
    teams: Iterable[int] = (0,),
    agents: int = 4,
    group: int = 1,
    largest: float = 0.0,
) -> Seen:
    spec = BehaviorSpec(list(sensors or [VECTOR]), ActionSpec(continuous, () if continuous else (3,)))
    return Seen(name, spec, set(teams), agents, group, largest)


def chosen(*behaviors: Seen) -> dict[str, Any]:
    """The values that were chosen for the first of them, by path."""
    section = suggest(behaviors)[behaviors[0].name]
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


def test_a_sensor_for_which_there_is_no_encoder() -> None:
    odd = ObservationSpec((2, 2), (DimensionProperty.NONE,) * 2, ObservationType.DEFAULT, "odd")
    with pytest.raises(UnsupportedError, match="'odd'"):
        suggest([seen(odd)])


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
)
@hypothesis.settings(max_examples=25)
def test_every_file_is_read_as_it_was_meant(
    name: str, path: str, arguments: list[str], sensor: Any, continuous: int, **more: Any
) -> None:
    behaviors = [seen(sensor, name=name, continuous=continuous, **more), seen(name=f"{name}2")]
    options = given_options(env=path, env_args=arguments, no_graphics=True, quiet=True)
    text = configuration(behaviors, options, Path("a b.yaml"))
    settings = load(text, "again.yaml")
    assert list(settings.behaviors) == [name, f"{name}2"]
    for key, value in chosen(*behaviors).items():
        at: Any = settings.behaviors[name]
        for part in key.split("."):
            at = at[part] if isinstance(at, dict) else getattr(at, part)
        assert getattr(at, "value", at) == value, key
    assert (settings.env_settings.env_path, settings.env_settings.env_args) == (path, arguments)
    assert settings.engine_settings.no_graphics


def test_every_line_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    behaviors = [
        seen(VECTOR, picture_sensor(3, 20, 20, "c"), vector_sensor(2, goal=True), teams={0, 1}, group=2),
        seen(name="Other", continuous=2),
    ]
    text = configuration(behaviors, given_options(env="Builds/Game", num_envs=2, time_scale=10.0), Path("a.yaml"))
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
