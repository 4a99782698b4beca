"""The shipped configuration publishes metrics."""

from __future__ import annotations

from trajtrainer.settings.presets import config_path
from trajtrainer.settings.yaml.convert import read_file, run_settings


def test_the_shipped_configuration_publishes_metrics() -> None:
    settings = run_settings(*read_file(config_path("builtin:monitoring/Basic")))
    assert settings.monitoring is not None
    assert settings.monitoring.metrics_port == 9464
    assert settings.monitoring.metrics_address == "127.0.0.1"
