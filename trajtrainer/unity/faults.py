"""Errors of players.

Each is our error and ML-Agents' exception too, so that code written for ``mlagents_envs`` catches what it always
caught.
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
    """The player's process ended unasked."""


class PlayerQuitError(EnvironmentFaultError, UnityCommunicatorStoppedException):
    """The player said goodbye, or its connection is gone."""


class PlayerTimeoutError(EnvironmentFaultError, UnityTimeOutException):
    """The player never connected, or stopped answering."""


class PortInUseError(EnvironmentFaultError, UnityWorkerInUseException):
    """Another program listens on the worker's port."""

    def __init__(self, message: str) -> None:
        # ML-Agents' own constructor takes a worker id and makes a text of it.
        Exception.__init__(self, message)


class InvalidObservationError(InvalidDataError, UnityObservationException):
    """An agent's message does not fit what the behavior announced, or holds numbers no one can learn from."""


class NotFiniteError(InvalidObservationError, RuntimeError):
    """An agent sent NaN or an infinity, for which ML-Agents raises a ``RuntimeError``."""


class ActionError(TrajtrainerError, UnityActionException):
    """Actions that do not fit the agents or the action space they are for."""


class SideChannelError(TrajtrainerError, UnityEnvironmentException):
    """Side channels that cannot be used together."""
