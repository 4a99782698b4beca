"""``network_settings``."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from attrs import field, frozen

from trajtrainer.core.plugins import Reference, Registry
from trajtrainer.settings.checks import OURS, between, count, positive, registered, satisfies


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


class Activation(enum.Enum):
    """``activation``: what follows each linear layer."""

    SWISH = "swish"
    TANH = "tanh"
    RELU = "relu"


class Initialization(enum.Enum):
    """``initialization``: the first weights of layers and heads. Names of Sample Factory, but for ML-Agents'."""

    MLAGENTS = "mlagents"
    ORTHOGONAL = "orthogonal"
    TORCH_DEFAULT = "torch_default"


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
        activation: what follows each layer: ``swish`` (ML-Agents), ``tanh`` or ``relu``. ``tanh`` is what published
            results of PPO on control tasks have (Andrychowicz et al. 2021).
        initialization: first weights of layers and heads. ``mlagents``: normal ones, small in the policy's head;
            ``orthogonal``: sqrt(2) times in the layers, 1 in value heads, 0.01 in the policy's, so that the first
            policy acts about the same in all states (Engstrom et al. 2020); ``torch_default``: smaller than ML-Agents'
            by 1.7 in each layer, what Stable-Baselines3 has with ``ortho_init=False`` and in SAC. At a
            learning rate of 2e-5 (HalfCheetah) they learned faster.
        clip_obs: limit of normalized observations (``normalize: true``). 5 to 10: where rare large values matter, more.
        clip_actions: raw continuous actions are limited to plus and minus this, and divided by it. 1 where the action
            is what the policy's Gaussian gives, as in Stable-Baselines3; 3 is that of ML-Agents. Not with ``sac``
            and ``xqc``.
        log_std_init: logarithm of the first standard deviation of raw continuous actions. Below 0 where full actions
            end episodes at once (-2 in MuJoCo's tasks). Not with ``sac`` and ``xqc``, but for ``use_sde``.
        use_sde: generalized state-dependent exploration (Raffin et al. 2021): the noise of continuous actions is a
            function of the state that is drawn now and then, so that actions do not jitter. For robots and motors.
        sde_sample_freq: steps after which that function is drawn anew; -1: with every new policy.
        critic_only: names or numbers (from 0) of sensors that the critic alone sees: positions of hidden objects or
            friction, say, which a simulation knows and a player does not (asymmetric actor-critic, Pinto et al. 2018).
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
