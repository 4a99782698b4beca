"""The file that ``trajtrainer init`` writes: what it explains, and that it is read as it was meant."""

from __future__ import annotations

import argparse
import itertools
import logging
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.settings.test_suggestions import FAST, SLOW, VECTOR, chosen, seen
from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.envs.sim.simulation import entities_sensor, picture_sensor, vector_sensor
from trajtrainer.settings.suggestions import Exchange, Seen
from trajtrainer.settings.yaml.convert import load
from trajtrainer.tools.init.init import configuration, described, paced


def test_the_speed_in_words() -> None:
    behaviors = [seen(agents=12), seen(name="Other", agents=3)]
    assert paced(behaviors, Exchange(21.4)) == "One exchange takes 21 ms (15 agents)."
    assert paced(behaviors[1:], Exchange(4.26, players=0)) == "One exchange takes 4.3 ms (3 agents)."
    assert paced(behaviors[1:], Exchange(0.02, players=0)) == "One exchange takes less than 0.1 ms (3 agents)."
    together = "One exchange takes 84 ms, with 4 players one every 21 ms (15 agents)."
    assert paced(behaviors, Exchange(84.0, players=4)) == together
    assert paced(behaviors, Exchange()) == "No exchange was measured, so the speed of the environment is unknown."


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
