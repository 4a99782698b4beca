"""``network_settings``."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from attrs import field, frozen

from trajtrainer.plugins import Reference, Registry
from trajtrainer.settings.checks import count, registered, satisfies


@dataclass(frozen=True, slots=True)
class EncoderRow:
    """A network that pictures go through.

    Attributes:
        create: called with the pictures' shape (channels, height, width) and ``hidden_units`` as ``size``; returns a
            ``torch.nn.Module`` from f32 pictures [B, channels, height, width], 0 to 1, to [B, size]. For the export
            it has a method ``to_onnx(graph, picture)``, as the modules of ``trajtrainer.nn.encoders`` have; it may have
            ``mlagents_names`` (see ``trajtrainer.nn.mlagents``) if ML-Agents calls its layers otherwise.
        smallest_side: height and width that pictures must have at least.
    """

    create: Reference
    smallest_side: int = 1


ENCODERS = Registry(
    "encoder",
    "trajtrainer.encoders",
    EncoderRow,
    {
        "fully_connected": EncoderRow("trajtrainer.nn.encoders:FullyConnectedEncoder"),
        "match3": EncoderRow("trajtrainer.nn.encoders:match3", smallest_side=5),
        "simple": EncoderRow("trajtrainer.nn.encoders:simple", smallest_side=20),
        "nature_cnn": EncoderRow("trajtrainer.nn.encoders:nature_cnn", smallest_side=36),
        "resnet": EncoderRow("trajtrainer.nn.encoders:ResnetEncoder", smallest_side=15),
    },
)
"""``vis_encode_type`` -> the network that pictures go through."""


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
    vis_encode_type: str = field(default="simple", validator=registered(ENCODERS))
    memory: MemorySettings | None = None
    goal_conditioning_type: ConditioningType = ConditioningType.HYPER
    deterministic: bool = False
