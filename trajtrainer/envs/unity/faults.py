"""Errors of players.

Each class is both one of our errors and ML-Agents' exception, so that code written for ``mlagents_envs`` catches it.
"""

from __future__ import annotations

from mlagents_envs import exception

from trajtrainer.core.errors import EnvironmentFaultError, InvalidDataError, TrajtrainerError


class LaunchError(EnvironmentFaultError, exception.UnityEnvironmentException):
    """The player's program was not found or could not be started."""


class PlayerVersionError(EnvironmentFaultError, exception.UnityEnvironmentException):
    """The player uses a different major version of the communication API."""


class PlayerDiedError(EnvironmentFaultError, exception.UnityEnvironmentException):
    """The player's process ended unexpectedly."""


class PlayerQuitError(EnvironmentFaultError, exception.UnityCommunicatorStoppedException):
    """The player quit, or its connection was lost."""


class PlayerTimeoutError(EnvironmentFaultError, exception.UnityTimeOutException):
    """The player never connected, or stopped answering."""


class PortInUseError(EnvironmentFaultError, exception.UnityWorkerInUseException):
    """Another program is listening on the worker's port."""

    def __init__(self, message: str) -> None:
        # ML-Agents' constructor takes a worker id and builds a message from it.
        Exception.__init__(self, message)


class InvalidObservationError(InvalidDataError, exception.UnityObservationException):
    """An agent's data does not match what its behavior announced, or is not usable for training."""


class NotFiniteError(InvalidObservationError, RuntimeError):
    """An agent sent NaN or infinity, for which ML-Agents raises a ``RuntimeError``."""


class ActionError(TrajtrainerError, exception.UnityActionException):
    """The actions do not fit the agents or their action space."""


class SideChannelError(TrajtrainerError, exception.UnityEnvironmentException):
    """The side channels cannot be used together."""
