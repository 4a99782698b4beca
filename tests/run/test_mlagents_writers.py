"""Statistics writers that packages have for ML-Agents."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.packages import Install
from trajtrainer.core.stats import StatsReporter
from trajtrainer.core.steps import Aggregation
from trajtrainer.run.mlagents_writers import GROUP
from trajtrainer.run.writers import plugin_writers
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import load

# As such a package is written, by the documentation of ML-Agents.
PLUGIN = """
from typing import Dict, List
from mlagents.trainers.settings import RunOptions
from mlagents.trainers.stats import StatsPropertyType, StatsSummary, StatsWriter

TOLD = []

class Example(StatsWriter):
    def __init__(self, folder):
        self.folder = folder

    def write_stats(self, category: str, values: Dict[str, StatsSummary], step: int) -> None:
        for tag, summary in values.items():
            TOLD.append((category, tag, summary.aggregated_value, summary.mean, summary.num, step))

    def add_property(self, category, property_type, value):
        TOLD.append((category, property_type == StatsPropertyType.HYPERPARAMETERS, value))

def make(run_options: RunOptions) -> List[StatsWriter]:
    assert run_options.as_dict()["behaviors"]["Ball"]["max_steps"] == 7
    assert run_options.behaviors["Ball"].max_steps == 7
    assert run_options.env_settings.seed == 3
    return [Example(run_options.checkpoint_settings.write_path)]

def failing(run_options):
    raise ValueError("no")

def wrong(run_options):
    return [3]
"""


@pytest.fixture(autouse=True)
def _no_stand_ins() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "mlagents":
            del sys.modules[name]


def settings() -> RunSettings:
    return load("{behaviors: {Ball: {max_steps: 7}}, env_settings: {seed: 3}, checkpoint_settings: {run_id: a}}", "x")


def test_a_writer_for_mlagents_is_told_everything_in_its_words(install: Install) -> None:
    install("odd-writers", {GROUP: {"example": "odd_writers:make"}}, odd_writers=PLUGIN)
    (writer,) = plugin_writers(settings())
    reporter = StatsReporter("Ball", [writer])
    reporter.add_hyperparameters("text")
    reporter.add_many("Reward", [1.0, 3.0])
    reporter.add_many("Count", [1.0, 3.0], Aggregation.SUM)
    reporter.add_many("nothing", [])
    reporter.write(500)

    hyperparameters, *told = sys.modules["odd_writers"].TOLD
    assert hyperparameters[:2] == ("Ball", True)
    assert hyperparameters[2]["max_steps"] == 7
    assert told == [("Ball", "Reward", 2.0, 2.0, 2, 500), ("Ball", "Count", 4.0, 2.0, 2, 500)]


def test_one_that_needs_more_of_mlagents_is_told_and_left_out(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    needs_more = "from mlagents.trainers.trainer import Trainer"
    rows = {name: f"odd_writers:{name}" for name in ("make", "failing", "wrong")}
    install("odd-writers", {GROUP: rows}, odd_writers=PLUGIN)
    install(
        "odd-more",
        {GROUP: {"more": "odd_more:make", "default": "mlagents.plugins.stats_writer:x"}},
        odd_more=needs_more,
    )
    assert len(plugin_writers(settings())) == 1
    told = {message.split("'")[1]: message for message in caplog.messages}
    assert set(told) == {"more", "failing", "wrong"}
    assert "package odd-more (odd_more:make)" in told["more"]
    assert "No module named 'mlagents.trainers.trainer'" in told["more"]
    assert "ValueError: no" in told["failing"]
    assert "expected a list of StatsWriter" in told["wrong"]


def test_without_such_packages_nothing_stands_in_for_mlagents() -> None:
    assert plugin_writers(settings()) == []
    assert "mlagents" not in sys.modules
