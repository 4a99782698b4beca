"""An environment of one agent whose episodes last five steps, and the settings of runs with lessons in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from trajtrainer.core.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, StepBatch
from trajtrainer.envs.protocol import Parameters
from trajtrainer.run.assembly import Session
from trajtrainer.run.session import train
from trajtrainer.settings.environment import ConstantSettings
from trajtrainer.settings.yaml.convert import load

NAME = "Les"
LENGTH = 5
_SENSOR = ObservationSpec((1,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "time")
SPEC = BehaviorSpec([_SENSOR], ActionSpec(1, ()))


class Fives:
    """Episodes of five steps, each of which gives ``reward``.

    Attributes:
        steps: that were made.
        received: (the step with which a value of ``my_param`` arrived, the value); 0 for a reset before the first step.
        resets: the steps before which the environment was reset.
    """

    num_workers = 1

    def __init__(self, *, reward: float = 0.2, group: int = 0) -> None:
        self.steps = 0
        self.received: list[tuple[int, float]] = []
        self.resets: list[int] = []
        self._reward = reward
        self._group = group
        self._time = 0
        self._due = False
        self._is_reset = False

    def reset(self, parameters: Parameters) -> None:
        self.resets.append(self.steps)
        self._note(self.steps, parameters)
        self._time, self._due, self._is_reset = 0, True, True

    def set_parameters(self, parameters: Parameters) -> None:
        self._note(self.steps + 1, parameters)

    def _note(self, step: int, parameters: Parameters) -> None:
        for sampler in parameters.values():
            assert isinstance(sampler, ConstantSettings)
            self.received.append((step, sampler.value))

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        if not self._due:
            return []
        self._due = False
        ends = self._time == LENGTH
        self._time = 0 if ends else self._time
        num = 1 + ends
        reward = 0.0 if self._is_reset else self._reward
        step = StepBatch(
            agent=np.zeros(num, np.int64),
            obs=(np.full((num, 1), self._time, np.float32),),
            reward=np.array([reward, 0.0][:num], np.float32),
            group=np.full(num, self._group, np.int32),
            group_reward=np.array([float(self._group), 0.0] if ends else [0.0], np.float32),
            mask=np.zeros((num, 0), np.bool_),
            interrupted=np.zeros(int(ends), np.bool_),
            num_terminal=int(ends),
        )
        event = EnvironmentEvent(0, {NAME: step}, {NAME: SPEC} if self._is_reset else {}, [], self._is_reset)
        self._is_reset = False
        return [event]

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        assert not self._due, "an answer to a message from before a reset"
        self.steps += 1
        self._time += 1
        self._due = True

    def close(self) -> None: ...

    def kill(self) -> None: ...


def lessons(count: int, **criteria: Any) -> dict[str, Any]:
    """``count`` lessons that end by these criteria, and a last one. Their values are 1, 2, ...."""
    ends = {"completion_criteria": {"behavior": NAME, **criteria}}
    curriculum = [{"name": f"L{n}", "value": n + 1, **(ends if n < count else {})} for n in range(count + 1)]
    return {"my_param": {"curriculum": curriculum}}


def settings(folder: Path, parameters: dict[str, Any], run: dict[str, Any] | None = None, **own: Any) -> dict[str, Any]:
    behavior = {
        "trainer_type": "ppo",
        "hyperparameters": {"batch_size": 256, "buffer_size": 4096, "num_epoch": 1},
        "network_settings": {"hidden_units": 8, "num_layers": 1},
        "max_steps": 900,
        "summary_freq": 5000,
        "time_horizon": 64,
    }
    return {
        "behaviors": {NAME: {**behavior, **own}},
        "environment_parameters": parameters,
        "env_settings": {"seed": 7, "env_path": "python:tests.run.fives:Fives"},
        "checkpoint_settings": {"run_id": "run", "results_dir": str(folder)},
        "torch_settings": {"device": "cpu"},
        **(run or {}),
    }


def played(given: dict[str, Any], *environments: Fives) -> Session:
    """Train to the end. The second environment is for evaluations."""
    made = iter(environments)
    return train(load(yaml.safe_dump(given), "fives.yaml"), None, lambda *_: next(made))
