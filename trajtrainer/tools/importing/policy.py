"""The policy of another trainer: a network in torch's own layers that acts and draws itself, as an ``Actor`` does.

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
"""Dimensions of an image: channels, height and width."""
UNLIMITED: Final = 1e9
"""The ``clip`` of statistics that limit nothing. Not infinity, which not every importer of ONNX reads."""


class HeadKind(enum.Enum):
    """What the last layer gives."""

    MEANS = "means"  # of actions, clipped to the bounds of the action space
    SQUASHED = "squashed means"  # of actions before their tanh
    LOGITS = "logits"  # of discrete actions
    VALUES = "values"  # of discrete actions, of which the best is taken


@dataclass(frozen=True, slots=True)
class Head:
    """The last layer, and how actions come from it.

    Attributes:
        kind: of its outputs.
        layer: E to C or D.
        log_sigma: of the Gaussians: [1, C]; with gSDE a matrix [E, C]; a layer where it depends on the state; None
            where nothing is drawn.
        bounds: of the action space, low and high [C] each; None if the file does not say them.
        branches: as far as the file says them.
    """

    kind: HeadKind
    layer: nn.Linear
    log_sigma: Tensor | nn.Linear | None = None
    bounds: tuple[Tensor, Tensor] | None = None
    branches: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ObservationStatistics:
    """What observations are normalized by: ``clip((x - mean) / sqrt(variance), -clip, clip)``, f32 [n] each.

    ``count`` is the number of observations behind it; None if it is not known.
    """

    mean: Tensor
    variance: Tensor
    clip: float = UNLIMITED
    count: float | None = None


@dataclass(frozen=True, slots=True)
class Hints:
    """What the user says because the file does not.

    Attributes:
        activation: one of ``ACTIVATIONS``.
        statistics: of ``VecNormalize``.
        image_scale: the largest value of a pixel in training.
        bounds: of the action space, low and high.
        scores: what an ONNX model gives for discrete actions: LOGITS or VALUES.
    """

    activation: str | None = None
    statistics: ObservationStatistics | None = None
    image_scale: float | None = None
    bounds: tuple[float, float] | None = None
    scores: HeadKind | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """What a policy sees: one entry of a Dict of observations, or all that an agent observes.

    Attributes:
        name: of the entry; None for all.
        observed: the shape of its space; None if the file does not say.
        scale: what a byte of 255 was in training, of a vector or a picture; it is 1 in Unity, and in environments for
            Gymnasium. None if there are no bytes, or the file does not say.
        layers: of a picture; a vector has none.
    """

    name: str | None = None
    observed: tuple[int, ...] | None = None
    scale: float | None = None
    layers: nn.Sequential = field(default_factory=nn.Sequential)


@dataclass(frozen=True, slots=True)
class ForeignPolicy:
    """A policy as its file describes it.

    Attributes:
        trainer: that made it, in words.
        layers: linear ones, from the results of all parts side by side to the encoding [B, E].
        head: what follows.
        parts: what it sees, in the order in which its layers take them.
        statistics: that are in the file.
        step: of its training; 0 if the file does not say.
    """

    trainer: str
    layers: nn.Sequential
    head: Head
    parts: tuple[Part, ...] = (Part(),)
    statistics: ObservationStatistics | None = None
    step: int = 0

    @property
    def has_names(self) -> bool:
        """Whether it says which sensor each part is of."""
        return self.parts[0].name is not None


class Sensors(nn.Module):
    """From the observations of some sensors to what the first linear layer takes.

    Args:
        indices: of these sensors.
        shapes: of each.
        is_picture: there is one sensor, and it stays a picture. Others are laid side by side as vectors.
        scale: what the observations are multiplied by.
        statistics: of all numbers side by side.
        layers: of a picture.
    """

    def __init__(
        self,
        indices: Sequence[int],
        shapes: Sequence[Sequence[int]],
        *,
        is_picture: bool,
        scale: float,
        statistics: ObservationStatistics | None,
        layers: nn.Sequential,
    ) -> None:
        super().__init__()
        self.indices = indices
        self.shapes = [tuple(map(int, shape)) for shape in shapes]
        self.is_picture = is_picture
        self.scale = scale
        self.normalizer = None
        if statistics is not None:
            self.normalizer = Normalizer(len(statistics.mean), statistics.clip)
            self.normalizer.mean.copy_(statistics.mean)
            self.normalizer.variance.copy_(statistics.variance)
        self.layers = layers

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
    """``x`` and the tanh of a linear layer on it, side by side."""

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
    """What a policy sees, part by part, and layers on all of it."""

    def __init__(self, parts: Sequence[Sensors], layers: nn.Sequential) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.layers = layers

    def seen(self, obs: Sequence[Tensor]) -> Tensor:
        """What the first layer takes."""
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
        """Build observations [batch, *O] to the encoding [batch, E]; there is no memory."""
        x = graph.concat([graph.module(part, obs) for part in self.parts], axis=1)
        return _layers_to_onnx(graph, self.layers, x)


class GreedyHead(ActionHead):
    """Takes the action of the highest value, where an ``ActionHead`` draws one."""

    def discrete_to_onnx(self, graph: Graph, encoding: str, allowed: str, sampled: str, mode: str) -> None:
        assert self.discrete is not None
        best_to_onnx(graph, graph.linear(self.discrete, encoding), allowed, sampled, mode)


def best_to_onnx(graph: Graph, values: str, allowed: str, sampled: str, mode: str) -> None:
    """Build the number [batch, 1] of the highest of values [batch, D], for both kinds of actions."""
    graph.node("ArgMax", masked_to_onnx(graph, values, allowed), axis=1, keepdims=1, output=mode)
    graph.node("Identity", mode, output=sampled)


class ForeignActor(nn.Module):
    """A policy for the agents of one environment, with what an export needs of an ``Actor``."""

    memory_size = 0

    def __init__(self, body: ForeignBody, head: ActionHead) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def distribution(self, obs: Sequence[Tensor], mask: Tensor, memory: Tensor) -> tuple[ActionDistribution, Tensor]:
        """As ``Actor.distribution``; the memory, which has no numbers, is returned as it is."""
        return self.head(self.body(obs), mask), memory


def action_head(head: Head, actions: ActionSpec) -> ActionHead:
    """The head for the agents of an environment. Means are rescaled so that the bounds are -1 and 1."""
    is_gaussian = head.kind in (HeadKind.MEANS, HeadKind.SQUASHED)
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
    if not is_gaussian:
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
        # Without a standard deviation, what is drawn is the mean.
        constant = torch.full((1, actions.continuous_size), -math.inf) if log_sigma is None else log_sigma
        result.log_sigma = nn.Parameter(constant)
    return result


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A layer with weight [out, in] and bias [out], without a random number being drawn."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight, layer.bias = nn.Parameter(weight.detach()), nn.Parameter(bias.detach())
    return layer
