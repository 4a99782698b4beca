"""What is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from tests.experience.recordings.making import write_demo
from tests.learning.trainers.rig import OffPolicyRig, Rig
from tests.packages import Install
from trajtrainer.core.errors import DemonstrationError, UnsupportedError
from trajtrainer.learning.algos.poca.settings import POCAHyperparameters
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.learning.rewards.settings import GailSettings
from trajtrainer.learning.trainers.demonstrations import check_demonstrations
from trajtrainer.settings.components import ALGORITHMS, REWARD_SIGNALS
from trajtrainer.settings.trainer import BehavioralCloningSettings, TrainerSettings
from trajtrainer.settings.yaml.convert import trainer_settings
from trajtrainer.testing import random_steps, vector_spec

CLONING = BehavioralCloningSettings(demo_path="x.demo")
SAC = TrainerSettings(trainer_type="sac", hyperparameters=SACHyperparameters())
POCA = TrainerSettings(trainer_type="poca", hyperparameters=POCAHyperparameters())


def test_every_trainer_is_built() -> None:
    assert all(row.algorithm is not None for row in ALGORITHMS.builtin.values())


def test_all_missing_recordings_are_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gail = evolve(POCA, reward_signals={"gail": GailSettings(demo_path="y.demo")})
    behaviors = {"A": evolve(SAC, behavioral_cloning=CLONING), "B": TrainerSettings(), "C": gail}
    with pytest.raises(DemonstrationError) as caught:
        check_demonstrations(behaviors)
    lines = [line.split(". Expected")[0] for line in str(caught.value).splitlines()]
    assert lines == [
        f"Behavior 'A', demo_path: there is no file or folder {tmp_path / 'x.demo'}",
        f"Behavior 'C', demo_path: there is no file or folder {tmp_path / 'y.demo'}",
    ]
    for name in ("x.demo", "y.demo"):
        write_demo(Path(name), random_steps(vector_spec(3)), vector_spec(3), "X")
    check_demonstrations(behaviors)


def test_every_file_of_a_folder_is_looked_at_before_anything_starts(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    folder.mkdir()
    for name in ("a.demo", "b.demo", "c.demo"):
        write_demo(folder / name, random_steps(vector_spec(3)), vector_spec(3), "X")
    behaviors = {"A": evolve(POCA, reward_signals={"gail": GailSettings(demo_path=str(folder))})}
    check_demonstrations(behaviors)
    (folder / "b.demo").write_bytes(b"GIF89a" * 20)
    (folder / "c.demo").unlink()
    (folder / "c.demo").mkdir()
    with pytest.raises(DemonstrationError) as caught:
        check_demonstrations(behaviors)
    assert [line.partition(": ")[0] for line in str(caught.value).splitlines()] == ["Behavior 'A', demo_path"] * 2
    assert "b.demo is not a recording" in str(caught.value)
    assert "c.demo cannot be read: Is a directory" in str(caught.value)


def test_a_trainer_that_does_not_imitate_says_so(install: Install) -> None:
    install()
    settings = trainer_settings({"trainer_type": "reinforce"})
    check_demonstrations({"A": settings})
    with pytest.raises(UnsupportedError, match="'A': trainer_type reinforce does not support behavioral_cloning"):
        check_demonstrations({"A": evolve(settings, behavioral_cloning=CLONING)})


@pytest.mark.parametrize("training", [True, False])
def test_recordings_are_read_for_training_only(training: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.demo"
    path.write_bytes(b"no demonstration")
    settings = evolve(
        TrainerSettings(),
        reward_signals={"gail": GailSettings(demo_path=str(path))},
        behavioral_cloning=BehavioralCloningSettings(demo_path=str(path)),
    )
    if training:
        with pytest.raises(DemonstrationError, match=r"x\.demo"):
            Rig(settings)
    else:
        assert Rig(settings, training=False).trainer.algorithm.cloning is None


@pytest.mark.parametrize("section", ["behavioral_cloning", "gail"])
def test_a_recording_of_other_agents_is_told_with_sensor_and_shape(section: str, tmp_path: Path) -> None:
    path, spec = tmp_path / "x.demo", vector_spec(3)
    write_demo(path, random_steps(spec), spec, "X")
    given = {"demo_path": str(path)}
    settings = {"reward_signals": {"gail": given}} if section == "gail" else {section: given}
    with pytest.raises(DemonstrationError) as caught:
        Rig(trainer_settings(settings), vector_spec(5))
    assert str(caught.value).startswith(
        f"{path}: the sensor 'vector' (observation 0) was recorded with the shape (3,), but in the behavior it has (5,)"
    )


@pytest.mark.parametrize(("samples", "told"), [(0, True), (8, False)])
def test_sac_tells_that_whole_epochs_of_cloning_are_many(
    samples: int, told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, spec = tmp_path / "x.demo", vector_spec(3, 0, (2,))
    write_demo(path, random_steps(spec, lengths=(40,)), spec, "X")
    cloning = BehavioralCloningSettings(demo_path=str(path), samples_per_update=samples)
    settings = evolve(SAC, behavioral_cloning=cloning, hyperparameters=SACHyperparameters(batch_size=8))
    made = OffPolicyRig(settings, spec).trainer.algorithm.cloning
    assert made is not None
    assert made.steps_per_update == (3 if samples else 15)
    expected = "set samples_per_update: 8 in behavioral_cloning, which reduces them to 3."
    assert (expected in caplog.text) == told


def test_every_reward_signal_is_built() -> None:
    for name in REWARD_SIGNALS.builtin:
        parameters = {"demo_path": "x.demo"} if name == "gail" else {}
        settings = trainer_settings({"reward_signals": {name: parameters}})
        (signal,) = Rig(settings, training=False).trainer.algorithm.signals
        assert signal.name == name
