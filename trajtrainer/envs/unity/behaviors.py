"""A player's announcement: its version, its capabilities and its behaviors.

See docs/explanation/mlagents-behavior.md#versions and docs/explanation/mlagents-behavior.md#observations. The
shapes of a behavior's observations are only known from the first agent that is sent with it.
"""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass

import numpy as np

from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from trajtrainer.core.version import API_VERSION
from trajtrainer.envs.unity import pictures
from trajtrainer.envs.unity.faults import PlayerVersionError
from trajtrainer.envs.unity.proto import communicator_pb2 as pb

_API = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:[-+.].*)?")
_PACKAGE_MAJOR = re.compile(r"\s*(\d{1,9})")
_CHANNELS_FIRST_SINCE = 3
_PICTURE_RANK = 3
# Far more than any real game needs. The limits keep a damaged message from making us allocate gigabytes.
_MOST_ACTIONS = 100_000
_MOST_BRANCHES = 1_000
_MOST_SENSORS = 1_000
_MOST_DIMENSIONS = 16
_MOST_NUMBERS = 1 << 24


class PictureOrder(enum.Enum):
    """Dimension order of pictures that are sent as floats: the announced order and the actual one."""

    CHANNELS_LAST = enum.auto()  # both (height, width, channels)
    ANNOUNCED_CHANNELS_FIRST = enum.auto()  # announced (channels, height, width), sent (height, width, channels)
    CHANNELS_FIRST = enum.auto()  # both (channels, height, width)


def check_api_version(player_version: str, package_version: str) -> None:
    """Check that the player's API has our major version, as ML-Agents does.

    Raises:
        PlayerVersionError: the major version differs, or the version is not valid.
    """
    match = _API.fullmatch(player_version)
    if match and match[1] == API_VERSION.split(".", maxsplit=1)[0]:
        return
    raise PlayerVersionError(
        f"The player speaks version {player_version!r} of the ML-Agents communication API "
        f"(com.unity.ml-agents {package_version or 'of unknown version'}), but this trainer speaks {API_VERSION} "
        "and accepts 1.0 to 1.5 (com.unity.ml-agents 1.0 to 4.x). Update the package in the Unity project and "
        "rebuild the player."
    )


def picture_order(package_version: str) -> PictureOrder:
    """Return the order in which this version of the package sends pictures.

    Packages since 3.0 announce channels-first pictures. Their C# code still writes the floats channels-last
    (``TensorShapeExtensions.Index``), although Unity's own inference gets the correct picture. A player without a
    package version does not use Unity's package, and sends pictures as announced.
    """
    match = _PACKAGE_MAJOR.match(package_version)
    if match is None:
        return PictureOrder.CHANNELS_FIRST
    if int(match[1]) < _CHANNELS_FIRST_SINCE:
        return PictureOrder.CHANNELS_LAST
    return PictureOrder.ANNOUNCED_CHANNELS_FIRST


def capabilities() -> pb.UnityRLCapabilitiesProto:
    """Return the full set of capabilities, because this trainer supports all of them."""
    return pb.UnityRLCapabilitiesProto(
        baseRLCapabilities=True,
        concatenatedPngObservations=True,
        compressedChannelMapping=True,
        hybridActions=True,
        trainingAnalytics=True,
        variableLengthObservation=True,
        multiAgentGroups=True,
    )


@dataclass(frozen=True, slots=True)
class UnitySensor:
    """One observation of a behavior, as the trainer sees it and as it is sent.

    Attributes:
        index: index among the agent's observations.
        spec: shape and properties, with pictures as (channels, height, width).
        wire_shape: the announced shape, in which pictures may be (height, width, channels).
        float_shape: the shape of the floats as sent.
        channels_last: whether ``float_shape`` is (height, width, channels).
        compressed: whether the first agent sent it as PNG.
        dtype: f32, or u8 for pictures that are sent as PNG and need no averaging of channels.
    """

    index: int
    spec: ObservationSpec
    wire_shape: tuple[int, ...]
    float_shape: tuple[int, ...]
    channels_last: bool
    compressed: bool
    dtype: np.dtype[np.float32] | np.dtype[np.uint8]

    @property
    def label(self) -> str:
        """The name of the sensor in error messages."""
        return f"sensor {self.spec.name!r} (observation {self.index})"

    @property
    def is_raw_image(self) -> bool:
        """True if this is an uncompressed image with several channels, so that its dimension order matters."""
        return not self.compressed and len(self.wire_shape) == _PICTURE_RANK and self.spec.shape[0] > 1


@dataclass(frozen=True, slots=True)
class UnityBehavior:
    """One behavior of a player.

    Attributes:
        id: the name, including the team.
        spec: the observations and actions of its agents.
        sensors: the sensors of ``spec``, in the same order.
        mask_size: D, the sum of the branch sizes.
        num_observations: number of observations that each agent sends. It exceeds the number of sensors if empty ones
            are left out.
    """

    id: str
    spec: BehaviorSpec
    sensors: tuple[UnitySensor, ...]
    mask_size: int
    num_observations: int


def announced(
    parameters: pb.BrainParametersProto,
    first_agent: pb.AgentInfoProto,
    order: PictureOrder,
    *,
    allow_empty: bool = False,
) -> UnityBehavior:
    """Build a behavior from its announcement and the first agent that the player sent for it.

    Args:
        parameters: the announcement.
        first_agent: the first agent, which shows the shapes of the observations.
        order: dimension order of the pictures.
        allow_empty: ignore empty sensors, such as those of shape (0,), instead of rejecting them.

    Raises:
        InvalidDataError: a shape, type or action size is invalid.
    """
    name = parameters.brain_name
    if len(first_agent.observations) > _MOST_SENSORS:
        raise InvalidDataError(
            f"Behavior {name!r}: its first agent sent {len(first_agent.observations)} observations; at most "
            f"{_MOST_SENSORS} are supported."
        )
    sensors = tuple(
        _sensor(index, observation, name, order)
        for index, observation in enumerate(first_agent.observations)
        if not (allow_empty and 0 in observation.shape)
    )
    size = sum(math.prod(sensor.wire_shape) for sensor in sensors)
    if size > _MOST_NUMBERS:
        raise InvalidDataError(_too_large(f"Behavior {name!r}: its {len(sensors)} sensors announce", size))
    action_spec = _action_spec(parameters)
    return UnityBehavior(
        id=name,
        spec=BehaviorSpec([sensor.spec for sensor in sensors], action_spec),
        sensors=sensors,
        mask_size=sum(action_spec.discrete_branches),
        num_observations=len(first_agent.observations),
    )


def _sensor(index: int, observation: pb.ObservationProto, behavior: str, order: PictureOrder) -> UnitySensor:
    where = f"Behavior {behavior!r}, sensor {observation.name!r} (observation {index})"
    if len(observation.shape) > _MOST_DIMENSIONS:
        raise InvalidDataError(
            f"{where} announces a shape of {len(observation.shape)} dimensions; at most {_MOST_DIMENSIONS} are "
            "supported."
        )
    wire_shape = tuple(observation.shape)
    if not wire_shape or min(wire_shape) < 1:
        raise InvalidDataError(f"{where} announces the shape {wire_shape}. Every dimension must be at least 1.")
    if math.prod(wire_shape) > _MOST_NUMBERS:
        raise InvalidDataError(_too_large(f"{where} announces the shape {wire_shape},", math.prod(wire_shape)))
    properties = tuple(observation.dimension_properties) or (0,) * len(wire_shape)
    if len(properties) != len(wire_shape) or not all(
        0 <= value < 2 * DimensionProperty.VARIABLE_SIZE for value in properties
    ):
        raise InvalidDataError(
            f"{where} of shape {wire_shape} announces the dimension properties {properties}. Expected one per "
            "dimension, each a sum of 1, 2 and 4."
        )
    if observation.observation_type not in (ObservationType.DEFAULT.value, ObservationType.GOAL_SIGNAL.value):
        raise InvalidDataError(f"{where} announces the observation type {observation.observation_type}, not 0 or 1.")
    is_picture = len(wire_shape) == _PICTURE_RANK
    if is_picture and order is PictureOrder.CHANNELS_LAST:
        shape, properties = _channels_first(wire_shape), _channels_first(properties)
    else:
        shape = wire_shape
    channels_last = is_picture and order is not PictureOrder.CHANNELS_FIRST
    spec = ObservationSpec(
        shape=shape,
        dimension_property=tuple(map(DimensionProperty, properties)),
        observation_type=ObservationType(observation.observation_type),
        name=observation.name,
    )
    compressed = observation.compression_type == pb.PNG
    dtype: np.dtype[np.float32] | np.dtype[np.uint8] = np.dtype(np.float32)
    if compressed:
        try:
            dtype = pictures.decode(
                observation.compressed_data, observation.compressed_channel_mapping, spec.shape
            ).dtype
        except pictures.PictureError as error:
            raise InvalidDataError(f"{where}, first agent: {error}") from error
    elif len(observation.float_data.data) != math.prod(wire_shape):
        raise InvalidDataError(
            f"{where} announces the shape {wire_shape}, which is {math.prod(wire_shape)} numbers, "
            f"but its first agent sent {len(observation.float_data.data)}."
        )
    float_shape = (*shape[1:], shape[0]) if channels_last else shape
    return UnitySensor(index, spec, wire_shape, float_shape, channels_last, compressed, dtype)


def _too_large(what: str, size: int) -> str:
    return (
        f"{what} {size} numbers per agent; at most {_MOST_NUMBERS} are supported. Make pictures smaller (Camera "
        "Sensor, Width and Height) or use fewer observations."
    )


def _channels_first(values: tuple[int, ...]) -> tuple[int, ...]:
    height, width, channels = values
    return channels, height, width


def _action_spec(parameters: pb.BrainParametersProto) -> ActionSpec:
    """Return the action space. If the current fields are empty, use those of packages before 2.0."""
    new = parameters.action_spec
    num_branches = max(len(new.discrete_branch_sizes), len(parameters.vector_action_size_deprecated))
    if num_branches > _MOST_BRANCHES:
        raise InvalidDataError(
            f"Behavior {parameters.brain_name!r} announces {num_branches} discrete branches; at most {_MOST_BRANCHES} "
            "are supported."
        )
    if new.num_continuous_actions or new.num_discrete_actions:
        size, branches = new.num_continuous_actions, tuple(new.discrete_branch_sizes)
    elif parameters.vector_action_space_type_deprecated == pb.continuous:
        size, branches = next(iter(parameters.vector_action_size_deprecated), 0), ()
    else:
        size, branches = 0, tuple(parameters.vector_action_size_deprecated)
    if not (0 <= size <= _MOST_ACTIONS and all(branch >= 1 for branch in branches) and sum(branches) <= _MOST_ACTIONS):
        raise InvalidDataError(
            f"Behavior {parameters.brain_name!r} announces {size} continuous actions and the discrete branches "
            f"{branches}. Sizes must be positive, and at most {_MOST_ACTIONS}."
        )
    return ActionSpec(size, branches)
