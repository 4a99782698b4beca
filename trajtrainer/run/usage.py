"""CPU, memory and GPU that a run uses."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import psutil
import torch

from trajtrainer.core.metrics import GIB

# Looking at all processes takes milliseconds, and some runs write many summaries in a second.
_PAUSE_S = 1.0
_PAUSE_PER_COST = 200


class ResourceUsage:
    """A source of statistics for all behaviors of a run; thread-safe. It measures at most once a second.

    - ``Perf/CPU``: CPU cores that this process and those that it started kept busy since the last measurement, 1.0 for
      one core.
    - ``Perf/Memory``: their resident memory in GiB. Memory that several of them share counts for each.
    - ``Perf/GPU``: share of the time in which the GPU was busy, if the package nvidia-ml-py is installed.
    - ``Perf/GPU Memory``: GiB of the GPU's memory that PyTorch has reserved.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin to count.

        Args:
            device: on which the run trains.
        """
        self._device = device
        self._lock = threading.Lock()
        self._process = psutil.Process()
        self._newest: dict[str, float] = {}
        self._time = time.monotonic()
        self._due_s = 0.0
        self._seconds, _ = self._measure()

    def __call__(self) -> dict[str, float]:
        """Tag -> newest value."""
        with self._lock:
            begin = time.monotonic()
            if begin >= self._due_s and begin > self._time:
                seconds, memory = self._measure()
                # A process that was not there before has spent all of its time since then.
                spent = sum(each - self._seconds.get(key, 0.0) for key, each in seconds.items())
                self._newest = {"Perf/CPU": spent / (begin - self._time), "Perf/Memory": memory / GIB, **self._gpu()}
                self._seconds, self._time = seconds, begin
                self._due_s = begin + max(_PAUSE_S, _PAUSE_PER_COST * (time.monotonic() - begin))
            return dict(self._newest)

    def _measure(self) -> tuple[dict[tuple[int, float], float], float]:
        """Seconds of CPU time by process (pid and start, since pids are used again), and bytes of memory of all."""
        seconds, memory = {}, 0.0
        for process in self._processes():
            with contextlib.suppress(psutil.Error, OSError), process.oneshot():
                times = process.cpu_times()
                seconds[process.pid, process.create_time()] = times.user + times.system
                memory += process.memory_info().rss
        return seconds, memory

    def _processes(self) -> Iterator[psutil.Process]:
        yield self._process
        with contextlib.suppress(psutil.Error, OSError):
            yield from self._process.children(recursive=True)

    def _gpu(self) -> dict[str, float]:
        found: dict[str, float] = {}
        if self._device.type == "cuda":
            found["Perf/GPU Memory"] = torch.cuda.memory_reserved(self._device) / GIB
            with contextlib.suppress(Exception):  # without nvidia-ml-py, or with a driver that does not measure this
                found["Perf/GPU"] = torch.cuda.utilization(self._device) / 100
        elif self._device.type == "mps":
            found["Perf/GPU Memory"] = torch.mps.driver_allocated_memory() / GIB
        return found
