"""All parameters of an actor and a critic as parts of one tensor, those side by side that are used together.

Shapes: n networks, E hidden units, U units of a memory, C continuous actions, D sum of branch sizes, V reward signals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from trajtrainer.nn.actor import Actor
from trajtrainer.nn.conditioning import Layer, Mlp, linears
from trajtrainer.nn.critic import ValueNetwork
from trajtrainer.settings.network import Activation


class Linear(NamedTuple):
    """A linear layer: weight [out, in] and bias [out]; or of n networks [n, out, in] and [n, 1, out].

    Attributes:
        layer: the same as ``affine`` takes it.
    """

    weight: Tensor
    bias: Tensor
    layer: Layer

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor) -> Linear:
        """Add the view that ``affine`` takes."""
        return cls(weight, bias, (weight.transpose(-2, -1), bias))


class MemoryParts(NamedTuple):
    """Parameters of torch's LSTM, for n networks.

    weight_ih [n, 4U, E], weight_hh [n, 4U, U], both biases [n, 1, 4U].
    """

    by_input: Tensor
    by_hidden: Tensor
    input_bias: Tensor
    hidden_bias: Tensor


@dataclass(frozen=True, slots=True)
class BodyParts:
    """Parameters of n bodies of one shape.

    Attributes:
        layers: the first takes the observations, all give E.
        memory: behind the layers; None without one.
        activation: behind each layer.
    """

    layers: list[Linear]
    memory: MemoryParts | None
    activation: Activation


@dataclass(frozen=True, slots=True)
class Parts:
    """All parameters, or all gradients.

    Attributes:
        bodies: n = 2, the actor's first.
        policy: gives C + D numbers.
        values: gives V numbers.
        log_sigma: [1, C]; C may be 0.
        homes: each parameter and its part, which is contiguous.
    """

    bodies: BodyParts
    policy: Linear
    values: Linear
    log_sigma: Tensor
    homes: list[tuple[Tensor, Tensor]]


def parts(flat: Tensor, actor: Actor, critic: ValueNetwork) -> Parts:
    """Return where everything stands in ``flat``, as views. It holds as many numbers as the networks' parameters."""
    homes: list[tuple[Tensor, Tensor]] = []
    rest = flat

    def place(parameters: Sequence[Tensor], *shape: int) -> Tensor:
        """Give the parameters the next parts and return these in the shape that they have together."""
        nonlocal rest
        together, rest = rest.tensor_split((sum(parameter.numel() for parameter in parameters),))
        found = together.split_with_sizes([parameter.numel() for parameter in parameters])
        homes.extend((each, part.view(each.shape)) for each, part in zip(parameters, found, strict=True))
        return together.view(shape)

    def stacked(pair: Sequence[Tensor]) -> Tensor:
        """Place weights as [2, out, in], biases as [2, 1, out]."""
        size = pair[0].shape
        return place(pair, 2, *((1,) if len(size) == 1 else ()), *size)

    def joined(side: Sequence[nn.Linear]) -> Linear:
        """Place layers of one network so that they are one layer."""
        weights, biases = [linear.weight for linear in side], [linear.bias for linear in side]
        return Linear.of(place(weights, -1, side[0].in_features), place(biases, -1))

    layers = [
        Linear.of(stacked([one.weight, other.weight]), stacked([one.bias, other.bias]))
        for one, other in zip(mlp_of(actor).linears, mlp_of(critic).linears, strict=True)
    ]
    memory, head = None, actor.head
    if actor.body.memory is not None and critic.body.memory is not None:
        lstms = actor.body.memory.lstm.parameters(), critic.body.memory.lstm.parameters()
        memory = MemoryParts(*(stacked(pair) for pair in zip(*lstms, strict=True)))  # in torch's documented order
    policy = joined([linear for linear in (head.mu, head.discrete) if linear is not None])
    values = joined(linears(critic.heads.linears.values()))
    log_sigma = place([] if head.log_sigma is None else [head.log_sigma], 1, head.continuous_size)
    return Parts(BodyParts(layers, memory, mlp_of(actor).activation), policy, values, log_sigma, homes)


def mlp_of(network: Actor | ValueNetwork) -> Mlp:
    """Return the layers of a network whose body is an MLP."""
    layers = network.body.layers
    assert isinstance(layers, Mlp)
    return layers
