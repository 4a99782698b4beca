"""Dumping and loading again is the identity, for invented settings and for those of real users and of ML-Agents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from tests.settings.builders import runs, trainers
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import (
    dump,
    load,
    read_file,
    run_settings,
    to_mapping,
    trainer_mapping,
    trainer_settings,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(runs)
def test_a_run(run: RunSettings) -> None:
    text = dump(run)

    assert load(text, "a.yaml") == run
    assert list(yaml.safe_load(text)) == list(to_mapping(run))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trainers)
def test_a_behavior(trainer: TrainerSettings) -> None:
    assert trainer_settings(trainer_mapping(trainer)) == trainer


def user_files(shared_data: Path) -> list[Path]:
    return sorted(shared_data.glob("configs/*.yaml"))


def test_files_of_real_users(shared_data: Path) -> None:
    files = user_files(shared_data)
    assert len(files) >= 11

    for file in files:
        run = run_settings(*read_file(file))
        assert run.behaviors, file.name
        assert load(dump(run), file.name) == run, file.name


def test_every_value_that_a_user_wrote_is_in_the_dump(shared_data: Path) -> None:
    for file in user_files(shared_data):
        written = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert_within(written, to_mapping(run_settings(*read_file(file))), file.name)


def assert_within(written: Any, dumped: Any, place: str) -> None:
    if isinstance(written, dict):
        for key, value in written.items():
            assert_within(value, dumped[key], f"{place}.{key}")
    else:
        assert written == dumped, place


@pytest.mark.parametrize("run", ["ppo_continuous", "ppo_discrete_two_behaviors"])
def test_a_dump_has_the_keys_of_mlagents_in_their_order(shared_data: Path, run: str) -> None:
    file = shared_data / "golden" / "runs" / run / "configuration.yaml"
    written = yaml.safe_load(file.read_text(encoding="utf-8"))

    # As JSON, since equal dicts may have another order of keys.
    dumped = json.dumps(to_mapping(run_settings(*read_file(file))))
    assert json.loads(dumped) == written
    assert keys_in_order(json.loads(dumped)) == keys_in_order(written)


def keys_in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, keys_in_order(inner)) for key, inner in value.items()]
    return [keys_in_order(inner) for inner in value] if isinstance(value, list) else None


@pytest.mark.parametrize("run", ["ppo_continuous", "ppo_discrete_two_behaviors"])
def test_what_mlagents_made_of_a_users_file(shared_data: Path, run: str) -> None:
    folder = shared_data / "golden" / "runs" / run
    ours = run_settings(*read_file(folder / "trainer.yaml")).with_seed(11)
    theirs = run_settings(*read_file(folder / "configuration.yaml"))

    assert ours.behaviors == theirs.behaviors
    assert ours.default_settings == theirs.default_settings
    assert ours.environment_parameters == theirs.environment_parameters


def test_what_mlagents_made_of_the_settings_of_every_golden_case(shared_data: Path) -> None:
    compared = 0
    for file in sorted((shared_data / "golden").rglob("*.json")):
        case = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(case, dict) and "config" in case and "settings" in case:
            ours = trainer_mapping(trainer_settings(case["config"]))
            assert ours == case["settings"], file
            assert keys_in_order(ours) == keys_in_order(case["settings"]), file
            compared += 1
    assert compared >= 40
