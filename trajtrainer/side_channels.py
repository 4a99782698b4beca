"""The side channels of ``mlagents_envs``. Its own modules cannot be imported with current versions of protobuf.

>>> from trajtrainer.side_channels import EngineConfigurationChannel
>>> channel = EngineConfigurationChannel()
>>> channel.set_configuration_parameters(time_scale=20.0)
"""

from __future__ import annotations

from trajtrainer.envs.unity import registration  # noqa: F401  (must come first: the imports below fail without it)

from mlagents_envs.side_channel.engine_configuration_channel import (  # isort: skip
    EngineConfig,
    EngineConfigurationChannel,
)
from mlagents_envs.side_channel.environment_parameters_channel import EnvironmentParametersChannel  # isort: skip
from mlagents_envs.side_channel.float_properties_channel import FloatPropertiesChannel  # isort: skip
from mlagents_envs.side_channel.incoming_message import IncomingMessage  # isort: skip
from mlagents_envs.side_channel.outgoing_message import OutgoingMessage  # isort: skip
from mlagents_envs.side_channel.raw_bytes_channel import RawBytesChannel  # isort: skip
from mlagents_envs.side_channel.side_channel import SideChannel  # isort: skip
from mlagents_envs.side_channel.stats_side_channel import StatsAggregationMethod, StatsSideChannel  # isort: skip

__all__ = [
    "EngineConfig",
    "EngineConfigurationChannel",
    "EnvironmentParametersChannel",
    "FloatPropertiesChannel",
    "IncomingMessage",
    "OutgoingMessage",
    "RawBytesChannel",
    "SideChannel",
    "StatsAggregationMethod",
    "StatsSideChannel",
]
