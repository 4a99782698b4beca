"""``monitoring``: numbers for Prometheus and the like. Not in ML-Agents (docs/operate/monitoring.md)."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import optional

from trajtrainer.settings.checks import OURS, between, satisfies
from trajtrainer.settings.environment import LARGEST_PORT, LOOPBACK


@frozen
class MonitoringSettings:
    """``monitoring``: where a run publishes its metrics in Prometheus' text format.

    Attributes:
        metrics_port: serve them at ``http://ADDRESS:PORT/metrics`` as long as the run lasts; 0 takes a free port, which
            the log shows.
        metrics_address: the address to serve them at. By default only this machine can read them. There is no token:
            with ``0.0.0.0`` anyone who reaches the port can.
        metrics_file: write them to this file after each summary, for the textfile collector of node_exporter, which
            reads files that end in ``.prom``.
    """

    metrics_port: int | None = field(default=None, metadata=OURS, validator=optional(between(0, LARGEST_PORT)))
    metrics_address: str = field(default=LOOPBACK, metadata=OURS, validator=satisfies(bool, "an address"))
    metrics_file: str | None = field(default=None, metadata=OURS, validator=optional(satisfies(bool, "a file")))
