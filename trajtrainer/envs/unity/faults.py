"""Errors of players.

Each is one of our errors and also ML-Agents' exception, so that code written for ``mlagents_envs`` catches it.
"""

from __future__ import annotations

from mlagents_envs import exception

from trajtrainer.core.errors import EnvironmentFaultError, InvalidDataError, TrajtrainerError


class LaunchError(EnvironmentFaultError, exception.UnityEnvironmentException):
    """The player's program was not found or could not be started."""


class PlayerVersionError(EnvironmentFaultError, exception.UnityEnvironmentException):
    """The player speaks another major version of the wire."""


class PlayerDiedError(EnvironmentFaultError, exception.UnityEnvironmentException):
    """The player's process ended unexpectedly."""


class PlayerQuitError(EnvironmentFaultError, exception.UnityCommunicatorStoppedException):
    """The player quit, or its connection is lost."""


class PlayerTimeoutError(EnvironmentFaultError, exception.UnityTimeOutException):
    """The player never connected, or stopped answering."""


class PortInUseError(EnvironmentFaultError, exception.UnityWorkerInUseException):
    """Another program listens on the worker's port."""

    def __init__(self, message: str) -> None:
        # ML-Agents' constructor takes a worker id and makes a message of it.
        Exception.__init__(self, message)


class InvalidObservationError(InvalidDataError, exception.UnityObservationException):
    """An agent's message does not fit what the behavior announced, or has numbers that cannot be learned from."""


class NotFiniteError(InvalidObservationError, RuntimeError):
    """An agent sent NaN or an infinity, for which ML-Agents raises a ``RuntimeError``."""


class ActionError(TrajtrainerError, exception.UnityActionException):
    """Actions that do not fit the agents or the action space they are for."""


class SideChannelError(TrajtrainerError, exception.UnityEnvironmentException):
    """Side channels that cannot be used together."""
