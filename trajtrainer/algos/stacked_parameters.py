"""All parameters of an actor and a critic as parts of one tensor, those side by side that are used together.

Letters: n networks, E hidden units, U units of a memory, C continuous actions, D sum of branch sizes, V reward signals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from trajtrainer.nn.actor import Actor
from trajtrainer.nn.conditioning import Mlp
from trajtrainer.nn.critic import Critic

Linear = tuple[Tensor, Tensor]  # weight and bias


class Layer(NamedTuple):
    """Of n networks: the weight [n, out, in], the same seen as [n, in, out], and the bias [n, 1, out]."""

    weight: Tensor
    transposed: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Of torch's LSTM, for n networks: weight_ih [n, 4U, E], weight_hh [n, 4U, U], both biases [n, 1, 4U]."""

    by_input: Tensor
    by_hidden: Tensor
    input_bias: Tensor
    hidden_bias: Tensor


@dataclass(frozen=True, slots=True)
class BodyParts:
    """Of n bodies of one shape.

    Attributes:
        layers: the first takes the observations, all give E.
        memory: behind the layers; None without one.
    """

    layers: list[Layer]
    memory: MemoryParts | None


@dataclass(frozen=True, slots=True)
class Parts:
    """All parameters, or all gradients.

    Attributes:
        bodies: n = 2, the actor's first.
        policy: weight [C + D, E] and bias [C + D].
        values: weight [V, E] and bias [V].
        log_sigma: [1, C]; C may be 0.
    """

    bodies: BodyParts
    policy: Linear
    values: Linear
    log_sigma: Tensor


def parts(flat: Tensor, actor: Actor, critic: Critic) -> Parts:
    """Where everything stands in ``flat``, as views. It has one number per number of the two networks' parameters."""
    head, signals, encoding = actor.head, len(critic.signals), actor.body.encoding_size
    decisions = head.continuous_size + sum(head.branches)
    shapes: list[tuple[int, ...]] = []
    for linear in _linears(actor):
        shapes += [(2, linear.out_features, linear.in_features), (2, 1, linear.out_features)]
    num_layers = len(shapes) // 2
    if actor.body.memory is not None:
        lstm = actor.body.memory.lstm
        gates = 4 * lstm.hidden_size
        shapes += [(2, gates, lstm.input_size), (2, gates, lstm.hidden_size), (2, 1, gates), (2, 1, gates)]
    shapes += [(decisions, encoding), (decisions,), (signals, encoding), (signals,), (1, head.continuous_size)]
    found = flat.split_with_sizes([math.prod(shape) for shape in shapes])
    views = [part.view(shape) for part, shape in zip(found, shapes, strict=True)]
    layers, memory, heads = views[: 2 * num_layers], views[2 * num_layers : -5], views[-5:]
    pairs = zip(layers[::2], layers[1::2], strict=True)
    bodies = BodyParts(
        [Layer(weight, weight.transpose(1, 2), bias) for weight, bias in pairs],
        MemoryParts(*memory) if memory else None,
    )
    return Parts(bodies, (heads[0], heads[1]), (heads[2], heads[3]), heads[4])


def homes(places: Parts, actor: Actor, critic: Critic) -> list[tuple[Tensor, Tensor]]:
    """Each parameter and its part, which is contiguous."""
    found = _body_homes(places.bodies, actor, critic)
    head = actor.head
    for (weight, bias), linears in (
        (places.policy, [linear for linear in (head.mu, head.discrete) if linear is not None]),
        (places.values, [linear for linear in critic.heads.linears.values() if isinstance(linear, nn.Linear)]),
    ):
        sizes = [linear.out_features for linear in linears]
        found += zip([linear.weight for linear in linears], weight.split_with_sizes(sizes), strict=True)
        found += zip([linear.bias for linear in linears], bias.split_with_sizes(sizes), strict=True)
    return found + ([] if head.log_sigma is None else [(head.log_sigma, places.log_sigma)])


def _body_homes(bodies: BodyParts, actor: Actor, critic: Critic) -> list[tuple[Tensor, Tensor]]:
    found: list[tuple[Tensor, Tensor]] = []
    networks: tuple[Actor | Critic, ...] = (actor, critic)
    for number, network in enumerate(networks):
        for layer, linear in zip(bodies.layers, _linears(network), strict=True):
            found += [(linear.weight, layer.weight[number]), (linear.bias, layer.bias[number, 0])]
        memory = network.body.memory
        if memory is not None and bodies.memory is not None:
            place = bodies.memory
            own = [place.by_input[number], place.by_hidden[number]]
            own += [place.input_bias[number, 0], place.hidden_bias[number, 0]]
            found += zip(memory.lstm.parameters(), own, strict=True)  # in torch's documented order
    return found


def _linears(network: Actor | Critic) -> list[nn.Linear]:
    layers = network.body.layers
    assert isinstance(layers, Mlp)
    return [layer for layer in layers.layers if isinstance(layer, nn.Linear)]
