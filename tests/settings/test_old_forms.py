"""Configurations in the forms of old versions of ML-Agents are recognized and converted."""

from __future__ import annotations

import collections
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from trajtrainer.cli.main import main
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import load

FLAT = """\
default:
    trainer: ppo
    batch_size: 1024
    beta: 5.0e-3
    buffer_size: 10240
    hidden_units: 128
    lambd: 0.95
    learning_rate: 3.0e-4
    max_steps: 5.0e5
    memory_size: 256
    normalize: false
    num_epoch: 4
    sequence_length: 64
    summary_freq: 10000
    use_recurrent: false
    vis_encode_type: simple
    reward_signals:
        extrinsic: {strength: 1.0, gamma: 0.99}

Hallway:
    use_recurrent: true
    sequence_length: 32
    hidden_units: 96
    time_horizon: 48
    gamma: 0.9
    summary_path: summaries/x

Pyramids:
    max_steps: 1.0e7
    reward_signals:
        extrinsic: {strength: 2.0, gamma: 0.98}
        curiosity: {strength: 0.02, gamma: 0.97, encoding_size: 256}
    pretraining: {demo_path: x.demo, strength: 0.5, steps: 1000}

Walker:
    trainer: sac
    init_entcoef: 0.5
    tau: 0.01
    train_interval: 3
    num_update: 2
    epsilon: 0.3
    self_play: {window: 7, play_against_current_self_ratio: 0.25, save_steps: 500}

Copy: Walker

SmallWallJump:
"""


def converted(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[RunSettings, str]:
    """What ``trajtrainer config`` prints, as settings, and what it says about the conversion."""
    path = folder / "old.yaml"
    path.write_text(text, encoding="utf-8")
    assert main(["config", str(path)]) == 0, capsys.readouterr().err
    shown = capsys.readouterr()
    return load(shown.out, "new.yaml"), shown.err


def test_flat_settings_move_to_their_sections(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings, told = converted(tmp_path, FLAT, capsys)
    assert list(settings.behaviors) == ["Hallway", "Pyramids", "Walker", "Copy", "SmallWallJump"]

    hallway: Any = settings.behaviors["Hallway"]
    assert hallway.trainer_type == "ppo"
    assert (hallway.hyperparameters.num_epoch, hallway.hyperparameters.beta) == (4, 5e-3)
    assert (hallway.network_settings.hidden_units, hallway.time_horizon) == (96, 48)
    assert hallway.network_settings.memory.sequence_length == 32
    assert hallway.network_settings.memory.memory_size == 256
    assert hallway.reward_signals["extrinsic"].gamma == 0.99

    pyramids: Any = settings.behaviors["Pyramids"]
    assert pyramids.max_steps == 10_000_000
    assert pyramids.network_settings.memory is None
    assert pyramids.reward_signals["extrinsic"].strength == 2.0
    assert pyramids.reward_signals["curiosity"].network_settings.hidden_units == 256
    assert pyramids.reward_signals["curiosity"].encoding_size is None
    cloning = pyramids.behavioral_cloning
    assert (cloning.demo_path, cloning.strength, cloning.steps) == ("x.demo", 0.5, 1000)

    walker: Any = settings.behaviors["Walker"]
    assert walker.trainer_type == "sac"
    assert (walker.hyperparameters.init_entcoef, walker.hyperparameters.tau) == (0.5, 0.01)
    assert walker.hyperparameters.steps_per_update == 1.5
    assert walker.self_play.play_against_latest_model_ratio == 0.25
    assert (walker.self_play.window, walker.self_play.save_steps) == (7, 500)
    assert settings.behaviors["Copy"] == walker

    default: Any = settings.default_settings
    assert (default.summary_freq, default.hyperparameters.num_epoch) == (10000, 4)
    assert settings.behaviors["SmallWallJump"] == default

    lines = told.splitlines()
    assert any("old.yaml:25: Hallway.gamma: " in line for line in lines)
    assert any("old.yaml:26: Hallway.summary_path: " in line for line in lines)
    assert any("old.yaml:41: Walker.epsilon: " in line for line in lines)
    assert any("demo_path: there is no file" in line for line in lines)
    assert len(lines) == 4


def test_a_signal_that_a_behavior_replaced_does_not_come_back_from_the_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.demo").touch()
    settings, told = converted(
        tmp_path,
        "default:\n  trainer: ppo\n  batch_size: 32\n  reward_signals: {extrinsic: {gamma: 0.9}}\n"
        f"Imitator:\n  batch_size: 16\n  reward_signals: {{gail: {{demo_path: {tmp_path / 'x.demo'}}}}}\n",
        capsys,
    )
    assert list(settings.behaviors["Imitator"].reward_signals) == ["gail"]
    assert settings.default_settings is None
    assert "old.yaml:1: default: " in told


def test_the_oldest_names_of_reward_signals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings, told = converted(
        tmp_path,
        "Brain:\n  trainer: ppo\n  batch_size: 32\n  gamma: 0.95\n  use_curiosity: true\n"
        "  curiosity_strength: 0.03\n  curiosity_enc_size: 64\n",
        capsys,
    )
    signals: Any = settings.behaviors["Brain"].reward_signals
    assert signals["extrinsic"].gamma == 0.95
    assert (signals["curiosity"].strength, signals["curiosity"].gamma) == (0.03, 0.95)
    assert signals["curiosity"].network_settings.hidden_units == 64
    assert told == ""


@pytest.mark.parametrize("place", ["section", "top"])
def test_curriculum_and_samplers(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curriculum = (
        "BigWallJump:\n  measure: progress\n  thresholds: [0.1, 0.3]\n  min_lesson_length: 200\n"
        "  signal_smoothing: true\n  parameters:\n    low: [0.0, 4.0, 6.0]\n    high: [4.0, 7.0, 8.0]\n"
    )
    samplers = (
        "resampling-interval: 5000\nmass: {sampler-type: uniform, min_value: 0.5, max_value: 10}\n"
        'gravity: {sampler-type: "multirange_uniform", intervals: [[7, 10], [15, 20]]}\n'
        "scale: {sampler_type: gaussian, sampler_parameters: {mean: 2, st_dev: 0.3}}\n"
    )
    behaviors = "behaviors:\n  BigWallJump:\n    trainer_type: ppo\n    max_steps: 77\n"
    if place == "section":
        text = f"{behaviors}curriculum:\n{indented(curriculum)}parameter_randomization:\n{indented(samplers)}"
    else:
        text = curriculum + samplers
    settings, told = converted(tmp_path, text, capsys)
    parameters: Any = settings.environment_parameters
    assert set(parameters) == {"low", "high", "mass", "gravity", "scale"}
    lessons = parameters["high"].curriculum
    assert [lesson.value.value for lesson in lessons] == [4.0, 7.0, 8.0]
    first = lessons[0].completion_criteria
    assert (first.behavior, first.measure.value, first.threshold) == ("BigWallJump", "progress", 0.1)
    assert (first.min_lesson_length, first.signal_smoothing, first.require_reset) == (200, True, True)
    assert lessons[2].completion_criteria is None
    mass, gravity, scale = (parameters[name].curriculum[0].value for name in ("mass", "gravity", "scale"))
    assert (mass.min_value, mass.max_value) == (0.5, 10.0)
    assert gravity.intervals == [(7.0, 10.0), (15.0, 20.0)]
    assert (scale.mean, scale.st_dev) == (2.0, 0.3)
    assert "resampling-interval: " in told
    if place == "section":
        assert settings.behaviors["BigWallJump"].max_steps == 77


def test_a_curriculum_whose_lists_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(
        "curriculum:\n  A:\n    measure: reward\n    thresholds: [0.1]\n    parameters:\n      x: [1, 2, 3]\n"
        "      y: [1, 2]\n",
        encoding="utf-8",
    )
    assert main(["config", str(path)]) == 1
    told = capsys.readouterr().err
    assert f"{path}:6: curriculum.A.parameters.x: found 3 values, expected 2, one more than the thresholds" in told
    assert len(told.splitlines()) == 1


def indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())


def test_old_checkpoint_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings, told = converted(
        tmp_path,
        "behaviors:\n  A: {trainer_type: ppo}\ncheckpoint_settings: {save_freq: 700, keep_checkpoints: 3, lesson: 2, "
        "run_id: x}\ncurriculum: null\nparameter_randomization: null\n",
        capsys,
    )
    assert (settings.behaviors["A"].checkpoint_interval, settings.behaviors["A"].keep_checkpoints) == (700, 3)
    assert settings.checkpoint_settings.run_id == "x"
    assert settings.environment_parameters is None
    assert "checkpoint_settings.lesson: " in told


@pytest.mark.parametrize(
    "text",
    [
        FLAT,
        "curriculum: {}\n",
        "behaviors:\n  A: {trainer: ppo, batch_size: 3}\n",
        "Brain: {trainer: sac, tau: 0.1}\n",
        "default: {batch_size: 3}\n",
    ],
)
def test_learn_says_how_to_convert(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trainer_config.yaml"
    path.write_text(text, encoding="utf-8")
    assert main(["learn", str(path), "--env=sim:Basic", f"--results-dir={tmp_path / 'results'}"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert f"Convert it with 'trajtrainer config {path} > NEW.yaml'" in told[0]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "text",
    [
        "default:\n  trainer_type: ppo\n",
        "network_settings: {hidden_units: 3}\nbehaviors: {}\n",
        "behaviors:\n  A: {trainer_type: ppo, batch_size: 3}\n",
        "behaviors:\n  A: {trainer: ppo}\n",
        "3DBall:\n  trainer_type: ppo\n  max_steps: 5\n",
    ],
)
def test_mistakes_in_the_new_form_stay_what_they_are(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    for command in ("config", "learn"):
        assert main([command, str(path)]) == 1
        told = capsys.readouterr().err
        assert "unknown option" in told
        assert "Convert" not in told


class TrainerSettings:
    """Stands for the class whose name a dump of 2021 has."""


class DefaultTrainerDict(collections.defaultdict[str, Any]):
    """What ``behaviors`` was in 2021, when it was dumped with its class."""


for each in (TrainerSettings, DefaultTrainerDict):
    each.__module__ = "mlagents.trainers.settings"


@pytest.mark.parametrize("command", ["config", "learn"])
def test_a_dump_of_2021_with_the_tag_of_a_class_is_read(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys
    import types

    module: Any = types.ModuleType("mlagents.trainers.settings")
    module.TrainerSettings, module.DefaultTrainerDict = TrainerSettings, DefaultTrainerDict
    behavior = {
        "trainer_type": "ppo",
        "hyperparameters": {"batch_size": 16, "buffer_size": 64},
        "max_steps": 70,
        "framework": "pytorch",
    }
    behaviors = DefaultTrainerDict(TrainerSettings, {"Basic": behavior})
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "mlagents.trainers.settings", module)
        text = yaml.dump({"default_settings": None, "behaviors": behaviors, "debug": False}, sort_keys=False)
    assert "!!python/object/apply:mlagents.trainers.settings.DefaultTrainerDict" in text
    path = tmp_path / "configuration.yaml"
    path.write_text(text, encoding="utf-8")
    options = [] if command == "config" else ["--env=sim:Basic", f"--results-dir={tmp_path}", "--run-id=x"]
    assert main([command, str(path), *options]) == 0
    out = capsys.readouterr().out if command == "config" else (tmp_path / "x" / "configuration.yaml").read_text()
    settings = load(out, "new.yaml")
    assert settings.behaviors["Basic"].max_steps == 70
    assert settings.behaviors["Basic"].hyperparameters.batch_size == 16


@pytest.mark.parametrize(
    "behaviors",
    [
        "!!python/object/apply:collections.defaultdict\n  args:\n  - !!python/name:mlagents.trainers.settings.X ''",
        "!!python/object/apply:collections.defaultdict\n- !!python/name:mlagents.trainers.settings.X ''",
        "!!python/object/apply:mlagents.trainers.settings.DefaultTrainerDict []",
    ],
)
def test_the_record_of_an_old_run_without_behaviors_is_named(
    behaviors: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "configuration.yaml"
    path.write_text(f"default_settings: null\nbehaviors: {behaviors}\ndebug: false\n", encoding="utf-8")
    assert main(["config", str(path)]) == 1
    (first,) = capsys.readouterr().err.strip().splitlines()
    assert f"{path}:2: behaviors: this is the configuration.yaml of a run of ML-Agents from 2020 or 2021" in first


def test_behaviors_in_a_dumped_defaultdict_are_read() -> None:
    text = "behaviors: !!python/object/apply:collections.defaultdict\n  dictitems: {A: {max_steps: 3}}\n  args: []\n"
    assert load(text, "a.yaml").behaviors["A"].max_steps == 3


@pytest.mark.parametrize(
    "text",
    [
        "behaviors: !!python/object/apply:os.system\n  args: [touch FILE]\n",
        "behaviors: !!python/object/apply:os.system\n  dictitems: {A: {}}\n  args: [touch FILE]\n",
        "behaviors: !!python/object/apply:mlagents.trainers.settings.DefaultTrainerDict\n"
        "  args: [!!python/object/apply:os.system ['touch FILE']]\n  dictitems: {A: {max_steps: 3}}\n",
    ],
)
def test_no_tag_is_executed(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(text, encoding="utf-8")
    assert main(["config", "a.yaml"]) == (0 if "DefaultTrainerDict" in text else 1)
    assert not Path("FILE").exists()
    if "DefaultTrainerDict" not in text:
        assert "is not supported" in capsys.readouterr().err


def test_the_files_of_old_releases_convert(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The shape of a file of that time with two trainers, which the example of each release had."""
    caplog.set_level(logging.WARNING)
    behaviors = {
        "GridWorld": {"batch_size": 32, "num_layers": 1, "buffer_size": 256, "time_horizon": 5},
        "Tennis": {"normalize": True, "max_steps": 2e7, "self_play": {"window": 10, "swap_steps": 50000}},
        "Bouncer": {"normalize": True, "hidden_units": 64},
    }
    default = {
        "trainer": "sac",
        "batch_size": 128,
        "buffer_init_steps": 5,
        "init_entcoef": 1.0,
        "num_update": 1,
        "train_interval": 1,
        "tau": 0.005,
        "reward_signals": {"reward_signal_num_update": 2, "extrinsic": {"strength": 1.0, "gamma": 0.99}},
    }
    settings, told = converted(tmp_path, yaml.safe_dump({"default": default, **behaviors}, sort_keys=False), capsys)
    grid: Any = settings.behaviors["GridWorld"]
    assert (grid.hyperparameters.batch_size, grid.hyperparameters.reward_signal_steps_per_update) == (32, 0.5)
    assert (grid.network_settings.num_layers, grid.trainer_type) == (1, "sac")
    assert settings.behaviors["Tennis"].self_play is not None
    assert settings.behaviors["Bouncer"].self_play is None
    assert told == ""


def test_what_is_printed_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "default:\n  trainer: ppo\n  max_steps: 70\n  batch_size: 16\n  buffer_size: 64\nBasic:\n  hidden_units: 8\n"
    (tmp_path / "old.yaml").write_text(text, encoding="utf-8")
    assert main(["config", str(tmp_path / "old.yaml")]) == 0
    (tmp_path / "new.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    options = ["--env=sim:Basic", f"--results-dir={tmp_path}", "--run-id=x"]
    assert main(["learn", str(tmp_path / "new.yaml"), *options]) == 0
    assert (tmp_path / "x" / "Basic.onnx").is_file()


@pytest.mark.parametrize(
    "text",
    [
        "default: {trainer: sac, tau: 0.1, train_interval: often}\n",
        "default: {trainer: [ppo], batch_size: 3, reward_signals: 5, self_play: [1]}\nA: default\nB: C\nC: B\n",
        "curriculum: 5\nparameter_randomization: [1]\nx: {sampler-type: {}, a: 1}\n",
        "curriculum: {A: {thresholds: 3, parameters: {x: 5}}, B: file.json}\nbehaviors: 7\n",
        "A: {batch_size: 3, reward_signals: {curiosity: 5, gail: {encoding_size: [1]}}}\ncheckpoint_settings: 5\n",
        "A: {batch_size: 3, use_recurrent: [], memory_size: {}}\ncheckpoint_settings: {lesson: [], save_freq: {}}\n",
    ],
)
def test_mistakes_in_an_old_form_end_in_a_message(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old.yaml").write_text(text, encoding="utf-8")
    assert main(["config", str(tmp_path / "old.yaml")]) == 1
    assert capsys.readouterr().err.splitlines()[-1].strip()
