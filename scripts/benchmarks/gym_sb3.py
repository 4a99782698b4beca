"""The half of ``gym.py`` that needs ``stable-baselines3`` and nothing of this project: ``gym_sb3.py SEED STEPS KIND``.

PPO with the hyperparameters of its zoo (rl-baselines3-zoo, hyperparams/ppo.yml, CartPole-v1).
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

WARM_UP = 2048


class Clock(BaseCallback):
    """Runs from the first step after ``WARM_UP`` to the last."""

    def __init__(self) -> None:
        super().__init__()
        self.begin_s = self.end_s = self.begin_cpu_s = self.end_cpu_s = 0.0
        self.begin_step = self.end_step = 0

    def _on_step(self) -> bool:
        now_s, now_cpu_s = time.perf_counter(), time.process_time()
        if not self.begin_s:
            if self.num_timesteps >= WARM_UP:
                self.begin_s, self.begin_cpu_s, self.begin_step = now_s, now_cpu_s, self.num_timesteps
            return True
        self.end_s, self.end_cpu_s, self.end_step = now_s, now_cpu_s, self.num_timesteps
        return True


VECTORS = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}


def main(seed: int, max_steps: int, kind: str) -> None:
    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=seed, vec_env_cls=VECTORS[kind]),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gae_lambda=0.8,
        gamma=0.98,
        ent_coef=0.0,
        learning_rate=lambda remaining: 0.001 * remaining,
        clip_range=lambda remaining: 0.2 * remaining,
        seed=seed,
        device="cpu",
    )
    clock = Clock()
    model.learn(max_steps, clock)
    steps = clock.end_step - clock.begin_step
    figures = {
        "agent-steps/s": steps / (clock.end_s - clock.begin_s),
        "CPU ms per 1000 steps": 1e6 * (clock.end_cpu_s - clock.begin_cpu_s) / steps,
        "reward, last 100 episodes": statistics.fmean(episode["r"] for episode in model.ep_info_buffer),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
