"""A trial: one run of a search, in a process of its own."""

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.core.filenames import behavior_file_name
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.process import ChildProcess, lead_process_group
from trajtrainer.policies.folder.series import Series, read_scalars
from trajtrainer.run.api.epochs import EpochMeter
from trajtrainer.run.session import session
from trajtrainer.run.signals import StopRequest
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.search import Measured
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import load
from trajtrainer.tools.spread import late_mean

logger = logging.getLogger(__name__)

MESSAGE = b"t"  # a message of a trial, besides the messages that all processes share
_END_S = 0.5
_SAVING_S = 60  # how long a trial may take to save everything when the search is gone

Tell = Callable[[Mapping[str, Any]], None]

_LONGEST_LINE = 1 << 20
_TAIL_LINES = 20
_TAIL_S = 1.0


@dataclass(frozen=True, slots=True)
class TrialTask:
    """One run of a search.

    Attributes:
        settings: as YAML.
        behavior: the one whose metric is measured.
        metric: a tag.
        measured: a value of ``Measured``.
        sign: 1 if more is better, otherwise -1.
        reports: how many intermediate values the run reports.
    """

    settings: str
    behavior: str
    metric: str
    measured: str
    sign: int
    reports: int


def run_trial(given: tuple[TrialTask, messages.Pipe], connection: messages.Pipe, lifeline: messages.Pipe) -> None:
    """Run a task, as a child of the search; what the run prints goes to the pipe given with it.

    END makes it save everything and end. So does the end of the search, even by SIGKILL.
    """
    task, output = given
    if sys.platform == "win32":  # its pipes cannot replace these
        printed = os.open(os.devnull, os.O_WRONLY)
    else:
        printed = output.fileno()
    for stream in (1, 2):
        os.dup2(printed, stream)
    output.close()
    lead_process_group()
    pipe, stop, is_search_gone = messages.LockedPipe(connection), StopRequest(), threading.Event()

    def obey() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                messages.read(connection)
                _interrupt(stop)
        is_search_gone.set()
        _interrupt(stop)

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            lifeline.recv_bytes()
        if not is_search_gone.wait(_END_S):  # so the search has killed it
            os._exit(1)

    def tell(message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            pipe.post(MESSAGE, dict(message))

    for target in (obey, watch):
        threading.Thread(target=target, name=target.__name__, daemon=True).start()
    logging.getLogger("trajtrainer").setLevel(logging.INFO)  # for the run's own log
    try:
        run(task, tell, stop)
    except TrajtrainerError as error:
        tell({"error": str(error)})
        sys.exit(1)
    except Exception as error:
        logger.exception("The run failed.")
        tell({"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)


def run(task: TrialTask, tell: Tell, stop: StopRequest) -> None:
    """Train, and report the mean of the metric since the last report, and its measure at the end.

    Raises:
        TrajtrainerError: whatever ended the run early.
    """
    settings = load(task.settings, "the trial's configuration")
    checkpoints = settings.checkpoint_settings
    folder = Path(checkpoints.results_dir) / checkpoints.run_id / behavior_file_name(task.behavior)
    with session(settings, None, stop=stop) as opened:
        if opened.loop is not None:
            meter, last = EpochMeter(opened.loop, max(1, num_steps(settings) // task.reports)), -1
            while opened.step():
                if not meter.is_over():
                    continue
                number = meter.current
                meter.finish()
                series = read_scalars(folder).get(task.metric)
                if series is not None and series.steps[-1] > last:
                    tell({"report": number, "value": float(series.values[series.steps > last].mean())})
                    last = int(series.steps[-1])
    if stop.requested:
        tell({"stopped": True})
        return
    scalars = read_scalars(folder)
    if task.metric not in scalars:
        there = ", ".join(scalars) or "nothing"
        tell({"error": f"behavior {task.behavior!r} has not written {task.metric!r}; it has: {there}"})
        return
    tell({"value": measure(scalars[task.metric], Measured(task.measured), task.sign)})


def measure(series: Series, measured: Measured, sign: int) -> float:
    """The number by which a run is judged; ``sign`` is 1 if more is better, otherwise -1."""
    if measured is Measured.END:
        return late_mean(series)
    if measured is Measured.BEST:
        return float(series.high.max() if sign > 0 else series.low.min())
    return float(series.values.mean())


def num_steps(settings: RunSettings) -> int:
    """The steps of a run, summed over all listed behaviors."""
    default = settings.default_settings or TrainerSettings()
    return sum(behavior.max_steps for behavior in settings.behaviors.values()) or default.max_steps


def _interrupt(stop: StopRequest) -> None:
    if stop.requested:
        return
    stop.request(signal.SIGINT)
    if sys.platform == "win32":
        import _thread

        _thread.interrupt_main()
    else:  # a real signal, which also ends waiting
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


class TrialHandle(Protocol):
    """A trial that runs here or on another machine. Any thread may call ``stop`` and ``kill``, several times."""

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield its messages until it has ended."""

    def stop(self) -> None:
        """Ask it to save everything and end."""

    def kill(self) -> None:
        """End it at once."""

    def end(self) -> str:
        """Wait for its end, after all messages; return how it ended ("was ended by the signal SIGKILL")."""


class TrialProcess:
    """A trial in a process of its own on this machine. Implements ``TrialHandle``."""

    def __init__(self, task: TrialTask) -> None:
        self._output, output_of_child = multiprocessing.Pipe(duplex=False)
        self._process = ChildProcess(
            run_trial,
            (task, output_of_child),
            "trial",
            title="process of a trial",
            log_as="Trial",
            grace_s=_SAVING_S,
        )
        output_of_child.close()
        self._lock = threading.Lock()  # of the pipe
        self._last_lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._reader = threading.Thread(target=self._read_output, name="output of a trial", daemon=True)
        self._reader.start()

    def messages(self) -> Iterator[dict[str, Any]]:
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = self._process.read()
                if message is not None:
                    yield message[1]

    def stop(self) -> None:
        with self._lock:
            self._process.post(messages.END)

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> str:
        with self._lock:
            how = self._process.bury()
        self._reader.join(_TAIL_S)
        return how + "".join(f"\n  {line}" for line in self._last_lines)

    def _read_output(self) -> None:
        if sys.platform != "win32":  # where the child cannot write to this pipe
            with open(self._output.fileno(), "rb", closefd=False) as stream, contextlib.suppress(OSError):
                for line in iter(lambda: stream.readline(_LONGEST_LINE), b""):
                    self._last_lines.append(line.decode(errors="replace").rstrip())
        self._output.close()
