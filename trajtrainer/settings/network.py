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
            ``torch.nn.Module`` from f32 pictures [B, channels, height, width], 0 to 1, to [B, size]. For the export it
            has a method ``to_onnx(graph, picture)``, as the modules of ``trajtrainer.nn.encoders`` have; it may have
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
    """``memory``: an LSTM, trained on sequences of ``sequence_length`` steps.

    Attributes:
        sequence_length: steps of the pieces from which the LSTM learns. As long as what is to be remembered, and no
            longer: longer ones cost time. At most ``batch_size``.
        memory_size: numbers that are remembered: the LSTM's hidden and cell state, half each. More where there is more
            to remember.
    """

    sequence_length: int = field(default=64, validator=count)
    # An LSTM's memory is its hidden and its cell state side by side, half of the size each.
    memory_size: int = field(
        default=128, validator=satisfies(lambda size: size > 0 and size % 2 == 0, "an even whole number above 0")
    )


@frozen
class NetworkSettings:
    """The shape of a policy, of its critic, or of a reward signal's network.

    Attributes:
        normalize: bring vector observations to mean 0 and standard deviation 1 by what was seen so far. On where
            sensors have different units or large numbers, mostly with continuous actions; off where they are one-hot or
            within -1 and 1 already. Part of the exported model.
        hidden_units: width of each layer. 32 to 512: more where what to do depends on many observations at once.
        num_layers: layers behind the encoders. 1 to 3: fewer learn faster, more for complicated control.
        vis_encode_type: encoder of pictures. ``simple``: two convolutions; ``nature_cnn``: three (Mnih et al. 2015);
            ``resnet``: residual blocks (Espeholt et al. 2018), slowest and strongest; ``match3``: for small boards;
            ``fully_connected``: none. Encoders of installed packages have names of their own.
        memory: an LSTM behind the layers, for tasks in which what was seen earlier matters. Slower; try stacked
            observations first.
        goal_conditioning_type: ``hyper``: goal signals make the weights of the last layer; ``none``: they are
            observations like any other. No goal signals: no difference.
        deterministic: take the most likely action while training, too. For inference; a policy that never tries
            anything learns badly.
    """

    normalize: bool = False
    hidden_units: int = field(default=128, validator=count)
    num_layers: int = field(default=2, validator=count)
    vis_encode_type: str = field(default="simple", validator=registered(ENCODERS))
    memory: MemorySettings | None = None
    goal_conditioning_type: ConditioningType = ConditioningType.HYPER
    deterministic: bool = False
