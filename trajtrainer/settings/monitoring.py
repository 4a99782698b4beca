"""``monitoring``: metrics for Prometheus. Not in ML-Agents (docs/operate/monitoring.md)."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import optional

from trajtrainer.settings.checks import OURS, between, satisfies
from trajtrainer.settings.environment import LARGEST_PORT, LOOPBACK


@frozen
class MonitoringSettings:
    """``monitoring``: publication of a run's metrics in Prometheus' text format.

    Attributes:
        metrics_port: port on which to serve metrics at ``http://ADDRESS:PORT/metrics`` during the run; 0 picks a free
            port and logs it.
        metrics_address: address on which to serve metrics. By default, they can be read only from this machine. With
            ``0.0.0.0``, anyone who can reach the port can read them, because there is no authentication.
        metrics_file: file to write metrics to after each summary, for node_exporter's textfile collector. It only reads
            files that end in ``.prom``.
    """

    metrics_port: int | None = field(default=None, metadata=OURS, validator=optional(between(0, LARGEST_PORT)))
    metrics_address: str = field(default=LOOPBACK, metadata=OURS, validator=satisfies(bool, "an address"))
    metrics_file: str | None = field(default=None, metadata=OURS, validator=optional(satisfies(bool, "a file")))
