"""Several workers and several behaviors in one run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tests.envs.clockwork import BEHAVIOR, SPEC, actions_for, batch
from tests.run.late_player import write_build
from tests.run.runs import FinishedRun, behaviors_settings, learn, ppo
from tests.run.test_learn import check_files
from trajtrainer.core.stats import StatsReporter
from trajtrainer.core.steps import ActionBatch, BoolArray, EnvironmentEvent, FloatArray, ObservationArray
from trajtrainer.core.timers import Timers
from trajtrainer.envs.protocol import Parameters
from trajtrainer.experience.agent_processor import AgentProcessor
from trajtrainer.experience.opponents import OpponentTracker
from trajtrainer.experience.rows import RowPool
from trajtrainer.learning.algos.acting import ActorPolicy
from trajtrainer.run.actors.collector import CollectedBehavior, Collector, Outbox
from trajtrainer.run.actors.messages import NewBehavior

AGENTS = ("--env-args", "--agents", "4")


def final_step(run: FinishedRun, behavior: str) -> int:
    return int(run.status()[behavior]["final_checkpoint"]["steps"])


def weights(path: Path) -> dict[str, torch.Tensor]:
    policy: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["Policy"]
    return policy


def test_two_workers_learn_as_one_does(tmp_path: Path) -> None:
    stats = ("--stat", "Coins=1:sum", "--stat", "Level=2:most_recent")
    run = learn(tmp_path, behaviors_settings(Basic=ppo(4000)), "--env=sim:Basic", "--num-envs=2", *AGENTS, *stats)
    assert run.exit_code == 0, run.output
    assert np.mean(run.rewards("Basic")[-2:]) >= 0.85
    check_files(run, "Basic")
    assert (run.folder / "run_logs" / "Player-1.log").is_file()
    scalars = run.scalars("Basic")
    assert {value for _, value in scalars["Level"]} == {2.0}
    # One coin per message, a message per four steps; each once although both workers report them.
    coins = [value for _, value in scalars["Coins"]]
    assert sum(coins) == pytest.approx(4000 / 4, rel=0.15)


def test_a_behavior_that_appears_in_the_midst_of_a_run(tmp_path: Path) -> None:
    build = write_build(tmp_path, "Basic+Hybrid", step=60)
    settings = behaviors_settings(Basic=ppo(2000), Hybrid=ppo(2500))
    run = learn(tmp_path, settings, f"--env={build}", "--num-envs=2", *AGENTS)
    assert run.exit_code == 0, run.output
    for behavior, most in (("Basic", 2000), ("Hybrid", 2500)):
        check_files(run, behavior)
        assert final_step(run, behavior) > most
    assert re.search(r"(?s)Hyperparameters for behavior name Basic.*Hyperparameters for behavior name Hybrid", run.log)


def test_teams_share_a_trainer(tmp_path: Path) -> None:
    settings = behaviors_settings(Basic=ppo(2000))
    run = learn(tmp_path, settings, "--env=sim:Basic", "--num-envs=2", *AGENTS, "--teams", "2")
    assert run.exit_code == 0, run.output
    assert {"Connected new brain: Basic?team=0", "Connected new brain: Basic?team=1"} <= {
        line.removeprefix("[INFO] ") for line in run.output.splitlines()
    }
    assert run.log.count("Hyperparameters for behavior name") == 1
    # Eight agents per message instead of four: half as many messages for as many steps.
    ends = [step for step, _ in run.scalars("Basic")["Environment/Cumulative Reward"]]
    assert 2000 in ends


def test_each_behavior_has_its_own_trainer_and_thread(tmp_path: Path) -> None:
    off_policy = {
        "trainer_type": "sac",
        "hyperparameters": {"batch_size": 32, "buffer_size": 2000, "buffer_init_steps": 200, "steps_per_update": 20},
        "network_settings": {"hidden_units": 16, "num_layers": 1},
        "max_steps": 800,
        "summary_freq": 400,
    }
    settings = {
        "default_settings": ppo(1200, threaded=True),
        "behaviors": {"Hybrid": ppo(800, threaded=False), "3DBall": off_policy},
        "env_settings": {"seed": 3},
    }
    run = learn(tmp_path, settings, "--env=sim:Basic+Hybrid+3DBall", "--num-envs=2", *AGENTS)
    assert run.exit_code == 0, run.output
    for behavior, most in (("Basic", 1200), ("Hybrid", 800), ("3DBall", 800)):
        check_files(run, behavior)
        assert final_step(run, behavior) > most
    written = yaml.safe_load((run.folder / "configuration.yaml").read_text())
    assert written["behaviors"]["3DBall"]["trainer_type"] == "sac"


def test_a_behavior_that_nobody_configured_ends_the_run_and_the_others_are_saved(tmp_path: Path) -> None:
    build = write_build(tmp_path, "Basic+Hybrid", step=200)
    run = learn(tmp_path, behaviors_settings(Basic=ppo(100_000)), f"--env={build}", "--num-envs=2", *AGENTS)
    assert run.exit_code == 1
    assert "Hybrid" in run.output
    assert "Traceback" not in run.output
    assert final_step(run, "Basic") > 0
    check_files(run, "Basic")


def test_a_finished_behavior_goes_on_acting_with_its_last_policy(tmp_path: Path) -> None:
    settings = behaviors_settings(Basic=ppo(5000, checkpoint_interval=2000), Hybrid=ppo(8500))
    run = learn(tmp_path, settings, "--env=sim:Basic+Hybrid", *AGENTS)
    assert run.exit_code == 0, run.output
    lines = [line for line in run.output.splitlines() if line.startswith("[INFO] Basic. Step:")]
    assert any("Not Training" in line for line in lines)
    rewards = run.scalars("Basic")["Environment/Cumulative Reward"]
    after = [reward for step, reward in rewards if step > 6000]
    assert len(after) >= 2
    assert min(after) >= 0.8
    records = run.status()["Basic"]["checkpoints"]
    late = [record["auxillary_file_paths"][0] for record in records if record["steps"] > 5300]
    last = weights(run.folder / "Basic" / "checkpoint.pt")
    for path in late:
        assert all(torch.equal(value, last[name]) for name, value in weights(Path(path)).items())
    assert len(late) >= 1


class FixedEvents:
    """An environment of three workers that are always ready, and what they are answered."""

    num_workers = 3

    def __init__(self) -> None:
        self.answers: list[tuple[int, ActionBatch]] = []
        self._time = -1

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        self._time += 1
        return [
            EnvironmentEvent(worker, {BEHAVIOR: batch(worker, worker, self._time)}, {BEHAVIOR: SPEC})
            for worker in range(3)
        ]

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        self.answers.append((worker, actions[BEHAVIOR]))

    def reset(self, parameters: Parameters) -> None: ...

    def set_parameters(self, parameters: Parameters) -> None: ...

    def close(self) -> None: ...

    def kill(self) -> None: ...


class CountingPolicy(ActorPolicy):
    """Decides as the clockwork expects; counts how often and for how many it is asked."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def act(self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray) -> ActionBatch:
        self.calls.append(len(obs[0]))
        return actions_for(np.asarray(obs[0], np.float32))


def test_one_forward_for_all_workers_that_are_ready() -> None:
    environment = FixedEvents()
    policy = CountingPolicy()
    pool = RowPool(SPEC, [np.dtype(np.float32)])

    def make_behavior(found: NewBehavior) -> CollectedBehavior:
        return CollectedBehavior(
            spec=found.spec,
            pool=pool,
            processor=AgentProcessor(pool, 64),
            tracker=OpponentTracker(64, 0),
            policy=policy,
            trajectories=Outbox(),
            reporter=StatsReporter(found.behavior_id.name, []),
        )

    collector = Collector(environment, make_behavior, Timers())
    for _ in range(20):
        assert collector.collect() == 3
    assert policy.calls == [9] * 20
    for index, (worker, actions) in enumerate(environment.answers):
        expected = actions_for(np.asarray(batch(worker, worker, index // 3).obs[0], np.float32)).env_continuous[-3:]
        assert worker == index % 3
        assert np.array_equal(actions.env_continuous, expected)


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_a_behavior_that_is_done_does_not_hold_back_the_others_of_its_actors(tmp_path: Path, backend: str) -> None:
    settings = behaviors_settings(Basic=ppo(600), Hybrid=ppo(1500)) | {"actors": {"count": 1, "backend": backend}}
    run = learn(tmp_path, settings, "--env=sim:Basic+Hybrid", "--env-args", "--agents", "4")
    assert run.exit_code == 0, run.output
    assert "Restarting" not in run.output
