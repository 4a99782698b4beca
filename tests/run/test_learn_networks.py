"""What the networks can learn, over the wire and judged by reward: pictures, goals, memory, lists of varying length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import yaml

from tests.learning.nn.specs import camera
from tests.ports import free_port
from tests.run.runs import FinishedRun, behaviors_settings, learn, ppo
from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.experience.rows import RowPool
from trajtrainer.learning.algos.ppo.ppo import PPO
from trajtrainer.learning.algos.ppo.update_buffer import UpdateBuffer
from trajtrainer.policies.onnx.inspect import inspect_model
from trajtrainer.run.session import train
from trajtrainer.settings.yaml.convert import load


def trained(folder: Path, simulation: str, settings: dict[str, Any], *player: str) -> FinishedRun:
    """A finished run whose policy Unity would load."""
    run = learn(folder, behaviors_settings(**{simulation: settings}), f"--env=sim:{simulation}", "--env-args", *player)
    assert run.exit_code == 0, run.output
    assert inspect_model(run.folder / f"{simulation}.onnx").loads
    return run


GRID_WORLD = ppo(
    14000,
    hyperparameters={"batch_size": 64, "buffer_size": 512, "learning_rate": 1e-3, "beta": 0.01, "num_epoch": 5},
    network_settings={"hidden_units": 64},
    time_horizon=16,
    reward_signals={"extrinsic": {"gamma": 0.9, "strength": 1.0}},
)
SMALL_GRID = ("--agents", "16", "--grid", "3", "--camera", "20,20")


def test_a_picture_and_a_goal(tmp_path: Path) -> None:
    """Who sees nothing scores about -0.2; who sees the picture but not which goal is meant, 0 at best."""
    trained(tmp_path, "GridWorld", GRID_WORLD | {"stop": {"reward": 0.75}}, *SMALL_GRID).assert_reached("GridWorld")


MEMORY = ppo(
    8000,
    hyperparameters={"batch_size": 64, "buffer_size": 512, "learning_rate": 1e-2},
    network_settings={"hidden_units": 32, "memory": {"memory_size": 32, "sequence_length": 8}},
)
CORRIDOR = ("--agents", "16", "--length", "3")


def test_a_memory(tmp_path: Path) -> None:
    """Who does not remember scores 0 on average; 0.5 is beyond luck."""
    run = trained(tmp_path, "Memory", MEMORY | {"stop": {"reward": 0.98}}, *CORRIDOR)
    run.assert_reached("Memory")
    assert walk(run.folder / "Memory.onnx", length=3) == [1.0, 1.0]


def walk(model: Path, length: int) -> list[float]:
    """Both episodes of the corridor as Unity would play them: with the exported policy, which is handed its memory."""
    session = onnxruntime.InferenceSession(model)
    rewards = []
    for sign in (0, 1):
        memory = np.zeros((1, 1, 32), np.float32)
        place, reward = 0, 0.0
        for step in range(8 * length):
            obs = np.array([[0.0, 0.0, place / length, place == length]], np.float32)
            obs[0, sign] = step < 2
            feeds = {"obs_0": obs, "action_masks": np.ones((1, 4), np.float32), "recurrent_in": memory}
            action, memory = session.run(["deterministic_discrete_actions", "recurrent_out"], feeds)
            choice = int(action[0, 0])
            if place == length and choice >= 2:
                reward = 1.0 if choice - 2 == sign else -1.0
                break
            place = int(np.clip(place + (1, -1, 0, 0)[choice], 0, length))
        rewards.append(reward)
    return rewards


def test_without_a_memory_the_memory_task_stays_unsolved(tmp_path: Path) -> None:
    """So that what ``test_a_memory`` shows is memory."""
    settings = {**MEMORY, "network_settings": {"hidden_units": 32}, "max_steps": 4000}
    assert max(trained(tmp_path, "Memory", settings, *CORRIDOR).rewards("Memory")) < 0.5


def test_two_cameras(tmp_path: Path) -> None:
    """Each camera shows one of the two axes, so one alone cannot keep the ball up."""
    settings = ppo(
        15000,
        hyperparameters={"batch_size": 64, "buffer_size": 1024, "learning_rate": 1e-3, "beta": 0.001},
        network_settings={"hidden_units": 32},
        time_horizon=64,
        stop={"reward": 3.6},
    )
    run = trained(tmp_path, "VisualBall", settings, "--agents", "12", "--cameras", "2", "--camera", "20,20")
    run.assert_reached("VisualBall")
    assert 3 * run.rewards("VisualBall")[0] < 3.6


def test_a_picture_that_the_critic_alone_sees(tmp_path: Path) -> None:
    settings = ppo(600, network_settings={"normalize": True, "critic_only": ["CameraSensor"]})
    player = ("--agents", "4", "--group-size", "2", "--episode-length", "20", "--picture", "3,20,20")
    run = trained(tmp_path, "Bench", settings | {"trainer_type": "poca"}, *player)
    assert "only the critic sees 'CameraSensor'. Unity will warn" in run.output
    read = {value.name for value in onnxruntime.InferenceSession(run.folder / "Bench.onnx").get_inputs()}
    assert read == {"obs_0"}


def test_lists_of_varying_length(tmp_path: Path) -> None:
    """Random actions score -0.1, two tiles in order 1.96. Which tile comes first stands only in the list."""
    settings = ppo(
        18000,
        hyperparameters={"batch_size": 256, "buffer_size": 2048, "learning_rate": 1e-3, "beta": 0.03},
        network_settings={"hidden_units": 64, "num_layers": 2},
        time_horizon=64,
        summary_freq=1000,
        stop={"reward": 0.9},
    )
    trained(tmp_path, "Sorter", settings, "--agents", "16").assert_reached("Sorter")


def test_pictures_stay_bytes_from_the_wire_to_the_encoder(tmp_path: Path) -> None:
    """A quarter of the memory of float32; what came as PNG is divided by 255 in the encoder alone."""
    settings = behaviors_settings(VisualBall=ppo(600, summary_freq=200))
    settings["env_settings"] |= {"env_path": "sim:VisualBall", "base_port": free_port()}
    settings["env_settings"]["env_args"] = ["--png", "--camera", "20,24"]
    settings["checkpoint_settings"] = {"run_id": "bytes", "results_dir": str(tmp_path)}
    run = train(load(yaml.safe_dump(settings), "settings"), None)
    trainer = run.behaviors["VisualBall"].trainer
    learner = trainer.algorithm
    assert isinstance(learner, PPO)
    assert list(learner.context.obs_dtypes) == [np.uint8]
    rows = learner._buffer.column("obs.0")
    assert rows.dtype == torch.uint8
    assert rows.shape[1:] == (3, 20, 24)
    assert len(rows) > 0
    assert rows.max() > 100


def test_a_camera_too_small_for_its_encoder_ends_the_run(tmp_path: Path) -> None:
    """Before anything is learned, with the sensor, what it sends and which encoders take that."""
    settings = behaviors_settings(VisualBall=ppo(600, network_settings={"vis_encode_type": "nature_cnn"}))
    run = learn(tmp_path, settings, "--env=sim:VisualBall", "--env-args", "--camera", "20,24")
    assert run.exit_code == 1
    (error,) = [line for line in run.output.splitlines() if line.startswith("error:")]
    for words in ("TopCamera", "(3, 20, 24)", "at least 36", "Encoders that fit: simple, resnet, match3"):
        assert words in error
    assert "Traceback" not in run.output
    assert not list(run.folder.glob("**/*.onnx"))


def test_20480_steps_of_a_camera_take_less_than_450_mb() -> None:
    spec = BehaviorSpec([camera(3, 64, 84)], ActionSpec(0, (5,)))
    buffer = UpdateBuffer(
        spec,
        [np.uint8],
        num_signals=1,
        sequence_length=1,
        memories={"memory": 0, "critic_memory": 0},
        capacity=20481,
        device=torch.device("meta"),
    )
    rows = buffer._rows.values()
    waiting = RowPool(spec, [np.uint8], capacity=2048)  # 16 agents, 64 steps each, and as much again to grow
    assert sum(column.numel() * column.element_size() for column in rows) + waiting.capacity * waiting.row_bytes < 450e6


def test_a_goal_of_variable_length_is_an_ordinary_observation(tmp_path: Path) -> None:
    """ML-Agents trains on it without conditioning, too."""
    player = ("--agents", "4", "--vectors", "0", "--lists", "1", "--goal-sensor", "0")
    run = trained(tmp_path, "Toy", ppo(300, network_settings={"hidden_units": 8}), *player)
    assert run.output.count("the goal signal 'List0' has a variable length, so it cannot condition the network") == 1
    saved = torch.load(run.folder / "Toy" / "checkpoint.pt", weights_only=True)["Policy"]
    assert "network_body._body_endoder.seq_layers.0.weight" in saved
    assert not [name for name in saved if "hypernet" in name]
