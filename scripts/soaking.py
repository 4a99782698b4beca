"""``scripts/soak [MINUTES]``: a training run with several workers, where a process is killed every few seconds.

Prints the run's numbers of processes, ports, files, threads and megabytes. Fails if any of them grow, if training slows
down, or if processes or ports remain at the end. Linux only.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from tests.run import process_tree

BASE_PORT = 17300
TIMEOUT_WAIT_S = 10
_SAMPLE_S = 30.0
_SETTLE_S = 20.0
_END_WITHIN_S = 60.0
_GONE_WITHIN_S = 5.0
_STEP = re.compile(r"Step: (\d+)\.")
SETTINGS = {
    "default_settings": {
        "trainer_type": "ppo",
        "hyperparameters": {"batch_size": 64, "buffer_size": 2048},
        "network_settings": {"hidden_units": 32, "num_layers": 1},
        "max_steps": 1_000_000_000,
        "time_horizon": 64,
        "summary_freq": 5000,
        "checkpoint_interval": 100_000,
    }
}


@dataclass(frozen=True)
class Sample:
    """The resources of a run at one point in time."""

    minute: float
    step: int
    faults: int
    restarts: int
    players: int
    workers: int
    guards: int
    ports: int
    files: int
    threads: int
    main_mb: float
    worker_mb: float
    worker_files: int
    worker_threads: int


def main() -> int:
    parser = argparse.ArgumentParser("scripts/soak", description=__doc__)
    parser.add_argument("minutes", nargs="?", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--every", type=float, default=4.0, metavar="S", help="mean time between two faults")
    parser.add_argument("--step-ms", type=float, default=5.0, help="duration of a player's step (default: 5)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return _soak(Path(folder), arguments)


def _soak(folder: Path, arguments: argparse.Namespace) -> int:
    log = folder / "log.txt"
    run = _start(folder, log, arguments)
    draw = random.Random(1)
    done: Counter[str] = Counter()
    samples: list[Sample] = []
    end_s = time.monotonic() + 60 * arguments.minutes
    begin_s = time.monotonic()
    next_sample_s = begin_s + _SETTLE_S
    next_fault_s = begin_s + _SETTLE_S / 2
    print("\t".join(field.name for field in fields(Sample)), flush=True)
    while (now_s := time.monotonic()) < end_s:
        if run.poll() is not None:
            print(log.read_text()[-4000:])
            print(f"FAILED: the run ended with exit code {run.returncode}")
            return 1
        if now_s >= next_fault_s:
            done[_misdeed(run.pid, draw)] += 1
            next_fault_s = now_s + draw.expovariate(1 / arguments.every)
        if now_s >= next_sample_s:
            samples.append(_sample(run.pid, log, (now_s - begin_s) / 60, done.total(), arguments.workers))
            print("\t".join(f"{getattr(samples[-1], field.name):g}" for field in fields(Sample)), flush=True)
            next_sample_s = now_s + _SAMPLE_S
        time.sleep(max(0.0, min(next_fault_s, next_sample_s, end_s) - time.monotonic()))
    return _finish(run, log, samples, done, arguments)


def _start(folder: Path, log: Path, arguments: argparse.Namespace) -> subprocess.Popen[bytes]:
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(SETTINGS))
    command = [sys.executable, "-m", "trajtrainer", "learn", str(config), f"--results-dir={folder}", "--run-id=soak"]
    command += ["--env=sim:3DBall", f"--num-envs={arguments.workers}", f"--base-port={BASE_PORT}", "--seed=1"]
    command += ["--max-lifetime-restarts=-1", "--restarts-rate-limit-n=-1", f"--timeout-wait={TIMEOUT_WAIT_S}"]
    command += ["--env-args", "--step-ms", str(arguments.step_ms)]
    with log.open("w") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)


def _misdeed(pid: int, draw: random.Random) -> str:
    """Kill or stop one process of the run, and return a description."""
    kind, number = draw.choice(
        [
            *(("player", each) for each in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT)),
            ("player", signal.SIGSTOP),  # hangs until its worker times out
            *(("worker", each) for each in (signal.SIGKILL, signal.SIGTERM)),
        ]
    )
    victims = process_tree.players(pid) if kind == "player" else process_tree.workers(pid)
    if not victims:
        return "no process"
    try:
        os.kill(draw.choice(victims), number)
    except ProcessLookupError:
        return "no process"
    return f"{kind} {number.name}"


def _sample(pid: int, log: Path, minute: float, faults: int, workers: int) -> Sample:
    text = log.read_text(errors="replace")
    steps = _STEP.findall(text)
    processes = process_tree.workers(pid)
    commands = [process_tree.command_of(each) for each in process_tree.descendants(pid)]
    return Sample(
        minute=round(minute, 1),
        step=int(steps[-1]) if steps else 0,
        faults=faults,
        restarts=text.count("Restarting worker["),
        players=len(process_tree.players(pid)),
        workers=len(processes),
        guards=sum(process_tree.GUARD in command for command in commands),
        ports=sum(_is_listened_at(BASE_PORT + number) for number in range(10 * workers)),
        files=_entries(pid, "fd"),
        threads=_entries(pid, "task"),
        main_mb=_resident_mb(pid),
        worker_mb=max(map(_resident_mb, processes), default=0.0),
        worker_files=max((_entries(each, "fd") for each in processes), default=0),
        worker_threads=max((_entries(each, "task") for each in processes), default=0),
    )


def _finish(
    run: subprocess.Popen[bytes],
    log: Path,
    samples: list[Sample],
    done: Counter[str],
    arguments: argparse.Namespace,
) -> int:
    everything = process_tree.descendants(run.pid)
    run.send_signal(signal.SIGINT)
    try:
        code = run.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        run.kill()
        code = run.wait()
    print("\nfaults:", dict(done))
    text = log.read_text(errors="replace")
    faults = _leaks(samples, arguments.workers)
    if code != 0:
        faults.append(f"the run ended with exit code {code}\n{text[-2000:]}")
    faults += [f"{word!r} in the log" for word in ("Traceback", "leaked", "Exception ignored") if word in text]
    gone_by_s = time.monotonic() + _GONE_WITHIN_S
    while any(map(process_tree.is_alive, everything)) and time.monotonic() < gone_by_s:
        time.sleep(0.1)
    left = [pid for pid in everything if process_tree.is_alive(pid)]
    faults += [f"still running: {process_tree.command_of(pid)}" for pid in left]
    faults += [f"port {p} is in use" for p in range(BASE_PORT, BASE_PORT + arguments.workers) if _is_listened_at(p)]
    print("\n".join(f"FAILED: {fault}" for fault in faults) or "No leaks, and no remaining processes or ports.")
    return 1 if faults else 0


def _leaks(samples: list[Sample], workers: int) -> list[str]:
    """Return descriptions of the resources that grew between the first and the last third of the samples."""
    third = max(1, len(samples) // 3)
    early, late = samples[:third], samples[-third:]
    most = {"players": workers, "workers": workers, "guards": 2 * workers, "ports": workers}
    faults = [
        f"{getattr(sample, name)} {name} at minute {sample.minute}"
        for sample in samples
        for name, limit in most.items()
        if getattr(sample, name) > limit
    ]
    slack = {"files": 2, "threads": 2, "main_mb": 40, "worker_mb": 15, "worker_files": 4, "worker_threads": 4}
    for name, more in slack.items():
        first, last = (max(getattr(sample, name) for sample in part) for part in (early, late))
        if last > first + more:
            faults.append(f"{name} grew from {first:g} to {last:g}")
    if third > 1:
        before, after = (part[-1].step - part[0].step for part in (early, late))
        if after < before / 2:
            faults.append(f"training slows down: {before} steps in the first third, {after} in the last")
    return faults


def _entries(pid: int, what: str) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/{what}"))
    except OSError:
        return 0


def _is_listened_at(port: int) -> bool:
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and int(columns[1].rpartition(":")[2], 16) == port:
                return True
    return False


def _resident_mb(pid: int) -> float:
    try:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return round(int(found[1]) / 1024, 1) if found else 0.0


if __name__ == "__main__":
    sys.exit(main())
