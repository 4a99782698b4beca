"""Metrics of a run in Prometheus' text format, at a port and in a file (``monitoring`` in the settings).

::

    trainers' threads --write_stats--> RunMetrics <--text()-- thread of the server (any number of scrapes)
                                                  <--text()-- thread of the file

Training only copies a few numbers into ``RunMetrics``. Both threads read them from there, so neither a slow reader nor
a slow disk holds training up. The server answers all connections in one thread. It has a deadline for each, and closes
the oldest if there are too many.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trajtrainer.core import atomic
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.listening import is_loopback, listen
from trajtrainer.core.metrics import CONTENT_TYPE, MAX_STEPS, MetricSample, exposition, of_summary
from trajtrainer.core.stats import StatsSummary, StatsWriter
from trajtrainer.core.version import __version__
from trajtrainer.settings.monitoring import MonitoringSettings
from trajtrainer.settings.run import RunSettings

logger = logging.getLogger(__name__)

_MOST_CONNECTIONS = 32
_LONGEST_REQUEST = 8192
_REQUEST_S = 5.0  # for a whole connection
_READY_S = 10.0
_PAUSE_S = 1.0  # between two writes of the file
_END_S = 5.0  # how long the end of a run waits for the last write of the file
_ANSWERS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 421: "Misdirected Request"}


def check_monitoring(settings: RunSettings) -> None:
    """Check that the metrics can be served and written.

    Raises:
        SettingsError: has a line for each thing that is in the way.
    """
    monitoring, faults = settings.monitoring, []
    if monitoring is None:
        return
    if monitoring.metrics_port is not None:
        try:
            _listen(monitoring.metrics_address, monitoring.metrics_port).close()
        except SettingsError as error:
            faults.append(str(error))
    if monitoring.metrics_file is not None:
        file = Path(monitoring.metrics_file)
        problem = "it is a folder; expected a file" if file.is_dir() else None
        if problem is None and not file.parent.is_dir():
            problem = f"the folder {file.parent} does not exist"
        if problem is None:
            try:
                atomic.try_writing(file.parent, 1)
            except OSError as error:
                problem = error.strerror or str(error)
        if problem is not None:
            faults.append(
                f"monitoring.metrics_file: {file} cannot be written: {problem}. Choose another --metrics-file."
            )
    if faults:
        raise SettingsError("\n".join(faults))


def _listen(address: str, port: int) -> Any:
    try:
        return listen(address, port)
    except socket.gaierror as error:
        raise SettingsError(
            f"monitoring.metrics_address: this machine has no address {address} ({error.strerror})."
        ) from error
    except OSError as error:
        raise SettingsError(
            f"monitoring.metrics_port: the metrics cannot be served at {address}, port {port}: "
            f"{error.strerror or error}. Another run or program may have the port: choose another --metrics-port "
            "(0 takes a free one)."
        ) from error


class RunMetrics(StatsWriter):
    """Keeps the newest value of each metric, and publishes them as the settings ask."""

    def __init__(self, run_id: str, settings: MonitoringSettings, *, writes: bool = True) -> None:
        """Start to publish.

        Args:
            run_id: the label ``run`` of all metrics.
            settings: what to publish where.
            writes: whether the file may be written.

        Raises:
            SettingsError: the port is taken.
        """
        self._run_id = run_id
        self._state: Callable[[], str] = lambda: "running"
        self._began = self._updated = time.time()
        self._values: dict[str, dict[str, float]] = {}
        self._lock = threading.Lock()
        self._file: MetricsFile | None = None
        self._server: MetricsServer | None = None
        if settings.metrics_port is not None:
            self._server = MetricsServer(settings.metrics_address, settings.metrics_port, self.text)
            logger.info("Metrics: %s", self._server.url)
        if settings.metrics_file is not None and writes:
            self._file = MetricsFile(Path(settings.metrics_file), self.text)

    def follow(self, state: Callable[[], str]) -> None:
        self._state = state

    def add_settings(self, category: str, settings: Mapping[str, Any]) -> None:
        self._add(category, {MAX_STEPS: float(settings["max_steps"])})

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        self._add(category, of_summary(values, step))

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._file is not None:
            self._file.close()

    def text(self) -> str:
        """The metrics as of now. Safe in any thread."""
        with self._lock:
            values = {behavior: dict(numbers) for behavior, numbers in self._values.items()}
            updated = self._updated
        run = {"run": self._run_id}
        samples = [
            MetricSample("build_info", 1, {"version": __version__}),
            MetricSample("run_state", 1, {**run, "state": self._state()}),
            MetricSample("run_start_time_seconds", self._began, run),
            MetricSample("run_updated_time_seconds", updated, run),
        ]
        samples += [
            MetricSample(name, number, {**run, "behavior": behavior})
            for behavior, numbers in values.items()
            for name, number in numbers.items()
        ]
        return exposition(samples)

    def _add(self, category: str, numbers: Mapping[str, float]) -> None:
        with self._lock:
            self._values.setdefault(category, {}).update(numbers)
            self._updated = time.time()
        if self._file is not None:
            self._file.renew()


def metrics_writer(settings: RunSettings) -> RunMetrics | list[StatsWriter]:
    """The writer that publishes the metrics of a run.

    Raises:
        SettingsError: the port is taken.
    """
    monitoring, checkpoints = settings.monitoring, settings.checkpoint_settings
    return [] if monitoring is None else RunMetrics(checkpoints.run_id, monitoring, writes=not checkpoints.inference)


class MetricsFile:
    """A file that a thread replaces atomically after summaries, at most once a second."""

    def __init__(self, path: Path, text: Callable[[], str]) -> None:
        self._path = path
        self._text = text
        self._is_due, self._ends = threading.Event(), threading.Event()
        self._is_due.set()
        self._is_failing = False
        self._thread = threading.Thread(target=self._work, name="metrics file", daemon=True)
        self._thread.start()

    def renew(self) -> None:
        """Let the thread write the file soon."""
        self._is_due.set()

    def close(self) -> None:
        """Write it for the last time, unless the disk takes too long."""
        self._ends.set()
        self._is_due.set()
        self._thread.join(_END_S)

    def _work(self) -> None:
        is_last = False
        while not is_last:
            self._is_due.wait()
            self._is_due.clear()  # before the text is made, so that what changes from here on is written as well
            is_last = self._ends.is_set()
            try:
                atomic.write_unsynced(self._path, self._text())
                self._is_failing = False
            except OSError as error:
                if not self._is_failing:
                    reason = error.strerror or error
                    logger.error("The metrics could not be written to %s: %s. Training continues.", self._path, reason)
                self._is_failing = True
            if not is_last:
                self._ends.wait(_PAUSE_S)


class MetricsServer:
    """Serves ``/metrics`` in one thread.

    Attributes:
        url: of the metrics.
    """

    def __init__(self, address: str, port: int, text: Callable[[], str]) -> None:
        """Start serving.

        Args:
            address: to listen at.
            port: 0 takes a free one.
            text: makes the content of each response.

        Raises:
            SettingsError: the port is taken.
        """
        self._text = text
        self._listener = _listen(address, port)
        self._is_open = not is_loopback(address)
        self._connections: dict[asyncio.Task[Any], None] = {}  # oldest first
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self._listener.getsockname()[1]}/metrics"
        self._ends: Callable[[], object] | None = None
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), name="metrics", daemon=True)
        self._thread.start()
        self._is_ready.wait(_READY_S)

    def close(self) -> None:
        """Stop listening, and drop all connections."""
        if self._ends is not None:
            self._ends()
        self._thread.join(_END_S)

    async def _serve(self) -> None:
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connect, sock=self._listener, limit=_LONGEST_REQUEST)

        def ends() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(end.set)

        self._ends = ends
        self._is_ready.set()
        await end.wait()
        server.close()
        for task in self._connections:
            task.cancel()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= _MOST_CONNECTIONS:
            oldest = next(iter(self._connections))
            self._connections.pop(oldest)
            oldest.cancel()
        self._connections[task] = None
        try:
            async with asyncio.timeout(_REQUEST_S):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._response(request.decode("latin-1")))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the other side left, sent nothing or too much, or had to make room
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()

    def _response(self, request: str) -> bytes:
        head, *lines = request.split("\r\n")
        method, _, rest = head.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        fields = dict(line.lower().split(":", 1) for line in lines if ":" in line)
        status, body = 200, ""
        if not rest:
            status, body = 400, "This is not an HTTP request.\n"
        elif not self._knows(fields.get("host", "").strip()):
            status, body = 421, "This server does not have that name.\n"
        elif path != "/metrics":
            status, body = 404, "The metrics are at /metrics.\n"
        elif method not in ("GET", "HEAD"):
            status, body = 405, "Use GET.\n"
        else:
            body = self._text()
        content = body.encode("utf-8", "backslashreplace")
        header = (
            f"HTTP/1.1 {status} {_ANSWERS[status]}\r\nContent-Type: {CONTENT_TYPE}\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        return header.encode() + (b"" if method == "HEAD" else content)

    def _knows(self, host: str) -> bool:
        """Whether a ``Host`` header fits. A site must not reach this server by resolving its own name to loopback."""
        try:
            return self._is_open or not host or is_loopback(urlsplit(f"//{host}").hostname or "")
        except ValueError:
            return False
