"""Evaluation while a run trains: what it says, and that the training does not notice it."""

from __future__ import annotations

import json
import logging
import multiprocessing
import shutil
import signal
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

import trajtrainer
from tests.envs.sim.faults import fault
from tests.run.api.test_learn_api import Lamp, settings
from tests.run.runs import FinishedRun, LearnProcess, behaviors_settings, ppo
from trajtrainer.core.errors import SettingsError
from trajtrainer.envs.python.factories import from_factory
from trajtrainer.policies.play.result import Episode, EvaluationResult, GroupEpisode
from trajtrainer.run.evaluations import parameters_of_evaluation, settings_of_evaluation, tags
from trajtrainer.run.session import train
from trajtrainer.settings.checks import Place
from trajtrainer.settings.yaml.convert import load, run_settings
from trajtrainer.settings.yaml.document import from_mapping

OFTEN: dict[str, Any] = {"interval": 400, "episodes": 4, "deterministic": True}


def learn(tmp_path: Path, given: dict[str, Any], environment: Any = Lamp, **options: Any) -> trajtrainer.LearnResult:
    options = {"results_dir": tmp_path, "verbose": False, "run_id": "run", "num_envs": 2, **options}
    return trajtrainer.learn(given, environment, **options)


def lamp(max_steps: int = 1300, *, name: str = "Lamp", run: dict[str, Any] | None = None, **own: Any) -> dict[str, Any]:
    """Settings of a run with evaluations, unless ``run`` says otherwise."""
    given = settings(name, max_steps, **({"evaluation": OFTEN} if run is None else run))
    given["behaviors"][name] |= {"summary_freq": 200, **own}
    return given


def curves(folder: Path, name: str = "Lamp") -> dict[str, list[tuple[int, float]]]:
    return FinishedRun(0, "", folder).scalars(name)


def evaluated(folder: Path, name: str = "Lamp") -> list[tuple[int, float]]:
    return curves(folder, name).get("Evaluation/Cumulative Reward", [])


def status(folder: Path, name: str = "Lamp") -> dict[str, Any]:
    entry: dict[str, Any] = json.loads((folder / "run_logs" / "training_status.json").read_text())[name]
    return entry


def assert_same_training(first: Path, second: Path, name: str) -> None:
    """The weights at the end, and all curves but those of evaluations and of time."""
    one, other = (torch.load(each / name / "checkpoint.pt", weights_only=True) for each in (first, second))
    for part in ("Policy", "Optimizer:critic"):
        for key, weights in one[part].items():
            assert torch.equal(weights, other[part][key]), key
    shown = [
        {tag: points for tag, points in curves(each, name).items() if tag.split("/")[0] not in ("Evaluation", "Perf")}
        for each in (first, second)
    ]
    assert shown[0] == shown[1]


class Global(Lamp):
    """Draws from the generator of the whole process, as environments should not."""

    def _light(self) -> int:
        self.light = int(np.random.random() < 0.5)
        return self.light


def test_training_in_turn_with_evaluations_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    def seeded() -> Global:
        np.random.seed(3)
        return Global()

    given = lamp(name="Global", hyperparameters=lamp()["behaviors"]["Lamp"]["hyperparameters"])
    result = learn(tmp_path, given, seeded, run_id="evaluated", num_envs=1)
    without = {**given, "evaluation": None}
    without["behaviors"] = {"Global": {**given["behaviors"]["Global"], "keep_best": 0}}
    np.random.seed(3)
    learn(tmp_path, without, Global, run_id="plain", num_envs=1)
    assert_same_training(tmp_path / "plain", tmp_path / "evaluated", "Global")
    assert evaluated(tmp_path / "plain", "Global") == []
    steps = [step for step, _ in evaluated(tmp_path / "evaluated", "Global")]
    assert [step // 400 for step in steps] == [1, 2, 3, 3]
    assert steps[-1] == result.behaviors["Global"].steps, "the last model, too"


def test_training_beside_an_evaluating_process_is_the_same_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trajtrainer.run.evaluations.usable_cores", lambda: 2)
    given = lamp(900, name="CartPole-v1")
    told: list[trajtrainer.Evaluation] = []
    epochs: list[trajtrainer.EpochStats] = []
    hear = {"on_evaluation": told.append, "on_epoch": epochs.append, "epoch_steps": 500}
    result = learn(tmp_path, given, "gym:CartPole-v1", run_id="evaluated", **hear)
    learn(tmp_path, {**given, "evaluation": None}, "gym:CartPole-v1", run_id="plain")
    assert_same_training(tmp_path / "plain", tmp_path / "evaluated", "CartPole-v1")
    found = evaluated(result.run_folder, "CartPole-v1")
    assert [step // 400 for step, _ in found] == [1, 2, 2]
    assert found[-1][0] == result.behaviors["CartPole-v1"].steps
    assert [each.step for each in told] == [step for step, _ in found]
    assert epochs[-1].behavior.evaluation == told[-1], "the end of the last epoch waits for it"
    entry = status(result.run_folder, "CartPole-v1")
    assert (entry["evaluation"]["steps"], entry["evaluation"]["mean"]) == pytest.approx(found[-1])
    assert entry["evaluation"]["episodes"] == 4
    assert entry["best"]["reward"] == pytest.approx(max(reward for _, reward in found))
    assert entry["best"]["by"] == "evaluation"


class Turning(Lamp):
    """The first one made, where the training plays, asks for the other action after some time."""

    made: ClassVar[list[Turning]] = []

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        Turning.made.append(self)

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.total += 1
        if self is Turning.made[0] and self.total > 1500:
            action = 1 - action
        return super().step(action)


def test_a_run_that_gets_worse_keeps_its_best(tmp_path: Path) -> None:
    Turning.made.clear()
    result = learn(tmp_path, lamp(3000, name="Turning"), Turning, num_envs=1)
    measured = evaluated(result.run_folder, "Turning")
    reward = max(reward for _, reward in measured)
    assert reward > 7
    assert measured[-1][1] < 4, "it has unlearned it"
    best = status(result.run_folder, "Turning")["best"]
    step = best["steps"]
    assert best["reward"] == dict(measured)[step] == reward
    folder = result.run_folder / "Turning"
    state = torch.load(folder / "best.pt", weights_only=True)
    assert int(state["global_step"]["_GlobalSteps__global_step"]) == step

    Turning.made.clear()
    still = lamp(100, name="Turning", hyperparameters={"learning_rate": 0.0, "batch_size": 32, "buffer_size": 64})
    other = learn(tmp_path, still, Turning, run_id="other", initialize_from="run@best", num_envs=1)
    started = torch.load(other.run_folder / "Turning" / "checkpoint.pt", weights_only=True)["Policy"]
    assert all(torch.equal(weights, started[name]) for name, weights in state["Policy"].items())


def test_a_reward_that_is_reached_ends_the_run_with_the_model_that_reached_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trajtrainer")
    given = lamp(100_000, stop={"reward": 7.5})
    result = learn(tmp_path, given)
    steps = result.behaviors["Lamp"].steps
    assert steps < 10_000
    *before, (last, reward) = evaluated(result.run_folder)
    assert last == steps
    assert reward >= 7.5
    assert all(earlier < 7.5 for _, earlier in before)
    assert status(result.run_folder)["stopped"] == {"by": "reward", "steps": steps}
    assert "stopped training" in caplog.text
    again = learn(tmp_path, given, resume=True)
    assert again.behaviors["Lamp"].steps < steps + 200, "nothing was left to do"
    given["behaviors"]["Lamp"]["stop"] = {"episodes": steps // 8 + 100}
    further = learn(tmp_path, given, resume=True)
    assert status(further.run_folder)["stopped"]["by"] == "episodes"
    assert further.behaviors["Lamp"].steps >= steps + 8 * 90


def test_evaluations_are_neither_lost_nor_repeated_by_an_interrupt(tmp_path: Path) -> None:
    class Interrupting(Lamp):
        made: ClassVar[list[Interrupting]] = []
        total = 0

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
            self.total += 1
            if self is Interrupting.made[1] and self.total == 8 * 4 + 3:
                signal.raise_signal(signal.SIGINT)  # in the second evaluation
            return super().step(action)

    def make() -> Interrupting:
        Interrupting.made.append(Interrupting())
        return Interrupting.made[-1]

    given = lamp(1700, name="Interrupting")
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path, given, make, num_envs=1)
    (first,) = evaluated(tmp_path / "run", "Interrupting")
    assert first[0] // 400 == 1
    checkpoint = torch.load(tmp_path / "run" / "Interrupting" / "checkpoint.pt", weights_only=True)
    Interrupting.made = [Interrupting(), Interrupting()]
    result = learn(tmp_path, given, make, num_envs=1, resume=True)
    again, *others = evaluated(result.run_folder, "Interrupting")
    assert again == first
    redone = others[0][0]
    assert 0 <= redone - int(checkpoint["global_step"]["_GlobalSteps__global_step"]) <= 256  # the next drain
    assert [step // 400 for step, _ in others] == [2, 3, 4, 4]


def test_a_killed_run_goes_on_with_its_evaluations(tmp_path: Path) -> None:
    """The folder as it is in the midst of the run is what SIGKILL would leave of it."""
    told: list[int] = []

    def copy(evaluation: trajtrainer.Evaluation) -> None:
        told.append(evaluation.step // 400)
        if len(told) == 3:  # the newest checkpoint is from before the second
            shutil.copytree(tmp_path / "run", tmp_path / "killed")

    given = lamp(1300, checkpoint_interval=700)
    learn(tmp_path, given, on_evaluation=copy, num_envs=1)
    assert told == [1, 2, 3, 3]
    killed = tmp_path / "killed"
    before, best = evaluated(killed), status(killed)["best"]
    assert len(before) == 3
    saved = torch.load(killed / "Lamp" / "checkpoint.pt", weights_only=True)
    step = int(saved["global_step"]["_GlobalSteps__global_step"])
    assert before[0][0] < step < before[1][0]
    assert best["reward"] == max(reward for _, reward in before)

    learn(tmp_path, given, run_id="killed", resume=True, num_envs=1)
    after = evaluated(killed)
    assert [one // 400 for one, _ in after] == [1, 2, 3, 3], "each once, those after the checkpoint anew"
    assert after[0] == before[0]
    known = [before[0], *after[1:]]
    found = status(killed)["best"]
    assert (found["steps"], found["reward"]) in known
    assert found["reward"] == max(reward for _, reward in known)


def test_an_evaluator_that_is_killed_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trajtrainer.run.evaluations.usable_cores", lambda: 2)
    told: list[int] = []

    def kill(evaluation: trajtrainer.Evaluation) -> None:
        told.append(evaluation.step // 400)
        if told == [1]:
            (process,) = (child for child in multiprocessing.active_children() if child.name == "evaluation")
            process.kill()
            process.join()

    given = lamp(1300, name="CartPole-v1", run={"evaluation": {**OFTEN, "episodes": 1}})
    given["env_settings"] |= {"restarts_rate_limit_n": -1}
    learn(tmp_path, given, "gym:CartPole-v1", on_evaluation=kill, num_envs=1)
    assert told == [1, 3, 3], "the second is the price"
    (warning,) = [record.getMessage() for record in caplog.records if "An evaluation failed" in record.getMessage()]
    assert "The evaluation process was killed by the signal SIGKILL" in warning
    assert [child for child in multiprocessing.active_children() if child.name == "evaluation"] == []


def test_tags_of_teams_and_groups() -> None:
    episodes = [Episode(0, team, n, 2.0 * team + n, 0.5, 4 + n, False) for team in (0, 1) for n in range(2)]
    result = EvaluationResult("A", tuple(episodes), (GroupEpisode(0, 1, 0, 7.0),), decisions=20, seconds=1.0)
    found = {tag.removeprefix("Evaluation/"): summary.mean for tag, summary in tags(result).items()}
    assert found == pytest.approx(
        {
            "Cumulative Reward": 2.0,
            "Cumulative Reward Std": np.std([0.5, 1.5, 2.5, 3.5]),
            "Cumulative Reward Min": 0.5,
            "Cumulative Reward Max": 3.5,
            "Episode Length": 4.5,
            "Group Cumulative Reward": 7.0,
            "Team 0 Cumulative Reward": 1.0,
            "Team 1 Cumulative Reward": 3.0,
        }
    )
    alone = EvaluationResult("A", tuple(episodes[:2]), (), decisions=9, seconds=1.0)
    assert len(tags(alone)) == 5


def test_an_environment_that_crashes_costs_evaluations_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Fragile(Lamp):
        made = 0

        def __init__(self) -> None:
            super().__init__()
            Fragile.made += 1
            self.breaks = 2 <= Fragile.made <= 3

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
            if self.breaks:
                raise ZeroDivisionError("bulb burst")
            return super().step(action)

    given = lamp(2100, name="Fragile")
    given["env_settings"] |= {"restarts_rate_limit_n": -1}
    result = learn(tmp_path, given, lambda: Fragile(), num_envs=1)
    assert result.behaviors["Fragile"].steps > 2100
    assert [step // 400 for step, _ in evaluated(result.run_folder, "Fragile")] == [3, 4, 5, 5]
    (warning,) = [record.getMessage() for record in caplog.records if "evaluation" in record.getMessage()]
    assert "bulb burst" in warning
    assert "Training continues" in warning


@pytest.mark.parametrize(("deterministic", "words"), [(None, "sampled"), (True, "most likely")])
def test_how_the_policy_acted_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, deterministic: bool | None, words: str
) -> None:
    caplog.set_level(logging.INFO, "trajtrainer")
    own = {} if deterministic is None else {"deterministic": deterministic}
    result = learn(tmp_path, lamp(500, run={"evaluation": {"interval": 400, "episodes": 2, **own}}), num_envs=1)
    assert f"decisions, {words} actions)." in caplog.text
    assert status(result.run_folder)["evaluation"]["deterministic"] is bool(deterministic)


def test_the_same_model_has_the_same_number_in_the_log_the_status_and_the_curves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trajtrainer")
    result = learn(tmp_path, lamp(1300, run={}))
    summaries = dict(curves(result.run_folder)["Environment/Cumulative Reward"])
    entry, own = status(result.run_folder), result.behaviors["Lamp"]
    last = max(summaries)
    assert (entry["training"]["steps"], own.summary_step) == (last, last)
    assert entry["training"]["reward"] == own.mean_reward == pytest.approx(summaries[last])
    assert f"mean return {summaries[last]:.3f} of the summary of step {last} (" in caplog.text
    assert f"mean return {summaries[last]:.3f} of the summary of step {last} (" in repr(own)
    label = int(entry["best"]["measure"].removeprefix("mean return of the summary of step "))
    assert entry["best"]["reward"] == pytest.approx(summaries[label]) == max(summaries.values())
    assert f"best {summaries[label]:.3f} (mean return of the summary of step {label}) at step" in caplog.text


class Stuck(Lamp):
    """Where it is evaluated its episodes do not end."""

    made: ClassVar[list[Stuck]] = []

    def __init__(self) -> None:
        super().__init__()
        Stuck.made.append(self)

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        seen, reward, over, late, info = super().step(action)
        return seen, reward, over and self is Stuck.made[0], late, info


def test_an_episode_that_does_not_end_is_truncated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trajtrainer")
    Stuck.made.clear()
    given = lamp(900, name="Stuck", run={"evaluation": {**OFTEN, "episodes": 3, "max_decisions": 40}})
    result = learn(tmp_path, given, Stuck, num_envs=1)
    entry = status(result.run_folder, "Stuck")["evaluation"]
    assert (entry["episodes"], entry["truncated"]) == (3, 3)
    assert entry["length"]["mean"] == 40
    assert "3 episodes of 40.0 decisions, 3 of them truncated" in caplog.text
    assert [step // 400 for step, _ in evaluated(result.run_folder, "Stuck")][:2] == [1, 2]


def test_an_evaluation_that_takes_too_long_fails_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Stuck.made.clear()
    given = lamp(900, name="Stuck", run={"evaluation": {**OFTEN, "max_decisions": 10**9, "timeout": 0.2}})
    result = learn(tmp_path, given, Stuck, num_envs=1)
    assert result.behaviors["Stuck"].steps > 900
    assert evaluated(result.run_folder, "Stuck") == []
    (warning,) = [record.getMessage() for record in caplog.records if "An evaluation failed" in record.getMessage()]
    assert "took longer than 0.2 s (evaluation.timeout)" in warning
    assert "Training continues" in warning


def test_an_evaluating_process_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trajtrainer.run.evaluations.usable_cores", lambda: 2)
    given = lamp(900, name="CartPole-v1", run={"evaluation": {**OFTEN, "episodes": 10**6, "timeout": 0.5}})
    result = learn(tmp_path, given, "gym:CartPole-v1", num_envs=1)
    assert result.behaviors["CartPole-v1"].steps > 900
    assert "took longer than 0.5 s (evaluation.timeout)" in caplog.text
    assert [child for child in multiprocessing.active_children() if child.name == "evaluation"] == []


def test_where_no_second_environment_can_be_started_the_training_makes_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Lamp] = []

    def make(given: Any, _: Any) -> Any:
        def lamp() -> Lamp:
            made.append(Lamp())
            return made[-1]

        return from_factory(lamp, given)

    given = lamp(900)
    given["checkpoint_settings"] = {"run_id": "run", "results_dir": str(tmp_path)}
    train(run_settings(from_mapping(given, Place("a.yaml"))), None, make)
    assert len(made) == 1
    assert "The Unity Editor cannot be started twice" in caplog.text
    assert [step // 400 for step, _ in evaluated(tmp_path / "run")] == [1, 2, 2]
    rewards = curves(tmp_path / "run")["Environment/Cumulative Reward"]
    assert all(0 <= reward <= 8 for _, reward in rewards), "no episode of the training goes on behind an evaluation"


@pytest.mark.parametrize(
    ("evaluation", "environment", "message"),
    [
        ({"env_args": ["lights=3"]}, "two", r"its sensor 0 .* has the shape \(2,\), not \(3,\)"),
        ({"env_args": ["color=3"]}, "two", "color"),
        ({}, "same", "returned the same environment twice"),
    ],
)
def test_mistakes_are_explained(tmp_path: Path, evaluation: dict[str, Any], environment: str, message: str) -> None:
    class Lights(Lamp):
        def __init__(self, lights: int = 2) -> None:
            super().__init__()
            self.observation_space = spaces.Discrete(lights)

    only = Lamp()
    given = lamp(900, name="Lights", run={"evaluation": {**OFTEN, **evaluation}})
    given["behaviors"]["Lamp"] = given["behaviors"]["Lights"]  # whichever is made
    with pytest.raises(SettingsError, match=message):
        learn(tmp_path, given, Lights if environment == "two" else lambda: only, num_envs=1)


def test_an_evaluation_has_the_last_lesson_another_seed_and_another_port() -> None:
    run = load(
        """
behaviors: {A: {}}
env_settings: {env_path: sim:Basic, env_args: [--agents, '3'], seed: 5, num_envs: 4, base_port: 6000}
environment_parameters:
  mass:
    curriculum:
      - {name: easy, value: 1, completion_criteria: {behavior: A, threshold: 1}}
      - {name: hard, value: {sampler_type: uniform, sampler_parameters: {min_value: 7, max_value: 9}}}
  wind: 3
evaluation:
  interval: 9
  episodes: 9
  num_envs: 2
  environment_parameters:
    wind: 8
    ice: {sampler_type: gaussian, sampler_parameters: {seed: 4}}
""",
        "a.yaml",
    ).with_seed(5)
    env = settings_of_evaluation(run).env_settings
    assert (env.env_path, env.env_args, env.num_envs, env.base_port) == ("sim:Basic", ["--agents", "3"], 2, 6004)
    assert env.seed not in range(5, 9)
    assert env == settings_of_evaluation(run).env_settings
    found: dict[str, Any] = dict(parameters_of_evaluation(run, env.seed))
    assert list(found) == ["mass", "wind", "ice"]
    assert (found["mass"].min_value, found["mass"].max_value, found["wind"].value) == (7, 9, 8)
    assert (found["mass"].seed, found["ice"].seed) == (env.seed, 4)


def descendants(pid: int) -> set[int]:
    """Pids of the processes that a process has started, and those that they have."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found |= {child} | descendants(child)
    return found


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux")
def test_a_killed_run_leaves_no_process_behind(tmp_path: Path) -> None:
    program = {"env_args": list(fault("crash@10000000:1"))}  # without a hook it would play in the evaluator's process
    often = {"interval": 500, "episodes": 2, "num_envs": 2, **program}
    given = {**behaviors_settings(Basic=ppo(10**8)), "evaluation": often}
    run = LearnProcess(tmp_path, given, "--env=sim:Basic")
    run.wait_for(lambda: "Evaluation at step" in run.output)
    processes = descendants(run.process.pid)
    assert len(processes) >= 6, "a player; an evaluator, its two workers and their players"
    assert list((run.folder / "run_logs" / "evaluation").glob("Player-1*"))
    run.send(signal.SIGKILL)
    run.finish()
    deadline = 600  # the evaluator's processes have the lowest priority, and the guard of a player sleeps five seconds
    while any(Path(f"/proc/{pid}").exists() for pid in processes) and deadline:
        deadline -= 1
        signal.sigtimedwait([], 0.1)
    assert deadline, "not within a minute"
