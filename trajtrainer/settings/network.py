"""``network_settings``."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from attrs import field, frozen

from trajtrainer.core.plugins import Reference, Registry
from trajtrainer.settings.checks import OURS, between, count, positive, registered, satisfies


@dataclass(frozen=True, slots=True)
class EncoderRow:
    """An encoder of pictures.

    Attributes:
        create: called with the pictures' shape (channels, height, width) and ``hidden_units`` as ``size``; returns a
            ``torch.nn.Module`` from f32 pictures [B, channels, height, width], 0 to 1, to [B, size]. For the export, it
            needs a method ``to_onnx(graph, picture)`` like the modules of ``trajtrainer.learning.nn.encoders``. It may
            have ``mlagents_names`` (see ``trajtrainer.learning.nn.mlagents``) if ML-Agents has other names for its
            layers.
        smallest_side: minimum height and width of pictures.
    """

    create: Reference
    smallest_side: int = 1


ENCODERS = Registry(
    "encoder",
    "trajtrainer.encoders",
    EncoderRow,
    {
        "fully_connected": EncoderRow("trajtrainer.learning.nn.encoders:FullyConnectedEncoder"),
        "match3": EncoderRow("trajtrainer.learning.nn.encoders:match3", smallest_side=5),
        "simple": EncoderRow("trajtrainer.learning.nn.encoders:simple", smallest_side=20),
        "nature_cnn": EncoderRow("trajtrainer.learning.nn.encoders:nature_cnn", smallest_side=36),
        "resnet": EncoderRow("trajtrainer.learning.nn.encoders:ResnetEncoder", smallest_side=15),
    },
)
"""``vis_encode_type`` -> encoder."""


class ConditioningType(enum.Enum):
    """``goal_conditioning_type``: how a goal signal affects the network. NONE treats it like any observation."""

    HYPER = "hyper"
    NONE = "none"


class Activation(enum.Enum):
    """``activation``: what follows each linear layer."""

    SWISH = "swish"
    TANH = "tanh"
    RELU = "relu"


class Initialization(enum.Enum):
    """``initialization``: initial weights of layers and heads. The names are Sample Factory's, except MLAGENTS."""

    MLAGENTS = "mlagents"
    ORTHOGONAL = "orthogonal"
    TORCH_DEFAULT = "torch_default"


@frozen
class MemorySettings:
    """``memory``: an LSTM, trained on sequences of ``sequence_length`` steps.

    Attributes:
        sequence_length: steps of the sequences from which the LSTM learns, at most ``batch_size``. As long as the agent
            has to remember something, but no longer: longer sequences cost time.
        memory_size: how many numbers are remembered: the LSTM's hidden and cell state, half each. Use more if there is
            more to remember.
    """

    sequence_length: int = field(default=64, validator=count)
    # The hidden and the cell state of the LSTM take half of the size each.
    memory_size: int = field(
        default=128, validator=satisfies(lambda size: size > 0 and size % 2 == 0, "an even whole number above 0")
    )


@frozen
class NetworkSettings:
    """The shape of a policy, of its critic, or of a reward signal's network.

    Attributes:
        normalize: scale vector observations to mean 0 and standard deviation 1, by their values so far. Turn it on if
            sensors have different units or large numbers, mostly with continuous actions; turn it off if they are
            one-hot or already between -1 and 1. Part of the exported model.
        hidden_units: width of each layer, 32 to 512. Use more if actions depend on many observations at once.
        num_layers: layers after the encoders, 1 to 3. Fewer learn faster; use more for complicated control.
        vis_encode_type: encoder of pictures. ``simple``: two convolutions; ``nature_cnn``: three (Mnih et al. 2015);
            ``resnet``: residual blocks (Espeholt et al. 2018), slowest and strongest; ``match3``: for small boards;
            ``fully_connected``: none. Encoders of installed packages have their own names.
        memory: an LSTM after the layers, for tasks in which earlier observations matter. Slower; try stacked
            observations first.
        goal_conditioning_type: ``hyper``: goal signals generate the weights of the last layer; ``none``: they are
            observations like any other. Without goal signals, there is no difference.
        deterministic: take the most likely action during training, too. For inference; a policy that does not explore
            learns badly.
        activation: function after each layer: ``swish`` (ML-Agents), ``tanh`` or ``relu``. ``tanh`` is what published
            results of PPO on control tasks have (Andrychowicz et al. 2021).
        initialization: initial weights of layers and heads. ``mlagents``: normal, small in the policy's head.
            ``orthogonal``: with a gain of sqrt(2) in the layers, 1 in value heads and 0.01 in the policy's head, so
            that the first policy acts about the same in all states (Engstrom et al. 2020). ``torch_default``: smaller
            than ML-Agents' by 1.7 in each layer, as in Stable-Baselines3 with ``ortho_init=False`` and in SAC; at a
            learning rate of 2e-5 (HalfCheetah), this learned faster.
        clip_obs: limit of normalized observations (``normalize: true``). 5 to 10: more if rare large values matter.
        normalizer_prior: how many rows the normalizer's start (mean 0, variance 1) counts as: 1 in ML-Agents, 0.0001 in
            Stable-Baselines3's ``VecNormalize``. Set it to 0.0001 if observations are far from 0 compared with how much
            they vary (altitudes, timestamps): with 1, their distance from 0 counts as variation, and the differences
            between them vanish. Applies with ``normalize: true``.
        clip_actions: raw continuous actions are clipped to plus and minus this, and divided by it. With 1, the action
            is a sample of the policy's Gaussian, as in Stable-Baselines3; ML-Agents has 3. Not with squashed
            actions (``sac``).
        log_std_init: logarithm of the initial standard deviation of raw continuous actions. Below 0 if full actions end
            episodes at once (-2 in MuJoCo's tasks). With squashed actions (``sac``), only for ``use_sde``.
        use_sde: generalized state-dependent exploration (Raffin et al. 2021): the noise of continuous actions is a
            function of the state, which is redrawn only now and then, so that actions do not jitter. For robots and
            motors.
        sde_sample_freq: steps after which that function is redrawn; -1: with every new policy.
        critic_only: names or numbers (from 0) of sensors that only the critic sees, such as positions of hidden objects
            or friction, which a simulation knows and a player does not (asymmetric actor-critic, Pinto et al. 2018).
            For ``ppo``, ``poca`` and ``sac``, without ``shared_critic``.
    """

    normalize: bool = False
    hidden_units: int = field(default=128, validator=count)
    num_layers: int = field(default=2, validator=count)
    vis_encode_type: str = field(default="simple", validator=registered(ENCODERS))
    memory: MemorySettings | None = None
    goal_conditioning_type: ConditioningType = ConditioningType.HYPER
    deterministic: bool = False
    activation: Activation = field(default=Activation.SWISH, metadata=OURS)
    initialization: Initialization = field(default=Initialization.MLAGENTS, metadata=OURS)
    clip_obs: float = field(default=5.0, validator=positive, metadata=OURS)
    normalizer_prior: float = field(
        default=1.0, validator=satisfies(lambda rows: 0 < rows <= 1, "a number above 0, up to 1"), metadata=OURS
    )
    clip_actions: float = field(default=3.0, validator=positive, metadata=OURS)
    log_std_init: float = field(default=0.0, validator=between(-20, 2), metadata=OURS)
    use_sde: bool = field(default=False, metadata=OURS)
    sde_sample_freq: int = field(
        default=-1,
        validator=satisfies(lambda steps: steps == -1 or steps > 0, "-1 or a whole number above 0"),
        metadata=OURS,
    )
    critic_only: list[str | int] = field(
        factory=list,
        validator=satisfies(
            lambda sensors: all(isinstance(each, str) or each >= 0 for each in sensors),
            "a list of sensors, by name or by number from 0 on",
        ),
        metadata=OURS,
    )
