"""Versions and capabilities: who understands whom (reference 5.3)."""

from __future__ import annotations

import re

from trajtrainer.unity.faults import PlayerVersionError
from trajtrainer.unity.proto.communicator_pb2 import UnityRLCapabilitiesProto

API_VERSION = "1.5.0"
_API = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:[-+.].*)?")
_PACKAGE_MAJOR = re.compile(r"\s*(\d+)")
_CHANNELS_FIRST_SINCE = 3


def check_api_version(player_version: str, package_version: str) -> None:
    """Accepts every player of our major version, as both sides of the wire do.

    Raises:
        PlayerVersionError: another major version, or no version.
    """
    match = _API.fullmatch(player_version)
    if match and match[1] == API_VERSION.split(".", maxsplit=1)[0]:
        return
    raise PlayerVersionError(
        f"The player speaks version {player_version!r} of the ML-Agents communication API "
        f"(com.unity.ml-agents {package_version or 'of unknown version'}), this trainer speaks {API_VERSION}. "
        "Versions 1.0 to 1.5 fit, that is com.unity.ml-agents 1.0 to 4.x: update the package in the Unity project and "
        "build the player again."
    )


def sends_channels_last(package_version: str) -> bool:
    """Whether the package sends pictures as (height, width, channels): all before 3.0 do.

    A version that is none, as a player of another make may send, counts as current.
    """
    match = _PACKAGE_MAJOR.match(package_version)
    return match is not None and int(match[1]) < _CHANNELS_FIRST_SINCE


def capabilities() -> UnityRLCapabilitiesProto:
    """Everything this trainer understands, which is everything there is."""
    return UnityRLCapabilitiesProto(
        baseRLCapabilities=True,
        concatenatedPngObservations=True,
        compressedChannelMapping=True,
        hybridActions=True,
        trainingAnalytics=True,
        variableLengthObservation=True,
        multiAgentGroups=True,
    )
