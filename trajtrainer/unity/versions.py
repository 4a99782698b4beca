"""Versions and capabilities: who understands whom (docs/mlagents-behavior.md#versions)."""

from __future__ import annotations

import enum
import re

from trajtrainer.unity.faults import PlayerVersionError
from trajtrainer.unity.proto.communicator_pb2 import UnityRLCapabilitiesProto

API_VERSION = "1.5.0"
_API = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:[-+.].*)?")
_PACKAGE_MAJOR = re.compile(r"\s*(\d{1,9})")
_CHANNELS_FIRST_SINCE = 3


class PictureOrder(enum.Enum):
    """The order of the dimensions of a picture that is sent as floats, as announced and as the floats stand."""

    CHANNELS_LAST = enum.auto()  # both (height, width, channels)
    ANNOUNCED_CHANNELS_FIRST = enum.auto()  # announced (channels, height, width), sent (height, width, channels)
    CHANNELS_FIRST = enum.auto()  # both (channels, height, width)


def check_api_version(player_version: str, package_version: str) -> None:
    """Accept every player of our major version, as both sides of the wire do.

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


def picture_order(package_version: str) -> PictureOrder:
    """Return the order in which this version of the package sends pictures.

    Packages since 3.0 announce their pictures with the channels first, but their C# goes on writing the floats with the
    channels last (``TensorShapeExtensions.Index``), and gives Unity's inference the right picture. A player of another
    make, whose version is none, is taken at its word.
    """
    match = _PACKAGE_MAJOR.match(package_version)
    if match is None:
        return PictureOrder.CHANNELS_FIRST
    if int(match[1]) < _CHANNELS_FIRST_SINCE:
        return PictureOrder.CHANNELS_LAST
    return PictureOrder.ANNOUNCED_CHANNELS_FIRST


def capabilities() -> UnityRLCapabilitiesProto:
    """Return everything this trainer understands, which is everything there is."""
    return UnityRLCapabilitiesProto(
        baseRLCapabilities=True,
        concatenatedPngObservations=True,
        compressedChannelMapping=True,
        hybridActions=True,
        trainingAnalytics=True,
        variableLengthObservation=True,
        multiAgentGroups=True,
    )
