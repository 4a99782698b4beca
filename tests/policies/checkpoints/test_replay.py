"""Experience beside a run's checkpoints: written, taken up, missing, damaged."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from tests.learning.trainers.rig import OffPolicyRig, Rig, Trajectory
from trajtrainer.core import atomic
from trajtrainer.experience import npz
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.policies.checkpoints.replay_file import NAME, ReplayFile, replay_file_of
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings

HYPER = SACHyperparameters(batch_size=8, buffer_size=100, save_replay_buffer=True)
SETTINGS = TrainerSettings(
    trainer_type="sac", hyperparameters=HYPER, network_settings=NetworkSettings(hidden_units=8, num_layers=1)
)


def _rig(steps: int = 0, **changes: Any) -> OffPolicyRig:
    rig = OffPolicyRig(evolve(SETTINGS, hyperparameters=evolve(HYPER, **changes)))
    if steps:
        rig.put(Trajectory(steps))
        rig.take_in()
    return rig


def _file(rig: OffPolicyRig, folder: Path) -> ReplayFile:
    file = replay_file_of(rig.trainer, folder)
    assert file is not None
    return file


def _save(rig: OffPolicyRig, folder: Path) -> None:
    file = _file(rig, folder)
    file.save()
    file.finish()


def test_what_was_saved_is_taken_up(tmp_path: Path) -> None:
    first, second = _rig(30), _rig()
    _save(first, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    _file(second, tmp_path).load()
    ours, theirs = (rig.learner.replay.sample(np.arange(30)) for rig in (first, second))
    np.testing.assert_array_equal(ours.obs[0], theirs.obs[0])
    np.testing.assert_array_equal(ours.next_obs[0], theirs.next_obs[0])


def test_a_later_save_replaces_the_earlier_one(tmp_path: Path) -> None:
    rig, second = _rig(), _rig()
    file = _file(rig, tmp_path)
    for _ in range(3):
        rig.put(Trajectory(10))
        rig.take_in()
        file.save()
    file.finish()
    _file(second, tmp_path).load()
    assert second.learner.replay.num_steps == 30


def test_the_trainer_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_disk, publish = threading.Event(), atomic.publish

    def slow(temporary: Path, path: Path) -> None:
        assert on_disk.wait(60.0)
        publish(temporary, path)

    monkeypatch.setattr(atomic, "publish", slow)
    rig, second = _rig(30), _rig()
    file = _file(rig, tmp_path)
    file.save()
    assert not (tmp_path / NAME).exists(), "whole or not at all"
    # What is written is what was there when it was saved.
    rig.put(Trajectory(70))
    rig.take_in()
    on_disk.set()
    file.finish()
    _file(second, tmp_path).load()
    assert second.learner.replay.num_steps == 30


@pytest.mark.parametrize("when", ["write", "publish"])
def test_a_full_disk_is_told_and_the_file_before_stays(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _save(_rig(20), tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((npz, "write_replay") if when == "write" else (atomic, "_sync")), full)
    _save(_rig(30), tmp_path)
    assert "could not be saved" in caplog.text
    assert "No space left on device" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    second = _rig()
    _file(second, tmp_path).load()
    assert second.learner.replay.num_steps == 20


def test_a_missing_file_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = _rig()
    _file(rig, tmp_path).load()
    assert "The saved replay" in caplog.text
    assert "Training continues without earlier experience" in caplog.text
    assert rig.learner.replay.num_steps == 0


def test_a_damaged_file_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _save(_rig(30), tmp_path)
    content = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(content[: len(content) // 2])
    rig = _rig()
    _file(rig, tmp_path).load()
    assert "damaged" in caplog.text
    rig.put(Trajectory(20))
    rig.trainer.advance()
    assert rig.learner.replay.num_steps == 20
    assert rig.policies.latest("B") is not None


def test_only_where_the_settings_ask_for_it(tmp_path: Path) -> None:
    assert replay_file_of(_rig(save_replay_buffer=False).trainer, tmp_path) is None
    assert replay_file_of(Rig(TrainerSettings()).trainer, tmp_path) is None
    assert replay_file_of(_rig().trainer, tmp_path) is not None
