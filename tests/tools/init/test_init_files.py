"""``trajtrainer init`` measures how fast an environment is, and proposes the algorithm that suits it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import trajtrainer
from tests.policies.play.scripted import Scripted, Slot
from tests.ports import free_ports
from trajtrainer.cli.main import main
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.settings import suggestions
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.suggestions import Exchange
from trajtrainer.settings.yaml.convert import load
from trajtrainer.tools import survey
from trajtrainer.tools.survey import Stopwatch

RESET_MS, OWN_MS = 5000, 300


class Clock:
    ms = 0.0

    def __call__(self) -> float:
        return self.ms / 1000


class Clocked(Scripted):
    """Step k of a worker takes ``durations[k]`` ms."""

    def __init__(self, clock: Clock, *durations: list[int]) -> None:
        super().__init__(*[[Slot([3])] for _ in durations])
        self.clock = clock
        self.durations = [iter(each) for each in durations]

    def _reset_worker(self, worker: int) -> EnvironmentEvent:
        self.clock.ms += RESET_MS
        return super()._reset_worker(worker)

    def _step_worker(self, worker: int, actions: Mapping[str, ActionBatch]) -> EnvironmentEvent:
        self.clock.ms += next(self.durations[worker])
        return super()._step_worker(worker, actions)


def measured(environment: Clocked, exchanges: int) -> Exchange:
    stopwatch = Stopwatch(environment, environment.clock)
    for number in range(exchanges + 1):
        if number in (0, 7):
            stopwatch.reset({})
        for event in stopwatch.wait():
            environment.clock.ms += OWN_MS
            stopwatch.send(event.worker, {})
    return stopwatch.exchange


def test_only_the_environment_counts_and_only_once_it_is_warm() -> None:
    found = measured(Clocked(Clock(), [900] * 5 + [7, 30, 8, 7, 8, 7, 8]), 10)
    assert found.ms == pytest.approx(8)
    assert found.players == 1
    assert measured(Clocked(Clock(), [900, 12]), 2).ms == pytest.approx(12)
    assert measured(Clocked(Clock(), [900]), 1).ms == pytest.approx(900)
    assert measured(Clocked(Clock(), []), 0) == Exchange()


def test_copies_in_this_process_make_one_exchange() -> None:
    found = measured(Clocked(Clock(), [900] * 5 + [5] * 15, [900] * 5 + [6] * 15), 15)
    assert found.players == 2
    assert 11 <= found.ms <= 11 + OWN_MS


class Patient(gymnasium.Env[Any, Any]):
    """A world that takes its time."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.03)
        self.steps += 1
        return np.full(3, action[0], np.float32), float(action[0]), self.steps == 10, False, {}


@pytest.fixture
def proposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs ``init`` with a break-even, and returns what it printed and the settings that it wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(survey, "_MESSAGES", 60)

    def run(break_even_ms: float, *arguments: str) -> tuple[str, RunSettings]:
        monkeypatch.setattr(suggestions, "BREAK_EVEN_MS", break_even_ms)
        assert main(["init", "-o", "first.yaml", *arguments]) == 0
        text = Path("first.yaml").read_text(encoding="utf-8")
        printed = capsys.readouterr().out
        (line,) = re.findall("^(One exchange takes .*?\\.) Which", printed, re.MULTILINE)
        assert f"# {line}\n" in text
        return line, load(text, "first.yaml")

    return run


def pace_after(steps: int, behavior: str) -> dict[str, Any]:
    """Trains with what ``init`` wrote, and returns how many gradient steps were made."""
    trajtrainer.learn("first.yaml", run_id="first", verbose=False, max_epochs=1, epoch_steps=steps)
    state = torch.load(Path("results", "first", behavior, "checkpoint.pt"), weights_only=True)
    found: dict[str, Any] = state["trajtrainer"]["sac"]["pace"]
    return found


@pytest.mark.slow
def test_a_slow_player_is_trained_by_sac_while_it_computes(proposed: Any) -> None:
    port = f"--base-port={free_ports(1)}"
    line, settings = proposed(35, "--env=sim:3DBall", port, "--env-args", "--step-ms", "40")
    assert float(line.split()[3]) >= 40
    assert " ms (12 agents)." in line
    assert settings.behaviors["3DBall"].trainer_type == "sac"
    assert not settings.behaviors["3DBall"].threaded
    pace = pace_after(1800, "3DBall")
    assert pace["steps_per_update"] == "auto"
    assert pace["count"] > 1


@pytest.mark.slow
def test_players_at_the_same_time_make_more_exchanges(proposed: Any) -> None:
    port = f"--base-port={free_ports(2)}"
    line, settings = proposed(1e6, "--env=sim:3DBall", port, "--num-envs=2", "--env-args", "--step-ms", "40")
    one, every = map(float, re.findall(r"(\d+) ms", line))
    assert one >= 40
    assert every == pytest.approx(one / 2, abs=1)
    assert "with 2 players one every" in line
    assert line.endswith("(24 agents).")
    assert settings.behaviors["3DBall"].trainer_type == "ppo"


def test_a_slow_environment_in_this_process_is_learned_from_in_a_thread(proposed: Any) -> None:
    line, settings = proposed(25, f"--env=python:{__name__}:Patient")
    assert float(line.split()[3]) >= 30
    assert settings.behaviors["Patient"].trainer_type == "sac"
    assert settings.behaviors["Patient"].threaded
    found = trajtrainer.learn("first.yaml", run_id="first", verbose=False, max_epochs=1, epoch_steps=30)
    assert found.behaviors.keys() == {"Patient"}
