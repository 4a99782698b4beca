"""Environments as the collector knows them: a number of workers that answer whenever they are ready."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.settings.environment import Sampler

Parameters = Mapping[str, Sampler]
"""Environment parameter -> the sampler of its values."""


@runtime_checkable
class Environment(Protocol):
    """One or many environments, numbered from 0 to ``num_workers - 1``.

    Each worker takes turns with the collector: it sends an event, waits until ``send`` answers it, and sends the next.
    Workers do not wait for each other. The collector asks for all of them to be reset before anything else.
    """

    @property
    def num_workers(self) -> int:
        """How many workers there are."""

    def reset(self, parameters: Parameters) -> None:
        """Ask every worker to start new episodes, with ``parameters`` (all of them, or those that changed).

        Returns at once. Events that were not answered yet need no answer; each worker's next event has ``is_reset``.

        Raises:
            EnvironmentFaultError: a worker is gone.
        """

    def set_parameters(self, parameters: Parameters) -> None:
        """Change parameters without a reset. They are sent with the next message to each worker."""

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        """Wait until at least one worker has sent an event; return all that are there.

        Returns:
            Nothing if ``timeout_s`` seconds passed without any.

        Raises:
            EnvironmentFaultError: a worker died, quit, hangs or sent what cannot be used, and is not replaced.
        """

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        """Answer the last event of one worker, rows in the order of its decisions. Returns at once.

        Behaviors of which no agent asked for a decision may be absent.

        Raises:
            EnvironmentFaultError: the worker is gone.
        """

    def close(self) -> None:
        """End all workers and wait for their end. May be called again."""

    def kill(self) -> None:
        """End all workers at once and do not wait. For signal handlers: quick, and takes no lock."""


class PlayerLogs(Protocol):
    """Says where players write their logs."""

    def player_log(self, worker: int) -> Path | None:
        """``Player-<worker>.log`` in some folder; None if nothing may be written."""


@dataclass(frozen=True, slots=True)
class LogFolder:
    """``PlayerLogs`` in a folder; None if nothing may be written."""

    folder: Path | None

    def player_log(self, worker: int) -> Path | None:
        return None if self.folder is None else self.folder / f"Player-{worker}.log"
