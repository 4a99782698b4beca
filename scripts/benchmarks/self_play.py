"""Compares self-play PPO of two teams of 10 with plain PPO of the same agents, and measures how long a swap takes.

Per agent-step, self-play learns from half as many steps as plain PPO, which would hide its costs. It is therefore
compared with plain PPO in which all 20 agents act in one forward pass, but the trajectories of one team are dropped, so
that both learn from the same 10 agents. The remaining differences are a second forward pass for the opponents, less
recording, snapshots, swaps and ratings. Everything is measured in CPU time of a process with one thread, which other
processes affect little.

``python -m scripts.benchmarks.self_play CASE`` makes one run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import yaml

from scripts.benchmarks.measured import Measured
from scripts.benchmarks.ppo import BALL
from scripts.benchmarks.report import RUNS, Row, interleaved
from trajtrainer.core.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, StepBatch
from trajtrainer.envs.protocol import Parameters
from trajtrainer.experience.agent_processor import AgentProcessor, Recorded
from trajtrainer.experience.trajectory import release
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.run.actors.collector import CollectedBehavior
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import load

TEAMS, SIZE, EPISODE = 2, 10, 100
SELF_PLAY = {"save_steps": 6000, "team_change": 30000, "swap_steps": 2000, "window": 10}
LARGE = {"hidden_units": 512, "num_layers": 2}
# Name -> whether to use self-play, network settings, max_steps of a behavior.
CASES: dict[str, tuple[bool, dict[str, Any], int]] = {
    "plain": (False, BALL.network, 72000),
    "one team learns": (False, BALL.network, 36000),
    "self-play": (True, BALL.network, 36000),
    "swaps": (True, LARGE, 24000),
}
_LATEST_MS = 20.0
_PART = 90.0


class Match:
    """An environment with two teams whose agents decide in each message. Each match takes 100 messages and is won."""

    num_workers = 1

    def __init__(self) -> None:
        sensor = ObservationSpec((8,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "vector")
        self._specs = {f"Match?team={team}": BehaviorSpec([sensor], ActionSpec(2, ())) for team in range(TEAMS)}
        self._new_specs = dict(self._specs)
        self._seen = np.random.default_rng(0).standard_normal((16, SIZE, 8), dtype=np.float32)
        self._time = 0
        self._is_reset = False

    def reset(self, parameters: Parameters) -> None:  # noqa: ARG002
        self._time, self._is_reset = 0, True

    def set_parameters(self, parameters: Parameters) -> None: ...

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:  # noqa: ARG002
        steps = {name: self._batch(team) for team, name in enumerate(self._specs)}
        event = EnvironmentEvent(0, steps, self._new_specs, is_reset=self._is_reset)
        self._new_specs, self._is_reset = {}, False
        return [event]

    def _batch(self, team: int) -> StepBatch:
        seen = self._seen[(self._time + team) % len(self._seen)]
        ids = np.arange(team * SIZE, (team + 1) * SIZE)
        num_ended = SIZE if self._time and self._time % EPISODE == 0 else 0
        n = SIZE + num_ended
        reward = np.zeros(n, np.float32)
        reward[:num_ended] = 1.0 if (self._time // EPISODE + team) % 2 else -1.0
        return StepBatch(
            agent=np.concatenate([ids[:num_ended], ids]),
            obs=(np.concatenate([seen[:num_ended], seen]),),
            reward=reward,
            group=np.zeros(n, np.int32),
            group_reward=np.zeros(n, np.float32),
            mask=np.zeros((n, 0), np.bool_),
            interrupted=np.zeros(num_ended, np.bool_),
            num_terminal=num_ended,
        )

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:  # noqa: ARG002
        self._time += 1

    def close(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True)
class Discarding:
    """Records the steps of a team like those of others, but drops its trajectories."""

    behavior: CollectedBehavior

    def record(self, batch: StepBatch, team: int) -> Recorded:
        recorded = self.behavior.processor.record(batch, team)
        if recorded.trajectories is not None:
            release(self.behavior.pool, [recorded.trajectories])
        return replace(recorded, trajectories=None)


def _recorder(behavior: CollectedBehavior, team: int) -> AgentProcessor | Discarding:
    return Discarding(behavior) if team else behavior.processor


def measure() -> list[Row]:
    """Measure all cases several times, alternating."""
    plain, one, ours, swaps = interleaved([partial(_in_process, case) for case in CASES], RUNS)
    parts = [100 * own / other for own, other in zip(ours, one, strict=True)]
    return [
        Row("plain PPO, two teams of 10, all learn", "acting agent-steps per s of CPU", plain),
        Row("plain PPO, two teams of 10, one learns", "acting agent-steps per s of CPU", one),
        Row("self-play PPO, two teams of 10", "acting agent-steps per s of CPU", ours),
        Row("self-play PPO against plain PPO, one team learns", "% of acting agent-steps per s", parts, _PART),
        Row("the longest swap of opponents, 512x2 networks", "ms", swaps, _LATEST_MS),
    ]


def _in_process(case: str) -> float:
    command = [sys.executable, "-m", "scripts.benchmarks.self_play", case]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def run(case: str) -> float:
    """Train, and return agent-steps per CPU second; for ``swaps``, return the duration of the longest swap in ms."""
    from trajtrainer.learning.trainers.self_play import SelfPlay
    from trajtrainer.run.session import train

    has_self_play, network, max_steps = CASES[case]
    made: list[Measured] = []
    longest_s = 0.0
    update_opponents = SelfPlay.update_opponents

    def timed(self: SelfPlay) -> None:
        nonlocal longest_s
        begin = time.perf_counter()
        update_opponents(self)
        longest_s = max(longest_s, time.perf_counter() - begin)

    SelfPlay.update_opponents = timed  # type: ignore[method-assign]
    if case == "one team learns":
        CollectedBehavior.recorder = _recorder  # type: ignore[method-assign, assignment]

    def make(_: RunSettings, __: RunFolder) -> Measured:
        made.append(Measured(Match(), BALL.hyperparameters["buffer_size"]))
        return made[0]

    with tempfile.TemporaryDirectory() as folder:
        mapping = BALL.settings() | {
            "env_settings": {"seed": 1},
            "checkpoint_settings": {"results_dir": folder, "run_id": "bench"},
        }
        extra = {"self_play": SELF_PLAY} if has_self_play else {}
        mapping["default_settings"] |= {"max_steps": max_steps, "network_settings": network, **extra}
        train(load(yaml.safe_dump(mapping), "bench"), None, make)
    return 1000 * longest_s if case == "swaps" else 1e6 / made[0].cpu_ms_per_1000_steps


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
