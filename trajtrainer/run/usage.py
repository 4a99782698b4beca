"""CPU, memory and GPU usage of a run."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import psutil
import torch

from trajtrainer.core.metrics import GIB

# Limit the rate of measurements: each takes milliseconds, and some runs write many summaries per second.
_PAUSE_S = 1.0
_PAUSE_PER_COST = 200


class ResourceUsage:
    """A source of resource usage statistics for all behaviors of a run. Thread-safe. Measures at most once a second.

    - ``Perf/CPU``: number of CPU cores that this process and its child processes kept busy since the last measurement
      (1.0 is one core).
    - ``Perf/Memory``: resident memory of these processes in GiB. Shared memory is counted once per process.
    - ``Perf/GPU``: fraction of the time that the GPU was busy, if the package nvidia-ml-py is installed.
    - ``Perf/GPU Memory``: GPU memory in GiB that PyTorch has reserved.
    """

    def __init__(self, device: torch.device) -> None:
        """Start measuring.

        Args:
            device: the device that the run trains on.
        """
        self._device = device
        self._lock = threading.Lock()
        self._process = psutil.Process()
        self._newest: dict[str, float] = {}
        self._time = time.monotonic()
        self._due_s = 0.0
        self._seconds, _ = self._measure()

    def __call__(self) -> dict[str, float]:
        """Return the newest value of each tag."""
        with self._lock:
            begin = time.monotonic()
            if begin >= self._due_s and begin > self._time:
                seconds, memory = self._measure()
                # A new process has spent all its CPU time since the last measurement.
                spent = sum(each - self._seconds.get(key, 0.0) for key, each in seconds.items())
                self._newest = {"Perf/CPU": spent / (begin - self._time), "Perf/Memory": memory / GIB, **self._gpu()}
                self._seconds, self._time = seconds, begin
                self._due_s = begin + max(_PAUSE_S, _PAUSE_PER_COST * (time.monotonic() - begin))
            return dict(self._newest)

    def _measure(self) -> tuple[dict[tuple[int, float], float], float]:
        """Return the CPU seconds of each process, and the memory of all processes in bytes.

        Processes are identified by pid and start time, because pids are reused.
        """
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
            with contextlib.suppress(Exception):  # nvidia-ml-py is missing, or the driver does not support this
                found["Perf/GPU"] = torch.cuda.utilization(self._device) / 100
        elif self._device.type == "mps":
            found["Perf/GPU Memory"] = torch.mps.driver_allocated_memory() / GIB
        return found
