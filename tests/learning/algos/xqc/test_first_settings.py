"""What ``trajtrainer init`` suggests for XQC."""

from __future__ import annotations

from typing import Any

import pytest

from tests.settings.test_suggestions import SLOW, chosen, seen
from trajtrainer.envs.sim.simulation import vector_sensor
from trajtrainer.settings.suggestions import Exchange, Seen, suggest


@pytest.mark.parametrize("what", [seen(continuous=3), seen(vector_sensor(51), continuous=1)])
def test_a_slow_environment_is_trained_with_it(what: Seen) -> None:
    choice = suggest([what], Exchange(21.0))[what.name]["trainer_type"]
    assert choice.value == "xqc"
    assert "so it pays to learn more from fewer steps" in choice.reason


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (seen(continuous=3), {"hyperparameters.batch_size": 256, "hyperparameters.critic_hidden_units": 64}),
        (seen(vector_sensor(51), continuous=1), {"hyperparameters.critic_hidden_units": 128}),
        (seen(vector_sensor(101), continuous=1), {"network_settings.hidden_units": 256}),
    ],
)
def test_the_rules(what: Seen, expected: dict[str, Any]) -> None:
    found = chosen(what, exchange=SLOW)
    assert {key: found[key] for key in expected} == expected
    assert "threaded" not in found
    # XQC ignores it, with a warning.
    assert "network_settings.normalize" not in found
