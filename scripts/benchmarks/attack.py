"""What strangers on the port cost: pace before, during and after each attack, memory, and how long an end takes."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from scripts.benchmarks.measured import resident_mb
from scripts.benchmarks.ppo import BALL
from scripts.benchmarks.report import Row
from scripts.benchmarks.strangers import ATTACKS
from scripts.benchmarks.wire import no_actions, player_arguments
from trajtrainer.envs.unity_environment import UnityWorker
from trajtrainer.settings.environment import EngineSettings, EnvironmentSettings

AGENTS, FLOATS = 12, 8
PORT = 16200
WARM_UP_S, MEASURED_S, SETTLE_S = 0.5, 1.0, 0.5
ROUNDS = 3
END_LIMIT_S = 5.0
ENDED_BY_SIGNAL = ("nothing", "WINDOW_UPDATE of 0", "refused calls", "16 MB of zeros in HEADERS")


def measure() -> list[Row]:
    rows = []
    for name in ATTACKS:
        rows += attacked(name)
    return [*rows, *(Row(f"{name}: SIGTERM to end", "s", [terminated(name)], END_LIMIT_S) for name in ENDED_BY_SIGNAL)]


def attacked(name: str) -> list[Row]:
    """Steps one player, which does nothing but answer, in a flood."""
    settings = EnvironmentSettings(
        env_path="sim:Bench", base_port=PORT, env_args=player_arguments(AGENTS, FLOATS), timeout_wait=30
    )
    environment = UnityWorker(settings, EngineSettings(), seed=0)
    try:
        environment.reset({})
        pace(environment, WARM_UP_S)
        first, held = pace(environment, MEASURED_S)
        beside, during, held_then = [first], [], held
        for _ in range(ROUNDS):
            with strangers(name, PORT):
                pace(environment, SETTLE_S)
                found, held_now = pace(environment, MEASURED_S)
            during.append(found)
            held_then = max(held_then, held_now)
            pace(environment, SETTLE_S)
            beside.append(pace(environment, MEASURED_S)[0])
        with strangers(name, PORT):
            pace(environment, SETTLE_S)
            begin = time.perf_counter()
            environment.close()
            end_s = time.perf_counter() - begin
    finally:
        environment.close()
    return [
        Row(f"{name}: before", "exchanges/s", beside[:-1]),
        Row(f"{name}: during", "exchanges/s", during, 0.95 * statistics.median(beside)),
        Row(f"{name}: after", "exchanges/s", beside[1:]),
        Row(f"{name}: held for strangers", "MB", [held_then - held], 32),
        Row(f"{name}: close", "s", [end_s], END_LIMIT_S),
    ]


def pace(environment: UnityWorker, duration_s: float) -> tuple[float, float]:
    """Exchanges per second, and the largest resident memory in MB that was seen."""
    count, held, begin = 0, 0.0, time.perf_counter()
    while (passed_s := time.perf_counter() - begin) < duration_s:
        for event in environment.wait(1.0):
            count += 1
            environment.send(0, {name: no_actions(batch.num_decisions) for name, batch in event.steps.items()})
        if count % 256 == 0:
            held = max(held, resident_mb(os.getpid()))
    return count / passed_s, max(held, resident_mb(os.getpid()))


@contextlib.contextmanager
def strangers(name: str, port: int) -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-m", "scripts.benchmarks.strangers", name, str(port)]) as process:
        try:
            yield
        finally:
            process.kill()


def terminated(name: str) -> float:
    """Seconds that a training takes from SIGTERM to its end, everything saved, in a flood."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(yaml.safe_dump(BALL.settings()))
        command = [sys.executable, "-m", "trajtrainer", "learn", str(config), f"--results-dir={folder}/results"]
        command += [f"--base-port={PORT}", f"--env={BALL.player[0]}", "--env-args", *BALL.player[1:]]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if "Connected new brain" in line:
                    break
            with strangers(name, PORT):
                time.sleep(SETTLE_S)
                begin = time.perf_counter()
                process.send_signal(signal.SIGTERM)
                process.stdout.read()
                process.wait()
                return time.perf_counter() - begin
