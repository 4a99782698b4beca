"""What a run reports of its use of CPU, memory and GPU."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
import torch

from trajtrainer.core.metrics import GIB
from trajtrainer.run import usage
from trajtrainer.run.usage import ResourceUsage

CPU = torch.device("cpu")
BUSY = "import time\nblock = bytearray(200 << 20)\nprint(flush=True)\nwhile True: pass"


@pytest.fixture
def busy_child() -> Iterator[subprocess.Popen[str]]:
    """A process that keeps a core busy, and 200 MiB."""
    child = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child:
        child.stdout.readline()
        yield child
        child.kill()


def test_processes_that_the_run_started_count(busy_child: subprocess.Popen[str]) -> None:
    alone = psutil.Process().memory_info().rss / GIB
    found = ResourceUsage(CPU)
    before, begin = sum(psutil.Process(busy_child.pid).cpu_times()[:2]), time.monotonic()
    time.sleep(0.5)
    values = found()
    spent, elapsed = sum(psutil.Process(busy_child.pid).cpu_times()[:2]) - before, time.monotonic() - begin
    assert values.keys() == {"Perf/CPU", "Perf/Memory"}
    assert values["Perf/CPU"] >= 0.5 * spent / elapsed > 0
    assert values["Perf/Memory"] > alone + 0.19


def test_it_measures_at_most_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ResourceUsage(CPU)
    measured: list[int] = []
    measure = found._measure

    def counting() -> tuple[dict[tuple[int, float], float], float]:
        measured.append(1)
        return measure()

    monkeypatch.setattr(found, "_measure", counting)
    assert len({tuple(found().values()) for _ in range(100)}) == 1
    assert len(measured) == 1
    found._due_s = 0.0
    found()
    assert len(measured) == 2


def test_the_pause_grows_with_the_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ResourceUsage(CPU)
    measure = found._measure

    def slow() -> tuple[dict[tuple[int, float], float], float]:
        time.sleep(0.05)
        return measure()

    monkeypatch.setattr(found, "_measure", slow)
    found()
    assert found._due_s - found._time >= usage._PAUSE_PER_COST * 0.05


def test_a_process_that_ends_in_between_and_one_whose_pid_comes_again() -> None:
    found = ResourceUsage(CPU)
    mine = next(iter(found._seconds))
    found._seconds = {(mine[0], mine[1] - 100.0): 1e9}  # another process had this pid, and used far more
    assert 0 <= found()["Perf/CPU"] < 1e6


def test_a_system_that_hides_processes_costs_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(*_: object, **__: object) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "children", hidden)
    monkeypatch.setattr(psutil.Process, "create_time", hidden)
    assert ResourceUsage(CPU)() == {"Perf/CPU": 0.0, "Perf/Memory": 0.0}


def test_several_trainers_may_ask_at_once() -> None:
    found = ResourceUsage(CPU)
    answers: list[dict[str, float]] = []
    threads = [threading.Thread(target=lambda: answers.append(found())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({tuple(each.items()) for each in answers}) == 1


@pytest.mark.parametrize("has_nvml", [True, False])
def test_a_gpu(has_nvml: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def utilization(device: torch.device) -> int:
        if not has_nvml:
            raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")
        assert device == torch.device("cuda:1")
        return 37

    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3 << 29)
    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    values = ResourceUsage(torch.device("cuda:1"))()
    assert values["Perf/GPU Memory"] == 1.5
    assert values.get("Perf/GPU") == (0.37 if has_nvml else None)
