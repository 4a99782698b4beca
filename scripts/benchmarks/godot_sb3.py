"""The half of ``godot.py`` that needs godot-rl 0.8.2 alone: ``godot_sb3.py BUILD PORT SEED STEPS``.

PPO as ``gdrl`` trains by Stable-Baselines3, but for its screen output.
"""

from __future__ import annotations

import contextlib
import io
import json
import statistics
import sys
import tempfile
import time

import torch
from godot_rl.wrappers.stable_baselines_wrapper import StableBaselinesGodotEnv
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env.vec_monitor import VecMonitor

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


def main(build: str, port: int, seed: int, max_steps: int) -> None:
    torch.set_num_threads(1)
    set_random_seed(seed)
    with tempfile.TemporaryDirectory() as logs, contextlib.redirect_stdout(io.StringIO()):
        env = VecMonitor(StableBaselinesGodotEnv(env_path=build, port=port, seed=seed, speedup=20))
        model = PPO(
            "MultiInputPolicy",
            env,
            ent_coef=0.0001,
            verbose=0,
            n_steps=32,
            tensorboard_log=logs,
            device="cpu",
        )
        clock = Clock()
        model.learn(max_steps, clock)
        rewards = [episode["r"] for episode in model.ep_info_buffer]
        env.close()
    steps = clock.end_step - clock.begin_step
    figures = {
        "agent-steps/s": steps / (clock.end_s - clock.begin_s),
        "CPU ms per 1000 steps": 1e6 * (clock.end_cpu_s - clock.begin_cpu_s) / steps,
        "reward, last episodes": statistics.fmean(rewards),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
