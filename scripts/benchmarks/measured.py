"""An environment wrapper that measures the CPU time of a run per agent step."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping

from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.protocol import Environment, Parameters


class Measured:
    """Measures from the first message after ``warm_up`` agent steps to the last message of the run.

    Everything in between counts, but not the start and the final save.
    """

    def __init__(self, environment: Environment, warm_up: int) -> None:
        self._environment = environment
        self._warm_up = warm_up
        self.num_workers = environment.num_workers
        self._before = self._steps = 0
        self._begin_cpu_s = self._end_cpu_s = 0.0

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        events = self._environment.wait(timeout_s)
        now_cpu_s = time.process_time()
        steps = sum(batch.num_decisions for event in events for batch in event.steps.values())
        if not self._begin_cpu_s:
            self._before += steps
            if self._before >= self._warm_up:
                gc.freeze()  # otherwise, a full collection takes 0.1 s because of torch's objects
                self._begin_cpu_s = time.process_time()
            return events
        self._end_cpu_s = now_cpu_s
        self._steps += steps
        return events

    def reset(self, parameters: Parameters) -> None:
        self._environment.reset(parameters)

    def set_parameters(self, parameters: Parameters) -> None:
        self._environment.set_parameters(parameters)

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        self._environment.send(worker, actions)

    def close(self) -> None:
        self._environment.close()

    def kill(self) -> None:
        self._environment.kill()

    @property
    def cpu_ms_per_1000_steps(self) -> float:
        """CPU time of all threads of this process."""
        return 1e6 * (self._end_cpu_s - self._begin_cpu_s) / self._steps
