"""Runs of behaviors that are learned from data sets, without an environment and beside others."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import trajtrainer
from tests.learning.algos.recorded import recording
from tests.learning.nn.specs import behavior, vector
from tests.run.api.test_learn_api import Lamp
from tests.run.runs import LearnProcess, ppo
from trajtrainer.cli.main import main
from trajtrainer.core.errors import CheckpointError, SettingsError, UnsupportedError
from trajtrainer.envs.python.factories import from_factory
from trajtrainer.experience.recordings.demonstrations import load_demonstrations
from trajtrainer.experience.recordings.pairing import Trajectory
from trajtrainer.experience.recordings.writer import DemoWriter
from trajtrainer.plugins.imitation.offline import Offline
from trajtrainer.run.session import session
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import load
from trajtrainer.tools.recordings import find_sources, write

SPEC = behavior([vector(4)], 2)
LAMP = behavior([vector(2)], 0, (2,))
RECORDED: dict[str, str] = {}


@pytest.fixture(scope="module", autouse=True)
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Record noise and a lamp, which ``offline`` names."""
    folder = tmp_path_factory.mktemp("recordings")
    made = {"noise": (SPEC, recording(SPEC, [20] * 10), "Noise?team=0"), "lamp": (LAMP, _of_lamp(), "Lamp")}
    for name, (spec, packed, behavior_name) in made.items():
        RECORDED[name] = str(folder / f"{name}.demo")
        with DemoWriter(Path(RECORDED[name]), spec, behavior_name) as writer:
            for number in range(packed.num_trajectories):
                one = packed.trajectories(number, number + 1)
                after = one.steps.slice(len(one) - 1, len(one)).with_columns(dict(one.bootstrap.items()))
                writer.write(Trajectory(one.steps, after))
    yield
    RECORDED.clear()


def _of_lamp() -> Any:
    packed = recording(LAMP, [8] * 10)
    light = np.random.default_rng(0).integers(2, size=80)
    packed["obs.0"][:] = np.eye(2, dtype=np.float32)[light]
    packed["discrete"][:, 0] = light
    packed["mask"][:] = False
    return packed


def offline(kind: str = "bc", max_steps: int = 60, data: str = "noise", **more: Any) -> dict[str, Any]:
    hyper = {"batch_size": 32, "validation_fraction": 0.2, "learning_rate": 0.01, "learning_rate_schedule": "linear"}
    return {
        "trainer_type": kind,
        "dataset": [RECORDED.get(data, data)],
        "hyperparameters": hyper,
        "network_settings": {"hidden_units": 16, "num_layers": 1, "normalize": data == "noise"},
        "max_steps": max_steps,
        "summary_freq": 20,
        "checkpoint_interval": 30,
        **more,
    }


def settings(**behaviors: Any) -> dict[str, Any]:
    return {"behaviors": behaviors, "env_settings": {"seed": 7}, "torch_settings": {"device": "cpu"}}


def learn(tmp_path: Path, given: Any, *arguments: Any, **options: Any) -> trajtrainer.LearnResult:
    return trajtrainer.learn(given, *arguments, **{"results_dir": tmp_path, "verbose": False, **options})


def run_settings(given: dict[str, Any], folder: Path, run_id: str) -> RunSettings:
    checkpoints = {"checkpoint_settings": {"run_id": run_id, "results_dir": str(folder)}}
    return load(json.dumps(given | checkpoints), "here")


def weights(path: Path | None) -> dict[str, Any]:
    assert path is not None
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_same(value, other[key])
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, list | tuple):
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert one == other


def assert_same_checkpoints(*results: trajtrainer.LearnResult) -> None:
    one, other = (weights(result.behaviors["Noise"].checkpoint) for result in results)
    for content in (one, other):
        content["trajtrainer"].pop("version")
        del content["trajtrainer"]["judge"]["seconds"]
    assert_same(one, other)


@pytest.mark.parametrize("kind", ["bc", "iql"])
def test_files_tags_and_steps_of_a_run_without_an_environment(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        result = learn(tmp_path, settings(Noise=offline(kind)), run_id="run")
    assert result.behaviors["Noise"].steps == 60
    assert result.behaviors["Noise"].mean_reward is None
    folder = tmp_path / "run"
    assert {path.name for path in (folder / "Noise").iterdir() if "tfevents" not in path.name} == {
        "checkpoint.pt",
        *(f"Noise-{step}.{suffix}" for step in (30, 60) for suffix in ("pt", "onnx")),
    }
    events = EventAccumulator(str(folder / "Noise"))
    events.Reload()
    tags = {"Losses/Policy Loss", "Losses/Validation Loss", "Policy/Validation Error", "Policy/Epoch"}
    tags |= {"Losses/Q1 Loss", "Losses/Q2 Loss", "Losses/Value Loss"} if kind == "iql" else set()
    assert tags <= set(events.Tags()["scalars"])
    for tag in tags:
        assert [event.step for event in events.Scalars(tag)] == [20, 40, 60]
    assert events.Scalars("Policy/Epoch")[-1].value == pytest.approx(60 * 32 / 160)
    assert not any(tag.startswith("Environment/") for tag in events.Tags()["scalars"])
    assert "Noise. Step: 40. Time Elapsed" in caplog.text
    assert "Noise: 60 gradient steps on 200 recorded steps." in caplog.text
    model = onnxruntime.InferenceSession(str(result.behaviors["Noise"].onnx))
    names = [each.name for each in model.get_inputs()]
    outputs = model.run(["deterministic_continuous_actions"], dict.fromkeys(names, np.zeros((3, 4), np.float32)))
    assert outputs[0].shape == (3, 2)


@pytest.mark.parametrize("kind", ["bc", "iql"])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path: Path, kind: str) -> None:
    given = settings(Noise=offline(kind))
    whole = learn(tmp_path, given, run_id="whole")
    with session(run_settings(given, tmp_path, "halves"), None) as opened:
        for _ in range(2):
            opened.step()
    step = next(iter(opened.behaviors.values())).trainer.step
    assert 0 < step < 60
    assert_same_checkpoints(whole, learn(tmp_path, given, run_id="halves", resume=True))


def test_a_run_that_was_killed_and_interrupted_goes_on_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on for hours. Where it was killed, it is resumed for a few steps more."""
    hyper = {"batch_size": 32, "validation_fraction": 0.2, "learning_rate": 0.01, "learning_rate_schedule": "constant"}
    killed = LearnProcess(tmp_path, settings(Noise=offline("iql", 1_000_000, hyperparameters=hyper)))
    killed.wait_for(lambda: len(list((killed.folder / "Noise").glob("Noise-*.pt"))) >= 2)
    killed.send(signal.SIGKILL)
    assert killed.finish().exit_code < 0
    begin = step_of(killed.folder / "Noise" / "checkpoint.pt")
    assert begin >= 30
    given = settings(Noise=offline("iql", begin + 60, hyperparameters=hyper))
    results, update, calls = tmp_path / "results", Offline.update, []

    def interrupted(self: Offline, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return update(self, *arguments)

    monkeypatch.setattr(Offline, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        learn(results, given, run_id="run", resume=True)
    monkeypatch.undo()
    assert begin < step_of(killed.folder / "Noise" / "checkpoint.pt") < begin + 60
    found = [learn(results, given, run_id=name, resume=name == "run") for name in ("run", "whole")]
    assert_same_checkpoints(*found)


def step_of(checkpoint: Path) -> int:
    return int(weights(checkpoint)["global_step"]["_GlobalSteps__global_step"])


def test_a_thread_of_its_own_makes_the_same_steps(tmp_path: Path) -> None:
    plain = learn(tmp_path, settings(Noise=offline()), run_id="plain")
    threaded = learn(tmp_path, settings(Noise=offline(threaded=True)), run_id="threaded")
    one, other = (weights(result.behaviors["Noise"].checkpoint) for result in (plain, threaded))
    assert_same(one["Policy"], other["Policy"])


def test_a_condition_of_stop_ends_it(tmp_path: Path) -> None:
    result = learn(tmp_path, settings(Noise=offline(stop={"gradient_steps": 25})), run_id="run")
    assert result.behaviors["Noise"].steps == 30
    status = json.loads((result.run_folder / "run_logs" / "training_status.json").read_text())["Noise"]
    assert status["stopped"] == {"by": "gradient_steps", "steps": 30}


def test_two_behaviors_learn_side_by_side_as_each_of_them_alone(tmp_path: Path) -> None:
    given = settings(Noise=offline(), Lamp=offline(data="lamp"))
    both = learn(tmp_path, given, run_id="both")
    for name in ("Noise", "Lamp"):
        alone = learn(tmp_path, settings(**{name: given["behaviors"][name]}), run_id=name)
        assert both.behaviors[name].steps == 60
        assert_same(
            weights(both.behaviors[name].checkpoint)["Policy"], weights(alone.behaviors[name].checkpoint)["Policy"]
        )


def test_the_recording_tells_the_name_where_none_is_listed(tmp_path: Path) -> None:
    result = learn(tmp_path, {"default_settings": offline(max_steps=1)}, run_id="run")
    assert set(result.behaviors) == {"Noise"}


@pytest.mark.parametrize(("kind", "source"), [("ppo", "bc"), ("sac", "iql")])
def test_an_online_run_starts_from_it(tmp_path: Path, kind: str, source: str, caplog: pytest.LogCaptureFixture) -> None:
    """The lamp is learned from recordings and is then switched right from the first episode on."""
    network = {"network_settings": {"hidden_units": 16, "num_layers": 1}}
    learn(
        tmp_path, settings(Lamp=offline(source, 200, "lamp", hyperparameters={"learning_rate": 0.02})), run_id="first"
    )
    caplog.clear()
    online = ppo(100, **network, time_horizon=8)
    if kind == "sac":
        online = {"trainer_type": "sac", "max_steps": 100, **network, "hyperparameters": {"buffer_init_steps": 90}}
    with caplog.at_level(logging.INFO):
        result = learn(tmp_path, settings(Lamp=online), Lamp, run_id="second", initialize_from="first")
    assert (result.behaviors["Lamp"].mean_reward or 0) > 7.5
    assert f"has trainer_type {source}: only its policy is loaded, and the rest starts from scratch" in caplog.text
    assert "does not fully match" not in caplog.text


def test_beside_others_it_learns_the_same_and_its_agents_act(tmp_path: Path) -> None:
    """The environment has agents of a behavior that is learned from a data set, and one that it does not know."""
    alone = learn(tmp_path, settings(Noise=offline()), run_id="alone")
    online = ppo(300, network_settings={"hidden_units": 8}, time_horizon=8)
    plain = learn(tmp_path, settings(Lamp=online), Lamp, run_id="plain")
    both = learn(tmp_path, settings(Noise=offline(), Lamp=online), Lamp, run_id="both")
    assert both.behaviors["Lamp"].steps == plain.behaviors["Lamp"].steps
    for name, other in (("Noise", alone), ("Lamp", plain)):
        assert_same(
            weights(both.behaviors[name].checkpoint)["Policy"], weights(other.behaviors[name].checkpoint)["Policy"]
        )


def test_agents_of_the_environment_do_what_is_learned_and_give_no_experience(tmp_path: Path) -> None:
    given = settings(Lamp=offline("bc", 200, "lamp"))
    seen = []

    class Watched(Lamp):
        def step(self, action: int) -> Any:
            seen.append((int(action), self.light))
            return super().step(action)

    given["behaviors"]["Other"] = ppo(10)
    Watched.__name__ = "Lamp"
    opened = run_settings(given, tmp_path, "act")
    with session(opened, None, lambda settings, _: from_factory(Watched, settings)) as running:
        for _ in range(300):
            running.step()
            if len(seen) > 80:
                break
    behavior = running.behaviors["Lamp"]
    assert behavior.trainer.source is None
    assert behavior.episodes.num_episodes == 0
    assert running.loop is not None
    assert running.loop.pool is not None
    assert not any(history.agent_steps for history in running.loop.pool.histories)
    late = seen[-20:]
    assert sum(action == light for action, light in late) > 16


def test_an_environment_that_nothing_needs_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    learn(tmp_path, settings(Noise=offline(max_steps=1)), "sim:Basic", run_id="run")
    assert "sim:Basic is not started, because all behaviors learn from data sets" in caplog.text


def test_agents_of_another_spec_are_refused(tmp_path: Path) -> None:
    given = settings(Lamp=offline(data="noise", max_steps=10_000), Other=ppo(10))
    with pytest.raises(UnsupportedError, match="but its data set was recorded with"):
        learn(tmp_path, given, Lamp, run_id="run")


def test_a_behavior_that_only_default_settings_have_is_refused(tmp_path: Path) -> None:
    given = {**settings(Other=ppo(10)), "default_settings": offline()}
    given["behaviors"]["Other"] |= {"dataset": []}
    with pytest.raises(SettingsError, match="and 'default_settings' would train it from a data set"):
        learn(tmp_path, given, Lamp, run_id="run")


@pytest.mark.parametrize("data", ["noise", "lamp"])
def test_a_data_set_is_a_single_file_or_an_archive(tmp_path: Path, data: str) -> None:
    write(tmp_path / "x.npz", *find_sources([RECORDED[data]]))
    runs = []
    for number, dataset in enumerate([[RECORDED[data]], RECORDED[data], str(tmp_path / "x.npz")]):
        given = settings(One=offline(data=data, max_steps=30) | {"dataset": dataset})
        learn(tmp_path, given, run_id=f"run{number}")
        runs.append(weights(tmp_path / f"run{number}" / "One" / "checkpoint.pt"))
    for other in runs[1:]:
        assert_same(runs[0]["Policy"], other["Policy"])


def test_archives_and_recordings_are_one_data_set(tmp_path: Path) -> None:
    write(tmp_path / "x.npz", *find_sources([RECORDED["noise"]]))
    both = load_demonstrations([RECORDED["noise"], tmp_path / "x.npz"]).packed
    assert len(both) == 400
    for name, column in both.steps.items():
        np.testing.assert_array_equal(column[:200], column[200:], err_msg=name)
    np.testing.assert_array_equal(both.bootstrap.obs[0][:10], both.bootstrap.obs[0][10:])
    assert len(load_demonstrations([tmp_path / "x.npz"], max_steps=25)) == 25


def test_missing_and_damaged_recordings_are_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = settings(One=offline(data=str(tmp_path / "none.demo")), Two=offline(data=str(tmp_path)))
    with pytest.raises(SettingsError) as error:
        learn(tmp_path / "results", given, run_id="run")
    assert f"behaviors.One.dataset.0: there is no file or folder {tmp_path / 'none.demo'}" in str(error.value)
    assert f"behaviors.Two.dataset.0: there is no .demo file in the folder {tmp_path}" in str(error.value)
    (tmp_path / "none.demo").write_bytes(b"no recording")
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(settings(One=given["behaviors"]["One"])))
    for command in (["config", str(config)], ["learn", str(config), f"--results-dir={tmp_path / 'results'}"]):
        assert main(command) == 1
        assert "error: Behavior 'One', dataset: " in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_a_checkpoint_of_other_networks_is_refused(tmp_path: Path) -> None:
    learn(tmp_path, settings(Noise=offline("iql", 1)), run_id="run")
    other = settings(Noise=offline("iql", 2))
    other["behaviors"]["Noise"]["network_settings"] = {"hidden_units": 8}
    with pytest.raises(CheckpointError, match="does not fit these networks"):
        learn(tmp_path, other, run_id="run", resume=True)


def test_what_is_learned_from_recordings_is_evaluated_in_an_environment(tmp_path: Path) -> None:
    given = {**settings(Lamp=offline(data="lamp", max_steps=200)), "evaluation": {"interval": 50, "episodes": 3}}
    result = learn(tmp_path, given, Lamp, run_id="evaluated")
    status = json.loads((result.run_folder / "run_logs" / "training_status.json").read_text())["Lamp"]
    assert status["evaluation"]["mean"] > 6
    assert status["best"]["by"] == "evaluation"
    assert (result.run_folder / "Lamp" / "best.onnx").is_file()
    with pytest.raises(SettingsError, match=r"no environment to evaluate in.* Specify one with environment"):
        learn(tmp_path, given, run_id="nowhere")
