"""Runs whose actors are elsewhere learn what a run in one loop learns."""

from __future__ import annotations

import os
import sys
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.run.api.test_learn_api import Lamp, learn
from tests.run.runs import FinishedRun, ppo
from tests.run.test_learn_self_play import plain
from trajtrainer import LearnResult
from trajtrainer.core.errors import SettingsError
from trajtrainer.envs.workers.messages import LockedPipe
from trajtrainer.run.actors.actor import Host
from trajtrainer.run.actors.messages import ActorTask
from trajtrainer.run.actors.transports.pipe_channel import PipeChannel

LAMP = "python:tests.run.api.test_learn_api:Lamp"
WANDER = "python:tests.run.actors.wander:Wander"
DUEL = "python:tests.envs.duel:Duel"

SMALL: dict[str, Any] = {"hidden_units": 8, "num_layers": 1}
NORMAL = {**SMALL, "normalize": True}
MEMORY = {"memory_size": 8, "sequence_length": 8}
OFF_POLICY = {"batch_size": 16, "buffer_size": 2000, "buffer_init_steps": 100, "steps_per_update": 10}
TEAMS = {"save_steps": 150, "team_change": 400, "swap_steps": 70, "window": 3, "play_against_latest_model_ratio": 0.3}
MATCHES = {"time_horizon": 6, "self_play": TEAMS}


def settings(name: str, max_steps: int, trainer: dict[str, Any], **run: Any) -> dict[str, Any]:
    given = ppo(max_steps, **{"network_settings": SMALL, "checkpoint_interval": 50000, "time_horizon": 8, **trainer})
    given["summary_freq"] = 250
    return {"behaviors": {name: given}, "env_settings": {"seed": 7}, "torch_settings": {"device": "cpu"}, **run}


def run(
    folder: Path,
    environment: str = LAMP,
    max_steps: int = 600,
    num_envs: int = 4,
    trainer: dict[str, Any] | None = None,
    actors: dict[str, Any] | None = None,
    env_args: dict[str, Any] | None = None,
) -> LearnResult:
    given = settings(environment.rpartition(":")[2], max_steps, trainer or {}, **({"actors": actors} if actors else {}))
    return learn(folder, given, environment, run_id="run", num_envs=num_envs, env_args=env_args)


def outcome(result: LearnResult) -> dict[str, Any]:
    """All that a run leaves: weights, states of optimizers, counters, statistics, and not how it came about."""
    ((name, behavior),) = result.behaviors.items()
    state = torch.load(result.run_folder / name / "checkpoint.pt", weights_only=True)
    extra = state["trajtrainer"]
    for gone in ("acting_rng", "exploration"):  # of the policy that acts
        extra.pop(gone, None)
    del extra["judge"]["seconds"]
    scalars = FinishedRun(0, "", result.run_folder).scalars(name)
    found = {tag: str(values) for tag, values in scalars.items() if not tag.startswith(("Actors/", "Perf/"))}
    return {"steps": behavior.steps, "reward": behavior.mean_reward, "scalars": found, "state": plain(state)}


KINDS: dict[str, dict[str, Any]] = {
    "ppo": {"environment": WANDER, "trainer": {"network_settings": NORMAL}},
    "memory": {"environment": WANDER, "trainer": {"network_settings": {**NORMAL, "memory": MEMORY}}},
    "sac": {
        "environment": WANDER,
        "max_steps": 400,
        "trainer": {"trainer_type": "sac", "hyperparameters": OFF_POLICY, "network_settings": NORMAL},
    },
    "sde": {
        "environment": WANDER,
        "trainer": {"network_settings": {**NORMAL, "use_sde": True}},
    },
    "poca": {
        "environment": DUEL,
        "max_steps": 1000,
        "num_envs": 1,
        "trainer": {"trainer_type": "poca", "network_settings": NORMAL, **MATCHES},
        "env_args": {"size": 2, "grouped": True},
    },
    "self-play": {
        "environment": DUEL,
        "max_steps": 1000,
        "num_envs": 1,
        "trainer": {"network_settings": {**SMALL, "memory": MEMORY}, **MATCHES},
        "env_args": {"teams": 3},
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_actor_that_takes_turns_with_the_learner_is_bit_equal_to_the_loop(tmp_path: Path, kind: str) -> None:
    inline = outcome(run(tmp_path / "inline", **KINDS[kind]))
    backend = "process" if kind == "ppo" else "thread"
    elsewhere = outcome(run(tmp_path / "elsewhere", **KINDS[kind], actors={"backend": backend, "max_policy_lag": 0}))
    assert elsewhere["scalars"].keys() == inline["scalars"].keys()
    assert elsewhere == inline


def test_several_actors_that_go_on_while_the_learner_learns(tmp_path: Path) -> None:
    fast = {"batch_size": 256, "buffer_size": 256, "learning_rate": 0.01}
    result = run(tmp_path, LAMP, 4000, 2, {"hyperparameters": fast}, {"backend": "thread", "count": 3})
    lamp = result.behaviors["Lamp"]
    assert lamp.steps > 4000
    assert lamp.mean_reward is not None
    assert lamp.mean_reward > 6, "random actions get 4"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets threads choose their cores")
def test_actors_keep_to_their_cores_and_say_which_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = min(os.sched_getaffinity(0))
    seen: list[set[int]] = []
    reset = Lamp.reset

    def see(*args: Any, **options: Any) -> Any:
        seen.append(os.sched_getaffinity(0))
        return reset(*args, **options)

    monkeypatch.setattr(Lamp, "reset", see)
    given = settings("Lamp", 100, {}, actors={"backend": "thread", "cpu_affinity": [[core]]})
    learn(tmp_path, given, Lamp, run_id="bound")
    assert seen
    assert all(each == {core} for each in seen)
    bound = ActorTask(0, lambda: pytest.fail("it has no cores"), [core, 9999], 20)
    connection, _other = Pipe()
    with pytest.raises(SettingsError, match=r"gives actor 0 the cores \[\d+, 9999\].*the cores \[9999\]"):
        Host(bound).run(PipeChannel(LockedPipe(connection)))
