"""Where one environment lives: in this process or in a worker's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from trajtrainer.envs.protocol import Parameters
from trajtrainer.errors import EnvironmentFaultError
from trajtrainer.steps import ActionBatch, EnvironmentEvent


class WorkerDiedError(EnvironmentFaultError):
    """The process of a worker ended, or stopped answering."""


class Connected:
    """What a seat reports when its environment is there and waits for its first reset."""


CONNECTED = Connected()
Report = Connected | EnvironmentEvent | EnvironmentFaultError
"""What comes from a seat. After a fault its environment is gone, and ``start`` makes another."""


class Seat(Protocol):
    """One environment, which comes, fails and comes again. Nothing here waits but ``close``.

    After ``start`` it reports ``CONNECTED``, after ``reset`` and ``send`` an event, and at any time a fault.
    """

    @property
    def number(self) -> int: ...

    def start(self) -> None:
        """Starts an environment, in place of the last one."""

    def reset(self, parameters: Parameters) -> None:
        """Lets the environment begin all episodes anew, with these parameters; the others stay as they are."""

    def send(self, actions: Mapping[str, ActionBatch], parameters: Parameters) -> None:
        """Answers the last event and lets the environment go on, with these parameters."""

    def kill(self) -> None:
        """Ends the environment at once and does not wait. For signal handlers: quick, and takes no lock."""


class Seats(Protocol):
    """All seats of a run, numbered from 0."""

    def __getitem__(self, number: int, /) -> Seat: ...

    def __len__(self) -> int: ...

    def reports(self, timeout_s: float | None) -> Sequence[tuple[int, Report]]:
        """Waits until something comes from any seat; returns it with the seat's number, at most one thing per seat.

        May return nothing before the time is over.

        Raises:
            TrajtrainerError: what was sent to an environment cannot be.
        """

    def close(self) -> None:
        """Ends all environments and waits for their end. May be called again."""
