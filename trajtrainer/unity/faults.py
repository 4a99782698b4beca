"""Errors of players.

Each is one of our errors and also ML-Agents' exception, so that code written for ``mlagents_envs`` catches it.
"""

from __future__ import annotations

from mlagents_envs.exception import (
    UnityActionException,
    UnityCommunicatorStoppedException,
    UnityEnvironmentException,
    UnityObservationException,
    UnityTimeOutException,
    UnityWorkerInUseException,
)

from trajtrainer.core.errors import EnvironmentFaultError, InvalidDataError, TrajtrainerError


class LaunchError(EnvironmentFaultError, UnityEnvironmentException):
    """The player's program was not found or could not be started."""


class PlayerVersionError(EnvironmentFaultError, UnityEnvironmentException):
    """The player speaks another major version of the wire."""


class PlayerDiedError(EnvironmentFaultError, UnityEnvironmentException):
    """The player's process ended unexpectedly."""


class PlayerQuitError(EnvironmentFaultError, UnityCommunicatorStoppedException):
    """The player quit, or its connection is lost."""


class PlayerTimeoutError(EnvironmentFaultError, UnityTimeOutException):
    """The player never connected, or stopped answering."""


class PortInUseError(EnvironmentFaultError, UnityWorkerInUseException):
    """Another program listens on the worker's port."""

    def __init__(self, message: str) -> None:
        # ML-Agents' constructor takes a worker id and makes a message of it.
        Exception.__init__(self, message)


class InvalidObservationError(InvalidDataError, UnityObservationException):
    """An agent's message does not fit what the behavior announced, or has numbers that cannot be learned from."""


class NotFiniteError(InvalidObservationError, RuntimeError):
    """An agent sent NaN or an infinity, for which ML-Agents raises a ``RuntimeError``."""


class ActionError(TrajtrainerError, UnityActionException):
    """Actions that do not fit the agents or the action space they are for."""


class SideChannelError(TrajtrainerError, UnityEnvironmentException):
    """Side channels that cannot be used together."""
