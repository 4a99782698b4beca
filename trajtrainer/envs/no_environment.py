"""The environment of a run that needs none: no worker, and so never an event."""

from __future__ import annotations

import time
from collections.abc import Mapping

from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.protocol import Parameters


class NoEnvironment:
    """No workers; see ``Environment``."""

    num_workers = 0

    def reset(self, parameters: Parameters) -> None:
        """Do nothing."""

    def set_parameters(self, parameters: Parameters) -> None:
        """Do nothing."""

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        """Wait that long; nothing will come."""
        time.sleep(timeout_s or 0.0)
        return []

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def kill(self) -> None:
        """Do nothing."""
