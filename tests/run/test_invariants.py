"""What runs keep in which acting goes on while learning does: counts, bounds, and a good end.

Of ``threaded: true``, and of two actors whose policies may be one version old, in threads, processes and on Ray. Which
steps are learned from when depends on time there, so that no numbers can be compared; these hold all the same.
"""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

import trajtrainer
from tests.run.numbered import EPISODE, Learned, Numbered, NumberedDuel, NumberedPair, made
from tests.run.process_tree import command_of, descendants, is_alive
from tests.run.runs import FinishedRun, LearnProcess, ppo
from trajtrainer.core.plugins import resolve
from trajtrainer.envs.python.factories import from_factory
from trajtrainer.run.session import train
from trajtrainer.settings.checks import Place
from trajtrainer.settings.components import ALGORITHMS
from trajtrainer.settings.yaml.convert import run_settings
from trajtrainer.settings.yaml.document import from_mapping

ENVS = 2
HORIZON = 5  # an episode is a trajectory of 5 steps and one of 3
BATCH, BUFFER, EPOCHS = 32, 128, 3
FIRST_UPDATE, STEPS_PER_UPDATE = 100, 5
OFF_POLICY = {
    "batch_size": BATCH,
    "buffer_size": 2000,
    "buffer_init_steps": FIRST_UPDATE,
    "steps_per_update": STEPS_PER_UPDATE,
}
# How far acting may be ahead of learning (docs): a buffer, or 128 gradient steps of SAC.
LEAD = {"ppo": BUFFER, "sac": 128 * STEPS_PER_UPDATE}
GOOD = 0.8 * EPISODE  # random actions get half of the episode
MAX_LAG = 1
ENDS_WITHIN_S = 120.0
# As acting shows that it waits.
_QUIET_S = 0.3

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


def settings(kind: str, max_steps: int, *names: str, **changes: Any) -> dict[str, Any]:
    trainer = ppo(max_steps, network_settings={"hidden_units": 8}, time_horizon=HORIZON, summary_freq=500)
    trainer["hyperparameters"] |= {"batch_size": BATCH, "buffer_size": BUFFER, "num_epoch": EPOCHS}
    if kind == "sac":
        trainer |= {"trainer_type": "sac", "hyperparameters": {**OFF_POLICY, "learning_rate": 3e-3}}
    trainer |= {"checkpoint_interval": 10**6, "keep_best": 0, **changes}
    return {
        "behaviors": dict.fromkeys(names or ("Numbered",), trainer),
        "env_settings": {"seed": 7},
        "torch_settings": {"device": "cpu"},
    }


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    """The folder in which environments count their steps."""
    folder = tmp_path / "counts"
    folder.mkdir()
    return folder


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch, counts: Path) -> Learned:
    return Learned(monkeypatch, counts)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No thread, no process, no environment and no shared memory of a run outlives it."""
    threads = set(threading.enumerate())
    Numbered.threads.clear()
    Numbered.num_open = 0
    yield
    until(lambda: set(threading.enumerate()) <= threads)
    assert not multiprocessing.active_children()
    assert Numbered.num_open == 0
    if has_shared_memory():
        gc.collect()
    assert not has_shared_memory()


def has_shared_memory() -> bool:
    """Whether this process has mapped any of ours, which has no name in ``/dev/shm``."""
    return sys.platform == "linux" and "memfd:trajtrainer" in Path("/proc/self/maps").read_text()


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + ENDS_WITHIN_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def learn(
    tmp_path: Path, given: dict[str, Any], environment: Any = Numbered, **options: Any
) -> trajtrainer.LearnResult:
    options = {"num_envs": ENVS, "env_args": {"folder": str(tmp_path / "counts")}, **options}
    return trajtrainer.learn(given, environment, run_id="run", results_dir=tmp_path, verbose=False, **options)


def curves(tmp_path: Path, behavior: str = "Numbered") -> dict[str, list[tuple[int, float]]]:
    return FinishedRun(0, "", tmp_path / "run").scalars(behavior)


def at_updates(
    monkeypatch: pytest.MonkeyPatch, kind: str, learned: Learned, do: Callable[[int, Any], object] = lambda *_: None
) -> None:
    """Count the updates, and do something before each: with its number, from 1, and the algorithm."""
    algorithm: Any = resolve(ALGORITHMS[kind].algorithm or "")
    update, numbers = algorithm.update, count(1)

    def replaced(self: Any, *arguments: Any, **options: Any) -> Any:
        do(next(numbers), self)
        try:
            return update(self, *arguments, **options)
        finally:
            learned.num_updates += 1

    monkeypatch.setattr(algorithm, "update", replaced)


def wait_for_acting(learned: Learned) -> int:
    """Wait until acting waits. Return how many steps it is ahead."""
    ahead, before = learned.ahead, -1
    while ahead != before:
        time.sleep(_QUIET_S)
        ahead, before = learned.ahead, ahead
    return ahead


# A learner with a thread of its own.


@pytest.mark.parametrize("kind", ["ppo", "sac"])
def test_a_threaded_run_learns_from_every_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learned: Learned, kind: str
) -> None:
    begun: list[tuple[int, int]] = []
    at_updates(monkeypatch, kind, learned, lambda _, each: begun.append((learned.num_steps, each.gradient_steps)))
    epochs: list[trajtrainer.EpochStats] = []
    max_steps = 2000
    result = learn(tmp_path, settings(kind, max_steps, threaded=True), on_epoch=epochs.append).behaviors["Numbered"]
    assert Numbered.threads == {threading.main_thread()}
    assert max_steps < result.steps == sum(epoch.steps for epoch in epochs)
    learned.check(result.steps, most_left=HORIZON)
    assert result.mean_reward is not None
    assert result.mean_reward > GOOD
    if kind == "ppo":
        assert len(begun) > 10
        for (before, _), (now, gradient_steps), (_, after) in zip(begun[:-2], begun[1:-1], begun[2:], strict=True):
            assert after - gradient_steps == EPOCHS * ((now - before) // BATCH), "steps were left out"
    else:
        due = (result.steps - FIRST_UPDATE) / STEPS_PER_UPDATE
        assert epochs[-1].behavior.total_gradient_steps == pytest.approx(due, abs=1)
    tags = curves(tmp_path).keys()
    learn(tmp_path, settings(kind, 1100), force=True)
    assert tags == curves(tmp_path).keys(), "as many as without a thread: none of actors, none of V-trace"
    assert not [tag for tag in tags if tag.startswith("Actors/") or "Importance" in tag]


def test_threaded_behaviors_learn_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learned: Learned
) -> None:
    together = threading.Barrier(2, timeout=ENDS_WITHIN_S)
    learning: set[str] = set()

    def meet(_: int, algorithm: Any) -> None:
        if algorithm.context.behavior not in learning:
            learning.add(algorithm.context.behavior)
            together.wait()

    at_updates(monkeypatch, "ppo", learned, meet)
    given = settings("ppo", 1000, "red", "blue", threaded=True)
    result = learn(tmp_path, given, NumberedPair)
    assert learning == {"red", "blue"}
    assert not together.broken
    steps = [result.behaviors[name].steps for name in ("red", "blue")]
    assert min(steps) > 1000
    # The one that is done first goes on acting, and counting, until the other is.
    learned.check(sum(steps), most_left=HORIZON)


def test_threaded_self_play_learns_from_every_step_of_a_team_once(tmp_path: Path, learned: Learned) -> None:
    teams = {"save_steps": 300, "team_change": 400, "swap_steps": 100, "window": 3}
    given = settings("ppo", 1500, "Duel", threaded=True, self_play=teams)
    result = learn(tmp_path, given, NumberedDuel, num_envs=1, env_args={"folder": str(tmp_path / "counts"), "size": 2})
    steps = result.behaviors["Duel"].steps
    assert steps > 1500
    learned.check_duel(steps)
    checkpoint = torch.load(tmp_path / "run" / "Duel" / "checkpoint.pt", weights_only=True)
    state = checkpoint["trajtrainer"]["self_play"]
    changes = state["rotation"]["changes"]
    assert changes >= 2
    # Each change breaks matches off, of up to 11 steps of 16 agents.
    left = learned.ahead - state["counters"]["opponent_steps"]
    assert 0 <= left <= (changes + 1) * 11 * 16


@pytest.mark.parametrize("kind", ["ppo", "sac"])
def test_acting_waits_for_a_slow_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learned: Learned, kind: str
) -> None:
    ahead: list[int] = []

    def slow(number: int, _: object) -> None:
        if number in (1, 3):
            ahead.append(wait_for_acting(learned))

    at_updates(monkeypatch, kind, learned, slow)
    steps = learn(tmp_path, settings(kind, 1500, threaded=True)).behaviors["Numbered"].steps
    assert len(ahead) == 2
    # Unfinished trajectories, which only acting can finish, do not count.
    assert all(0 < each <= LEAD[kind] + ENVS * (HORIZON + 1) for each in ahead)
    assert steps > 1500
    learned.check(steps, most_left=HORIZON)


@pytest.mark.parametrize("kind", ["ppo", "sac"])
def test_a_stop_while_acting_waits_for_a_threaded_learner_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learned: Learned, kind: str
) -> None:
    signalled_s: list[float] = []

    def stop(number: int, _: object) -> None:
        if number == 2:
            wait_for_acting(learned)
            signalled_s.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    at_updates(monkeypatch, kind, learned, stop)
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path, settings(kind, 10**6, threaded=True))
    assert time.monotonic() - signalled_s[0] < ENDS_WITHIN_S
    steps = saved_steps(tmp_path)
    assert steps > 0
    learned.check(steps, most_left=HORIZON)
    assert (tmp_path / "run" / "Numbered.onnx").is_file()


def saved_steps(tmp_path: Path) -> int:
    checkpoint = torch.load(tmp_path / "run" / "Numbered" / "checkpoint.pt", weights_only=True)
    return int(checkpoint["global_step"]["_GlobalSteps__global_step"])


def test_a_threaded_learner_that_fails_ends_the_run_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learned: Learned
) -> None:
    def fail(number: int, _: object) -> None:
        if number == 2:
            wait_for_acting(learned)
            raise ZeroDivisionError("in an update")

    at_updates(monkeypatch, "ppo", learned, fail)
    with pytest.raises(ZeroDivisionError, match="in an update"):
        learn(tmp_path, settings("ppo", 10**6, threaded=True))
    assert saved_steps(tmp_path) > 0


def test_a_threaded_run_is_evaluated_in_the_environment_that_trains(
    tmp_path: Path, learned: Learned, counts: Path
) -> None:
    """As with the Editor: there is no second one."""

    def make(given: Any, _: Any) -> Any:
        return from_factory(lambda: Numbered(str(counts)), given)

    given = settings("ppo", 1300, threaded=True) | {"evaluation": {"interval": 400, "episodes": 3}}
    given["checkpoint_settings"] = {"run_id": "run", "results_dir": str(tmp_path)}
    train(run_settings(from_mapping(given, Place("a.yaml"))), None, make)
    steps = saved_steps(tmp_path)
    assert steps == learned.num_steps > 1300
    assert len(made(counts)) == 1
    evaluated = [step for step, _ in curves(tmp_path)["Evaluation/Cumulative Reward"]]
    assert len(evaluated) >= 2
    assert evaluated[-1] == steps
    # Each evaluation is of three episodes, and breaks off what is under way.
    played = 3 * EPISODE * len(evaluated)
    assert played <= learned.ahead <= played + EPISODE * (1 + len(evaluated))
    assert Numbered.threads == {threading.main_thread()}


# Two actors, whose policies may be one version old.


@pytest.fixture(params=["thread", "process"])
def actors(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings of two of them."""
    return {"backend": request.param, "count": 2, "max_policy_lag": MAX_LAG}


def test_two_actors_collect_for_one_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learned: Learned, actors: dict[str, Any]
) -> None:
    assert_all_is_learned_from_once(tmp_path, monkeypatch, learned, actors)


def assert_all_is_learned_from_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learned: Learned, actors: dict[str, Any]
) -> None:
    """Two actors collect for one learner, which learns from every step once, and from none that is too old."""
    at_updates(monkeypatch, "ppo", learned)
    epochs: list[trajtrainer.EpochStats] = []
    environment = {"folder": str(learned.folder), "copies": 2 * ENVS}
    result = learn(tmp_path, settings("ppo", 2500) | {"actors": actors}, env_args=environment, on_epoch=epochs.append)
    behavior = result.behaviors["Numbered"]
    assert 2500 < behavior.steps == sum(epoch.steps for epoch in epochs)
    most = (1 + MAX_LAG) * (BUFFER + 1)  # that acting may be ahead by
    learned.check(behavior.steps, most_left=most)
    assert len(made(learned.folder)) == 2 * ENVS
    assert learned.ahead <= most + 2 * ENVS * (HORIZON + 1)
    rows = json.loads((tmp_path / "run" / "run_logs" / "timers.json").read_text())["actors"]
    assert behavior.steps <= sum(row["agent_steps"] for row in rows) <= sum(made(learned.folder).values())
    assert behavior.mean_reward is not None
    assert behavior.mean_reward > GOOD
    found = curves(tmp_path)
    assert {"Actors/Working", "Policy/Importance Weight"} <= found.keys()
    # The last step of a trajectory counts; it may have begun with an older policy.
    assert max(lag for _, lag in found["Actors/Policy Lag"]) <= MAX_LAG + 1
    assert too_old(learned, 2500) <= dropped(epochs)
    assert {lag for lag, _ in learned.lags} >= {0, 1}, "acting went on while the learner learned"


def test_two_behaviors_do_not_wait_for_each_other_for_ever(tmp_path: Path) -> None:
    """With this seed each actor used up its part of one behavior, and what was left of it was the other's."""
    trainer = ppo(3000, network_settings={"hidden_units": 8}, time_horizon=64, summary_freq=1000)
    trainer["hyperparameters"] |= {"batch_size": 64, "buffer_size": 512, "num_epoch": 1}
    given = {
        "behaviors": {"Basic": trainer, "Hybrid": trainer},
        "actors": {"backend": "thread", "count": 2, "max_policy_lag": 0},
    }
    arguments = ["--env=sim:Basic+Hybrid", "--seed=2", "--env-args", "--agents", "4"]
    assert LearnProcess(tmp_path, given, *arguments).finish(2 * ENDS_WITHIN_S).exit_code == 0


def too_old(learned: Learned, max_steps: int) -> int:
    """Return the steps up to the end of training that are too old to learn from."""
    ends = itertools.accumulate(steps for _, steps in learned.lags)
    return sum(
        steps for (lag, steps), end in zip(learned.lags, ends, strict=True) if lag > MAX_LAG and end <= max_steps
    )


def dropped(epochs: list[trajtrainer.EpochStats]) -> int:
    found = [epoch.behavior.statistics["Actors/Dropped Steps"] for epoch in epochs]
    return round(sum(each.mean * each.number for each in found))


def test_steps_of_an_actor_that_is_too_late_count_and_are_not_learned_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learned: Learned
) -> None:
    """One of them waits in the last steps of some trajectories while the learner goes on with the other."""
    at_updates(monkeypatch, "ppo", learned)
    step, seeds_of_last, waited = Numbered.step, (9, 10), list[int]()

    def slow(self: Numbered, action: int) -> Any:
        if self.seed in seeds_of_last and self.steps == HORIZON - 1 and learned.num_updates and len(waited) < 3:
            waited.append(learned.num_updates)
            until(lambda: learned.num_updates > waited[-1] + MAX_LAG)
        return step(self, action)

    monkeypatch.setattr(Numbered, "step", slow)
    epochs: list[trajtrainer.EpochStats] = []
    actors = {"backend": "thread", "count": 2, "max_policy_lag": MAX_LAG}
    result = learn(tmp_path, settings("ppo", 2000) | {"actors": actors}, on_epoch=epochs.append)
    learned.check(result.behaviors["Numbered"].steps, most_left=(1 + MAX_LAG) * (BUFFER + 1))
    assert 0 < too_old(learned, 2000) <= dropped(epochs)


@needs_proc
def test_what_a_killed_actor_has_sent_counts_once(tmp_path: Path, learned: Learned, actors: dict[str, Any]) -> None:
    if actors["backend"] == "thread":
        pytest.skip("threads cannot be killed")
    given = settings("ppo", 10**6) | {"actors": actors}
    options: dict[str, Any] = {"env_args": {"folder": str(learned.folder)}, "num_envs": ENVS, "verbose": False}
    killed = 0
    with trajtrainer.Training(given, Numbered, run_id="run", results_dir=tmp_path, **options) as training:
        for _ in training.epochs(steps=500):
            if not killed and len(made(learned.folder)) == 2 * ENVS:
                killed = actor_processes(actors["backend"])[0]
                os.kill(killed, signal.SIGKILL)
            if len(made(learned.folder)) == 3 * ENVS:  # one has taken its place
                break
    steps = training.result.behaviors["Numbered"].steps
    learned.check(steps, most_left=(1 + MAX_LAG) * (BUFFER + 1) + HORIZON)
    until(lambda: not actor_processes(actors["backend"]))


def actor_processes(backend: str) -> list[int]:
    if backend == "process":
        return [each.pid or 0 for each in multiprocessing.active_children() if each.name.startswith("actor-")]
    return [pid for pid in descendants(os.getpid()) if "ActorHost" in " ".join(command_of(pid)) and is_alive(pid)]


@needs_proc
@pytest.mark.parametrize("backend", ["thread", "process"])
def test_a_stopped_run_with_two_actors_leaves_nothing_behind(tmp_path: Path, counts: Path, backend: str) -> None:
    given = settings("ppo", 10**6) | {"actors": {"backend": backend, "count": 2}}
    environment = ("--env=python:tests.run.numbered:Numbered", f"--num-envs={ENVS}")
    run = LearnProcess(tmp_path, given, *environment, "--env-args", f"folder={counts}")
    run.wait_for(lambda: len(made(counts)) == 2 * ENVS and sum(made(counts).values()) > 1000)
    processes = descendants(run.process.pid)
    assert len([pid for pid in processes if "--multiprocessing-fork" in command_of(pid)]) == 2 * (backend == "process")
    run.send(signal.SIGINT)
    finished = run.finish(ENDS_WITHIN_S)
    assert finished.exit_code == 0, finished.output
    assert "Traceback" not in finished.output
    until(lambda: not any(map(is_alive, processes)))
    left = sum(made(counts).values()) - finished.status()["Numbered"]["final_checkpoint"]["steps"]
    assert 0 <= left <= (1 + MAX_LAG) * (BUFFER + 1) + 2 * ENVS * (HORIZON + 1)
