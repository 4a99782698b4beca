"""``network_settings``."""

from __future__ import annotations

import enum

from attrs import field, frozen

from trajtrainer.settings.checks import count, satisfies


class EncoderType(enum.Enum):
    """``vis_encode_type``: the network that pictures go through."""

    FULLY_CONNECTED = "fully_connected"
    MATCH3 = "match3"
    SIMPLE = "simple"
    NATURE_CNN = "nature_cnn"
    RESNET = "resnet"


class ConditioningType(enum.Enum):
    """``goal_conditioning_type``: how a goal signal steers the network; NONE treats it as any observation."""

    HYPER = "hyper"
    NONE = "none"


@frozen
class MemorySettings:
    """``memory``: an LSTM, trained on sequences of ``sequence_length`` steps."""

    sequence_length: int = field(default=64, validator=count)
    # An LSTM's memory is its hidden and its cell state side by side, half of the size each.
    memory_size: int = field(
        default=128, validator=satisfies(lambda size: size > 0 and size % 2 == 0, "an even whole number above 0")
    )


@frozen
class NetworkSettings:
    """The shape of a policy, of its critic, or of a reward signal's network."""

    normalize: bool = False
    hidden_units: int = field(default=128, validator=count)
    num_layers: int = field(default=2, validator=count)
    vis_encode_type: EncoderType = EncoderType.SIMPLE
    memory: MemorySettings | None = None
    goal_conditioning_type: ConditioningType = ConditioningType.HYPER
    deterministic: bool = False
