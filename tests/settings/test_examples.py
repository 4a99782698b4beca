"""The configurations that come with the project."""

from __future__ import annotations

from pathlib import Path

import pytest

from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import dump, load, read_file, run_settings

FOLDER = Path(__file__).resolve().parents[2] / "config"
FILES = sorted(FOLDER.rglob("*.yaml"))


def example(name: str) -> RunSettings:
    return run_settings(*read_file(FOLDER / "ppo" / f"{name}.yaml"))


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_it_loads_without_a_warning(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = run_settings(*read_file(file))

    assert settings.behaviors
    assert caplog.records == []
    assert load(dump(settings), "again.yaml") == settings


# Reference 9.2: max_steps, time_horizon, batch, buffer, beta, lambd, units, layers, normalize, gamma.
TABLE = {
    "3DBall": (500000, 1000, 64, 12000, 0.001, 0.99, 128, 2, True, 0.99),
    "3DBallHard": (500000, 1000, 120, 12000, 0.001, 0.95, 128, 2, True, 0.99),
    "3DBall_randomize": (500000, 1000, 64, 12000, 0.001, 0.99, 128, 2, True, 0.99),
    "Basic": (500000, 3, 32, 256, 0.005, 0.95, 20, 1, False, 0.9),
}


def row(settings: RunSettings, behavior: str) -> tuple[float, ...]:
    trainer = settings.behaviors[behavior]
    hyperparameters = trainer.hyperparameters
    assert isinstance(hyperparameters, PPOHyperparameters)
    assert hyperparameters.learning_rate == 3e-4
    network = trainer.network_settings
    return (
        trainer.max_steps,
        trainer.time_horizon,
        hyperparameters.batch_size,
        hyperparameters.buffer_size,
        hyperparameters.beta,
        hyperparameters.lambd,
        network.hidden_units,
        network.num_layers,
        network.normalize,
        trainer.reward_signals["extrinsic"].gamma,
    )


@pytest.mark.parametrize("name", TABLE)
def test_it_has_the_numbers_of_the_example_of_mlagents(name: str) -> None:
    (behavior,) = example(name).behaviors

    assert behavior == name.partition("_")[0]
    assert row(example(name), behavior) == TABLE[name]


def test_two_behaviors_are_what_they_are_alone() -> None:
    both = example("3DBall+Basic")

    assert row(both, "3DBall") == TABLE["3DBall"]
    assert row(both, "Basic") == TABLE["Basic"]
