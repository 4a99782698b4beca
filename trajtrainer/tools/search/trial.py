"""The process of a trial: ``trajtrainer learn`` with the configuration of the trial.

Only files connect it to the search, which reads its event files, and asks it to end by its stop file.
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

_SAVING_S = 60  # how long a trial may take to save everything when the search is gone
_TAIL_LINES = 20
_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """The end of a trial.

    Attributes:
        value: what it reached; None if it did not get to its end.
        is_pruned: it was ended because others do better.
        error: why it failed; empty if it did not. A trial with none of the three was interrupted.
    """

    value: float | None = None
    is_pruned: bool = False
    error: str = ""


class TrialHandle(Protocol):
    """A process of a trial, here or on another machine."""

    def is_running(self) -> bool:
        """Whether it has not ended."""

    def kill(self) -> None:
        """End it at once. What it has started ends with it."""

    def end(self) -> str:
        """Wait for its end; return how it failed, with the last lines of its output. Empty if it did not fail."""


class TrialProcess:
    """A run in a process of its own, whose output goes to a file. It saves everything and ends if this process dies.

    Implements ``TrialHandle``.

    Args:
        configuration: of the run, with its run id; the output is next to it, as ``.log``.

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
                # Ctrl-C reaches the search only, which then asks its trials to end.
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
        how = f"was ended by the signal {names[code]}" if code in names else f"ended with the exit code {code}"
        return "\n  ".join([f"its process {how}", *lines])


def measure(series: Series, measured: Measured, sign: int) -> float:
    """The number by which a run is judged; ``sign`` is 1 if more is better, otherwise -1."""
    if measured is Measured.END:
        return late_mean(series)
    if measured is Measured.BEST:
        return float(series.high.max() if sign > 0 else series.low.min())
    return float(series.values.mean())
