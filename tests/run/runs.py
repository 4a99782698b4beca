"""Real runs of the command line, in processes of their own, against built-in simulations over real gRPC."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.ports import free_ports
from tests.run import prefork

TIMEOUT_S = 600


@dataclass
class FinishedRun:
    exit_code: int
    output: str
    folder: Path

    @property
    def log(self) -> str:
        """What the run wrote to its log file."""
        return (self.folder / "run_logs" / "trainer.log").read_text(encoding="utf-8")

    def status(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "run_logs" / "training_status.json").read_text())
        return content

    def scalars(self, behavior: str) -> dict[str, list[tuple[int, float]]]:
        """TensorBoard scalars: tag -> (step, value)."""
        events = EventAccumulator(str(self.folder / behavior), size_guidance={"scalars": 0})
        events.Reload()
        return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}

    def rewards_by_step(self, behavior: str) -> list[tuple[int, float]]:
        return self.scalars(behavior)["Environment/Cumulative Reward"]

    def rewards(self, behavior: str) -> list[float]:
        return [value for _, value in self.rewards_by_step(behavior)]

    def assert_reached(self, behavior: str) -> None:
        """The training has ended because the mean return of 20 episodes or more reached ``stop.reward``."""
        assert self.exit_code == 0, self.output
        stopped = self.status()[behavior].get("stopped")
        assert stopped is not None, self.rewards(behavior)
        assert stopped["by"] == "reward", stopped


class LearnProcess:
    """``trajtrainer learn`` as a user starts it. Ended at the latest when the test is over."""

    started: ClassVar[list[LearnProcess]] = []

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any] | Path,
        *arguments: str,
        run_id: str = "run",
        program: str | None = None,
    ) -> None:
        """``program`` is code that gets the arguments in place of ``-m trajtrainer``."""
        self.folder = folder / "results" / run_id
        config = folder / "config.yaml"
        if isinstance(settings, Path):
            config = settings
        else:
            config.write_text(yaml.safe_dump(settings, sort_keys=False))
        self._log = folder / f"{run_id}-{time.monotonic_ns()}.log"
        command = ["learn", str(config), f"--run-id={run_id}"]
        command += [f"--results-dir={folder / 'results'}", f"--base-port={free_ports(4)}", *arguments]
        with self._log.open("w") as log:
            self.process = prefork.start(command, log, program)
        self.started.append(self)

    @property
    def output(self) -> str:
        return self._log.read_text()

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
        """Waits until ``condition`` holds. Fails when the run ends or the time is over before."""
        end = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, f"the run ended early:\n{self.output}"
            assert time.monotonic() < end, f"not within {timeout_s} s:\n{self.output}"
            time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def finish(self, timeout_s: float = TIMEOUT_S) -> FinishedRun:
        try:
            code = self.process.wait(timeout_s)
        finally:
            self.process.kill()
            self.process.wait()
        return FinishedRun(code, self.output, self.folder)


def learn(folder: Path, settings: dict[str, Any] | Path, *arguments: str, run_id: str = "run") -> FinishedRun:
    """A run to its end."""
    return LearnProcess(folder, settings, *arguments, run_id=run_id).finish()


def behaviors_settings(**behaviors: dict[str, Any]) -> dict[str, Any]:
    return {"behaviors": behaviors, "env_settings": {"seed": 7}, "torch_settings": {"device": "cpu"}}


def ppo(max_steps: int, **changes: Any) -> dict[str, Any]:
    """PPO settings that learn the small tasks fast."""
    settings: dict[str, Any] = {
        "trainer_type": "ppo",
        "hyperparameters": {
            "batch_size": 32,
            "buffer_size": 256,
            "learning_rate": 3e-3,
            "learning_rate_schedule": "constant",
        },
        "network_settings": {"hidden_units": 16, "num_layers": 1},
        "time_horizon": 32,
        "max_steps": max_steps,
        "summary_freq": 1000,
        "checkpoint_interval": 10_000,
    }
    for key, value in changes.items():
        settings[key] = {**settings[key], **value} if isinstance(settings.get(key), dict) else value
    return settings


def living_processes(arguments: Sequence[str]) -> list[int]:
    """Pids of living processes whose command line holds all of ``arguments``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if all(argument in command for argument in arguments):
                found.append(int(entry.name))
    return found
