"""The policy of another trainer, as a network of torch layers that can act and be exported like an ``Actor``.

Shape legend: B agents, n numbers of all sensors together, E encoding size, C continuous actions, D sum of branch sizes.
"""

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor, nn

from trajtrainer.core.spec import ActionSpec
from trajtrainer.learning.nn.distribution import ActionDistribution
from trajtrainer.learning.nn.graph import Graph
from trajtrainer.learning.nn.heads import ActionHead, masked_to_onnx
from trajtrainer.learning.nn.init import seeded
from trajtrainer.learning.nn.normalization import Normalizer

ACTIVATIONS: Final[Mapping[str, Callable[[], nn.Module]]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "swish": nn.SiLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "leaky_relu": nn.LeakyReLU,
    "sigmoid": nn.Sigmoid,
}
"""``--activation`` -> the layer, with torch's defaults."""
_OPERATORS: Final = {nn.Tanh: "Tanh", nn.ReLU: "Relu", nn.ELU: "Elu", nn.SELU: "Selu", nn.Sigmoid: "Sigmoid"}
IMAGE_RANK: Final = 3
"""Number of dimensions of an image: channels, height and width."""
UNLIMITED: Final = 1e9
"""The ``clip`` of statistics that do not clip. It is not infinity, because some ONNX importers cannot read that."""


class HeadKind(enum.Enum):
    """The meaning of the last layer's outputs."""

    MEANS = "means"  # means of actions, which are then clipped to the bounds of the action space
    SQUASHED = "squashed means"  # means of actions before a tanh
    LOGITS = "logits"  # logits of discrete actions
    VALUES = "values"  # values of discrete actions; the best action is taken


@dataclass(frozen=True, slots=True)
class Head:
    """The last layer, and how actions are computed from its outputs.

    Attributes:
        kind: the meaning of the outputs.
        layer: the linear layer, from E to C or D.
        log_sigma: log of the Gaussians' standard deviations: [1, C]; with gSDE, a matrix [E, C]; a layer if they depend
            on the state; None if actions are deterministic.
        bounds: lower and upper bounds of the action space, [C] each; None if the file does not contain them.
        branches: sizes of the discrete branches; None if the file does not contain them.
    """

    kind: HeadKind
    layer: nn.Linear
    log_sigma: Tensor | nn.Linear | None = None
    bounds: tuple[Tensor, Tensor] | None = None
    branches: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ObservationStatistics:
    """Statistics that normalize observations: ``clip((x - mean) / sqrt(variance), -clip, clip)``, f32 [n] each.

    ``count`` is the number of observations that the statistics were computed from; None if unknown.
    """

    mean: Tensor
    variance: Tensor
    clip: float = UNLIMITED
    count: float | None = None


@dataclass(frozen=True, slots=True)
class Hints:
    """Options that the user gives for information that the file does not contain.

    Attributes:
        activation: name of the activation, one of ``ACTIVATIONS``.
        statistics: statistics of ``VecNormalize``.
        image_scale: largest value of a pixel in training.
        bounds: lower and upper bound of the action space.
        scores: meaning of an ONNX model's outputs for discrete actions: LOGITS or VALUES.
    """

    activation: str | None = None
    statistics: ObservationStatistics | None = None
    image_scale: float | None = None
    bounds: tuple[float, float] | None = None
    scores: HeadKind | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One input of a policy: an entry of a Dict of observations, or everything that an agent observes.

    Attributes:
        name: name of the entry; None for everything.
        observed: shape of the observation space; None if the file does not contain it.
        scale: what a byte of 255 was scaled to in training. Unity, and Gymnasium environments here, scale it to 1.
            None if the observation has no bytes, or the file does not contain the scale.
        is_picture: True if it is processed as an image. Otherwise the sensors are flattened and concatenated.
        layers: the layers that encode an image; empty for a vector.
    """

    name: str | None = None
    observed: tuple[int, ...] | None = None
    scale: float | None = None
    is_picture: bool = False
    layers: nn.Sequential = field(default_factory=nn.Sequential)


@dataclass(frozen=True, slots=True)
class ForeignPolicy:
    """A policy, as described by its file.

    Attributes:
        trainer: description of the trainer that made it.
        layers: linear layers and activations, from the concatenated outputs of all parts to the encoding [B, E].
        head: the last layer and the computation of actions.
        parts: the inputs, in the order in which the layers expect them.
        statistics: normalization statistics in the file, if any.
        step: number of training steps; 0 if the file does not contain it.
    """

    trainer: str
    layers: nn.Sequential
    head: Head
    parts: tuple[Part, ...] = (Part(),)
    statistics: ObservationStatistics | None = None
    step: int = 0

    @property
    def has_names(self) -> bool:
        """True if the file says which sensor each part is for."""
        return self.parts[0].name is not None


class Sensors(nn.Module):
    """Converts the observations of some sensors to inputs of the first linear layer.

    Args:
        indices: indices of the sensors.
        shapes: shape of each sensor.
        part: the policy's input that they are converted to. If its scale is None, 1 is used.
        statistics: normalization statistics for all numbers of the concatenated observations.
    """

    def __init__(
        self,
        indices: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        part: Part,
        statistics: ObservationStatistics | None,
    ) -> None:
        super().__init__()
        self.indices = indices
        self.shapes = shapes
        self.is_picture = part.is_picture
        self.scale = 1.0 if part.scale is None else part.scale
        self.normalizer = None
        if statistics is not None:
            self.normalizer = Normalizer(len(statistics.mean), statistics.clip)
            self.normalizer.mean.copy_(statistics.mean)
            self.normalizer.variance.copy_(statistics.variance)
        self.layers = part.layers

    def forward(self, obs: Sequence[Tensor]) -> Tensor:
        parts = [obs[index] for index in self.indices]
        x = parts[0] if self.is_picture else torch.cat([part.flatten(1) for part in parts], 1)
        x = x if self.scale == 1.0 else x * self.scale
        x = x if self.normalizer is None else self.normalizer(x)
        return self.layers(x)  # type: ignore[no-any-return]

    def to_onnx(self, graph: Graph, obs: Sequence[str]) -> str:
        parts = []
        for index, shape in zip(self.indices, self.shapes, strict=True):
            is_flat = self.is_picture or len(shape) == 1
            parts.append(obs[index] if is_flat else graph.reshape(obs[index], [-1, math.prod(shape)]))
        x = graph.concat(parts, axis=1)
        x = x if self.scale == 1.0 else graph.node("Mul", x, graph.constant(self.scale))
        x = x if self.normalizer is None else self.normalizer.to_onnx(graph, x)
        return _layers_to_onnx(graph, self.layers, x)


class WithTanh(nn.Module):
    """Concatenates ``x`` and the tanh of a linear layer applied to it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, torch.tanh(self.layer(x))), 1)

    def to_onnx(self, graph: Graph, x: str) -> str:
        return graph.concat([x, graph.node("Tanh", graph.linear(self.layer, x))], axis=1)


def _layers_to_onnx(graph: Graph, layers: nn.Sequential, x: str) -> str:
    for layer in layers:
        match layer:
            case nn.Linear():
                x = graph.linear(layer, x)
            case nn.Conv2d():
                x = graph.convolution(layer, x)
            case nn.Flatten():
                x = graph.node("Flatten", x, axis=1)
            case nn.SiLU():
                x = graph.silu(x)
            case nn.LeakyReLU():
                x = graph.leaky_relu(x)
            case WithTanh():
                x = layer.to_onnx(graph, x)
            case _:
                x = graph.node(_OPERATORS[type(layer)], x)
    return x


class ForeignBody(nn.Module):
    """The body of a policy: the modules for its inputs, followed by layers on their concatenated outputs."""

    def __init__(self, parts: Sequence[Sensors], layers: nn.Sequential) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.layers = layers

    def seen(self, obs: Sequence[Tensor]) -> Tensor:
        """Return the input of the first layer."""
        return torch.cat([part(obs) for part in self.parts], 1)

    def forward(self, obs: Sequence[Tensor]) -> Tensor:
        return self.layers(self.seen(obs))  # type: ignore[no-any-return]

    def to_onnx(
        self,
        graph: Graph,
        obs: Sequence[str],
        shapes: Sequence[Sequence[int]],  # noqa: ARG002
        memory: str | None,  # noqa: ARG002
        memory_out: str,  # noqa: ARG002
    ) -> str:
        """Build the graph from observations [batch, *O] to the encoding [batch, E]. There is no memory."""
        x = graph.concat([graph.module(part, obs) for part in self.parts], axis=1)
        return _layers_to_onnx(graph, self.layers, x)


class GreedyHead(ActionHead):
    """An ``ActionHead`` that takes the action with the highest value instead of sampling one."""

    def discrete_to_onnx(self, graph: Graph, encoding: str, allowed: str, sampled: str, mode: str) -> None:
        assert self.discrete is not None
        best_to_onnx(graph, graph.linear(self.discrete, encoding), allowed, sampled, mode)


def best_to_onnx(graph: Graph, values: str, allowed: str, sampled: str, mode: str) -> None:
    """Build the index [batch, 1] of the highest of values [batch, D], as both the sampled and the best action."""
    graph.node("ArgMax", masked_to_onnx(graph, values, allowed), axis=1, keepdims=1, output=mode)
    graph.node("Identity", mode, output=sampled)


class ForeignActor(nn.Module):
    """A policy for the agents of one environment, with the part of the ``Actor`` interface that an export needs."""

    memory_size = 0

    def __init__(self, body: ForeignBody, head: ActionHead) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def distribution(self, obs: Sequence[Tensor], mask: Tensor, memory: Tensor) -> tuple[ActionDistribution, Tensor]:
        """See ``Actor.distribution``. The memory is empty and returned unchanged."""
        return self.head(self.body(obs), mask), memory


def action_head(head: Head, actions: ActionSpec) -> ActionHead:
    """Make the action head for the agents of an environment. Means are rescaled so that the bounds are -1 and 1."""
    make = GreedyHead if head.kind is HeadKind.VALUES else ActionHead
    with seeded(0):
        result = make(
            head.layer.in_features,
            actions,
            conditional_sigma=isinstance(head.log_sigma, nn.Linear),
            tanh_squash=head.kind is HeadKind.SQUASHED,
            clip_actions=1.0,
            use_sde=isinstance(head.log_sigma, Tensor) and len(head.log_sigma) > 1,
        )
    if head.kind in (HeadKind.LOGITS, HeadKind.VALUES):
        result.discrete = head.layer
        return result
    result.mu, log_sigma = head.layer, head.log_sigma
    if head.kind is HeadKind.MEANS:
        assert head.bounds is not None
        low, high = head.bounds
        scale = 2.0 / (high - low)
        result.mu = linear(head.layer.weight * scale[:, None], head.layer.bias * scale - (low + high) / (high - low))
        log_sigma = None if log_sigma is None else log_sigma + scale.log()  # type: ignore[operator]
    if isinstance(log_sigma, nn.Linear):
        result.log_sigma_layer = log_sigma
    else:
        # Without a standard deviation, sampling must return the mean.
        constant = torch.full((1, actions.continuous_size), -math.inf) if log_sigma is None else log_sigma
        result.log_sigma = nn.Parameter(constant)
    return result


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """Make a layer with weight [out, in] and bias [out], without drawing random numbers for an initialization."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight, layer.bias = nn.Parameter(weight.detach()), nn.Parameter(bias.detach())
    return layer
