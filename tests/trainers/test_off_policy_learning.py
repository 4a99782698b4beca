"""SAC learns the toy tasks of the peer's tests, with their settings (reference 10.2, 10.4, 10.5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve

from tests.trainers.acting import Acting
from trajtrainer.settings.network import MemorySettings, NetworkSettings
from trajtrainer.settings.trainer import SACHyperparameters, TrainerSettings
from trajtrainer.sim.parameters import EnvironmentParameters
from trajtrainer.sim.toy import Toy, ToyOptions

HYPER = SACHyperparameters(
    learning_rate=5e-3, batch_size=8, buffer_size=5000, buffer_init_steps=100, tau=0.01, init_entcoef=0.01
)
NETWORK = NetworkSettings(hidden_units=16, num_layers=1)
RECURRENT = evolve(NETWORK, memory=MemorySettings(sequence_length=16, memory_size=16))
DISCRETE = {"continuous": 0, "discrete": 1}


def _mean_of_last_episodes(
    task: dict[str, Any], max_steps: int = 1000, network: NetworkSettings = NETWORK, **hyper: Any
) -> float:
    settings = TrainerSettings(
        trainer_type="sac",
        hyperparameters=evolve(HYPER, **hyper),
        network_settings=network,
        max_steps=max_steps,
        summary_freq=100,
    )
    toy = Toy(ToyOptions(**task), np.random.default_rng(1337), EnvironmentParameters())
    acting = Acting(toy, settings, seed=1337)
    acting.train()
    return float(np.mean(acting.rewards[-5:]))


@pytest.mark.parametrize("actions", [{}, DISCRETE], ids=["continuous", "discrete"])
def test_simple(actions: dict[str, Any]) -> None:
    assert _mean_of_last_episodes(actions) > 0.9


@pytest.mark.parametrize(
    "actions", [{"continuous": 2}, {"continuous": 0, "discrete": 2}], ids=["continuous", "discrete"]
)
def test_two_dimensions(actions: dict[str, Any]) -> None:
    assert _mean_of_last_episodes({"step_size": 0.8, **actions}, 3000, buffer_init_steps=2000) > 0.8


def test_both_kinds_of_actions() -> None:
    task = {"continuous": 1, "discrete": 1, "step_size": 0.8}
    assert _mean_of_last_episodes(task, 2200, buffer_size=50_000, batch_size=256, buffer_init_steps=0) > 0.9


def test_visual() -> None:
    assert _mean_of_last_episodes({"vectors": 0, "pictures": 1, **DISCRETE}, batch_size=16, learning_rate=3e-4) > 0.9


@pytest.mark.slow
def test_variable_length() -> None:
    assert _mean_of_last_episodes({"lists": 1}, batch_size=16, learning_rate=3e-4) > 0.9


@pytest.mark.slow
def test_recurrent() -> None:
    hyper = {"batch_size": 256, "learning_rate": 3e-4, "buffer_init_steps": 1000, "steps_per_update": 2}
    assert _mean_of_last_episodes({"memory": True, **DISCRETE}, 4000, RECURRENT, **hyper) > 0.9
