"""An environment in columns: one agent is rewarded for naming the color of a lamp, three times per episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from mlagents_envs.base_env import DimensionProperty, ObservationType

from trajtrainer import ActionBatch, ActionSpec, BehaviorSpec, EnvironmentEvent, ObservationSpec, StepBatch

SENSOR = ObservationSpec((2,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "lamp")
SPEC = BehaviorSpec([SENSOR], ActionSpec(0, (2,)))
STEPS = 3


class Lamp:
    """An ``Environment`` with a single worker. ``python:trajtrainer_sample.lamp:Lamp`` in ``env_path`` makes one."""

    num_workers = 1

    def __init__(self, seed: int = 0) -> None:
        self._generator = np.random.default_rng(seed)
        self._is_announced = False
        self._color = self._step = 0
        self._events: list[EnvironmentEvent] = []

    def reset(self, parameters: Mapping[str, Any]) -> None:
        self._step = 0
        self._events = [self._event(reward=0.0, ended=False, is_reset=True)]

    def set_parameters(self, parameters: Mapping[str, Any]) -> None:
        pass  # it has none

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        events, self._events = self._events, []
        return events

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        reward = float(actions["Lamp"].discrete[0, 0] == self._color)
        self._step += 1
        self._events = [self._event(reward, ended=self._step % STEPS == 0, is_reset=False)]

    def close(self) -> None:
        pass

    kill = close

    def _event(self, reward: float, *, ended: bool, is_reset: bool) -> EnvironmentEvent:
        """Return the agent's next request for a decision, after the end of the episode if it has ended."""
        color, self._color = self._color, int(self._generator.integers(2))
        seen = np.eye(2, dtype=np.float32)[[color, self._color] if ended else [self._color]]
        rows = len(seen)
        batch = StepBatch(
            agent=np.zeros(rows, np.int64),  # worker << 32 | id
            obs=(seen,),
            reward=np.array([reward, 0.0] if ended else [reward], np.float32),
            group=np.zeros(rows, np.int32),
            group_reward=np.zeros(rows, np.float32),
            mask=np.zeros((rows, 2), bool),
            interrupted=np.zeros(int(ended), bool),
            num_terminal=int(ended),
        )
        new_specs = {} if self._is_announced else {"Lamp": SPEC}
        self._is_announced = True
        return EnvironmentEvent(0, {"Lamp": batch}, new_specs, is_reset=is_reset)
