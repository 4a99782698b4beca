"""``trajtrainer.learn``: what goes in, what comes out, and what it leaves untouched."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from gymnasium import spaces

import trajtrainer
from tests.envs.python.pettingzoo_samples import Arena
from tests.envs.python.test_base_env_environment import RUNNER, Scripted, script
from tests.run import prefork
from tests.run.runs import learn as run_command
from tests.run.runs import ppo
from trajtrainer.core.errors import CheckpointError, EnvironmentFaultError, RunFolderError, SettingsError
from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.settings.yaml.convert import load


class Lamp(gymnasium.Env[Any, Any]):
    """Eight steps per episode; pays 1 for the action that equals the light, which is one of two."""

    def __init__(self, *, seed: int = 0) -> None:
        self.observation_space = spaces.Discrete(2)
        self.action_space = spaces.Discrete(2)
        self.made_with = seed
        self.closed = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._light(), {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.light)
        self.steps += 1
        return self._light(), reward, self.steps == 8, False, {}

    def close(self) -> None:
        self.closed = True

    def _light(self) -> int:
        self.light = int(self.np_random.integers(2))
        return self.light


def settings(name: str = "Lamp", max_steps: int = 3000, **run: Any) -> dict[str, Any]:
    trainer = ppo(max_steps, network_settings={"hidden_units": 8}, time_horizon=8)
    return {"behaviors": {name: trainer}, "env_settings": {"seed": 7}, "torch_settings": {"device": "cpu"}, **run}


def learn(tmp_path: Path, *arguments: Any, **options: Any) -> trajtrainer.LearnResult:
    return trajtrainer.learn(*arguments, **{"results_dir": tmp_path, "verbose": False, **options})


def test_a_factory_and_a_mapping(tmp_path: Path) -> None:
    made: list[Lamp] = []

    def make(seed: int) -> Lamp:
        made.append(Lamp(seed=seed))
        return made[-1]

    given = settings()
    before = json.dumps(given)
    result = learn(tmp_path, given, make, run_id="lamp", num_envs=4)
    assert json.dumps(given) == before
    assert [lamp.made_with for lamp in made] == [7, 8, 9, 10]
    assert all(lamp.closed for lamp in made)
    assert result.run_folder == tmp_path / "lamp"
    assert result.settings.env_settings.seed == 7
    (behavior,) = result.behaviors.values()
    assert result.behaviors["Lamp"] is behavior
    assert behavior.steps > 3000
    assert behavior.mean_reward is not None
    assert behavior.mean_reward > 7
    assert behavior.summary_step == 3000
    assert behavior.num_episodes > 0
    assert behavior.checkpoint == tmp_path / "lamp" / "Lamp" / "checkpoint.pt"
    assert behavior.onnx == tmp_path / "lamp" / "Lamp.onnx"
    assert torch.load(behavior.checkpoint, weights_only=True)["global_step"]
    session = onnxruntime.InferenceSession(behavior.onnx)
    feeds = {"obs_0": np.eye(2, dtype=np.float32), "action_masks": np.ones((2, 2), np.float32)}
    (actions,) = session.run(["deterministic_discrete_actions"], feeds)
    assert actions.ravel().tolist() == [0, 1]


def test_settings_come_as_file_text_path_or_objects_and_options_go_before_them(tmp_path: Path) -> None:
    short = settings(max_steps=100)
    path = tmp_path / "lamp.yaml"
    path.write_text(yaml.safe_dump(short))
    objects = load(path.read_text(), "lamp.yaml")
    for number, given in enumerate((path, str(path), short, objects)):
        result = learn(tmp_path, given, Lamp, run_id=f"run{number}", seed=11, num_envs=2)
        assert result.settings.env_settings.seed == 11
        assert result.settings.env_settings.num_envs == 2
        assert result.settings.checkpoint_settings.run_id == f"run{number}"
        assert result.settings.behaviors == objects.behaviors
        assert result.behaviors["Lamp"].steps > 100
    written = load((tmp_path / "run3" / "configuration.yaml").read_text(), "configuration.yaml")
    assert written == result.settings
    assert written.env_settings.env_path == "python:tests.run.api.test_learn_api:Lamp"


def test_environments_by_name_with_arguments(tmp_path: Path) -> None:
    given = settings("CartPole-v1", 300)
    env_args = {"max_episode_steps": 5, "sutton_barto_reward": True}
    result = learn(tmp_path, given, "gym:CartPole-v1", num_envs=2, env_args=env_args)
    assert result.behaviors["CartPole-v1"].mean_reward == 0, "five steps are too few to fall"
    assert result.settings.env_settings.env_path == "gym:CartPole-v1"


def test_the_environment_may_stand_in_the_settings(tmp_path: Path) -> None:
    given = settings("CartPole-v1", 100, env_settings={"env_path": "gym:CartPole-v1", "seed": 1})
    assert learn(tmp_path, given).behaviors["CartPole-v1"].steps > 100


def test_pettingzoo_and_base_env_factories(tmp_path: Path) -> None:
    given = {"default_settings": ppo(200, hyperparameters={"buffer_size": 64}), **settings()}
    result = learn(tmp_path, given, partial(Arena, {"cat_0": 5, "mouse_0": 3, "mouse_1": -4}), run_id="arena")
    assert list(result.behaviors) == ["cat", "mouse"]
    assert all(behavior.steps > 200 for behavior in result.behaviors.values())

    class Endless(Scripted):
        def step(self) -> None:
            super().step()
            self.place = 0

    steps = script()
    result = learn(tmp_path, given, lambda: Endless({"Runner?team=1": RUNNER}, [steps[0], steps[0]]), run_id="base")
    (name,) = result.behaviors
    assert name == "Runner"
    assert result.behaviors["Runner"].mean_reward is None, "no episode ended"


def test_runs_go_on_and_start_from_one_another(tmp_path: Path) -> None:
    first = learn(tmp_path, settings(max_steps=500), Lamp, run_id="one")
    with pytest.raises(RunFolderError, match="use resume=True to resume this run, or use force=True to over") as error:
        learn(tmp_path, settings(max_steps=1000), Lamp, run_id="one")
    assert "--" not in str(error.value)
    with pytest.raises(RunFolderError, match="by removing resume=True"):
        learn(tmp_path, settings(max_steps=1000), Lamp, run_id="none", resume=True)
    resumed = learn(tmp_path, settings(max_steps=1000), Lamp, run_id="one", resume=True)
    assert resumed.behaviors["Lamp"].steps > 1000 > first.behaviors["Lamp"].steps
    other = learn(tmp_path, settings(max_steps=200), Lamp, run_id="two", initialize_from="one")
    assert 200 < other.behaviors["Lamp"].steps < 300


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_start_that_is_stopped_leaves_the_run_that_it_resumes_as_it_was(tmp_path: Path) -> None:
    def stopped(seed: int) -> Lamp:
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it is not waited for")

    folder = learn(tmp_path, settings(max_steps=64), Lamp, run_id="lamp").run_folder
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path, settings(), stopped, run_id="lamp", resume=True)
    del before[folder / "run_logs" / "trainer.log"]  # it says so
    assert {path: path.read_bytes() for path in before} == before


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    given = settings(max_steps=np.int64(300))  # type: ignore[arg-type]
    given["behaviors"]["Lamp"]["hyperparameters"] |= {
        "learning_rate": np.float32(0.25),
        "num_epoch": np.array(2),
        "shared_critic": np.bool_(True),
    }
    given["environment_parameters"] = {
        "light": {
            "sampler_type": "multirangeuniform",
            "sampler_parameters": {"intervals": np.array([[1.0, 2.0], [5.0, 6.5]])},
        }
    }
    result = learn(tmp_path, given, Lamp, seed=np.int32(5), num_envs=np.uint8(2), env_args={"seed": np.int64(9)})
    lamp = result.settings.behaviors["Lamp"]
    hyperparameters = lamp.hyperparameters
    assert isinstance(hyperparameters, PPOHyperparameters)
    assert (lamp.max_steps, hyperparameters.learning_rate, hyperparameters.num_epoch) == (300, 0.25, 2)
    assert hyperparameters.shared_critic is True
    assert (result.settings.env_settings.seed, result.settings.env_settings.env_args) == (5, ["seed=9"])
    assert load((result.run_folder / "configuration.yaml").read_text(), "configuration.yaml") == result.settings


PLAYER_ARGUMENTS = {"--agents": np.int64(3), "-batchmode": True, "step-ms": 0.5, "stat": "speed=7", "png": False}


def test_arguments_of_a_player_become_its_command_line(tmp_path: Path) -> None:
    given = settings("Basic", 300)
    result = learn(tmp_path, given, "sim:Basic", env_args=PLAYER_ARGUMENTS)
    expected = ["--agents", "3", "-batchmode", "--step-ms", "0.5", "--stat", "speed=7"]
    assert result.settings.env_settings.env_args == expected
    assert result.behaviors["Basic"].steps > 300

    given["env_settings"]["env_path"] = "sim:Basic"
    (arguments,) = [learn(tmp_path, given, run_id="other", env_args={"agents": 2}).settings.env_settings.env_args]
    assert arguments == ["--agents", "2"]


def trained(tmp_path: Path) -> None:
    learn(tmp_path, settings(max_steps=1000), Lamp, run_id="lamp", num_envs=4)


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize("threaded", [False, True])
def test_inference_ends_after_the_episodes_that_were_asked_for(tmp_path: Path, *, threaded: bool) -> None:
    trained(tmp_path)
    before = times(tmp_path)
    given = settings(max_steps=1000)
    given["behaviors"]["Lamp"]["threaded"] = threaded

    result = learn(tmp_path, given, Lamp, run_id="lamp", num_envs=4, resume=True, inference=True, episodes=10)

    assert times(tmp_path) == before
    behavior = result.behaviors["Lamp"]
    assert (behavior.checkpoint, behavior.onnx) == (None, None)
    assert behavior.mean_reward is not None
    # Four copies end together; a thread may count a little later.
    assert behavior.num_episodes == 12 or (threaded and behavior.num_episodes > 12)


def test_an_interrupt_ends_inference_with_its_result(tmp_path: Path) -> None:
    trained(tmp_path)

    class Interrupting(Lamp):
        total = 0

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
            self.total += 1
            if self.total == 8 * 5 + 3:
                signal.raise_signal(signal.SIGINT)
            return super().step(action)

    given = settings("Interrupting", max_steps=1000)
    given["behaviors"]["Interrupting"]["init_path"] = str(tmp_path / "lamp" / "Lamp" / "checkpoint.pt")
    result = learn(tmp_path, given, Interrupting, run_id="other", inference=True)

    assert result.behaviors["Interrupting"].num_episodes == 5


def weights(result: trajtrainer.LearnResult) -> dict[str, Any]:
    checkpoint = result.behaviors["Lamp"].checkpoint
    assert checkpoint is not None
    policy: dict[str, Any] = torch.load(checkpoint, weights_only=True)["Policy"]
    return policy


def test_runs_in_one_process_do_not_disturb_each_other(tmp_path: Path) -> None:
    """The second of two equal runs, after one of other settings, is the first bit for bit."""
    first = learn(tmp_path, settings(max_steps=600), Lamp, run_id="first", num_envs=2)
    learn(tmp_path, settings(max_steps=300), Lamp, run_id="between", seed=99, num_envs=3)
    second = learn(tmp_path, settings(max_steps=600), Lamp, run_id="second", num_envs=2)
    assert first.behaviors["Lamp"].mean_reward == second.behaviors["Lamp"].mean_reward
    other = weights(second)
    for name, value in weights(first).items():
        assert torch.equal(value, other[name]), name


def test_what_belongs_to_the_process_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
        learn(tmp_path, settings(max_steps=100), Lamp)
        assert torch.get_num_threads() == 3
        assert torch.equal(torch.get_rng_state(), states[0])
        assert random.getstate() == states[1]
        assert np.random.get_state()[1].tolist() == states[2]  # type: ignore[index]
    finally:
        torch.set_num_threads(before)
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    assert logging.getLogger("trajtrainer").handlers == []


def test_it_prints_only_if_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learn(tmp_path, settings(max_steps=100), Lamp, run_id="quiet")
    assert capsys.readouterr().out == ""
    learn(tmp_path, settings(max_steps=100), Lamp, run_id="loud", verbose=True)
    assert "Exported" in capsys.readouterr().out


def test_it_runs_outside_of_the_main_thread(tmp_path: Path) -> None:
    results: list[trajtrainer.LearnResult] = []
    thread = threading.Thread(target=lambda: results.append(learn(tmp_path, settings(max_steps=100), Lamp)))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert results[0].behaviors["Lamp"].steps > 100


def test_what_an_environment_raises_comes_out_and_what_was_trained_is_kept(tmp_path: Path) -> None:
    class Doomed(Lamp):
        total = 0

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
            self.total += 1
            if self.total == 700:
                raise ZeroDivisionError("bulb burst")
            return super().step(action)

    with pytest.raises(EnvironmentFaultError, match="bulb burst") as error:
        learn(tmp_path, settings("Doomed"), lambda: Doomed())
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    files = [path.name for path in (tmp_path / "ppo").rglob("*.pt")]
    assert "checkpoint.pt" in files


@pytest.mark.parametrize(
    ("given", "environment", "options", "message"),
    [
        (None, Lamp(), {}, "environment is a Lamp; expected"),
        (None, "gym:NoSuch-v0", {}, "NoSuch"),
        ("no-such-file.yaml", None, {}, "could not be found"),
        ({"behaviors": {}}, Lamp, {}, "behaviors"),
        ({"behaviors": {"Other": {}}}, Lamp, {}, "'Lamp'"),
        (None, Lamp, {"seed": "x"}, r"learn\(\): seed"),
        (None, Lamp, {"num_envs": 0}, r"learn\(\): num_envs"),
        (None, Lamp, {"env_args": {"seed": object()}}, "env_args"),
        (None, Lamp, {"env_args": {"color": 1}}, "color"),
        (None, "sim:Basic", {"env_args": {"agents": [1, 2]}}, r"env_args\['agents'\] is a list.*text"),
        (None, "sim:Basic", {"env_args": {3: 1}}, r"env_args has the key 3"),
        (None, Lamp, {"episodes": 5}, "episodes.*inference=True"),
        (None, Lamp, {"episodes": 0, "inference": True}, "episodes.*at least 1"),
        (None, Lamp, {"episodes": 2.5, "inference": True}, "episodes.*whole number"),
        (None, list, {}, "created a builtins.list"),
        (None, 3, {}, "environment is a int; expected a string such as 'gym:CartPole-v1'"),
        (None, "gym:", {}, "environment 'gym:' does not name the environment"),
        (None, Lamp, {"env_args": ["color"]}, "env_args has 'color'"),
        (None, Lamp, {"torch_device": "coal"}, "without torch_device, a device is chosen"),
    ],
)
def test_mistakes_are_explained(
    tmp_path: Path, given: Any, environment: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        learn(tmp_path, given, environment, **options)


PROGRAM = """
import sys
import trajtrainer
from tests.run.api.test_learn_api import Lamp, settings

def main():
    print("training", flush=True)
    try:
        trajtrainer.learn(settings(max_steps=10**9), Lamp, results_dir=sys.argv[1], run_id="stopped")
    except KeyboardInterrupt:
        print("caught it", flush=True)
        raise SystemExit(3)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 3), (signal.SIGTERM, 143)])
def test_signals_end_a_script_in_good_order(tmp_path: Path, number: signal.Signals, code: int) -> None:
    log = tmp_path / "log"
    with log.open("w") as file:
        process = prefork.start([str(tmp_path)], file, PROGRAM)
    try:
        end_s = time.monotonic() + 300
        while "Mean Reward" not in log.read_text() and process.poll() is None and time.monotonic() < end_s:
            time.sleep(0.02)
        process.send_signal(number)
        ended = process.wait(300)
    finally:
        process.kill()
        process.wait()
    output = log.read_text()
    assert ended == code, output
    assert ("caught it" in output) == (number is signal.SIGINT)
    assert (tmp_path / "stopped" / "Lamp" / "checkpoint.pt").is_file()
    assert (tmp_path / "stopped" / "Lamp.onnx").is_file()


def test_the_command_line_takes_other_environments(tmp_path: Path) -> None:
    given = settings("CartPole-v1", 2000)
    arguments = ("--env=gym:CartPole-v1", "--num-envs=4", "--env-args", "max_episode_steps=5")
    run = run_command(tmp_path, given, *arguments)
    assert run.exit_code == 0, run.output
    assert set(run.rewards("CartPole-v1")) == {5}
    assert (run.folder / "CartPole-v1.onnx").is_file()
    run = run_command(tmp_path, given, "--env=gym:CartPole-v99", run_id="other")
    assert run.exit_code == 1
    assert "error: --env gym:CartPole-v99" in run.output
    assert "Traceback" not in run.output


def test_importing_the_package_is_light() -> None:
    program = (
        "import sys, trajtrainer; "
        "light = 'torch' not in sys.modules and 'numpy' not in sys.modules; "
        "print(light, 'learn' in dir(trajtrainer), trajtrainer.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split()[:2] == ["True", "True"]
    assert callable(trajtrainer.learn)
    with pytest.raises(AttributeError, match="no attribute 'teach'"):
        trajtrainer.teach  # noqa: B018


def test_a_run_does_without_torchs_compiler(tmp_path: Path) -> None:
    """Some functions of torch import it, and sympy, at their first call: 1.5 s."""
    program = (
        "import sys; from tests.run.api.test_learn_api import Lamp, learn, settings; from pathlib import Path; "
        f"print(learn(Path({str(tmp_path)!r}), settings(max_steps=300), Lamp, run_id='x').behaviors['Lamp'].steps); "
        "print(*{'torch._dynamo', 'sympy'} & set(sys.modules))"
    )
    code, output = prefork.run(program, log=tmp_path / "log")
    assert code == 0, output
    steps, imported = output.splitlines()[-2:]
    assert int(steps) > 300
    assert imported == ""
    assert list((tmp_path / "x").glob("*.onnx"))


def test_a_checkpoint_that_is_refused_stays_as_it_is(tmp_path: Path) -> None:
    """Nothing of the behavior is saved over it: what was taken over of it is not what it holds."""
    learn(tmp_path, settings(max_steps=500), Lamp, run_id="lamp")
    files = list((tmp_path / "lamp" / "Lamp").glob("*.pt"))
    for file in files:
        content = torch.load(file, weights_only=True)
        content["trajtrainer"]["version"] = ["no number"]
        torch.save(content, file)
    before = {file: file.read_bytes() for file in files}
    with pytest.raises(CheckpointError, match="damaged"):
        learn(tmp_path, settings(max_steps=1000), Lamp, run_id="lamp", resume=True)
    assert before == {file: file.read_bytes() for file in (tmp_path / "lamp" / "Lamp").glob("*.pt")}
    assert len(before) >= 2
