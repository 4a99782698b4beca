"""The half of ``atari.py`` that needs ``sample-factory`` and nothing of this project: ``atari_sf.py SEED STEPS KIND``.

PPO with the hyperparameters of its own Atari example, the environment and its wrappers being those of ``atari.py``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

import gymnasium
from ale_py.env import AtariEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStack
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.envs.env_wrappers import NumpyObsWrapper
from sample_factory.train import make_runner
from sf_examples.atari.atari_params import atari_override_defaults

WARM_UP = 2048
# Kind -> options. In the second one collecting goes on while it learns, which is what Sample Factory is known for; in
# the last one everything is in one process.
KINDS = {
    "sync": ["--async_rl=False", "--num_workers=2", "--num_envs_per_worker=4", "--worker_num_splits=1"],
    "async": ["--async_rl=True", "--num_workers=2", "--num_envs_per_worker=4", "--worker_num_splits=2"],
    "serial": ["--serial_mode=True", "--async_rl=False", "--num_workers=1", "--num_envs_per_worker=8"],
}


class Clock(AlgoObserver):
    """Notes when the learner has taken in how many steps."""

    def __init__(self) -> None:
        self.marks: list[tuple[int, float]] = []

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:  # noqa: ARG002
        """See ``AlgoObserver``."""
        steps = runner.env_steps.get(0, 0)
        if steps >= WARM_UP and (not self.marks or steps > self.marks[-1][0]):
            self.marks.append((steps, time.perf_counter()))


def make_pong(_name: str, _cfg: Any, _config: Any, render_mode: str | None = None) -> gymnasium.Env:
    """Make what ``config/gym/Pong.yaml`` has."""
    env = AtariEnv("pong", frameskip=1, repeat_action_probability=0.0, render_mode=render_mode)
    return NumpyObsWrapper(FrameStack(AtariPreprocessing(env, noop_max=30, frame_skip=4), 4))


def main(seed: int, max_steps: int, kind: str) -> None:
    register_env("pong", make_pong)
    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            "--env=pong", "--device=cpu", f"--seed={seed}", f"--train_dir={folder}",
            f"--train_for_env_steps={max_steps}",
            "--normalize_input=False", "--normalize_returns=False", "--encoder_conv_mlp_layers", "512",
            "--decoder_mlp_layers", "512", "--save_every_sec=100000", "--summaries_use_frameskip=False",
            "--use_record_episode_statistics=False", "--with_wandb=False", *KINDS[kind],
        ]  # fmt: skip
        parser, _ = parse_sf_args(arguments)
        atari_override_defaults("pong", parser)
        parser.set_defaults(use_record_episode_statistics=False)
        _, runner = make_runner(parse_full_cfg(parser, arguments))
        clock = Clock()
        runner.register_observer(clock)
        runner.init()
        runner.run()
    (first, begin_s), (last, end_s) = clock.marks[0], clock.marks[-1]
    print(json.dumps({"agent-steps/s": (last - first) / (end_s - begin_s)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
