"""Publishes a run's metrics in Prometheus' text format, on a port and in a file (``monitoring`` in the settings).

``prometheus_client`` serves them from its own threads. The threads read the latest values from ``RunMetrics``, so slow
clients do not slow down training.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from trajtrainer.core import atomic
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.listening import is_loopback, listen
from trajtrainer.core.metrics import HELP, MAX_STEPS, PREFIX, MetricSample, of_summary
from trajtrainer.core.printable import one_line
from trajtrainer.core.stats import StatsSummary, StatsWriter
from trajtrainer.core.version import __version__
from trajtrainer.settings.monitoring import MonitoringSettings
from trajtrainer.settings.run import RunSettings

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily

logger = logging.getLogger(__name__)


def check_monitoring(settings: RunSettings) -> None:
    """Check that the metrics can be served and written.

    Raises:
        SettingsError: the package is missing, or the port or file cannot be used. The message has one line per problem.
    """
    monitoring, faults = settings.monitoring, []
    if monitoring is None:
        return
    if find_spec("prometheus_client") is None:
        faults.append(
            "monitoring needs the package prometheus-client, which is not installed. Install it with: pip install "
            "'trajtrainer[metrics]'."
        )
    if monitoring.metrics_port is not None:
        try:
            listen(monitoring.metrics_address, monitoring.metrics_port).close()
        except OSError as error:
            faults.append(_refusal(monitoring, error))
    if monitoring.metrics_file is not None:
        file = Path(monitoring.metrics_file)
        try:
            if file.is_dir():
                raise OSError("it is a folder; expected a file")
            if not file.parent.is_dir():
                raise OSError(f"the folder {file.parent} does not exist")
            atomic.try_writing(file.parent, 1)
        except OSError as error:
            faults.append(
                f"monitoring.metrics_file: {file} cannot be written: {error.strerror or error}. Choose another "
                "--metrics-file."
            )
    if faults:
        raise SettingsError("\n".join(faults))


def _refusal(monitoring: MonitoringSettings, error: OSError) -> str:
    """Return the error message for metrics that cannot be served, with the reason and advice."""
    address, reason = monitoring.metrics_address, error.strerror or error
    if isinstance(error, socket.gaierror):
        return f"monitoring.metrics_address: this machine has no address {address} ({reason})."
    return (
        f"monitoring.metrics_port: the metrics cannot be served at {address}, port {monitoring.metrics_port}: {reason}."
        " Another run or program may be using the port: choose another --metrics-port (0 picks a free one)."
    )


class RunMetrics(StatsWriter):
    """Keeps the latest value of each metric, and publishes them as configured."""

    def __init__(self, run_id: str, settings: MonitoringSettings, *, writes: bool = True) -> None:
        """Start publishing.

        Args:
            run_id: value of the label ``run`` of all metrics.
            settings: where to publish the metrics.
            writes: True if the file may be written.

        Raises:
            SettingsError: the metrics cannot be served on the port, for example because it is in use.
        """
        from prometheus_client import CollectorRegistry

        self._run_id = run_id
        self._state: Callable[[], str] = lambda: "running"
        self._began = self._updated = time.time()
        self._values: dict[str, dict[str, float]] = {}
        self._lock = threading.Lock()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._server: WSGIServer | None = None
        if settings.metrics_port is not None:
            self._server = _serve(settings, settings.metrics_port, self._registry)
            address = settings.metrics_address
            host = f"[{address}]" if ":" in address else address
            logger.info("Metrics: http://%s:%d/metrics", host, self._server.server_port)
        self._file = Path(settings.metrics_file) if settings.metrics_file is not None and writes else None
        self._is_failing = False
        self._write()

    def follow(self, state: Callable[[], str]) -> None:
        self._state = state

    def add_settings(self, category: str, settings: Mapping[str, Any]) -> None:
        self._add(category, {MAX_STEPS: float(settings["max_steps"])})

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        self._add(category, of_summary(values, step))

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        self._write()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the current metrics for ``prometheus_client``. Can be called from any thread."""
        from prometheus_client.core import GaugeMetricFamily

        run = {"run": self._run_id}
        samples = [
            MetricSample("build_info", 1, {"version": __version__}),
            MetricSample("run_state", 1, {**run, "state": self._state()}),
            MetricSample("run_start_time_seconds", self._began, run),
            MetricSample("run_updated_time_seconds", self._updated, run),
        ]
        samples += [
            MetricSample(name, number, {**run, "behavior": behavior})
            for behavior, numbers in list(self._values.items())
            for name, number in numbers.items()
        ]
        metrics: dict[str, GaugeMetricFamily] = {}
        for sample in samples:
            if sample.name not in metrics:
                name = f"{PREFIX}{sample.name}"
                metrics[sample.name] = GaugeMetricFamily(name, HELP[sample.name], labels=list(sample.labels))
            metrics[sample.name].add_metric([one_line(text) for text in sample.labels.values()], sample.value)
        return metrics.values()

    def _add(self, category: str, numbers: Mapping[str, float]) -> None:
        with self._lock:  # a trainer's thread and the evaluation thread may write at the same time
            # Replace the behavior's dictionary instead of changing it, so that readers can iterate over it at any time.
            self._values[category] = {**self._values.get(category, {}), **numbers}
            self._updated = time.time()
            self._write()

    def _write(self) -> None:
        from prometheus_client import generate_latest

        if self._file is None:
            return
        try:
            atomic.write_unsynced(self._file, generate_latest(self._registry).decode())
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                reason = error.strerror or error
                logger.error("The metrics could not be written to %s: %s. Training continues.", self._file, reason)
            self._is_failing = True


def metrics_writer(settings: RunSettings) -> RunMetrics | list[StatsWriter]:
    """Create the writer that publishes a run's metrics.

    Returns:
        The writer, or an empty list if the settings have no ``monitoring``.

    Raises:
        SettingsError: the metrics cannot be served on the port, for example because it is in use.
    """
    monitoring, checkpoints = settings.monitoring, settings.checkpoint_settings
    return [] if monitoring is None else RunMetrics(checkpoints.run_id, monitoring, writes=not checkpoints.inference)


class _Handler(WSGIRequestHandler):
    timeout = 5.0  # closes idle connections

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


def _serve(settings: MonitoringSettings, port: int, registry: CollectorRegistry) -> WSGIServer:
    from prometheus_client import make_wsgi_app, start_http_server

    address = settings.metrics_address
    try:
        server, _ = start_http_server(port, address, registry)
    except OSError as error:
        raise SettingsError(_refusal(settings, error)) from error
    server.RequestHandlerClass = _Handler
    if is_loopback(address):
        server.set_app(_for_this_machine(make_wsgi_app(registry)))
    return server


def _for_this_machine(app: WSGIApplication) -> WSGIApplication:
    """Refuse requests for other host names, so that a website cannot reach this server through DNS rebinding."""

    def guarded(request: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            is_known = is_loopback(urlsplit(f"//{request.get('HTTP_HOST') or 'localhost'}").hostname or "")
        except ValueError:
            is_known = False
        if is_known:
            return app(request, start_response)
        start_response("421 Misdirected Request", [])
        return [b"This server does not have that name.\n"]

    return guarded
