"""``network_settings``: architectures of policies and critics."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from attrs import field, frozen

from trajtrainer.core.plugins import Reference, Registry
from trajtrainer.settings.checks import OURS, between, count, positive, registered, satisfies


@dataclass(frozen=True, slots=True)
class EncoderRow:
    """An image encoder.

    Attributes:
        create: called with the image shape (channels, height, width) and ``hidden_units`` as ``size``; returns a
            ``torch.nn.Module`` that maps f32 images [B, channels, height, width], 0 to 1, to [B, size]. To be
            exportable, it needs a method ``to_onnx(graph, picture)`` like the modules of
            ``trajtrainer.learning.nn.encoders``. It may define ``mlagents_names`` (see
            ``trajtrainer.learning.nn.mlagents``) if ML-Agents names its layers differently.
        smallest_side: minimum height and width of the images, in pixels.
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
    """``activation``: function applied after each linear layer."""

    SWISH = "swish"
    TANH = "tanh"
    RELU = "relu"


class Initialization(enum.Enum):
    """``initialization``: initial weights of layers and heads. All names except MLAGENTS are from Sample Factory."""

    MLAGENTS = "mlagents"
    ORTHOGONAL = "orthogonal"
    TORCH_DEFAULT = "torch_default"


@frozen
class MemorySettings:
    """``memory``: an LSTM, trained on sequences of ``sequence_length`` steps.

    Attributes:
        sequence_length: length of the training sequences in steps, at most ``batch_size``. Make it as long as the agent
            has to remember something, but no longer, because longer sequences take more time to train.
        memory_size: size of the memory: half for the LSTM's hidden state and half for its cell state. Increase it if
            the agent has more to remember.
    """

    sequence_length: int = field(default=64, validator=count)
    memory_size: int = field(
        default=128, validator=satisfies(lambda size: size > 0 and size % 2 == 0, "an even whole number above 0")
    )


@frozen
class NetworkSettings:
    """Architecture of a policy, of its critic, or of a reward signal's network.

    Attributes:
        normalize: scale vector observations to mean 0 and standard deviation 1, using running statistics. Turn it on if
            sensors have different units or large values, especially with continuous actions; leave it off if
            observations are one-hot or already between -1 and 1. The exported model includes the normalization.
        hidden_units: number of units in each layer, typically 32 to 512. Use more if the right action depends on the
            interaction of many observations.
        num_layers: number of layers after the encoders, typically 1 to 3. Fewer layers train faster; use more for
            complex control tasks.
        vis_encode_type: image encoder. ``simple`` has two convolutions, ``nature_cnn`` three (Mnih et al. 2015),
            ``resnet`` residual blocks (Espeholt et al. 2018), which are the slowest and most powerful. ``match3`` is
            for small boards, and ``fully_connected`` has no convolutions. Installed packages may add encoders.
        memory: LSTM after the layers, for tasks that require the agent to remember earlier observations. It slows down
            training, so try stacked observations first.
        goal_conditioning_type: how the network uses goal signals. With ``hyper``, they generate the weights of the last
            layer; with ``none``, they are treated like any other observation. Has no effect without goal signals.
        deterministic: always take the most likely action, even during training. Intended for inference: a policy that
            does not explore learns poorly.
        activation: activation function after each layer: ``swish`` (ML-Agents), ``tanh`` or ``relu``. Published results
            of PPO on control tasks use ``tanh`` (Andrychowicz et al. 2021).
        initialization: initial weights of layers and heads. ``mlagents`` draws them from normal distributions, with
            small values in the policy's head. ``orthogonal`` uses a gain of sqrt(2) in the layers, 1 in value heads and
            0.01 in the policy's head, so the initial policy acts about the same in all states (Engstrom et al. 2020).
            ``torch_default`` is smaller than ``mlagents`` by a factor of 1.7 in each layer, as in Stable-Baselines3
            with ``ortho_init=False`` and in SAC; it learned faster at a learning rate of 2e-5 (HalfCheetah).
        clip_obs: maximum absolute value of normalized observations (``normalize: true``). Typically 5 to 10; raise it
            if rare large values matter.
        normalizer_prior: weight of the normalizer's initial mean 0 and variance 1, in observations: 1 in ML-Agents,
            0.0001 in Stable-Baselines3's ``VecNormalize``. Set it to 0.0001 if observations are far from 0 compared
            with their variation (altitudes, timestamps). With 1, their distance from 0 counts as variation, which makes
            the differences between them vanish. Applies with ``normalize: true``.
        clip_actions: raw continuous actions are clipped to this absolute value and then divided by it. With 1, the
            action is a sample from the policy's Gaussian, as in Stable-Baselines3; ML-Agents uses 3. Does not apply to
            squashed actions (``sac``).
        log_std_init: logarithm of the initial standard deviation of raw continuous actions. Use a value below 0 if
            large actions end episodes at once (-2 for MuJoCo tasks). With squashed actions (``sac``), it only applies
            with ``use_sde``.
        use_sde: use generalized state-dependent exploration (Raffin et al. 2021). The exploration noise is then a
            function of the state that is resampled only occasionally, so actions are smooth. Use it for robots and
            motors.
        sde_sample_freq: number of steps after which the noise of ``use_sde`` is resampled; -1 resamples it with every
            new policy.
        critic_only: names or indices (from 0) of sensors that only the critic observes, such as friction or the
            positions of hidden objects, which are known in simulation but not in deployment (asymmetric actor-critic,
            Pinto et al. 2018). For ``ppo``, ``poca`` and ``sac``, without ``shared_critic``.
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
            "a list of sensors, by name or by number (from 0)",
        ),
        metadata=OURS,
    )
