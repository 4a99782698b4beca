"""The process of a trial: ``trajtrainer learn`` with the configuration of the trial.

The search communicates with it only through files: it reads the run's event files, and writes a stop file to stop it.
"""

import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trajtrainer.envs.workers.guard import Guard
from trajtrainer.policies.folder.series import Series
from trajtrainer.settings.search import Measured
from trajtrainer.tools.spread import late_mean

_SAVING_S = 60  # how long a trial may take to save everything if the search process dies
_TAIL_LINES = 20
_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """The outcome of a trial. If it has no value, was not pruned and has no error, it was interrupted.

    Attributes:
        value: the value that the trial reached; None if it did not complete.
        is_pruned: True if it was stopped early because other trials do better.
        error: why it failed; empty if it did not fail.
    """

    value: float | None = None
    is_pruned: bool = False
    error: str = ""


class TrialHandle(Protocol):
    """The process of a trial, on this machine or another one."""

    def is_running(self) -> bool:
        """Return whether the process is still running."""

    def kill(self) -> None:
        """Kill the process and everything that it has started."""

    def end(self) -> str:
        """Wait for the process to end; return how it failed and the last lines of its output, or "" if it succeeded."""


class TrialProcess:
    """A run in a separate process, whose output goes to a file. It saves everything and exits if this process dies.

    Implements ``TrialHandle``.

    Args:
        configuration: file with the run's configuration, including its run id. The output goes to a ``.log`` file next
            to it.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self, configuration: Path) -> None:
        self._log = configuration.with_suffix(".log")
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "trajtrainer", "learn", str(configuration), "--resume=auto"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches only the search, which then asks its trials to stop.
                process_group=0,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        self._guard = Guard(self._process.pid, "process of a trial", asks=True, grace_s=_SAVING_S)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> str:
        code = self._process.wait()
        self._guard.release()
        if code == 0:
            self._log.unlink(missing_ok=True)
            return ""
        with self._log.open("rb") as output:
            output.seek(max(0, self._log.stat().st_size - _TAIL_BYTES))
            lines = output.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
        names = {-number: number.name for number in signal.Signals}
        how = f"was killed by the signal {names[code]}" if code in names else f"exited with code {code}"
        return "\n  ".join([f"its process {how}", *lines])


def measure(series: Series, measured: Measured, sign: int) -> float:
    """Return the number by which a run is judged; ``sign`` is 1 if higher is better, otherwise -1."""
    if measured is Measured.END:
        return late_mean(series)
    if measured is Measured.BEST:
        return float(series.high.max() if sign > 0 else series.low.min())
    return float(series.values.mean())
