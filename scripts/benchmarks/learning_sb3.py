"""The half of ``learning.py`` that needs ``stable-baselines3`` and nothing of this project.

``learning_sb3.py TASK SEED FILE``: the task as JSON, as ``learning.yaml`` has it below its name.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from gymnasium.wrappers import DtypeObservation
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

EPISODES = 50
_ACTIVATIONS = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}


class Curve(BaseCallback):
    """Mean reward of the last 100 episodes, 200 times in a run."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.points: list[tuple[int, float]] = []
        self._every = max(1, steps // 200)

    def _on_step(self) -> bool:
        due = self.num_timesteps // self._every > (self.points[-1][0] // self._every if self.points else 0)
        if due and self.model.ep_info_buffer:
            mean = statistics.fmean(float(episode["r"]) for episode in self.model.ep_info_buffer)
            self.points.append((self.num_timesteps, mean))
        return True


def main(task: dict[str, Any], seed: int, file: Path) -> None:
    torch.set_num_threads(1)
    said = dict(task["sb3"])
    make = maker(said.pop("env"))
    normalize, algorithm = said.pop("normalize", False), said.pop("algorithm")
    count = said.pop("n_envs", 1)
    env = make_vec_env(make, n_envs=count, seed=seed)
    if normalize:
        env = VecNormalize(env, gamma=said.get("gamma", 0.99))
    begin_s = time.process_time()
    model = made(algorithm, env, said, seed)
    curve = Curve(task["steps"])
    model.learn(task["steps"], curve)
    cpu_seconds = time.process_time() - begin_s
    normalizer, likeliest = env if normalize else None, not task.get("stochastic", False)
    episodes = [play(make, model, normalizer, 10_000 + number, likeliest) for number in range(EPISODES)]
    found = {
        "task": task["name"],
        "who": "sb3",
        "seed": seed,
        "steps": task["steps"],
        "cpu_seconds": round(cpu_seconds, 1),
    }
    found |= {"episodes": [round(r, 4) for r in episodes], "curve": [(step, round(r, 4)) for step, r in curve.points]}
    part = file.with_suffix(".part")
    part.write_text(json.dumps(found) + "\n")
    part.replace(file)


def maker(env_id: str) -> Any:
    """Return what makes one environment, ``module:Id`` or ``Id``.

    Stable-Baselines3 2.9 keeps a rollout's observations in the type of the space, ahead of which ``VecNormalize`` has
    made numbers around 0 of them: bytes, as MiniGrid's, would come out as noise. So they are floats from the start.
    """

    def make() -> gymnasium.Env[Any, Any]:
        *modules, name = env_id.split(":")
        for module in modules:
            importlib.import_module(module)
        env = gymnasium.make(name)
        return env if env.observation_space.dtype == np.float32 else DtypeObservation(env, np.float32)

    return make


def made(algorithm: str, env: Any, said: dict[str, Any], seed: int) -> Any:
    """Return the model; numbers such as ``lin_0.001`` fall to 0."""
    said = {key: falling(value) for key, value in said.items()}
    more = dict(said.pop("policy_kwargs", {}))
    if "activation_fn" in more:
        more["activation_fn"] = _ACTIVATIONS[more["activation_fn"]]
    policy = "MlpPolicy"
    if algorithm == "ppo_lstm":
        from sb3_contrib import RecurrentPPO

        cls, policy = RecurrentPPO, "MlpLstmPolicy"
    else:
        cls = {"ppo": stable_baselines3.PPO, "sac": stable_baselines3.SAC}[algorithm]
    return cls(policy, env, seed=seed, device="cpu", policy_kwargs=more, **said)


def falling(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("lin_"):
        first = float(value.removeprefix("lin_"))
        return lambda remaining: remaining * first
    return value


def play(make: Any, model: Any, normalizer: VecNormalize | None, seed: int, likeliest: bool) -> float:
    env = make()
    observation, _ = env.reset(seed=seed)
    total, over, memory, begins = 0.0, False, None, True
    while not over:
        seen = observation if normalizer is None else normalizer.normalize_obs(observation)
        action, memory = model.predict(seen, memory, episode_start=[begins], deterministic=likeliest)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, over, begins = total + float(reward), terminated or truncated, False
    return total


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
