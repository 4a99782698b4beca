"""What other packages add: found by their entry points, named in the YAML, trained, exported, resumed."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import yaml

import trajtrainer
from tests.learning.nn.specs import behavior, camera, vector
from tests.packages import Install
from tests.run.api.test_learn_api import Lamp
from tests.run.runs import FinishedRun, behaviors_settings, learn, ppo
from trajtrainer.cli.main import main
from trajtrainer.core.errors import ExportError, PluginError
from trajtrainer.core.plugins import blaming_packages, resolve
from trajtrainer.core.stats import STATS_WRITERS
from trajtrainer.experience.recordings.formats import RECORDING_FORMATS
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.rewards.signal import create_reward_signals
from trajtrainer.policies.checkpoints.export_formats import EXPORT_FORMATS
from trajtrainer.policies.onnx.export import export_policy
from trajtrainer.policies.onnx.inspect import inspect_model
from trajtrainer.run.followers import GuardedWriter, followers
from trajtrainer.run.user_calls import UserCalls
from trajtrainer.settings.checks import ConfigurationError
from trajtrainer.settings.components import ALGORITHMS, REWARD_SIGNALS, RewardSignalRow, RewardSignalSettings
from trajtrainer.settings.network import ENCODERS, NetworkSettings
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.schemes import ENVIRONMENTS
from trajtrainer.settings.yaml.convert import dump, load, trainer_mapping, trainer_settings

SIGNALS, PICTURES = REWARD_SIGNALS.group, ENCODERS.group


def sampled(**changes: Any) -> dict[str, Any]:
    """Settings that use all of the sample package."""
    return ppo(
        600,
        summary_freq=200,
        network_settings={"hidden_units": 16, "num_layers": 1, "vis_encode_type": "patches"},
        reward_signals={"extrinsic": {}, "effort": {"gamma": 0.9, "strength": 0.1, "exponent": 1.5}},
        **changes,
    )


PLAYER = ("--env=sim:VisualBall", "--env-args", "--agents", "4", "--camera", "20,20")


def test_a_file_that_cannot_be_read_hides_no_package(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "first" / "broken-1.0.dist-info" / "entry_points.txt").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path / "first"))
    install("odd-package", {SIGNALS: {"odd": "odd_signal:ROW"}})

    assert "odd" in REWARD_SIGNALS


def test_a_package_trains_exports_and_resumes(tmp_path: Path, install: Install) -> None:
    install()
    run = learn(tmp_path, behaviors_settings(VisualBall=sampled()), *PLAYER)
    assert run.exit_code == 0, run.output
    model = run.folder / "VisualBall.onnx"
    assert inspect_model(model).loads
    assert any(weight.endswith("plugin.patch.weight") for weight in weights_of(model))
    tags = run.scalars("VisualBall")
    assert {"Policy/Effort Reward", "Policy/Effort Value Estimate", "Losses/Effort Loss"} <= tags.keys()
    lines = (run.folder.parent / "lines.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split()[:2] for line in lines] == [["VisualBall", str(step)] for step in (200, 400, 600)]
    saved = torch.load(run.folder / "VisualBall" / "checkpoint.pt", weights_only=True)
    assert set(saved["Module:effort"]) == {"0.weight", "0.bias", "2.weight", "2.bias"}

    again = learn(tmp_path, behaviors_settings(VisualBall=sampled() | {"max_steps": 900}), "--resume", *PLAYER)
    assert again.exit_code == 0, again.output
    assert "Resuming training from step" in again.output
    assert "starts anew" not in again.output
    assert "missing" not in again.output
    assert again.status()["VisualBall"]["final_checkpoint"]["steps"] >= 900

    model.unlink()
    assert main(["export", str(run.folder)]) == 0
    session = onnxruntime.InferenceSession(model)
    (action,) = session.run(["deterministic_continuous_actions"], {"obs_0": np.zeros((2, 3, 20, 20), np.float32)})
    assert action.shape == (2, 2)


def corridor(tmp_path: Path, *arguments: str, **settings: Any) -> FinishedRun:
    return learn(tmp_path, behaviors_settings(Corridor=ppo(600, summary_freq=200, **settings)), *arguments)


def test_a_scheme_trains_and_resumes(tmp_path: Path, install: Install) -> None:
    install()
    player = ("--env=corridor:4", "--num-envs=2", "--env-args", "slip=0.1")
    run = corridor(tmp_path, *player)
    assert run.exit_code == 0, run.output
    assert len(run.scalars("Corridor")["Environment/Cumulative Reward"]) >= 2
    assert "env_path: corridor:4" in (run.folder / "configuration.yaml").read_text(encoding="utf-8")
    again = learn(tmp_path, behaviors_settings(Corridor=ppo(900, summary_freq=200)), "--resume", *player)
    assert again.exit_code == 0, again.output
    assert again.status()["Corridor"]["final_checkpoint"]["steps"] >= 900


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--env=corridor:"],
            "--env 'corridor:' does not name the environment. Expected corridor:LENGTH such as corridor:6.",
        ),
        (["--env=corridor:1"], "--env corridor:1: expected corridor:LENGTH, with at least 2 cells."),
        (["--env=corridor:4", "--env-args", "slop=0.1"], "slop"),
    ],
)
def test_mistakes_about_a_scheme_are_one_message(
    tmp_path: Path, install: Install, arguments: list[str], message: str
) -> None:
    install()
    run = corridor(tmp_path, *arguments)
    assert run.exit_code == 1
    assert message in run.output
    assert "Traceback" not in run.output


def test_a_broken_scheme_is_named_with_its_package(tmp_path: Path, install: Install) -> None:
    install("odd-package", {ENVIRONMENTS.group: {"odd": "odd_scheme:ROW"}}, odd_scheme="raise OSError('no licence')")
    run = corridor(tmp_path, "--env=odd:x")
    assert run.exit_code == 1
    assert "The environment scheme 'odd' of package odd-package 1.0" in run.output
    assert "OSError: no licence" in run.output
    assert "Traceback" not in run.output


REINFORCE: dict[str, Any] = {
    "trainer_type": "reinforce",
    "hyperparameters": {"buffer_size": 200, "learning_rate": 1e-3, "baseline_rate": 5e-3},
    "network_settings": {"hidden_units": 16, "num_layers": 1},
    "time_horizon": 32,
    "max_steps": 1000,
    "summary_freq": 500,
}


def test_an_algorithm_trains_exports_and_resumes(tmp_path: Path, install: Install) -> None:
    install()
    player = ("--env=sim:3DBall", "--env-args", "--agents", "4")
    run = learn(tmp_path, behaviors_settings(**{"3DBall": REINFORCE}), *player)
    assert run.exit_code == 0, run.output
    assert len(run.scalars("3DBall")["Losses/Baseline Loss"]) == 2
    saved = torch.load(run.folder / "3DBall" / "checkpoint.pt", weights_only=True)
    learner = saved["trajtrainer"]["learner"]
    assert set(learner["modules"]) == {"baseline"}
    steps = [int(state["step"]) for state in learner["optimizers"]["policy"]["state"].values()]
    assert min(steps) == max(steps) >= 4

    again = learn(tmp_path, behaviors_settings(**{"3DBall": REINFORCE | {"max_steps": 1500}}), "--resume", *player)
    assert again.exit_code == 0, again.output
    assert "does not fully match" not in again.output
    resumed = torch.load(run.folder / "3DBall" / "checkpoint.pt", weights_only=True)["trajtrainer"]["learner"]
    assert int(resumed["optimizers"]["policy"]["state"][0]["step"]) > max(steps)

    model = run.folder / "3DBall.onnx"
    observed = {"obs_0": np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8)}
    (acted,) = onnxruntime.InferenceSession(model).run(["deterministic_continuous_actions"], observed)
    model.unlink()
    assert main(["export", str(run.folder)]) == 0
    (exported,) = onnxruntime.InferenceSession(model).run(["deterministic_continuous_actions"], observed)
    np.testing.assert_array_equal(exported, acted)
    assert "Tanh" in {node.op_type for node in onnx.load(str(model)).graph.node}


def weights_of(model: Path) -> list[str]:
    return [weight.name for weight in onnx.load(str(model)).graph.initializer]


def test_its_settings_are_checked_like_all_others(install: Install) -> None:
    install()
    text = """behaviors:
  A:
    trainer_type: reinforce
    hyperparameters: {baseline_rate: 0, num_epoch: 3}
    network_settings: {vis_encode_type: patchs}
    reward_signals:
      effort:
        exponent: -1
        stregth: 2
      efort: {exponent: much}
"""
    with pytest.raises(ConfigurationError) as caught:
        load(text, "a.yaml")
    assert [str(problem) for problem in caught.value.problems] == [
        "a.yaml:4: behaviors.A.hyperparameters.baseline_rate: found 0.0, expected a number above 0",
        "a.yaml:4: behaviors.A.hyperparameters.num_epoch: is only for trainer_type ppo, poca",
        "a.yaml:5: behaviors.A.network_settings.vis_encode_type: found 'patchs', expected one of fully_connected, "
        "match3, simple, nature_cnn, resnet, patches; did you mean patches?",
        "a.yaml:8: behaviors.A.reward_signals.effort.exponent: found -1.0, expected a number above 0",
        "a.yaml:9: behaviors.A.reward_signals.effort.stregth: unknown option; did you mean strength?",
        "a.yaml:10: behaviors.A.reward_signals.efort: found 'efort', expected one of extrinsic, curiosity, "
        "gail, rnd, effort; did you mean effort?",
    ]


def test_its_settings_are_dumped_and_read_again(install: Install) -> None:
    install()
    run = load(yaml.safe_dump({"behaviors": {"A": sampled(), "B": REINFORCE}}), "a.yaml")
    assert trainer_mapping(run.behaviors["B"])["hyperparameters"] == {
        "batch_size": 1024,
        **REINFORCE["hyperparameters"],
    }
    assert run.behaviors["A"].trainer_type == "ppo"
    assert run.behaviors["A"].reward_signals["effort"].exponent == 1.5  # type: ignore[attr-defined]
    assert trainer_mapping(run.behaviors["A"])["reward_signals"]["effort"]["learning_rate"] == 1e-3
    assert load(dump(run), "b.yaml") == run


BROKEN = {
    ALGORITHMS.group: {"odd": "odd_module:ALGORITHM"},
    SIGNALS: {"odd": "odd_module:ROW"},
    PICTURES: {"odd": "odd_module:ENCODER"},
}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("ROW = ENCODER = ALGORITHM = 3", "TypeError: it points to 3, expected a "),
        ("other = 3", "AttributeError: module 'odd_module' has no attribute "),
    ],
)
def test_a_broken_package_is_one_message(
    source: str, reason: str, tmp_path: Path, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("odd-package", BROKEN, odd_module=source)
    config = tmp_path / "a.yaml"
    config.write_text(
        "behaviors: {A: {trainer_type: odd, hyperparameters: {odd: 1}, reward_signals: {odd: {}}, "
        "network_settings: {vis_encode_type: odd}, max_steps: x}}"
    )
    assert main(["config", str(config)]) == 1
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    for kind, group, value, path in (
        ("algorithm", ALGORITHMS.group, "odd_module:ALGORITHM", "trainer_type"),
        ("reward signal", SIGNALS, "odd_module:ROW", "reward_signals.odd"),
        ("encoder", PICTURES, "odd_module:ENCODER", "network_settings.vis_encode_type"),
    ):
        assert (
            f"a.yaml:1: behaviors.A.{path}: The {kind} 'odd' of package odd-package 1.0 (entry point 'odd' = "
            f"'{value}' of group '{group}') cannot be loaded: {reason}"
        ) in shown
    assert "max_steps: found 'x'" in shown


def test_a_broken_package_hurts_nobody_who_does_not_use_it(
    install: Install, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    install("odd-package", BROKEN, odd_module="1 / 0")
    config = tmp_path / "a.yaml"
    config.write_text("behaviors: {A: {reward_signals: {rnd: {}}}}")
    assert main(["config", str(config)]) == 0
    assert "odd" not in capsys.readouterr().err


def test_a_built_in_name_is_not_taken_over(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install("greedy", {SIGNALS: {"rnd": "greedy_module:ROW"}}, greedy_module="1 / 0")
    with caplog.at_level(logging.WARNING):
        settings = trainer_settings({"reward_signals": {"rnd": {}}})
    assert settings.reward_signals["rnd"] == REWARD_SIGNALS.builtin["rnd"].settings()
    assert caplog.messages == [
        "package greedy 1.0 (entry point 'rnd' = 'greedy_module:ROW' of group 'trajtrainer.reward_signals') is "
        "ignored, because trajtrainer has a reward signal with that name; the package must rename it."
    ]


def test_two_packages_with_one_name(install: Install) -> None:
    install("one", {SIGNALS: {"twin": "one_module:ROW"}})
    install("two", {SIGNALS: {"twin": "two_module:ROW"}})
    with pytest.raises(
        ConfigurationError, match=r"claimed by the packages (one 1.0 and two|two 1.0 and one) 1.0; uninst"
    ):
        trainer_settings({"reward_signals": {"twin": {}}})


ROWS_OF_ERRORS = """
from trajtrainer import RewardSignalRow, RewardSignalSettings

def fail(*args):
    raise KeyError("no such thing")

def wrong(*args):
    return 3

FAILING, WRONG = RewardSignalRow(RewardSignalSettings, fail), RewardSignalRow(RewardSignalSettings, wrong)
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [("FAILING", "KeyError: 'no such thing'"), ("WRONG", "it returned 3, expected a RewardSignal with this name")],
)
def test_a_reward_signal_that_cannot_be_made(name: str, reason: str, install: Install) -> None:
    install("odd-package", {SIGNALS: {"odd": f"odd_rows:{name}"}}, odd_rows=ROWS_OF_ERRORS)
    settings = trainer_settings({"reward_signals": {"odd": {}}})
    with pytest.raises(PluginError, match=f"'odd' of package odd-package 1.0 .* failed: .*{reason}"):
        create_reward_signals(behavior([vector(2)]), settings, torch.device("cpu"))


FAILS_WHILE_TRAINING = """
from trajtrainer import RewardSignal, RewardSignalRow, RewardSignalSettings
from trajtrainer_sample.effort import Effort, EffortSettings

class Odd(Effort):
    def {method}(self, steps):
        return {{}}["no such thing"]

ROW = RewardSignalRow(EffortSettings, Odd)
"""


@pytest.mark.parametrize("method", ["evaluate", "update"])
@pytest.mark.parametrize("threaded", [False, True])
def test_a_package_that_fails_while_training_is_one_message(
    method: str, threaded: bool, tmp_path: Path, install: Install, capfd: pytest.CaptureFixture[str]
) -> None:
    install(
        "odd-package", {SIGNALS: {"effort": "odd_signal:ROW"}}, odd_signal=FAILS_WHILE_TRAINING.format(method=method)
    )
    settings = behaviors_settings(Lamp=ppo(600, reward_signals={"effort": {}}, threaded=threaded))
    with pytest.raises(PluginError) as caught:
        trajtrainer.learn(settings, Lamp, results_dir=tmp_path, run_id="run", verbose=False)
    assert str(caught.value) == (
        "The reward signal 'effort' of package odd-package 1.0 (entry point 'effort' = 'odd_signal:ROW' of group "
        "'trajtrainer.reward_signals') failed: KeyError: 'no such thing'. With debug: true, the log shows where."
    )
    assert isinstance(caught.value.__cause__, KeyError)


ENCODERS_OF_ERRORS = """
import torch
from torch import nn
from trajtrainer import EncoderRow

class Flat(nn.Module):
    def __init__(self, shape, size):
        super().__init__()
        self.layer = nn.Linear(shape[0] * shape[1] * shape[2], size)

    def forward(self, picture):
        assert picture.dtype == torch.float32
        return self.layer(picture.flatten(1))

FAILING = EncoderRow(lambda shape, size: 1 / 0)
NARROW = EncoderRow(lambda shape, size: Flat(shape, size - 1))
SILENT = EncoderRow(Flat)
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("FAILING", "ZeroDivisionError: division by zero"),
        ("NARROW", r"its output for one image has the shape \(1, 15\), expected \(1, 16\)"),
    ],
)
def test_an_encoder_that_cannot_be_made(name: str, reason: str, install: Install) -> None:
    install("odd-package", {PICTURES: {"odd": f"odd_encoders:{name}"}}, odd_encoders=ENCODERS_OF_ERRORS)
    with pytest.raises(PluginError, match=f"The encoder 'odd' of package odd-package 1.0 .* failed: .*{reason}"):
        Actor(behavior([camera(3, 6, 6)]), NetworkSettings(hidden_units=16, vis_encode_type="odd"))


def test_an_encoder_that_cannot_draw_itself_still_acts(install: Install, tmp_path: Path) -> None:
    install("odd-package", {PICTURES: {"odd": "odd_encoders:SILENT"}}, odd_encoders=ENCODERS_OF_ERRORS)
    spec = behavior([camera(3, 6, 6)])
    actor = Actor(spec, NetworkSettings(hidden_units=16, vis_encode_type="odd"))
    (encoder,) = actor.body.encoder.sensors
    bright = torch.full((1, 3, 6, 6), 255, dtype=torch.uint8)
    assert torch.equal(encoder(bright), encoder(torch.ones(1, 3, 6, 6)))
    with pytest.raises(ExportError, match=r"'odd' of package odd-package .*to_onnx\(graph, picture\)"):
        export_policy(actor, spec, tmp_path / "a.onnx")


def test_statistics_writers_that_fail_are_left_out(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    source = (
        "from trajtrainer import StatsWriterRow as Row\nFAILING = Row(lambda settings: 1 / 0)\nWRONG = Row(lambda s: 3)"
    )
    rows = {"failing": "odd_writers:FAILING", "wrong": "odd_writers:WRONG", "absent": "odd_writers:ABSENT"}
    install()
    install("odd-package", {STATS_WRITERS.group: rows}, odd_writers=source)
    made = followers(RunSettings(), UserCalls())
    assert len([each for each in made if isinstance(each, GuardedWriter)]) == 1
    for name, reason in (
        ("failing", "failed: ZeroDivisionError: division by zero. The run continues without this writer."),
        (
            "wrong",
            "failed: TypeError: it returned 3, expected a StatsWriter or a list of them. The run continues without "
            "this writer.",
        ),
        (
            "absent",
            "has no attribute 'ABSENT'. Fix, update or uninstall the package. The run continues without this writer.",
        ),
    ):
        (told,) = (message for message in caplog.messages if f"The statistics writer {name!r}" in message)
        assert told.endswith(reason)


def test_settings_of_a_row_are_of_attrs() -> None:
    class Plain(RewardSignalSettings):
        pass

    for wrong in (Plain, NetworkSettings, 3):
        with pytest.raises(TypeError, match=r"expected a subclass of RewardSignalSettings with @attrs.frozen"):
            RewardSignalRow(wrong, "a:b")  # type: ignore[arg-type]


def references(row: Any) -> list[str]:
    values = [getattr(row, field.name) for field in fields(row)]
    return [value for value in values if isinstance(value, str) and value.startswith("trajtrainer.")]


@pytest.mark.parametrize(
    "reference",
    [
        *(row.create for row in ENCODERS.builtin.values()),
        *(row.create for row in REWARD_SIGNALS.builtin.values() if row.create is not None),
        *(each for row in ENVIRONMENTS.builtin.values() for each in references(row)),
        *(each for row in RECORDING_FORMATS.builtin.values() for each in references(row)),
        *(each for row in EXPORT_FORMATS.builtin.values() for each in references(row)),
        *(row.algorithm for row in ALGORITHMS.builtin.values() if row.algorithm is not None),
    ],
)
def test_every_built_in_reference_leads_somewhere(reference: str) -> None:
    assert callable(resolve(reference))


@pytest.mark.parametrize("error", [MemoryError(), ExportError("a clear message"), KeyError("a mistake of our own")])
def test_no_package_is_blamed_for_other_errors(error: Exception) -> None:
    with pytest.raises(type(error)) as built_in, REWARD_SIGNALS.blaming("extrinsic"):
        raise error
    with pytest.raises(type(error)) as anywhere, blaming_packages(REWARD_SIGNALS, ENCODERS):
        raise error
    assert built_in.value is anywhere.value is error
