"""Environments without a player, for worker processes: picklable makers, faults on request."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.envs import clockwork
from tests.envs.clockwork import BEHAVIOR, SPEC, SentLog, batch, claim_incarnation
from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.core.steps import ActionBatch, Aggregation, EnvironmentEvent, Statistic
from trajtrainer.envs.protocol import Parameters
from trajtrainer.settings.environment import ConstantSettings

FOREVER_S = 600.0


def misbehave(how: str) -> None:
    """What a fault does."""
    if how == "raise":
        raise EnvironmentFaultError("raised on request")
    if how == "bug":
        raise KeyError("a bug on request")
    if how == "exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(FOREVER_S)


@dataclass
class ClockworkMaker:
    """Makes clockwork environments that fail at times drawn from a seed.

    Attributes:
        folder: of the logs of what was sent.
        faults: kinds, as in ``misbehave``, drawn evenly; ``start`` and ``reset`` raise there. None for no faults.
        lives: how many incarnations of each worker fail; later ones do not.
        longest: life of an incarnation in messages.
    """

    folder: Path
    faults: list[str] = field(default_factory=list)
    lives: int = 0
    longest: int = 40
    step_s: float = 0.0

    def __call__(self, worker: int) -> ClockworkEnvironment:
        incarnation = claim_incarnation(self.folder, worker)
        draw = Random(incarnation)
        fails = bool(self.faults) and incarnation % 1000 < self.lives
        fault, at = (draw.choice(self.faults), draw.randrange(1, self.longest)) if fails else ("", -1)
        if fault == "start":
            misbehave("raise")
        return ClockworkEnvironment(worker, incarnation, fault, at, SentLog(self.folder, incarnation), self.step_s)


class ClockworkEnvironment:
    """See ``clockwork``. Message ``at`` is not sent, it fails instead."""

    num_workers = 1

    def __init__(self, worker: int, incarnation: int, fault: str, at: int, log: SentLog, step_s: float) -> None:
        self._worker = worker
        self._incarnation = incarnation
        self._fault, self._at = fault, at
        self._log = log
        self._step_s = step_s
        self._time = -1
        self._is_reset = False

    def reset(self, parameters: Parameters) -> None:
        if self._fault == "reset":
            misbehave("raise")
        self._time = 0
        self._is_reset = True

    def set_parameters(self, parameters: Parameters) -> None:
        pass

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        time.sleep(self._step_s)
        if self._time == self._at:
            misbehave(self._fault)
        self._log.note()
        specs = {BEHAVIOR: SPEC} if self._is_reset else {}
        event = EnvironmentEvent(
            self._worker, {BEHAVIOR: batch(self._worker, self._incarnation, self._time)}, specs, [], self._is_reset
        )
        self._is_reset = False
        return [event]

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        expected = clockwork.actions_for(clockwork.decisions(self._incarnation, self._time))
        if actions[BEHAVIOR].env_continuous.tolist() != expected.env_continuous.tolist():
            raise AssertionError(f"{actions} at {self._time}, expected {expected}")
        self._time += 1

    def close(self) -> None:
        self._log.close()

    def kill(self) -> None:
        pass


class EchoEnvironment:
    """Reports its parameters, resets and process as statistics, and has as many agents as its parameter ``agents``."""

    num_workers = 1

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._parameters: dict[str, float] = {}
        self._is_reset = False
        self._specs = {BEHAVIOR: SPEC}
        self._copies = 1

    def reset(self, parameters: Parameters) -> None:
        self.set_parameters(parameters)
        self._is_reset = True

    def set_parameters(self, parameters: Parameters) -> None:
        for name, sampler in parameters.items():
            assert isinstance(sampler, ConstantSettings)
            self._parameters[name] = sampler.value

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        copies = int(self._parameters.get("copies", 1))
        step = batch(self._worker, 0, 0)
        rows = [0] * (copies - 1) + list(range(len(step)))
        step.agent = step.agent[rows]
        step.obs = (step.obs[0][rows],)
        step.reward, step.group, step.group_reward = step.reward[rows], step.group[rows], step.group_reward[rows]
        step.mask = step.mask[rows]
        values = {**self._parameters, "process": os.getpid()}
        statistics = [Statistic(name, value, Aggregation.AVERAGE) for name, value in values.items()]
        specs, self._specs = self._specs, {}
        is_reset, self._is_reset = self._is_reset, False
        return [EnvironmentEvent(self._worker, {BEHAVIOR: step}, specs, statistics, is_reset)]

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        pass

    def close(self) -> None:
        pass

    def kill(self) -> None:
        pass
