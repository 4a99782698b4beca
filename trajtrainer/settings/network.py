"""``network_settings``."""

from __future__ import annotations

import enum

from attrs import frozen


class EncoderType(enum.Enum):
    FULLY_CONNECTED = "fully_connected"
    MATCH3 = "match3"
    SIMPLE = "simple"
    NATURE_CNN = "nature_cnn"
    RESNET = "resnet"


class ConditioningType(enum.Enum):
    HYPER = "hyper"
    NONE = "none"


@frozen
class MemorySettings:
    sequence_length: int = 64
    memory_size: int = 128


@frozen
class NetworkSettings:
    normalize: bool = False
    hidden_units: int = 128
    num_layers: int = 2
    vis_encode_type: EncoderType = EncoderType.SIMPLE
    memory: MemorySettings | None = None
    goal_conditioning_type: ConditioningType = ConditioningType.HYPER
    deterministic: bool = False
