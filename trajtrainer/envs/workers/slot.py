"""A slot: one environment of a run, in this process or in a child's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.protocol import Parameters


class ChildDiedError(EnvironmentFaultError):
    """A child process ended, or stopped answering."""


class Connected:
    """The report of a slot whose environment is there and waits for its first reset."""


CONNECTED = Connected()
Report = Connected | EnvironmentEvent | EnvironmentFaultError
"""What comes from a slot. After a fault its environment is gone, and ``start`` makes another."""


class Slot(Protocol):
    """One environment, which comes, fails and comes again. Nothing here waits but ``close``.

    After ``start`` it reports ``CONNECTED``, after ``reset`` and ``send`` an event, and at any time a fault.
    """

    @property
    def number(self) -> int:
        """The number of the worker."""

    def start(self, order: RawImageOrder = RawImageOrder.AUTO) -> None:
        """Start an environment, in place of the last one. It reads raw images in this order, if the run knows it."""

    def reset(self, parameters: Parameters) -> None:
        """Let the environment begin all episodes anew, with these parameters; the others stay as they are."""

    def send(self, actions: Mapping[str, ActionBatch], parameters: Parameters) -> None:
        """Answer the last event and let the environment go on, with these parameters."""

    def kill(self) -> None:
        """End the environment at once and do not wait. For signal handlers: quick, and takes no lock."""


class Slots(Protocol):
    """All slots of a run, numbered from 0."""

    def __getitem__(self, number: int, /) -> Slot: ...

    def __len__(self) -> int: ...

    def reports(self, timeout_s: float | None) -> Sequence[tuple[int, Report]]:
        """Wait until something comes from any slot; return it with the slot's number, at most one thing per slot.

        May return nothing before the time is over.

        Raises:
            TrajtrainerError: what was sent to an environment cannot be.
        """

    def close(self) -> None:
        """End all environments and wait for their end. May be called again."""
