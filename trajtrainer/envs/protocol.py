"""The environment interface that the collector uses: several workers, each of which answers independently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.settings.environment import Sampler

Parameters = Mapping[str, Sampler]
"""Maps the name of each environment parameter to the sampler of its values."""


@runtime_checkable
class Environment(Protocol):
    """One or more environments (the workers), numbered from 0 to ``num_workers - 1``.

    Each worker takes turns with the collector: it sends an event, waits until ``send`` answers it, and sends the next.
    Workers do not wait for each other. The collector starts by resetting all workers.
    """

    @property
    def num_workers(self) -> int:
        """The number of workers."""

    def reset(self, parameters: Parameters) -> None:
        """Ask every worker to start new episodes with ``parameters``. Returns immediately.

        ``parameters`` may contain all environment parameters, or only those that have changed. Events that have not
        been answered yet need no answer. The next event of each worker has ``is_reset`` set.

        Raises:
            EnvironmentFaultError: a worker is gone.
        """

    def set_parameters(self, parameters: Parameters) -> None:
        """Change parameters without a reset. They are sent with the next message to each worker."""

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        """Wait until at least one worker has sent an event, and return all events that have arrived.

        Returns:
            The events; an empty list if none arrived within ``timeout_s`` seconds.

        Raises:
            EnvironmentFaultError: a worker died, quit, hung or sent unusable data, and is not restarted.
        """

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        """Answer the last event of one worker, with rows in the order of its decisions, and return immediately.

        Behaviors without an agent that asked for a decision may be left out.

        Raises:
            EnvironmentFaultError: the worker is gone.
        """

    def close(self) -> None:
        """Shut down all workers and wait for them to exit. May be called more than once."""

    def kill(self) -> None:
        """Kill all workers without waiting. Signal handlers call this, so it must be fast and take no lock."""


@runtime_checkable
class Launched(Protocol):
    """An ``Environment`` of separate programs, which load while the trainer prepares."""

    def connect(self) -> None:
        """Wait until the first program is ready. Does nothing the next time.

        Raises:
            EnvironmentFaultError: the programs cannot be used. They have been closed.
        """

    def report_device(self, device: str) -> None:
        """Tell the programs, with their first reset, which torch device the networks are on."""


def connect(environment: Environment) -> None:
    """Wait until an environment is ready, if it may only have been launched."""
    if isinstance(environment, Launched):
        environment.connect()


def report_device(environment: Environment, device: str | None) -> None:
    """Report the torch device to an environment of separate programs, if the device is known."""
    if device is not None and isinstance(environment, Launched):
        environment.report_device(device)


class PlayerLogs(Protocol):
    """Provides the paths of the players' logs."""

    def player_log(self, worker: int) -> Path | None:
        """Return the path of the log file ``Player-<worker>.log``, or None if no files may be written."""


@dataclass(frozen=True, slots=True)
class LogFolder:
    """``PlayerLogs`` in a fixed folder, which is None if no files may be written."""

    folder: Path | None

    def player_log(self, worker: int) -> Path | None:
        return None if self.folder is None else self.folder / f"Player-{worker}.log"
