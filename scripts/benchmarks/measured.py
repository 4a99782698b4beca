"""An environment that counts what passes through it, while a run is at work."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Mapping
from pathlib import Path

from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.protocol import Environment, Parameters


class Measured:
    """Counts from the first message after ``warm_up`` agent steps to the last message of the run.

    So neither start-up nor the last save is in the figures, but everything that goes on in between is.
    """

    def __init__(self, environment: Environment, warm_up: int) -> None:
        self._environment = environment
        self._warm_up = warm_up
        self.num_workers = environment.num_workers
        self._before = self._steps = self._forwards = 0
        self._waited_s = self._begin_s = self._end_s = self._begin_cpu_s = self._end_cpu_s = 0.0
        self._worker_mb = 0.0

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        begin_s = time.perf_counter()
        events = self._environment.wait(timeout_s)
        now_s, now_cpu_s = time.perf_counter(), time.process_time()
        steps = sum(batch.num_decisions for event in events for batch in event.steps.values())
        if not self._begin_s:
            self._before += steps
            if self._before >= self._warm_up:
                gc.freeze()  # else a full collection, 0.1 s through all of torch's objects, falls into it or not
                self._begin_s, self._begin_cpu_s = time.perf_counter(), time.process_time()
            return events
        self._end_s, self._end_cpu_s = now_s, now_cpu_s
        self._waited_s += now_s - begin_s
        self._steps += steps
        self._forwards += bool(steps)
        return events

    def reset(self, parameters: Parameters) -> None:
        self._environment.reset(parameters)

    def set_parameters(self, parameters: Parameters) -> None:
        self._environment.set_parameters(parameters)

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        self._environment.send(worker, actions)

    def close(self) -> None:
        processes = [process.pid for process in multiprocessing.active_children()]
        if processes and not self._worker_mb:
            self._worker_mb = sum(map(resident_mb, processes)) / len(processes)
        self._environment.close()

    def kill(self) -> None:
        self._environment.kill()

    @property
    def steps_per_second(self) -> float:
        return self._steps / (self._end_s - self._begin_s)

    @property
    def forwards_per_second(self) -> float:
        return self._forwards / (self._end_s - self._begin_s)

    @property
    def idle_percent(self) -> float:
        """How much of the time the collector waited for environments (in other processes)."""
        return 100 * self._waited_s / (self._end_s - self._begin_s)

    @property
    def cpu_ms_per_1000_steps(self) -> float:
        """Of this process, all threads."""
        return 1e6 * (self._end_cpu_s - self._begin_cpu_s) / self._steps

    @property
    def worker_mb(self) -> float:
        """Resident memory of a worker process, on average, when the run closed them."""
        return self._worker_mb


def resident_mb(pid: int | None) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return float("nan")
